"""Claim: the step-time model predicts layer times of models it has not seen within 15%.

Fits the four kernel numbers of :class:`arrol.sim.fit.KernelFit`, for each GPU by itself, on some
models' measured layer times, and predicts those of others:

* hold-out: the two smallest Llamas from all other models;
* leave one out: each model from all others (Llama-2-70b and Llama-3-70B have one shape).

An error is |predicted/measured − 1|. Prints each model's mean by number of ranks, over all token
counts and over those of decoding, and exits with 1 if a GPU's hold-out mean is above 15%. The
largest errors are jumps of real kernels (tiles, changes of algorithm), which a smooth knee lacks.
On H100 the bandwidth ends at its bound, 1: offset and bandwidth trade against each other there.

    python bench/step_time_fit.py [gemm_times.csv]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from arrol.sim.fit import KernelFit, fit_kernels, read_layer_times, relative_errors
from arrol.sim.hardware import find_accelerator

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "gemm_times.csv"
HELD_OUT = ["meta-llama/Llama-2-7b-hf", "meta-llama/Meta-Llama-3-8B"]
MAX_TOKENS = 4096  #: the largest count that all models were measured at
DECODE_TOKENS = 256  #: a step of pure decoding, at vLLM's default number of sequences
LIMIT = 0.15


def fit(rows: pd.DataFrame) -> KernelFit:
    """The kernel numbers of one GPU's rows."""
    accelerator = find_accelerator(rows["gpu"].iloc[0])
    return fit_kernels(
        accelerator,
        rows["weights"].to_numpy(),
        rows["tokens"].to_numpy(),
        rows["seconds"].to_numpy(),
    )


def errors(kernels: KernelFit, rows: pd.DataFrame) -> np.ndarray:
    """Absolute relative error of each of one GPU's rows."""
    accelerator = find_accelerator(rows["gpu"].iloc[0])
    predicted = kernels.layer_seconds(
        accelerator, rows["weights"].to_numpy(), rows["tokens"].to_numpy()
    )
    return relative_errors(predicted, rows["seconds"].to_numpy())


def errors_by_model(rows: pd.DataFrame, fits: dict[str, KernelFit]) -> pd.DataFrame:
    """Errors of each model in ``fits`` in percent: means by number of ranks, and over all rows."""
    table = {}
    for model, kernels in fits.items():
        mine = rows[rows["model"] == model]
        all_N = errors(kernels, mine)
        table[model] = {
            **{f"tp={tp}": errors(kernels, part).mean() for tp, part in mine.groupby("tp")},
            "mean": all_N.mean(),
            "95%": np.quantile(all_N, 0.95),
            f"<={DECODE_TOKENS} tokens": all_N[mine["tokens"] <= DECODE_TOKENS].mean(),
        }
    return 100.0 * pd.DataFrame(table).T


def describe(kernels: KernelFit) -> str:
    """The four numbers in one line."""
    return (
        f"bandwidth {kernels.bandwidth_efficiency:.3f}, MFU {kernels.mfu:.3f}, "
        f"knee {kernels.knee:.2f}, offset {kernels.layer_offset * 1e6:.1f} µs a layer"
    )


def report(gpu: str, rows: pd.DataFrame) -> float:
    """Print one GPU's figures; its hold-out error."""
    print(f"\n{gpu}: {len(rows)} layer times, 1 to {MAX_TOKENS} tokens, medians of repeats")
    held_out = report_hold_out(rows)
    report_leave_one_out(rows)
    together = fit(rows)
    defaults = KernelFit()
    print(f"\nall models together: {errors(together, rows).mean():.1%}, {describe(together)}")
    print(f"simulator's defaults: {errors(defaults, rows).mean():.1%}, {describe(defaults)}")
    return held_out


def report_hold_out(rows: pd.DataFrame) -> float:
    """Print the prediction of the held-out models; its mean error."""
    is_held_out = rows["model"].isin(HELD_OUT)
    seen, unseen = rows[~is_held_out], rows[is_held_out]
    kernels = fit(seen)
    print(f"fit on {', '.join(seen['model'].unique())}:\n  {describe(kernels)}")
    print("\nheld-out error [%]")
    table = errors_by_model(unseen, dict.fromkeys(unseen["model"].unique(), kernels))
    print(table.round(1).to_string())
    mean = float(errors(kernels, unseen).mean())
    print(
        f"held-out mean {mean:.1%} (at most {LIMIT:.0%}), seen {errors(kernels, seen).mean():.1%}"
    )
    return mean


def report_leave_one_out(rows: pd.DataFrame) -> None:
    """Print the prediction of each model from all others."""
    models = rows["model"].unique()
    table = errors_by_model(rows, {model: fit(rows[rows["model"] != model]) for model in models})
    print("\nleave-one-model-out error [%]")
    print(table.round(1).to_string())
    print(f"mean over models {table['mean'].mean():.1f}%, worst {table['mean'].max():.1f}%")


def main() -> int:
    """Report every GPU; the exit status."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    if not path.exists():
        print(f"step_time_fit: {path} is absent; give the path of Vidur's layer times.")
        return 2
    layers = read_layer_times(path)
    layers = layers[layers["tokens"] <= MAX_TOKENS]
    return int(max(report(gpu, rows) for gpu, rows in layers.groupby("gpu")) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
