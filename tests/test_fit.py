"""Fitting the step time: known numbers recovered from synthetic times, real layers predicted."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from arrol.errors import ArrolError
from arrol.sim.cost import StepTime
from arrol.sim.fit import (
    KernelFit,
    StepMeasurement,
    fit_kernels,
    fit_step_time,
    read_layer_times,
    relative_errors,
)
from arrol.sim.hardware import ACCELERATORS, MODELS, find_accelerator

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "gemm_times.csv"

ENGINES = [
    StepTime.of(MODELS["Qwen3-1.7B"], ACCELERATORS["GH200"]),
    StepTime.of(MODELS["Qwen3-8B"], ACCELERATORS["A100"], knee=2.5, fixed=1e-3),
]


def measured(cost, noise, seed=0, prefill=True):
    """400 steps of 1 to 512 sequences, each time off by a factor of log deviation ``noise``."""
    rng = np.random.default_rng(seed)
    sequences_N = np.rint(np.exp(rng.uniform(0.0, np.log(512), 400)))
    kv_tokens_N = sequences_N * rng.integers(100, 8000, 400)
    prefill_N = rng.integers(0, 8192, 400) * (rng.random(400) < 0.3) * float(prefill)
    factors_N = np.exp(noise * rng.standard_normal(400))
    seconds_N = cost.step(sequences_N, kv_tokens_N, prefill_N) * factors_N
    return [
        StepMeasurement(*row)
        for row in zip(sequences_N, kv_tokens_N, seconds_N, prefill_N, strict=True)
    ]


@pytest.mark.parametrize("cost", ENGINES)
@pytest.mark.parametrize("prefill", [True, False])
def test_exact_times_give_every_number_back(cost, prefill):
    found = fit_step_time(measured(cost, noise=0.0, prefill=prefill))
    assert found.fixed == pytest.approx(cost.fixed + cost.offset, rel=1e-3)
    assert found.offset == 0.0
    for name in ("per_sequence", "streaming", "arithmetic", "knee", "kv_read"):
        assert getattr(found, name) == pytest.approx(getattr(cost, name), rel=1e-3)


@pytest.mark.parametrize("cost", ENGINES)
@pytest.mark.parametrize("prefill", [True, False])
def test_noisy_times_give_the_step_times_back(cost, prefill):
    found = fit_step_time(measured(cost, noise=0.05, prefill=prefill))
    sequences_N = np.array([1.0, 16.0, 64.0, 256.0, 512.0])
    for held in (500, 4000):
        true_N = cost.step(sequences_N, held * sequences_N)
        assert found.step(sequences_N, held * sequences_N) == pytest.approx(true_N, rel=0.025)


@pytest.mark.parametrize("cost", ENGINES)
def test_noisy_times_give_what_they_determine(cost):
    found = fit_step_time(measured(cost, noise=0.05))
    assert found.kv_read == pytest.approx(cost.kv_read, rel=0.05)
    assert found.arithmetic == pytest.approx(cost.arithmetic, rel=0.05)
    idle = cost.fixed + cost.offset + cost.streaming
    assert found.fixed + found.streaming == pytest.approx(idle, rel=0.05)


def test_too_few_or_impossible_measurements_are_refused():
    steps = measured(ENGINES[0], noise=0.0)
    with pytest.raises(ArrolError, match="measurements are 5; allowed are at least 6"):
        fit_step_time(steps[:5])
    with pytest.raises(ArrolError, match=r"measured seconds is 0\.0"):
        fit_step_time([*steps, replace(steps[0], seconds=0.0)])
    with pytest.raises(ArrolError, match=r"measured kv_tokens is -1"):
        fit_step_time([*steps, replace(steps[0], kv_tokens=-1.0)])


def test_kernel_numbers_are_recovered_from_noisy_layer_times():
    true = KernelFit(bandwidth_efficiency=0.85, mfu=0.7, knee=1.6, layer_offset=20e-6)
    rng = np.random.default_rng(1)
    weights_N = np.repeat([3e7, 1e8, 3e8, 1e9], 200)
    tokens_N = np.exp(rng.uniform(0.0, np.log(4096), 800))
    accelerator = ACCELERATORS["H100"]
    exact_N = true.layer_seconds(accelerator, weights_N, tokens_N)
    found = fit_kernels(
        accelerator, weights_N, tokens_N, exact_N * np.exp(0.02 * rng.standard_normal(800))
    )
    assert found.bandwidth_efficiency == pytest.approx(0.85, rel=0.03)
    assert found.mfu == pytest.approx(0.7, rel=0.03)
    assert found.knee == pytest.approx(1.6, rel=0.05)
    assert found.layer_offset == pytest.approx(20e-6, rel=0.1)


def test_a_layer_worked_out_by_hand():
    # 1e8 weights: 2e8 B at 80% of 4 TB/s = 62.5 µs; 100 tokens: 2e10 FLOP at 75% of 990 TFLOP/s.
    kernels = KernelFit(knee=1.0, layer_offset=10e-6)
    found = kernels.layer_seconds(ACCELERATORS["GH200"], np.array([1e8]), np.array([100.0]))
    assert found == pytest.approx([62.5e-6 + 2e10 / 742.5e12 + 10e-6], rel=1e-12)


def test_the_layers_of_a_model_are_its_step():
    model, accelerator = MODELS["Qwen3-8B"], ACCELERATORS["H100"]
    # Roofline times scale with the weights, so layers alone give the whole without output layer.
    layers = model.layers * KernelFit().layer_seconds(
        accelerator, np.array([float(model.layer_matrix_parameters)]), np.array([64.0])
    )
    cost = StepTime.of(model, accelerator)
    output_layer = model.vocab * model.hidden / model.matrix_parameters
    expected = (cost.linear(64) - cost.offset) * (1 - output_layer) + cost.offset
    assert layers == pytest.approx([expected], rel=1e-12)


@pytest.fixture(scope="module")
def layers():
    if not DATA.exists():
        pytest.skip("shared/data/gemm_times.csv, the measured layer times, is absent")
    times = read_layer_times(DATA)
    return times[times["tokens"] <= 4096]


def test_layer_times_are_read_as_published(layers):
    # Llama-2-7b: 4 · 4096² of attention and 3 · 4096 · 11008 of MLP, shared out over the ranks.
    mine = layers[(layers["model"] == "meta-llama/Llama-2-7b-hf") & (layers["gpu"] == "h100")]
    by_ranks = mine.groupby("tp")["weights"].unique()
    assert [by_ranks[tp].tolist() for tp in (1, 8)] == [[202_375_168.0], [202_375_168.0 / 8]]
    one = mine[(mine["tp"] == 1) & (mine["tokens"] == 1)]
    assert one["seconds"].tolist() == [pytest.approx((38 + 16 + 64 + 38) * 1e-6)]
    # phi-2's MLP has no gate: two matrices of 2560 · 10240.
    phi = layers[layers["model"] == "microsoft/phi-2"]
    assert set(phi["weights"]) == {4.0 * 2560**2 + 2.0 * 2560 * 10240}
    assert not layers.duplicated(["gpu", "model", "tp", "tokens"]).any()


@pytest.mark.parametrize("gpu", ["a100", "h100"])
def test_models_held_out_are_predicted_within_15_percent(layers, gpu):
    rows = layers[layers["gpu"] == gpu]
    small = rows["model"].isin(["meta-llama/Llama-2-7b-hf", "meta-llama/Meta-Llama-3-8B"])
    seen, unseen = rows[~small], rows[small]
    columns = ["weights", "tokens", "seconds"]
    accelerator = find_accelerator(gpu)
    kernels = fit_kernels(accelerator, *seen[columns].to_numpy().T)
    for _, part in unseen.groupby(["model", "tp"]):
        weights_N, tokens_N, seconds_N = part[columns].to_numpy().T
        predicted_N = kernels.layer_seconds(accelerator, weights_N, tokens_N)
        assert relative_errors(predicted_N, seconds_N).mean() <= 0.15


@pytest.mark.parametrize(("gpu", "bound"), [("a100", 0.05), ("h100", 0.08)])
def test_the_defaults_are_close_to_the_measured_layers(layers, gpu, bound):
    rows = layers[layers["gpu"] == gpu]
    weights_N, tokens_N, seconds_N = rows[["weights", "tokens", "seconds"]].to_numpy().T
    predicted_N = KernelFit().layer_seconds(find_accelerator(gpu), weights_N, tokens_N)
    assert relative_errors(predicted_N, seconds_N).mean() <= bound
