"""What one step of a batched decoder costs, in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from arrol.errors import ArrolError, check_range
from arrol.sim.hardware import GIBIBYTE, Accelerator, ModelShape

FloatArray = NDArray[np.float64]
Amount = TypeVar("Amount", float, FloatArray)

MAX_KNEE = 32.0  #: within 2.2% of the sharpest knee; higher powers of a nanosecond underflow

# Matrix kernels. With these four, the layer times measured on A100 and H100 that
# bench/step_time_fit.py reads come out within 5% and 8% on average (1 to 4,096 tokens).
BANDWIDTH_EFFICIENCY = 0.80  #: share of the data sheet's bandwidth
MFU = 0.75  #: share of the data sheet's arithmetic
KNEE = 1.24  #: sharpness r of the roofline's knee
LAYER_OFFSET = 15e-6  #: start and tail of the four matrix kernels of a layer [s]

# The engine around them: priors, to be varied, as they are a matter of software. A vLLM of 2024
# left the GPU idle for 4 ms a step (github.com/vllm-project/vllm/issues/6854), engines that
# schedule ahead leave well under 1 ms. One of the scheduler's passes over 256 sequences took
# 0.29 ms (github.com/vllm-project/vllm/pull/46112), so 1 µs each; there are a few such passes, and
# the softmax over 150,000 words takes another 1 µs.
FIXED = 3e-3  #: [s]
PER_SEQUENCE = 5e-6  #: [s]

RESERVE = 3 * GIBIBYTE  #: an allowance for activations, logits and captured graphs [B]


def roofline(streaming: float | FloatArray, arithmetic: Amount, knee: float) -> Amount:
    """Smooth roofline (m^r + a^r)^(1/r) of the time m to stream weights and a to multiply [s].

    It lies between max(m, a), which it tends to as r → ∞, and m + a, which it is at r = 1.
    """
    seconds: Amount = (streaming**knee + arithmetic**knee) ** (1.0 / knee)
    return seconds


@dataclass(frozen=True, slots=True)
class StepTime:
    """Time of one engine step with n decoding sequences that hold K KV tokens:

        t(n, K) = t0 + t_s·n + g(n) + kv_read·K,    g(n) = (m^r + (c·n)^r)^(1/r) + o.

    Prefill tokens of the step ride along in g, as tokens to multiply; their attention and
    their share of the KV reads are left out.

    Attributes:
        fixed: t0, what every step costs: scheduling, input preparation, launch, sampling [s].
        per_sequence: t_s, what every decoding sequence adds to that [s].
        streaming: m, reading all weights once [s].
        arithmetic: c, multiplying one token with all weights [s].
        knee: r in [1, 32], sharpness of the turn from reading to multiplying.
        offset: o, what the matrix kernels cost with no work at all [s].
        kv_read: reading keys and values of one token [s].
    """

    fixed: float
    per_sequence: float
    streaming: float
    arithmetic: float
    knee: float
    offset: float
    kv_read: float

    def __post_init__(self) -> None:
        for field in fields(self):
            low, high = (1.0, MAX_KNEE) if field.name == "knee" else (0.0, math.inf)
            check_range(f"step time {field.name}", getattr(self, field.name), low, high)

    @classmethod
    def of(
        cls,
        model: ModelShape,
        accelerator: Accelerator,
        bandwidth_efficiency: float = BANDWIDTH_EFFICIENCY,
        mfu: float = MFU,
        knee: float = KNEE,
        layer_offset: float = LAYER_OFFSET,
        fixed: float = FIXED,
        per_sequence: float = PER_SEQUENCE,
    ) -> StepTime:
        """The step time of ``model`` on one ``accelerator``, from their sizes.

        Weights are streamed, and keys and values read, at ``bandwidth_efficiency`` of the
        data sheet's bandwidth; a token takes two operations a weight at ``mfu`` of its
        arithmetic; each layer adds ``layer_offset`` [s].

        Raises:
            ArrolError: an efficiency outside (0, 1], a negative time, or a knee outside [1, 32].
        """
        check_range("bandwidth_efficiency", bandwidth_efficiency, 0.0, 1.0, open_low=True)
        check_range("mfu", mfu, 0.0, 1.0, open_low=True)
        bandwidth = accelerator.bandwidth * bandwidth_efficiency
        return cls(
            fixed=fixed,
            per_sequence=per_sequence,
            streaming=2 * model.matrix_parameters / bandwidth,
            arithmetic=2 * model.matrix_parameters / (accelerator.flops * mfu),
            knee=knee,
            offset=layer_offset * model.layers,
            kv_read=model.kv_bytes_per_token / bandwidth,
        )

    def linear(self, tokens: Amount) -> Amount:
        """g(n): all matrix products of ``tokens`` tokens [s]."""
        return roofline(self.streaming, self.arithmetic * tokens, self.knee) + self.offset

    def step(
        self, sequences: Amount, kv_tokens: Amount, prefill_tokens: Amount | float = 0
    ) -> Amount:
        """Time of one step [s]: ``sequences`` decode one token each, over ``kv_tokens`` of KV.

        Takes numbers, or arrays of one shape.
        """
        return (
            self.fixed
            + self.per_sequence * sequences
            + self.linear(sequences + prefill_tokens)
            + self.kv_read * kv_tokens
        )

    def steps(self, count: int, sequences: int, kv_tokens: int) -> float:
        """Time of ``count`` pure decode steps [s], the first of them over ``kv_tokens`` of KV.

        K grows by n a step, so the sum over steps is

            d·(t0 + t_s·n + g(n)) + kv_read·(d·K + n·d(d − 1)/2).
        """
        per_step = self.fixed + self.per_sequence * sequences + self.linear(sequences)
        kv_tokens_read = count * kv_tokens + sequences * (count * (count - 1) // 2)
        return count * per_step + self.kv_read * kv_tokens_read


def kv_capacity(
    model: ModelShape,
    accelerator: Accelerator,
    utilization: float = 0.9,
    reserve: float = RESERVE,
) -> int:
    """KV tokens that fit beside the weights.

    Args:
        model: whose weights are resident, and whose KV is stored.
        accelerator: whose memory it is.
        utilization: share of the memory that the engine may use (vLLM's
            ``gpu_memory_utilization``, .9 by default; a trainer on the same card needs some too).
        reserve: of that share, kept for activations, logits and captured graphs [B].

    Raises:
        ArrolError: not a single token fits.
    """
    check_range("utilization", utilization, 0.0, 1.0, open_low=True)
    check_range("reserve", reserve, 0.0)
    free = accelerator.memory * utilization - model.weight_bytes - reserve
    tokens = int(free // model.kv_bytes_per_token)
    if tokens < 1:
        raise ArrolError(
            f"utilization is {utilization!r}; allowed is a share of {accelerator.name}'s memory "
            f"that holds {model.name}'s weights, the reserve and one token of KV."
        )
    return tokens
