"""Fit the step-time model to measured times: of matrix kernels, or of an engine's steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares

from arrol.errors import ArrolError, check_range
from arrol.sim.cost import (
    BANDWIDTH_EFFICIENCY,
    KNEE,
    LAYER_OFFSET,
    MAX_KNEE,
    MFU,
    StepTime,
    roofline,
)
from arrol.sim.hardware import BYTES_PER_VALUE, Accelerator

FloatArray = NDArray[np.float64]

KERNELS = ["attn_pre_proj_ms", "attn_post_proj_ms", "mlp_up_proj_ms", "mlp_down_proj_ms"]
SHAPE = ["n_embd", "n_ffn", "n_head", "n_kv_head", "gated"]


def relative_errors(predicted_N: FloatArray, measured_N: FloatArray) -> FloatArray:
    """|predicted/measured − 1| of each."""
    return np.abs(predicted_N / measured_N - 1.0)


@dataclass(frozen=True)
class KernelFit:
    """The four numbers that the matrix kernels of one accelerator share over all layer shapes.

    Attributes:
        bandwidth_efficiency: share of the data sheet's bandwidth, in (0, 1].
        mfu: share of the data sheet's arithmetic, in (0, 1].
        knee: r.
        layer_offset: start and tail of the kernels of a layer [s].
    """

    bandwidth_efficiency: float = BANDWIDTH_EFFICIENCY
    mfu: float = MFU
    knee: float = KNEE
    layer_offset: float = LAYER_OFFSET

    def layer_seconds(
        self, accelerator: Accelerator, weights_N: FloatArray, tokens_N: FloatArray
    ) -> FloatArray:
        """g(n) of one layer [s], for layers of so many weights and steps of so many tokens."""
        bandwidth = accelerator.bandwidth * self.bandwidth_efficiency
        streaming_N = BYTES_PER_VALUE * weights_N / bandwidth
        arithmetic_N = 2.0 * weights_N * tokens_N / (accelerator.flops * self.mfu)
        return roofline(streaming_N, arithmetic_N, self.knee) + self.layer_offset


def fit_kernels(
    accelerator: Accelerator, weights_N: FloatArray, tokens_N: FloatArray, seconds_N: FloatArray
) -> KernelFit:
    """The kernel numbers that fit measured layer times best: least squares of log ratios.

    Args:
        accelerator: that the times were measured on.
        weights_N: weights of the layer's four matrices (on one rank).
        tokens_N: tokens multiplied with them.
        seconds_N: measured times [s].
    """

    def residuals(values: FloatArray) -> FloatArray:
        efficiency, mfu, knee, microseconds = values.tolist()
        fit = KernelFit(efficiency, mfu, knee, microseconds * 1e-6)
        return np.log(fit.layer_seconds(accelerator, weights_N, tokens_N) / seconds_N)

    start = (BANDWIDTH_EFFICIENCY, MFU, KNEE, LAYER_OFFSET * 1e6)
    bounds = ([0.01, 0.01, 1.0, 0.0], [1.0, 1.0, MAX_KNEE, 1000.0])
    efficiency, mfu, knee, microseconds = least_squares(residuals, start, bounds=bounds).x.tolist()
    return KernelFit(efficiency, mfu, knee, microseconds * 1e-6)


def read_layer_times(path: Path) -> pd.DataFrame:
    """Measured layer times in the layout of Vidur's profiling data (github.com/microsoft/vidur).

    Rows of the same layer, rank count and token count are joined by their median.

    Returns:
        columns gpu, model, tp, tokens, weights (of the four matrices, on one rank) and seconds
        (of the four kernels together).
    """
    by = ["gpu", "model", "tp", "num_tokens", *SHAPE]
    measured = pd.read_csv(path).groupby(by, as_index=False)[KERNELS].median()
    heads = 2 * (measured["n_head"] + measured["n_kv_head"])
    attention = measured["n_embd"] * (measured["n_embd"] // measured["n_head"]) * heads
    mlp = measured["n_embd"] * measured["n_ffn"] * np.where(measured["gated"], 3, 2)
    return pd.DataFrame(
        {
            "gpu": measured["gpu"],
            "model": measured["model"],
            "tp": measured["tp"],
            "tokens": measured["num_tokens"].astype(float),
            "weights": (attention + mlp) / measured["tp"],
            "seconds": measured[KERNELS].sum(axis=1) * 1e-3,
        }
    )


@dataclass(frozen=True)
class StepMeasurement:
    """The measured time of one engine step.

    Attributes:
        sequences: n, that decoded.
        kv_tokens: K, that they held.
        seconds: measured [s].
        prefill_tokens: that rode along.
    """

    sequences: float
    kv_tokens: float
    seconds: float
    prefill_tokens: float = 0.0


def fit_step_time(measurements: Sequence[StepMeasurement]) -> StepTime:
    """The step time that fits an engine's measured steps best: least squares of relative errors.

    What steps alone can't tell apart: t0 and o, which only occur as a sum (returned as ``fixed``,
    with ``offset`` 0). What they tell apart only through the knee, so badly where n doesn't reach
    it or the times are noisy: t0 and m; t_s and c (steps with prefill tokens help there). The
    predicted times are good long before each part is.

    Raises:
        ArrolError: fewer measurements than the six unknowns, or one that is no time or amount.
    """
    unknowns = 6
    if len(measurements) < unknowns:
        raise ArrolError(f"measurements are {len(measurements)}; allowed are at least {unknowns}.")
    for measurement in measurements:
        check_range("measured seconds", measurement.seconds, 0.0, open_low=True)
        for name in ("sequences", "kv_tokens", "prefill_tokens"):
            check_range(f"measured {name}", getattr(measurement, name), 0.0)
    columns = np.array([astuple(measurement) for measurement in measurements], dtype=float).T
    sequences_N, kv_tokens_N, seconds_N, prefill_N = columns

    # In units of the mean time and the mean amounts, every unknown is of order one.
    second = seconds_N.mean()
    sequence = max(1.0, sequences_N.mean())
    token = max(1.0, (sequences_N + prefill_N).mean())
    kv_token = max(1.0, kv_tokens_N.mean())
    units = second / np.array([1.0, sequence, 1.0, token, second, kv_token])

    def step_time(values: FloatArray) -> StepTime:
        fixed, per_sequence, streaming, arithmetic, knee, kv_read = (values * units).tolist()
        return StepTime(fixed, per_sequence, streaming, arithmetic, knee, 0.0, kv_read)

    def residuals(values: FloatArray) -> FloatArray:
        predicted_N = step_time(values).step(sequences_N, kv_tokens_N, prefill_N)
        return np.asarray(predicted_N / seconds_N - 1.0)

    bounds = ([0.0, 0.0, 0.0, 0.0, 1.0, 0.0], [np.inf, np.inf, np.inf, np.inf, MAX_KNEE, np.inf])
    starts = [np.array([0.3, 0.1, 0.3, 0.3, knee, 0.3]) for knee in (1.2, 2.0, 5.0)]
    fits = [least_squares(residuals, start, bounds=bounds, max_nfev=2000) for start in starts]
    return step_time(min(fits, key=lambda fit: float(fit.cost)).x)
