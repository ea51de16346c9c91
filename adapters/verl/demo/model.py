"""The demo's model: a Qwen3 of 115,000 parameters over single characters, not trained yet."""

from __future__ import annotations

from typing import Any

TOKENS = 101
"""Ids that the tokenizer has a token for."""

VOCABULARY = 128
"""Ids that the model has logits for: as in large models, some more than the tokenizer uses."""

_SPECIAL = ("<|pad|>", "<|eos|>", "<|unknown|>", "<|user|>", "<|assistant|>")

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer() -> Any:
    """One id for each printable ASCII character, newline and special token; a chat template."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    characters = [chr(code) for code in range(32, 127)] + ["\n"]
    ids = {token: index for index, token in enumerate([*_SPECIAL, *characters])}
    backend = Tokenizer(models.BPE(vocab=ids, merges=[], unk_token=_SPECIAL[2]))
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=_SPECIAL[0],
        eos_token=_SPECIAL[1],
        unk_token=_SPECIAL[2],
        additional_special_tokens=list(_SPECIAL[3:]),
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    return tokenizer


def make_model(seed: int) -> Any:
    """A Qwen3 with random weights: 2 layers, 64 hidden units, float32."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)
