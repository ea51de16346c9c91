"""What ``arrol sim`` lets you set: ranges, sentences, and the parts built from it."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrol.config import Draw, Preset, SurvivalKind
from arrol.errors import ArrolError
from arrol.sim.hardware import find_accelerator, find_model
from arrol.sim.parameters import PARAMETERS, Parameter
from arrol.sim.settings import SimSettings

by_name = {parameter.name: parameter for parameter in PARAMETERS}


def sentence(**changes: object) -> str:
    """What is said about these settings; one sentence."""
    with pytest.raises(ArrolError) as error:
        SimSettings(**changes)  # type: ignore[arg-type]
    text = str(error.value)
    assert text.endswith(".")
    assert "\n" not in text
    return text


def test_every_number_has_a_parameter_and_the_defaults_are_allowed() -> None:
    fields = {field.name for field in dataclasses.fields(SimSettings)}
    assert fields - {"model", "accelerator", "preset"} == set(by_name)
    SimSettings()


@pytest.mark.parametrize("parameter", PARAMETERS, ids=lambda p: p.name)
@given(data=st.data())
def test_a_value_out_of_range_is_refused_by_its_flag(
    parameter: Parameter, data: st.DataObject
) -> None:
    below = st.floats(max_value=parameter.low, exclude_max=not parameter.open_low)
    above = st.floats(min_value=parameter.high, exclude_min=not parameter.open_high)
    value: float = data.draw(below | above | st.just(float("nan")))
    if parameter.integer:
        value = data.draw(
            st.integers(max_value=int(parameter.low) - 1)
            | st.integers(min_value=int(parameter.high) + 1)
            | st.floats()
            | st.booleans()
        )
    assert sentence(**{parameter.name: value}).startswith(f"{parameter.flag} is ")


@pytest.mark.parametrize(("text", "value"), [("64", 64), (" 7 ", 7)])
def test_an_integer_is_read(text: str, value: int) -> None:
    assert by_name["prompts"].parse(text) == value


@pytest.mark.parametrize("text", ["", "many", "1.5", "nan", "1e3", "0", "100001"])
def test_a_text_that_is_no_allowed_integer_is_refused(text: str) -> None:
    with pytest.raises(ArrolError, match=r"--prompts is .*; allowed is an integer"):
        by_name["prompts"].parse(text)


@pytest.mark.parametrize("text", ["half", "nan", "inf", "0", "1.01", "-1"])
def test_a_text_that_is_no_allowed_number_is_refused(text: str) -> None:
    with pytest.raises(ArrolError, match=r"--keep-ratio is .*; allowed is a number"):
        by_name["keep_ratio"].parse(text)


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({"detect_length": 8192}, ["--detect-length", "--max-length", "8192"]),
        ({"max_length": 512}, ["--detect-length", "--max-length", "512"]),
        ({"mean_length": 9000.0}, ["--mean-length", "--max-length", "8192"]),
        ({"prompts": 100_000, "group_size": 16}, ["--prompts", "--group-size", "62500"]),
        ({"kv_tokens": 8341}, ["--kv-tokens", "8342"]),
        ({"score_auc": 0.99, "prompt_signal": 1.0}, ["--score-auc", "--prompt-signal"]),
        ({"length_correlation": 0.9, "pass_rate": 0.01}, ["--length-correlation"]),
        ({"preset": "best"}, ["--preset", "paper, balanced, random"]),
    ],
)
def test_values_that_do_not_go_together_are_refused_by_their_flags(
    changes: dict[str, object], flags: list[str]
) -> None:
    text = sentence(**changes)
    assert all(flag in text for flag in flags), text


def test_a_model_that_does_not_fit_is_refused_by_both_flags() -> None:
    tiny = find_accelerator("flops=1e15,bandwidth=1e12,memory=1e9")
    text = sentence(accelerator=tiny, model=find_model("Qwen3-8B"))
    assert "--accelerator" in text
    assert "--model" in text


def test_the_paper_setting_is_the_papers_and_keeps_the_seeds() -> None:
    paper = SimSettings(prompts=3, keep_ratio=0.9, seed=5, seeds=2).paper()
    assert paper == SimSettings(preset=Preset.PAPER, seed=5, seeds=2)
    config = paper.config()
    # The paper's stated values: G, κ, ρ, λ, L_detect, B, cold start, token limit.
    assert (paper.group_size, paper.max_length) == (16, 8192)
    assert (config.keep_ratio, config.target_ratio, config.strength) == (0.5, 0.5, 0.5)
    assert (config.detect_length, config.bins, config.cold_start_steps) == (512, 128, 20)
    assert (config.survival, config.draw) == (SurvivalKind.PAPER, Draw.BERNOULLI)


def test_the_default_batch_is_what_table_5_pays_for() -> None:
    # Log-prob's variable part, 15.76 s, at 45% of a GH200's 990 TFLOP/s and 2 FLOP a weight.
    tokens = 15.76 * 0.45 * 990e12 / (2 * 1.72e9)
    settings = SimSettings()
    batch = settings.prompts * settings.group_size * settings.mean_length
    assert batch == pytest.approx(tokens, rel=0.01)


@given(keep_ratio=st.floats(0.001, 1.0), preset=st.sampled_from(Preset))
def test_any_keep_ratio_lies_within_the_survival_bounds(keep_ratio: float, preset: Preset) -> None:
    config = SimSettings(keep_ratio=keep_ratio, preset=preset).config()
    assert config.min_survival <= keep_ratio <= config.max_survival
    assert config.min_survival <= 0.1
    assert config.max_survival >= 0.9


def test_the_kv_cache_is_the_flags_or_what_the_memory_leaves() -> None:
    assert SimSettings(kv_tokens=50_000).limits().kv_tokens == 50_000
    # 90% of 96 GiB, less 3.44 GB of weights and 3 GiB, over 114,688 B a token.
    free = 0.9 * 96 * 2**30 - 3.44e9 - 3 * 2**30
    assert SimSettings().limits().kv_tokens == pytest.approx(free / 114_688, rel=1e-3)
