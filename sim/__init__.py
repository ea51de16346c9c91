"""A simulator of batched decoding that carries out ARRoL's pruning plans."""
