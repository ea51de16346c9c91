"""What ``arrol generate`` checks before it needs vLLM: prompts, flags, the file of rollouts."""

from __future__ import annotations

import gzip
import io
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrol import cli
from arrol.adapters.vllm import support
from arrol.adapters.vllm.command import generate
from arrol.adapters.vllm.generate import Run, RunSettings, _Job, _Look, _write
from arrol.adapters.vllm.options import engine_values
from arrol.adapters.vllm.prompts import Columns, Prompt, read_prompts, token_ids
from arrol.adapters.vllm.request import TokenRollout
from arrol.adapters.vllm.rollout_file import RolloutFile
from arrol.adapters.vllm.summary import lines_of
from arrol.answers import Verdict, verify
from arrol.config import PruningConfig
from arrol.controller import PruningController
from arrol.errors import ArrolError
from arrol.records import DecisionReason, Detection, FinishReason, Mode, Rollout
from arrol.rollout_log import read_rollouts
from arrol.rollout_rows import ProblemKind

GOOD = {"prompt": "1 + 1 = ?", "answer": "2"}


def write(path: Path, *rows: Any) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def arrol(*arguments: object) -> tuple[int, str, str]:
    """Run ``arrol generate`` in this process: exit code, stdout, stderr."""
    printed, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(errors):
        patch.setattr(cli.arrol, "get_command", lambda *_: generate)
        code = cli.run(["generate", *map(str, arguments)])
    return code, printed.getvalue(), errors.getvalue()


# The prompts


def test_texts_chats_and_questions(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    path = write(
        tmp_path / "p.jsonl",
        GOOD,
        {"question": "What?", "answer": "so\n#### 18"},
        {"prompt": messages, "question": "unused", "answer": 7},
        {"prompt": "no answer"},
    )
    prompts, problems = read_prompts(path)
    assert prompts == [
        Prompt(1, "1 + 1 = ?", "2"),
        Prompt(2, "What?", "so\n#### 18"),
        Prompt(3, tuple(messages), "7"),
        Prompt(4, "no answer", None),
    ]
    assert not problems.counts


def test_named_columns_ids_and_limit(tmp_path: Path) -> None:
    rows = [{"q": f"text {n}", "gold": n, "name": f"p{n}"} for n in range(5)]
    path = write(tmp_path / "p.jsonl", *rows)
    prompts, _ = read_prompts(path, Columns("q", "gold", "name"), limit=2)
    assert prompts == [Prompt("p0", "text 0", "0"), Prompt("p1", "text 1", "1")]


def test_gzip_and_parquet_hold_the_same_prompts(tmp_path: Path) -> None:
    rows = [GOOD, {"prompt": "2 + 2 = ?", "answer": "4"}]
    plain = write(tmp_path / "p.jsonl", *rows)
    (tmp_path / "p.gz").write_bytes(gzip.compress(plain.read_bytes()))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet")
    wanted, _ = read_prompts(plain)
    for name in ("p.gz", "p.parquet"):
        assert read_prompts(tmp_path / name)[0] == wanted


def test_broken_lines_are_named_and_counted_and_the_rest_goes_on(tmp_path: Path) -> None:
    path = write(
        tmp_path / "p.jsonl",
        {**GOOD, "id": 1}, "{", {**GOOD, "id": 1}, {"id": 2, "prompt": " "},
        {"id": 3, "prompt": [{"role": "user"}]}, {"id": 4, "text": "x"}, {"prompt": "x"},
        {"id": 5, "prompt": "x", "answer": [1]}, {**GOOD, "id": 6},
    )  # fmt: skip
    prompts, problems = read_prompts(path, Columns(id="id"))
    assert [prompt.group for prompt in prompts] == [1, 6]
    assert [problem.line for problem in problems.first] == [2, 3, 4, 5, 6, 7, 8]
    assert problems.counts[ProblemKind.BAD_TOKENS] == 2
    assert "p.jsonl:8: answer [1] is neither a text nor a number" in str(problems.first[-1])


@pytest.mark.parametrize("rows", [[], ["{"], [{"text": "x"}]])
def test_no_usable_prompt_is_refused(tmp_path: Path, rows: list[Any]) -> None:
    path = write(tmp_path / "p.jsonl", *rows)
    with pytest.raises(ArrolError, match=r"--prompts has no prompt that can be used \(.*p\.jsonl"):
        read_prompts(path)


class Words:
    """A tokenizer that gives a word its length, and 1 before each text."""

    chat_template: str | None = "yes"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + [len(word) for word in text.split()]

    def apply_chat_template(self, messages: list[Any], **_: Any) -> str:
        return " ".join(f"{m['role']} {m['content']}" for m in messages) + " assistant"


def test_texts_go_through_the_chat_template_if_there_is_one() -> None:
    prompts = [Prompt(1, "ab c"), Prompt(2, ({"role": "system", "content": "abc"},))]
    words = Words()
    assert token_ids(words, prompts, None) == [(4, 2, 1, 9), (6, 3, 9)]
    assert token_ids(words, prompts[:1], False) == [(1, 2, 1)]
    words.chat_template = None
    assert token_ids(words, prompts[:1], None) == [(1, 2, 1)]
    for asked, chat in ((prompts[:1], True), (prompts[1:], None)):
        with pytest.raises(ArrolError, match="the model has no chat template"):
            token_ids(words, asked, chat)


# The flags


def test_engine_arguments_are_json_or_plain() -> None:
    pairs = ["dtype=float32", "max_model_len=512", "enforce_eager=true", 'x={"a": [1]}', "y=a=b"]
    names = ["dtype", "max_model_len", "enforce_eager", "x", "y"]
    assert engine_values(pairs, names) == {
        "dtype": "float32", "max_model_len": 512, "enforce_eager": True, "x": {"a": [1]},
        "y": "a=b",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        (["dtype"], "allowed is KEY=VALUE"),
        (["dtpye=half"], r"did you mean dtype\?"),
        (["dtype=half", "dtype=float32"], "--engine dtype is given twice"),
    ],
)
def test_a_bad_engine_argument_is_refused(pairs: list[str], text: str) -> None:
    with pytest.raises(ArrolError, match=text):
        engine_values(pairs, ["dtype", "seed"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--mode", "half"], "--mode"),
        (["--mode", "on"], "--mode is 'on' without --head"),
        (["--mode", "off", "--save-head", "x"], "--save-head is 'x' with --mode off"),
        (["--keep-ratio", "0"], "--keep-ratio is 0.0; allowed is a number above 0"),
        (["--group-size", "2.5"], "--group-size is '2.5'; allowed is an integer, 1 to 1,024"),
        (["--max-tokens", "512"], "--max-tokens is 512; allowed is more than --detect-length"),
        (["--answer-column", "gold"], "--answer-column is 'gold'"),
        (["--prompts", "missing.jsonl"], "missing.jsonl: can't be read"),
        (["--head", "nowhere"], "--head: nowhere/controller.json can't be read"),
        (["--out", __file__], "which is there; allowed is a new file, or --overwrite"),
        (["--preset", "best"], "--preset"),
    ],
)
def test_a_bad_flag_is_one_sentence_and_exit_code_2(
    tmp_path: Path, arguments: list[str], text: str
) -> None:
    prompts = write(tmp_path / "p.jsonl", GOOD)
    given = ["--model", "m", "--prompts", prompts, "--out", tmp_path / "o.jsonl", *arguments]
    code, printed, errors = arrol(*given)
    assert (code, printed) == (2, "")
    assert errors.startswith("arrol generate: ")
    assert errors.count("\n") == 1
    assert text in errors
    assert not (tmp_path / "o.jsonl").exists()


