"""Accelerators and model shapes against published figures."""

import pytest

from arrol.errors import ArrolError
from arrol.sim.hardware import ACCELERATORS, MODELS, Accelerator, find_accelerator, find_model

# Parameter counts as huggingface.co states them for the safetensors files of each model.
PUBLISHED_PARAMETERS = {
    "Qwen3-1.7B": 1_720_574_976,
    "Qwen3-4B": 4_022_468_096,
    "Qwen3-8B": 8_190_735_360,
    "Llama-3.2-1B": 1_235_814_400,
}

# Bytes of bfloat16 keys and values a token: 2 (K and V) · 2 B · layers · kv_heads · head_dim.
KV_BYTES = {
    "Qwen3-1.7B": 114_688,
    "Qwen3-4B": 147_456,
    "Qwen3-8B": 147_456,
    "Llama-3.2-1B": 32_768,
}

QWEN3_SIZES = (
    "layers=28,hidden=2048,intermediate=6144,heads=16,kv_heads=8,head_dim=128,vocab=151936"
)


@pytest.mark.parametrize("name", MODELS)
def test_sizes_give_the_published_parameter_count(name):
    assert MODELS[name].parameters == PUBLISHED_PARAMETERS[name]


@pytest.mark.parametrize("name", MODELS)
def test_sizes_give_the_known_kv_bytes(name):
    assert MODELS[name].kv_bytes_per_token == KV_BYTES[name]


def test_the_smallest_qwen3_takes_3_44_gigabytes():
    assert MODELS["Qwen3-1.7B"].weight_bytes == pytest.approx(3.44e9, rel=1e-3)


def test_only_an_untied_embedding_is_left_out_of_the_products():
    tied, untied = MODELS["Qwen3-4B"], MODELS["Qwen3-8B"]
    assert tied.parameters - tied.matrix_parameters < 1e-3 * tied.parameters
    left_out = untied.parameters - untied.matrix_parameters
    assert left_out == pytest.approx(untied.vocab * untied.hidden, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "teraflops", "gigabytes_a_second", "mebibytes"),
    [  # data sheets (dense: half of the sparse figure); memory as nvidia-smi shows it
        ("A100", 624 / 2, 2_039, 81_920),
        ("H100", 1_979 / 2, 3_350, 81_559),
        ("H200", 1_979 / 2, 4_800, 143_771),
        ("GH200", 1_979 / 2, 4_000, 97_871),
    ],
)
def test_accelerators_are_the_data_sheets(name, teraflops, gigabytes_a_second, mebibytes):
    accelerator = ACCELERATORS[name]
    assert accelerator.flops == pytest.approx(teraflops * 1e12, rel=1e-3)
    assert accelerator.bandwidth == pytest.approx(gigabytes_a_second * 1e9, rel=1e-3)
    assert accelerator.memory == pytest.approx(mebibytes * 2**20, rel=0.01)


@pytest.mark.parametrize("text", ["Qwen3-1.7B", "qwen3-1.7b", "Qwen/Qwen3-1.7B", " Qwen3-1.7B "])
def test_a_model_is_found_by_name(text):
    assert find_model(text) is MODELS["Qwen3-1.7B"]


def test_a_model_is_found_by_its_sizes():
    model = find_model(QWEN3_SIZES)
    named = MODELS["Qwen3-1.7B"]
    # It lacks the per-head norms: 28 layers · 2 · 128 weights.
    assert model.parameters == named.parameters - 28 * 2 * 128
    assert model.kv_bytes_per_token == named.kv_bytes_per_token


def test_an_accelerator_is_found_by_name_and_by_its_figures():
    assert find_accelerator("gh200") is ACCELERATORS["GH200"]
    found = find_accelerator("flops=1e15, bandwidth=2e12, memory=3e11")
    assert (found.flops, found.bandwidth, found.memory) == (1e15, 2e12, 3e11)


@pytest.mark.parametrize(
    "text",
    [
        "Qwen9",
        "",
        "layers=28",
        QWEN3_SIZES + ",experts=4",
        QWEN3_SIZES + ",layers=28",
        QWEN3_SIZES.replace("2048", "wide"),
    ],
)
def test_an_unknown_model_is_refused_with_what_is_allowed(text):
    with pytest.raises(ArrolError, match=r"Qwen3-1\.7B.*Llama-3\.2-1B.*layers=…") as refusal:
        find_model(text)
    assert repr(text) in str(refusal.value)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("layers=28", "layers=0", "layers is 0"),
        ("hidden=2048", "hidden=20.5", "hidden is 20.5"),
        ("kv_heads=8", "kv_heads=5", "kv_heads is 5"),
        ("vocab=151936", "vocab=nan", "vocab is nan"),
    ],
)
def test_an_impossible_size_is_refused_by_name(old, new, named):
    with pytest.raises(ArrolError, match=named):
        find_model(QWEN3_SIZES.replace(old, new))


def test_an_unknown_or_impossible_accelerator_is_refused():
    with pytest.raises(ArrolError, match=r"'TPU'.*GH200.*flops=…"):
        find_accelerator("TPU")
    with pytest.raises(ArrolError, match="bandwidth is 0"):
        Accelerator("none", 1e15, 0.0, 1e11, "made up")
