"""Accelerators and model shapes, in physical units, with where the figures come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from arrol.errors import ArrolError, check_integer, check_range

BYTES_PER_VALUE = 2  #: bfloat16, for weights and for the KV cache
GIBIBYTE = 2**30

Value = TypeVar("Value")


@dataclass(frozen=True)
class Accelerator:
    """What one accelerator can do at best.

    Attributes:
        name: as in :data:`ACCELERATORS`.
        flops: dense bfloat16 arithmetic [FLOP/s] (data sheets print twice that, for sparsity).
        bandwidth: of its memory [B/s].
        memory: [B]. The data sheets' GB of memory are 2^30 bytes (an A100 "80 GB" shows
            81,920 MiB); their GB/s are 10^9.
        source: where the figures come from.
    """

    name: str
    flops: float
    bandwidth: float
    memory: float
    source: str

    def __post_init__(self) -> None:
        for field in ("flops", "bandwidth", "memory"):
            check_range(f"accelerator {field}", getattr(self, field), low=0.0, open_low=True)


@dataclass(frozen=True)
class ModelShape:
    """A dense decoder-only transformer with grouped-query attention and a gated MLP.

    Attributes:
        name: as in :data:`MODELS`.
        layers: decoder layers.
        hidden: width of the residual stream.
        intermediate: width of the MLP.
        heads, kv_heads, head_dim: of attention.
        vocab: rows of the embedding.
        tied: the embedding is the output layer too.
        qk_norm: queries and keys are normalised per head (Qwen3), with 2·head_dim weights a layer.
        source: where the figures come from.
    """

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    qk_norm: bool
    source: str

    def __post_init__(self) -> None:
        for field in _MODEL_SIZES:
            check_integer(f"model {field}", getattr(self, field), low=1)
        if self.heads % self.kv_heads:
            raise ArrolError(
                f"model kv_heads is {self.kv_heads}; allowed is a divisor of heads = {self.heads}."
            )

    @property
    def layer_matrix_parameters(self) -> int:
        """Weights of the matrices of one layer: attention in and out, MLP up, gate and down."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def parameters(self) -> int:
        """All weights, norms included."""
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        return self.layers * (self.layer_matrix_parameters + norms) + embeddings + self.hidden

    @property
    def matrix_parameters(self) -> int:
        """Weights that a token is multiplied with: the layers' matrices and the output layer.

        An embedding that is not the output layer is left out: one of its rows is looked up.
        """
        return self.layers * self.layer_matrix_parameters + self.vocab * self.hidden

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take, bfloat16 [B]."""
        return BYTES_PER_VALUE * self.parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token over all layers, bfloat16 [B]."""
        return 2 * BYTES_PER_VALUE * self.layers * self.kv_heads * self.head_dim


_MODEL_SIZES = ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocab")
_ACCELERATOR_SIZES = ("flops", "bandwidth", "memory")


def _accelerators(*accelerators: Accelerator) -> dict[str, Accelerator]:
    return {accelerator.name: accelerator for accelerator in accelerators}


def _models(*models: ModelShape) -> dict[str, ModelShape]:
    return {model.name: model for model in models}


def _qwen3(name: str, sizes: tuple[int, int, int, int], tied: bool) -> ModelShape:
    layers, hidden, intermediate, heads = sizes
    return ModelShape(
        name, layers, hidden, intermediate, heads,
        kv_heads=8, head_dim=128, vocab=151_936, tied=tied, qk_norm=True,
        source=f"config.json of huggingface.co/Qwen/{name}",
    )  # fmt: skip


ACCELERATORS = _accelerators(
    Accelerator("A100", 312e12, 2.039e12, 80 * GIBIBYTE, "NVIDIA A100 80GB SXM data sheet"),
    Accelerator("H100", 989.5e12, 3.35e12, 80 * GIBIBYTE, "NVIDIA H100 SXM data sheet"),
    Accelerator("H200", 989.5e12, 4.8e12, 141 * GIBIBYTE, "NVIDIA H200 SXM data sheet"),
    Accelerator("GH200", 990e12, 4.0e12, 96 * GIBIBYTE, "NVIDIA GH200 96GB HBM3 data sheet"),
)

MODELS = _models(
    _qwen3("Qwen3-1.7B", (28, 2048, 6144, 16), tied=True),
    _qwen3("Qwen3-4B", (36, 2560, 9728, 32), tied=True),
    _qwen3("Qwen3-8B", (36, 4096, 12_288, 32), tied=False),
    ModelShape(
        "Llama-3.2-1B", 16, 2048, 8192, 32, kv_heads=8, head_dim=64, vocab=128_256, tied=True,
        qk_norm=False, source="config.json of huggingface.co/meta-llama/Llama-3.2-1B",
    ),
)  # fmt: skip


def find_accelerator(text: str) -> Accelerator:
    """An accelerator by name, or by its figures: ``flops=1e15,bandwidth=4e12,memory=1e11``.

    Raises:
        ArrolError: neither a known name nor all three figures.
    """
    found = _by_name(ACCELERATORS, text)
    if found is not None:
        return found
    sizes = _sizes("accelerator", text, _ACCELERATOR_SIZES, tuple(ACCELERATORS))
    return Accelerator(name=text, **sizes, source="given by hand")


def find_model(text: str) -> ModelShape:
    """A model by name, or by its sizes: ``layers=28,hidden=2048,…,vocab=151936``.

    A shape given by its sizes needs all seven, and has a tied embedding and no per-head norms.

    Raises:
        ArrolError: neither a known name nor all sizes.
    """
    found = _by_name(MODELS, text)
    if found is not None:
        return found
    given = _sizes("model", text, _MODEL_SIZES, tuple(MODELS))
    sizes = {name: int(value) if value.is_integer() else value for name, value in given.items()}
    return ModelShape(name=text, **sizes, tied=True, qk_norm=False, source="given by hand")  # type: ignore[arg-type]


def _by_name(known: dict[str, Value], text: str) -> Value | None:
    wanted = text.strip().rsplit("/")[-1].casefold()
    return next((value for name, value in known.items() if name.casefold() == wanted), None)


def _sizes(
    kind: str, text: str, names: tuple[str, ...], known: tuple[str, ...]
) -> dict[str, float]:
    """The figures of ``name=value,…``, all of ``names`` and no other."""
    refusal = ArrolError(
        f"{kind} is {text!r}; allowed is one of {', '.join(known)}, "
        f"or all of {', '.join(f'{name}=…' for name in names)} separated by commas."
    )
    pairs = [part.partition("=") for part in text.split(",")]
    if sorted(name.strip() for name, _, _ in pairs) != sorted(names):
        raise refusal
    try:
        return {name.strip(): float(value) for name, _, value in pairs}
    except ValueError:
        raise refusal from None