def test_the_prompts_are_never_overwritten(tmp_path: Path) -> None:
    prompts = write(tmp_path / "p.jsonl", GOOD)
    code, _, errors = arrol("--model", "m", "--prompts", prompts, "--out", prompts, "--overwrite")
    assert code == 2
    assert "the file of prompts" in errors


def test_without_vllm_it_says_so_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(support, "version", missing)
    prompts = write(tmp_path / "p.jsonl", GOOD)
    code, _, errors = arrol("--model", "m", "--prompts", prompts, "--out", tmp_path / "o.jsonl")
    assert code == 2
    assert errors.startswith("arrol generate: vLLM is not installed; allowed is")
    assert errors.count("\n") == 1


def test_the_command_is_loaded_without_torch_and_vllm() -> None:
    code = (
        "import sys, arrol.adapters.vllm.command;"
        "print(sorted({'torch', 'vllm', 'transformers'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_help_states_defaults_and_units() -> None:
    code, text, _ = arrol("--help")
    words = " ".join(text.split())
    assert code == 0
    for flag, default in {
        "--mode": "shadow", "--group-size": "16", "--keep-ratio": "0.5", "--temperature": "1.0",
        "--detect-length": "(that of --head, else 512)", "--limit": "(all)",
    }.items():  # fmt: skip
        assert f"[default: {default}" in words.split(f" {flag} ", 1)[1][:200], flag


# The file


def detection(key: int, keep: bool, score: float, enforced: bool, p: float = 0.5) -> Detection:
    return Detection(
        key, 9, key, 4, key, score, 0.5, p, keep, DecisionReason.DRAW, 1, enforced
    )  # fmt: skip


def rollout(key: int, reason: FinishReason, found: Detection | None, text: str) -> TokenRollout:
    return TokenRollout(key, 9, key, 10 + key, reason, found, text=text)


def test_rows_are_graded_flushed_and_left_out_where_they_are_not_whole(tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    prompt = Prompt("p", "1 + 1 = ?", "2")

    def grade(texts: Any, golds: Any) -> list[Verdict]:
        verdicts = map(verify, texts, golds)
        return [
            Verdict.UNVERIFIABLE if "?" in t else v for t, v in zip(texts, verdicts, strict=True)
        ]

    with RolloutFile(path, {9: prompt}, {9: 3}, grade) as file:
        file.add(rollout(0, FinishReason.STOP, detection(0, True, 0.25, True), "#### 2"))
        file.add(rollout(1, FinishReason.PRUNED, detection(1, False, 0.5, True), "#### 2"))
        file.flush()
        assert len(path.read_text(encoding="utf-8").splitlines()) == 2  # while it is open
        file.add(rollout(2, FinishReason.LENGTH, detection(2, True, math.nan, True), "#### 3"))
        file.add(rollout(3, FinishReason.STOP, None, "#### ? \ud800 \u2028"))
        file.add(rollout(4, FinishReason.FAILED, None, ""))
    assert file.outcomes == {0: True, 2: False}
    file.add_scores({2: 0.75, 0: 0.9, 4: 0.1})
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    assert rows[0] == {
        "group": "p", "index": 0, "step": 0, "prompt": "1 + 1 = ?", "text": "#### 2",
        "tokens": 10, "prompt_tokens": 3, "finish_reason": "stop", "reward": 1.0, "outcome": True,
        "answer": "2", "score": 0.25, "detection": detection(0, True, 0.25, True).to_dict(),
    }  # fmt: skip
    assert [row.get("reward") for row in rows] == [1.0, None, 0.0, None, None]
    assert [row.get("score") for row in rows] == [0.25, 0.5, 0.75, None, None]
    assert rows[3]["text"] == "#### ? \ud800 \u2028"
    log = read_rollouts([path])
    assert not log.problems.counts
    assert log.left_out == {"pruned": 1, "not graded": 1, "failed": 1}
    assert any("1 pruned, 1 failed, 1 not graded" in caveat for caveat in log.caveats)
    assert log.tokens.tolist() == [10, 12]
    assert log.scores.tolist() == [0.25, 0.75]
    assert log.outcomes.tolist() == [True, False]


def test_a_rollout_whose_grading_was_interrupted_is_written(tmp_path: Path) -> None:
    def grade(texts: Any, golds: Any) -> list[Verdict]:
        raise KeyboardInterrupt

    path = tmp_path / "o.jsonl"
    with RolloutFile(path, {9: Prompt(1, "?", "2")}, {}, grade) as file:
        file.add(rollout(0, FinishReason.STOP, None, "2"))
        with pytest.raises(KeyboardInterrupt):
            file.flush()
    (row,) = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert row["text"] == "2"
    assert "outcome" not in row


def stopped() -> Iterator[TokenRollout]:
    """A stream whose user presses Ctrl-C after two rollouts."""
    for key in range(2):
        yield rollout(key, FinishReason.STOP, None, "#### 2")
    raise KeyboardInterrupt


def test_ctrl_c_leaves_what_had_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "o.jsonl"
    job = _Job(RunSettings("m", path, PruningConfig()), [], None, None)  # type: ignore[arg-type]
    with (
        RolloutFile(path, {9: Prompt(1, "?", "2")}, {}, None) as file,
        pytest.raises(KeyboardInterrupt),
    ):
        _write(job, stopped(), _Look(5), file)
    assert len(path.read_text(encoding="utf-8").splitlines()) == 2
    assert capsys.readouterr().err == f"arrol generate: 2 of 5 rollouts are in {path}.\n"


# The table


def finished_run(mode: Mode) -> Run:
    """Four rollouts at L_detect 8: keys 0, 1 kept (right, wrong), 2 not, 3 early and right."""
    on = mode is Mode.ON
    reason = FinishReason.PRUNED if on else FinishReason.STOP
    rollouts = [
        Rollout(0, 9, 0, 20, FinishReason.STOP, detection(0, True, 0.9, on, 0.5)),
        Rollout(1, 9, 1, 30, FinishReason.LENGTH, detection(1, True, 0.1, on, 0.25)),
        Rollout(2, 9, 2, 8 if on else 13, reason, detection(2, False, 0.5, on, 0.5)),
        Rollout(3, 9, 3, 4, FinishReason.STOP),
    ]
    outcomes = {0: True, 1: False, 3: True} | ({} if on else {2: False})
    config = PruningConfig(mode=mode, detect_length=8, cold_start_steps=0)
    settings = RunSettings("m", Path("o"), config, head=Path("h"))
    plan = replace(PruningController(config).plan(1), mode=mode)
    return Run(settings, plan, rollouts, outcomes, 2.0, 1, 1)


def test_the_table_of_a_shadow_run() -> None:
    lines = {line.name: line for line in lines_of(finished_run(Mode.SHADOW))}
    assert lines["tokens generated"].value == "67"
    assert lines["tokens savable"].value == "5"  # 13 − 8, of the one with keep = False
    assert lines["tokens/s"].value == "34"
    assert lines["keep rate"].value == "0.750"  # 2 of 3 decided, and the early one
    assert lines["pass rate"].value == "0.500"
    assert lines["head’s AUC"].value == "1.000"


def test_the_table_of_a_run_that_pruned() -> None:
    lines = {line.name: line for line in lines_of(finished_run(Mode.ON))}
    assert lines["rollouts"].note == "of 1 prompt: 2 stop, 1 length, 1 pruned, 0 failed"
    assert lines["tokens saved"].value == "≈ 17"  # 1 × mean of 12 and 22
    assert "estimate" in lines["tokens saved"].note
    assert lines["pass rate"].value == "0.429"  # (2 + 1)/(2 + 4 + 1)


# The head


@pytest.fixture(scope="module")
def heads() -> Any:
    """The module that learns a head."""
    return pytest.importorskip("arrol.adapters.vllm.first_head", reason="torch is not installed")


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=2, max_size=12))
def test_halves_are_of_whole_groups_and_as_right_as_can_be(
    heads: Any, groups: list[list[bool]]
) -> None:
    codes_N = np.array([g for g, row in enumerate(groups) for _ in row], dtype=np.uint64)
    right_N = np.array([float(right) for row in groups for right in row])
    halves_N = heads.split(codes_N, right_N)
    for code in range(len(groups)):
        assert len(set(halves_N[codes_N == code])) == 1
    assert set(halves_N.tolist()) == {0, 1}
    right = [right_N[halves_N == half].sum() for half in (0, 1)]
    assert abs(right[0] - right[1]) <= max(sum(row) for row in groups)


