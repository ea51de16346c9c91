"""``arrol replay`` end to end: what it prints, what it writes, and how it refuses."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.cells import cell_len

from arrol import cli
from arrol.sim.replay_command import replay


def arrol(*arguments: object, width: int = 100) -> tuple[int, str, str]:
    """Run ``arrol replay`` in this process: exit code, stdout, stderr."""
    printed, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(errors):
        patch.setattr(cli.arrol, "get_command", lambda *_: replay)
        patch.setenv("COLUMNS", str(width))
        code = cli.run(["replay", *map(str, arguments)])
    return code, printed.getvalue(), errors.getvalue()


def write(path: Path, rows: list[Any]) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def rollouts(count: int = 20, size: int = 4, *, score: bool = True) -> list[Any]:
    rng = np.random.default_rng(0)
    rows = []
    for place in range(count * size):
        right = bool(rng.random() < 0.4)
        row = {"group": place // size, "tokens": int(rng.integers(100, 2000)), "reward": right}
        rows.append(row | ({"score": float(rng.random() + right)} if score else {}))
    return rows


@dataclass(frozen=True)
class Finished:
    """One run on a good log, that several tests look at."""

    code: int
    text: str
    errors: str
    out: Path


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("log") / "log.jsonl", rollouts())


@pytest.fixture(scope="module", params=[80, 120])
def finished(
    request: pytest.FixtureRequest, log: Path, tmp_path_factory: pytest.TempPathFactory
) -> Finished:
    out = tmp_path_factory.mktemp("out") / "new"
    return Finished(*arrol(log, "--seeds", 2, "--out", out, width=request.param), out)


def test_it_prints_advice_and_writes_every_file(finished: Finished) -> None:
    assert (finished.code, finished.errors) == (0, "")
    for title in ("The rollouts", "What each rule would have done", "Other settings", "Advice"):
        assert title in finished.text
    assert "80 × rows" in " ".join(finished.text.split())
    assert f"Report: {finished.out / 'report.html'}" in finished.text
    names = {path.name for path in finished.out.iterdir()}
    tables = {"log", "signal", "rules", "signal_loss", "detect_length", "keep_ratio", "strength"}
    figures = {"lengths", "scores", "rules", "detect_length"}
    assert {f"replay_{name}.csv" for name in tables} <= names
    assert {f"replay_{name}.png" for name in figures} <= names
    assert {"report.html", "replay_summary.json"} <= names
    rules = pd.read_csv(finished.out / "replay_rules.csv")
    assert rules["rule"].tolist() == [
        "no pruning", "random", "paper", "balanced", "smaller, equal tokens", "smaller, equal time",
    ]  # fmt: skip
    assert rules["step speed-up"][0] == 1.0


def test_tables_fit_the_console(finished: Finished, request: pytest.FixtureRequest) -> None:
    lines = [line for line in finished.text.split("\n") if "Report:" not in line]
    assert max(map(cell_len, lines)) <= request.node.callspec.params["finished"]
    assert "…" not in finished.text


def test_the_summary_is_strict_json_and_agrees_with_the_tables(finished: Finished) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    text = (finished.out / "replay_summary.json").read_text(encoding="utf-8")
    summary = json.loads(text, parse_constant=refuse)
    rules = pd.read_csv(finished.out / "replay_rules.csv").set_index("rule")
    balanced = summary["rules"]["balanced"]
    assert balanced["tokens_saved"] == pytest.approx(rules.loc["balanced", "tokens saved"])
    assert summary["log"]["rollouts"] == 80
    assert summary["log"]["scores"] == "log"
    assert summary["rules"]["no pruning"]["false_prunes"] is None


def test_the_report_needs_no_other_file(finished: Finished) -> None:
    page = (finished.out / "report.html").read_text(encoding="utf-8")
    assert page.count('src="') == page.count('src="data:image/png;base64,') == 4
    assert "http" not in page.split("<body>")[1]
    assert "<link" not in page
    assert "<script" not in page
    assert page.index("Advice") < page.index("The rollouts")


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", rollouts(10, score=False))
    for name in ("a", "b"):
        arrol(log, "--seeds", 2, "--seed", 7, "--out", tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "b").iterdir())
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_assumed_scores_are_said_to_be_assumed(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", rollouts(2, score=False))
    _, text, _ = arrol(log, "--seeds", 2, "--score-auc", 0.9, "--out", tmp_path)
    words = " ".join(text.split())
    assert "ASSUMED: the log has no quality scores, so scores with an AUC of 0.9" in words
    assert words.count("no quality score") == 2  # once said, once a caveat of the advice
    assert json.loads((tmp_path / "replay_summary.json").read_text())["log"]["scores"] == "assumed"
    assert not (tmp_path / "replay_scores.png").exists()


def test_problems_are_named_counted_and_the_rest_goes_on(tmp_path: Path) -> None:
    bad = ["{", {"group": 1, "tokens": 5, "reward": None}, '{"group": 1, "tokens": 5, "rew']
    log = write(tmp_path / "log.jsonl", [*rollouts(2), *bad])
    code, text, _ = arrol(log, "--seeds", 2, "--show-problems", 2, "--out", tmp_path)
    assert code == 0
    assert "3 problems in the log" in text
    assert f"{log}:9: not JSON" in text
    assert f"{log}:10: reward missing (nearest format: rows)" in text
    assert f"{log}:11:" not in text
    assert "… and 1 more" in text
    problems = pd.read_csv(tmp_path / "replay_problems.csv")
    assert dict(zip(problems["problem"], problems["records"], strict=True)) == {
        "line that is no JSON object": 2,
        "record of no known format": 1,
    }


def test_files_of_an_earlier_run_do_not_stay(tmp_path: Path) -> None:
    broken = write(tmp_path / "broken.jsonl", [*rollouts(2), "{"])
    arrol(broken, "--seeds", 2, "--out", tmp_path / "out")
    assert (tmp_path / "out" / "replay_problems.csv").exists()
    whole = write(tmp_path / "whole.jsonl", rollouts(2))
    arrol(whole, "--seeds", 2, "--out", tmp_path / "out")
    assert not (tmp_path / "out" / "replay_problems.csv").exists()


def test_several_files_and_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    folder.mkdir()
    for step in (1, 2, 10):
        rows = [
            {"input": f"p{place // 4}", "output": "x" * (200 + place), "gts": "", "step": step,
             "score": place % 3 - 1, "acc": place % 3 == 2}
            for place in range(24)
        ]  # fmt: skip
        write(folder / f"{step}.jsonl", rows)
    log = write(tmp_path / "log.jsonl", rollouts())
    code, text, _ = arrol(folder, log, "--seeds", 2, "--detect-length", 64, "--out", tmp_path)
    assert code == 0
    facts = pd.read_csv(tmp_path / "replay_log.csv").set_index("figure")["value"]
    assert (facts["rollouts"], facts["groups"], facts["training steps"]) == (152, 38, 4)
    assert "24 × verl" in text


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "rows",
    [
        [{"group": 0, "tokens": 0, "reward": 0}],
        [{"group": 0, "tokens": 5000, "reward": 0, "score": 1}],
        [{"group": place, "tokens": 700, "reward": -1, "score": 7} for place in range(6)],
        [{"group": "a", "tokens": 600 + place, "reward": place % 2} for place in range(9)],
    ],
    ids=["one empty", "one long", "groups of one", "one group"],
)
def test_degenerate_logs_go_through_without_a_warning(tmp_path: Path, rows: list[Any]) -> None:
    log = write(tmp_path / "log.jsonl", rows)
    code, text, errors = arrol(log, "--seeds", 2, "--out", tmp_path / "out")
    assert (code, errors) == (0, "")
    assert "too few to tell" in text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--keep-ratio", "1.5"], "--keep-ratio is 1.5; allowed is a number above 0 and at most 1"),
        (["--keep-ratio", "half"], "--keep-ratio is 'half'; allowed is a number"),
        (["--detect-length", "0"], "--detect-length is 0; allowed is an integer from 1"),
        (["--detect-length", "1e3"], "--detect-length is '1e3'; allowed is an integer"),
        (["--strength", "nan"], "--strength is"),
        (["--seeds", "1"], "--seeds is 1; allowed is an integer from 2"),
        (["--score-auc", "1"], "--score-auc is 1.0; allowed is a number of at least 0.5"),
        (["--tokens-per-char", "0"], "--tokens-per-char is 0.0; allowed is a number above 0"),
        (["--show-problems", "-1"], "--show-problems is -1; allowed is an integer from 0"),
        (["--model", "GPT"], "--model: model is 'GPT'; allowed is one of Qwen3-1.7B"),
        (["--accelerator", "TPU"], "--accelerator: accelerator is 'TPU'; allowed is one of A100"),
        (["--preset", "best"], "--preset"),
        (["--out", __file__], "which is a file; allowed is a folder"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_a_bad_flag_is_one_sentence_and_exit_code_2(
    log: Path, tmp_path: Path, arguments: list[str], text: str
) -> None:
    code, printed, errors = arrol(log, "--out", tmp_path / "out", *arguments)
    assert (code, printed) == (2, "")
    assert errors.startswith("arrol replay: ")
    assert errors.count("\n") == 1
    assert text in errors


@pytest.mark.parametrize("name", ["missing.jsonl", "empty.jsonl", "folder"])
def test_nothing_usable_is_one_sentence_and_exit_code_2(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "folder").mkdir()
    code, printed, errors = arrol(tmp_path / name, "--out", tmp_path / "out")
    assert (code, printed) == (2, "")
    assert errors.count("\n") == 1
    assert name in errors


def test_no_file_at_all_is_exit_code_2() -> None:
    code, _, errors = arrol("--seeds", "3")
    assert code == 2
    assert "FILE" in errors


def test_help_states_defaults_units_and_formats() -> None:
    code, text, _ = arrol("--help", width=80)
    assert code == 0
    words = " ".join(text.split())
    for flag, default in {
        "--keep-ratio": "0.5",
        "--target-ratio": "0.5",
        "--strength": "0.5",
        "--detect-length": "512",
        "--max-num-seqs": "256",
        "--score-auc": "0.78",
        "--seeds": "20",
        "--tokens-per-char": "0.33",
        "--right-above": "0.0",
        "--show-problems": "5",
        "--out": "replay-results",
        "--model": "Qwen3-1.7B",
        "--accelerator": "GH200",
        "--preset": "balanced",
    }.items():
        assert f"[default: {default}]" in words.split(f" {flag} ", 1)[1].split(" --")[0], flag
    assert "tokens" in words
    assert "pred_score[]" in words
    assert "reward is above --right-above. Groups never span files" in words
