"""The configuration: presets, ranges, one sentence for a bad value."""

import pytest

from arrol.calibration import CalibratorKind
from arrol.config import Draw, PruningConfig, SurvivalKind
from arrol.errors import ArrolError
from arrol.records import Mode


def test_paper_preset_has_the_papers_numbers():
    config = PruningConfig.paper()
    assert (config.keep_ratio, config.target_ratio, config.strength) == (0.5, 0.5, 0.5)
    assert (config.detect_length, config.bins, config.cold_start_steps) == (512, 128, 20)
    assert config.survival is SurvivalKind.PAPER
    assert config.draw is Draw.BERNOULLI
    assert config.calibrator is CalibratorKind.HISTOGRAM


def test_balanced_is_the_default():
    assert PruningConfig.balanced() == PruningConfig() == PruningConfig.preset("balanced")


def test_strings_from_a_command_line_become_members():
    config = PruningConfig(mode="shadow", survival="signed", draw="systematic", calibrator="auto")
    assert config.mode is Mode.SHADOW


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("keep_ratio", 0.0),
        ("keep_ratio", 1.5),
        ("keep_ratio", float("nan")),
        ("keep_ratio", True),
        ("target_ratio", -0.1),
        ("strength", -1.0),
        ("min_survival", 0.0),
        ("max_survival", 0.05),
        ("detect_length", 0),
        ("detect_length", 1.5),
        ("min_survivors", -1),
        ("bins", 0),
        ("seed", -1),
        ("mode", "maybe"),
        ("survival", "fair"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(field, value):
    with pytest.raises(ArrolError) as caught:
        PruningConfig(**{field: value})
    message = str(caught.value)
    assert message.startswith(f"{field} is {value!r}; allowed is ")
    assert message.count("\n") == 0
    assert message.endswith(".")


def test_independent_draws_promise_no_survivors():
    with pytest.raises(ArrolError, match="min_survivors is 2 with draw 'bernoulli'"):
        PruningConfig(draw="bernoulli")


def test_unknown_preset_is_named():
    with pytest.raises(ArrolError, match="preset is 'fast'; allowed is one of paper, balanced"):
        PruningConfig.preset("fast")