def lessons(signal: float, groups: int = 60) -> tuple[Any, Any, Any]:
    """Rollouts in groups of 4 whose hidden state tells right from wrong by ``signal``."""
    rng = np.random.default_rng(3)
    rollouts, outcomes, hidden = [], {}, {}
    for key in range(4 * groups):
        right = bool(rng.random() < 0.5)
        found = Detection(key, key // 4, key % 4, 4, key % 4, math.nan, math.nan, 1.0, True,
                          DecisionReason.NO_HEAD, 1, False)  # fmt: skip
        rollouts.append(Rollout(key, key // 4, key % 4, 20, FinishReason.STOP, found))
        row_H = rng.normal(size=16)
        row_H[0] += signal * (2 * right - 1)
        outcomes[key], hidden[key] = right, row_H.astype(np.float16)
    return rollouts, outcomes, hidden


def test_the_held_out_auc_is_honest_and_the_controller_sees_held_out_scores(heads: Any) -> None:
    """Φ(2·.7/√2) = .84 is the best AUC for means ±.7; without a signal it is ½."""
    config = PruningConfig(detect_length=8, cold_start_steps=0)
    noise = heads.learn(*lessons(0.0), config)
    assert noise.held_out_auc == pytest.approx(0.5, abs=0.1)
    assert noise.own_auc > noise.held_out_auc + 0.1  # what it would claim without the split
    told = heads.learn(*lessons(0.7, groups=250), config)
    assert told.held_out_auc == pytest.approx(0.84, abs=0.08)
    assert told.controller.metrics["auc"] == pytest.approx(told.held_out_auc, abs=1e-12)
    assert told.controller.plan(told.head.version).calibration is not None
    assert told.head.version == 1


def test_what_can_not_be_split_is_refused(heads: Any) -> None:
    rollouts, outcomes, hidden = lessons(1.0, groups=2)
    config = PruningConfig(detect_length=8)
    for right in (True, False):
        with pytest.raises(ArrolError, match="right and wrong ones in two prompts or more"):
            heads.learn(rollouts, dict.fromkeys(outcomes, right), hidden, config)
    with pytest.raises(ArrolError, match="0 right and 0 wrong"):
        heads.learn(rollouts, {}, hidden, config)
