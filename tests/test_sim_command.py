"""``arrol sim``: flags, exit codes, what is printed and what is written."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path

import click
import pandas as pd
import pytest
from click.testing import CliRunner, Result

from arrol.errors import ArrolError
from arrol.sim import command
from arrol.sim import run as running
from arrol.sim.parameters import PARAMETERS
from arrol.sim.results import Check, Contradiction, Study, Table
from arrol.sim.settings import SimSettings
from arrol.sim.studies import setting

SMALL = (
    "--prompts", "6", "--group-size", "4", "--mean-length", "700", "--max-length", "900", "--seeds",
    "2",
)  # fmt: skip
Progress = Callable[[float], None]


def run(*arguments: str | Path, jobs: int = 1) -> Result:
    """``arrol sim`` in this process."""
    return CliRunner().invoke(command.sim, [*map(str, arguments), "--jobs", str(jobs)])


def complaint(*arguments: str) -> str:
    """The sentence that these arguments earn; nothing may have been run."""
    result = run(*arguments)
    error = result.exception
    if isinstance(error, ArrolError):
        return str(error)
    assert result.exit_code == 2
    return result.stderr.strip().splitlines()[-1]


def fake(name: str, passed: bool = True) -> Callable[[SimSettings, Progress], Study]:
    def study(settings: SimSettings, progress: Progress) -> Study:
        progress(0.5)
        return Study(
            name=name,
            title=f"Study {name}",
            text=f"keeps {settings.keep_ratio}",
            tables=(Table(name, "A table", pd.DataFrame({"value": [settings.keep_ratio]})),),
            checks=(Check(f"law of {name}", 1.0, "≤ 2", passed),),
            contradictions=(Contradiction(f"claim of {name}", "1", "2", "reason"),),
        )

    return study


@pytest.fixture
def studies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Callable[..., Study]]]:
    fakes = [("one", fake("one")), ("two", fake("two"))]
    for module in (command, running):
        monkeypatch.setattr(module, "STUDIES", fakes)
    return fakes


@pytest.mark.usefixtures("studies")
def test_all_studies_are_printed_written_and_passed(tmp_path: Path) -> None:
    result = run("--out", tmp_path / "out", "--keep-ratio", "0.25")
    assert result.exit_code == 0, result.output
    printed = result.stdout
    order = ["Study one", "Study two", "claim of one", "law of one", "2 of 2 checks passed"]
    places = [printed.index(text) for text in order]
    assert places == sorted(places)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "one.csv", "two.csv", "report.html",
    }  # fmt: skip
    assert (tmp_path / "out" / "one.csv").read_text() == "value\n0.25\n"


@pytest.mark.usefixtures("studies")
def test_a_failed_check_exits_1_and_a_contradiction_does_not(
    tmp_path: Path, studies: list[tuple[str, Callable[..., Study]]]
) -> None:
    studies.append(("three", fake("three", passed=False)))
    result = run("--out", tmp_path)
    assert result.exit_code == 1
    assert "FAIL  law of three" in result.stdout
    assert (tmp_path / "report.html").exists()


@pytest.mark.usefixtures("studies")
def test_an_interrupt_is_passed_on_and_leaves_no_half_written_file(
    tmp_path: Path, studies: list[tuple[str, Callable[..., Study]]]
) -> None:
    def interrupted(settings: SimSettings, progress: Progress) -> Study:
        raise KeyboardInterrupt

    studies.append(("three", interrupted))
    with pytest.raises(click.Abort):  # the entry point turns it into exit code 130
        command.sim.main(["--out", str(tmp_path), "--jobs", "1"], standalone_mode=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("parameter", PARAMETERS, ids=lambda parameter: parameter.flag)
def test_every_number_is_refused_by_its_flag_and_range(parameter: object) -> None:
    flag = parameter.flag  # type: ignore[attr-defined]
    for value in ("many", "-1e9", "nan", "1e99", ""):
        text = complaint(flag, value)
        assert text.startswith(f"{flag} is ")
        assert "allowed is" in text
        assert text.endswith(".")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--model", "GPT-9"), ("--model", "Qwen3-1.7B")),
        (("--accelerator", "TPU"), ("--accelerator", "GH200", "flops")),
        (("--accelerator", "flops=1e15,bandwidth=1e12,memory=1e9"), ("--accelerator", "--model")),
        (("--accelerator", "flops=0,bandwidth=1e12,memory=1e11"), ("--accelerator", "above 0")),
        (("--preset", "best"), ("--preset", "balanced")),
        (("--study", "nothing"), ("--study", "balance")),
        (("--detect-length", "8192"), ("--detect-length", "--max-length", "8192")),
        (("--mean-length", "9000"), ("--mean-length", "--max-length")),
        (("--kv-tokens", "100"), ("--kv-tokens", "8342")),
        (("--score-auc", "0.99", "--prompt-signal", "1"), ("--score-auc", "--prompt-signal")),
        (("--keep-rato", "1"), ("--keep-ratio",)),
    ],
)
def test_what_can_not_be_is_refused_in_one_sentence(
    arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    text = complaint(*arguments)
    assert "\n" not in text
    assert all(part in text for part in parts), text


@pytest.mark.usefixtures("studies")
def test_a_file_as_folder_is_refused_before_any_work(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    text = complaint("--out", str(file))
    assert text.startswith("--out is ")
    assert file.read_text() == "mine"


def test_help_names_every_flag_with_default_and_range() -> None:
    text = " ".join(run("--help").stdout.split())
    for parameter in PARAMETERS:
        assert parameter.flag in text
        default = getattr(SimSettings, parameter.name)
        assert default is None or f"[default: {default}]" in text
    for part in ("2 to 1,024 rollouts", "above 0 to 1", "1 to 1,000,000 tokens", "--trace FILE"):
        assert part in text


def test_a_users_setting_is_simulated_and_the_same_seed_gives_the_same_bytes(
    tmp_path: Path,
) -> None:
    for folder, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        result = run("--study", "setting", "--out", tmp_path / folder, "--seed", seed, *SMALL)
        assert result.exit_code == 0, result.output
    assert "6 prompts × 4 rollouts of Qwen3-1.7B" in " ".join(result.stdout.split())
    names = [path.name for path in (tmp_path / "a").glob("*.csv")]
    assert sorted(names) == ["setting_groups.csv", "setting_times.csv"]
    contents = {
        folder: [(tmp_path / folder / name).read_bytes() for name in names] for folder in "abc"
    }
    assert contents["a"] == contents["b"]
    assert contents["a"] != contents["c"]


@pytest.mark.skipif(
    multiprocessing.get_start_method() != "fork", reason="only forked workers know the fakes"
)
def test_processes_change_nothing(
    tmp_path: Path, studies: list[tuple[str, Callable[..., Study]]]
) -> None:
    studies.append(("setting", setting.study))
    results = {jobs: run("--out", tmp_path / str(jobs), *SMALL, jobs=jobs) for jobs in (1, 2)}
    assert results[1].stdout.replace("/1/report", "/2/report") == results[2].stdout
    assert results[2].exit_code == 0
    for path in (tmp_path / "1").iterdir():
        assert path.read_bytes() == (tmp_path / "2" / path.name).read_bytes()


def test_studies_that_share_work_stay_together() -> None:
    names = [name for name, _ in running.STUDIES]
    assert set(running.SHARING) <= set(names)
    shares: list[float] = []
    finished = list(
        running.run_studies(["setting"], SimSettings(prompts=2, seeds=2), 2, shares.append)
    )
    assert [entry.study.name for entry in finished] == ["setting"]
    assert finished[0].pngs["setting_timeline"].startswith(b"\x89PNG")
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


@pytest.mark.usefixtures("studies")
def test_a_trace_is_written_beside(tmp_path: Path) -> None:
    trace = tmp_path / "step.json"
    result = run("--trace", trace, "--out", tmp_path / "out", *SMALL)
    assert result.exit_code == 0, result.output
    assert json.loads(trace.read_text())["traceEvents"]
