"""A vLLM plugin: the engine's linear layers keep their weights, so that verl can replace them.

On the CPU, vLLM packs each linear layer's weight after loading and drops the original. A later
weight sync then finds no parameter to load into; or, for the output layer, loads into one that is
no longer used. Loaded in every process of the engine through the entry point that
:mod:`arrol.adapters.verl.demo.processes` writes.
"""

from __future__ import annotations

import os
from typing import Any


def keep_weights() -> None:
    """Have every linear layer of this process compute from its own ``weight``, never packed."""
    from vllm.model_executor.layers import utils

    # verl's full_determinism asks for kernels that don't depend on the rest of the batch; those
    # that vLLM has are for GPUs, and its engine fails here where it tries to use them.
    os.environ["VLLM_BATCH_INVARIANT"] = "0"
    utils.dispatch_cpu_unquantized_gemm = _use_plain_weight


def _use_plain_weight(layer: Any, remove_weight: bool) -> None:
    import torch

    layer.cpu_linear = torch.nn.functional.linear
