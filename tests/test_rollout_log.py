"""Reading real rollout logs: the three formats, and everything that can be wrong with a file."""

from __future__ import annotations

import gzip
import json
import math
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arrol.errors import ArrolError
from arrol.rollout_files import KEPT_PROBLEMS
from arrol.rollout_log import (
    RolloutLog,
    read_rollouts,
    tokenizer,
    unit_scores,
)
from arrol.rollout_rows import Characters, LogFormat, ProblemKind

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def write(path: Path, *rows: Any) -> Path:
    """Rows as JSON lines; a row that is bytes goes in as it is."""
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def row(group: Any = "a", tokens: Any = 100, reward: Any = 1.0, **more: Any) -> dict[str, Any]:
    return {"group": group, "tokens": tokens, "reward": reward, **more}


def verl(prompt: str = "p", output: Any = "four", score: Any = 1.0, **more: Any) -> dict[str, Any]:
    return {"input": prompt, "output": output, "gts": "4", "score": score, "step": 1, **more}


def kinds(log: RolloutLog) -> dict[ProblemKind, int]:
    return dict(log.problems.counts)


# The formats


def test_rows_format(tmp_path: Path) -> None:
    path = write(
        tmp_path / "log.jsonl",
        row("a", 700, 1.0, score=0.25),
        row("b", [5, 6, 7], -0.5),
        {"group": "a", "text": "x" * 50, "reward": 0.5, "outcome": False, "prompt_tokens": 9},
    )
    log = read_rollouts([path], Characters(0.5))
    assert log.groups.tolist() == [0, 1, 0]
    assert log.indices.tolist() == [0, 0, 1]
    assert log.tokens.tolist() == [700, 3, 25]
    assert log.prompt_tokens.tolist() == [-1, -1, 9]
    assert log.rewards.tolist() == [1.0, -0.5, 0.5]
    assert log.outcomes.tolist() == [True, False, False]
    assert log.scores[0] == 0.25
    assert np.isnan(log.scores[1:]).all()
    assert log.formats == {str(path): {LogFormat.ROWS: 3}}
    assert not kinds(log)


def test_verl_dump_groups_by_input_and_step(tmp_path: Path) -> None:
    """As verl writes it: a file a step, ``ensure_ascii=False``, extra keys beside the five."""
    first = [verl("p", score=1.0, acc=True), verl("q"), verl("p", "five!", -1.0, acc=False)]
    second = [verl("p", step=2), verl("q", step=2)]
    write(tmp_path / "1.jsonl", *first)
    write(tmp_path / "10.jsonl", *second)
    log = read_rollouts([tmp_path], Characters(1.0))
    assert log.groups.tolist() == [0, 1, 0, 2, 3]
    assert log.steps.tolist() == [0, 0, 0, 1, 1]
    assert log.tokens.tolist() == [4, 4, 5, 4, 4]
    assert log.prompt_tokens.tolist() == [1] * 5
    assert log.rewards.tolist() == [1, 1, -1, 1, 1]
    assert log.outcomes.tolist() == [True, True, False, True, True]
    assert np.isnan(log.scores).all()  # verl's ``score`` is a reward, not a quality score


def test_verl_accuracy_decides_the_outcome_and_score_stays_the_reward(tmp_path: Path) -> None:
    """An overlong penalty turns the reward negative; the answer is right all the same."""
    path = write(tmp_path / "1.jsonl", verl(score=-0.2, acc=1.0), verl(score=0.3, acc=False))
    log = read_rollouts([path])
    assert log.rewards.tolist() == [-0.2, 0.3]
    assert log.outcomes.tolist() == [True, False]


def test_what_makes_a_rollout_right_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "1.jsonl", *(row(reward=reward) for reward in (-1, 0, 0.1, 1.0)))
    log = read_rollouts([path])
    assert log.outcomes.tolist() == [False, False, True, True]
    assert log.notes == ("Right means reward > 0, as the log states no outcome.",)
    assert len(log.caveats) == 1
    assert "the rewards above it take 2 values, 0.1 to 1" in log.caveats[0]
    strict = read_rollouts([path], right_above=0.5)
    assert strict.outcomes.tolist() == [False, False, False, True]
    assert strict.notes == ("Right means reward > 0.5, as the log states no outcome.",)
    assert not strict.caveats


def test_stated_outcomes_need_no_rule(tmp_path: Path) -> None:
    rows = [row(reward=reward, outcome=reward < 0) for reward in (-0.3, 0.2, 0.4)]
    log = read_rollouts([write(tmp_path / "1.jsonl", *rows)], right_above=0.3)
    assert log.outcomes.tolist() == [True, False, False]
    assert not (*log.notes, *log.caveats)
    mixed = read_rollouts([write(tmp_path / "2.jsonl", *rows, row())])
    assert mixed.notes == ("Right means reward > 0 for the 1 of 4 rollouts that state no outcome.",)


def test_a_threshold_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArrolError, match="--right-above is nan"):
        read_rollouts([write(tmp_path / "1.jsonl", row())], right_above=math.nan)


def test_estimated_lengths_are_counted(tmp_path: Path) -> None:
    text = {"group": 1, "text": "x" * 50, "reward": 1}
    path = write(tmp_path / "1.jsonl", row(), text, {**text, "text": "y"})
    (caveat,) = read_rollouts([path]).caveats
    assert caveat.startswith("2 of 3 lengths are estimates, characters × 0.33;")
    assert not read_rollouts([path], len).caveats  # counted by a tokenizer: no estimate


@pytest.mark.parametrize(
    ("first", "second", "recurring"),
    [
        ([row("a"), row("b")], [row("b"), row("b"), row("c")], 1),
        ([row(1), row(2)], [row(1), row(2)], 2),
        ([row("1")], [row(1)], 0),
        ([row("a", step=1)], [row("a", step=1)], 1),
        ([row("a", step=1)], [row("a", step=2)], 0),  # a prompt that comes back later
        ([row("a"), row("a")], [row("b")], 0),
    ],
)
def test_groups_that_recur_in_another_file_are_named(
    tmp_path: Path, first: list[Any], second: list[Any], recurring: int
) -> None:
    paths = [write(tmp_path / "1.jsonl", *first), write(tmp_path / "2.jsonl", *second)]
    caveats = read_rollouts(paths).caveats
    assert len(caveats) == min(recurring, 1)
    if recurring:
        recur = "id recurs" if recurring == 1 else "ids recur"
        assert caveats[0].startswith(f"{recurring} group {recur} in another file")


def test_lists_format(tmp_path: Path) -> None:
    problem = {
        "question": "ab",
        "response": ["abcd", "abcdef"],
        "pred": ["1", "2"],
        "score": [True, False],
        "pred_score": [[0.5], [[0.75]]],
    }
    log = read_rollouts([write(tmp_path / "x.jsonl", problem, {**problem, "question": "abc"})])
    assert log.groups.tolist() == [0, 0, 1, 1]
    assert log.outcomes.tolist() == [True, False, True, False]
    assert log.scores.tolist() == [0.5, 0.75, 0.5, 0.75]


def test_formats_may_mix_in_one_file(tmp_path: Path) -> None:
    lists = {"response": ["a", "b"], "score": [1, 0]}
    path = write(tmp_path / "x.jsonl", row(), verl(), lists)
    log = read_rollouts([path])
    assert log.formats[str(path)] == dict.fromkeys(LogFormat, 1)
    assert log.sizes.tolist() == [1, 1, 2]


def test_groups_never_span_files_or_steps(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", row("g", step=1), row("g", step=2), row("g", step=1))
    b = write(tmp_path / "b.jsonl", row("g", step=1))
    log = read_rollouts([a, b])
    assert log.groups.tolist() == [0, 1, 0, 2]
    assert log.steps.tolist() == [0, 1, 0, 2]


def test_group_ids_of_different_type_differ(tmp_path: Path) -> None:
    log = read_rollouts([write(tmp_path / "x.jsonl", row(1), row("1"), row(1))])
    assert log.groups.tolist() == [0, 1, 0]


def test_real_math_rollouts() -> None:
    path = SHARED / "math_rollouts.jsonl"
    if not path.exists():
        pytest.skip("shared/data/math_rollouts.jsonl is not there")
    log = read_rollouts([path])
    # 60 problems of 8 rollouts, 444 of them right: counted in the file by hand.
    assert (len(log), log.sizes.tolist()) == (480, [8] * 60)
    assert int(log.outcomes.sum()) == 444
    assert not log.problems.counts
    assert log.scored_share == 1.0
    assert 0 < log.scores.min() < log.scores.max() < 1
    assert int(log.tokens.sum()) == pytest.approx(480 * 1132.554 * 0.33, rel=2e-3)


# Containers


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet", "x.txt", "x"])
def test_gzip_is_told_by_content_not_by_suffix(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(json.dumps(row()).encode()))
    assert len(read_rollouts([path])) == 1


@pytest.mark.parametrize("name", ["x.parquet", "x.jsonl"])
def test_parquet_holds_the_same_rollouts(tmp_path: Path, name: str) -> None:
    rows = [row("a", 5, 1.0, score=0.5), row("b", 6, 0.0, score=None), row("a", 7, -1.0, score=0.1)]
    path = tmp_path / name
    pd.DataFrame(rows).to_parquet(path)
    log, lines = read_rollouts([path]), read_rollouts([write(tmp_path / "y.jsonl", *rows)])
    for field in ("groups", "indices", "tokens", "rewards", "outcomes", "scores"):
        np.testing.assert_array_equal(getattr(log, field), getattr(lines, field))


def test_parquet_of_lists_and_token_ids(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pd.DataFrame([row("a", [1, 2, 3]), row("a", [4])]).to_parquet(path)
    assert read_rollouts([path]).tokens.tolist() == [3, 1]
    pd.DataFrame([{"response": ["ab", "c"], "score": [1.0, 0.0]}]).to_parquet(path)
    assert read_rollouts([path]).sizes.tolist() == [2]


def test_bom_crlf_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    line = json.dumps(row()).encode()
    path.write_bytes(b"\xef\xbb\xbf" + line + b"\r\n\r\n  \n" + line)
    log = read_rollouts([path])
    assert (len(log), kinds(log)) == (2, {})


def test_line_separators_inside_strings_end_no_line(tmp_path: Path) -> None:
    text = "one\u2028two\u2029three\x85four\x0cfive"
    path = tmp_path / "1.jsonl"
    path.write_text(json.dumps(verl(output=text), ensure_ascii=False) + "\n", encoding="utf-8")
    log = read_rollouts([path], Characters(1.0))
    assert log.tokens.tolist() == [len(text)]
    assert not kinds(log)


def test_a_folder_is_read_in_natural_order(tmp_path: Path) -> None:
    for step in (10, 9, 1):
        write(tmp_path / f"{step}.jsonl", row("g", step))
    write(tmp_path / "notes.md", b"not a log")
    log = read_rollouts([tmp_path])
    assert log.tokens.tolist() == [1, 9, 10]
    assert not kinds(log)


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", row())
    log = read_rollouts([path, tmp_path / "." / "x.jsonl", tmp_path])
    assert len(log) == 1
    assert kinds(log) == {ProblemKind.REPEATED_FILE: 2}


# Problems: named with file and line, counted, and the rest goes on


BAD_ROWS = [
    (b'{"group": "a", "tok', ProblemKind.BROKEN_LINE, "not JSON"),
    (b"[1, 2]", ProblemKind.BROKEN_LINE, "JSON list"),
    (b'"text"', ProblemKind.BROKEN_LINE, "JSON str"),
    (b"\xff\xfe{}", ProblemKind.BROKEN_LINE, "not UTF-8 (byte 1"),
    (b"[" * 100_000, ProblemKind.BROKEN_LINE, "not JSON"),
    (b'{"group": 1, "tokens": 5, "reward": ' + b"9" * 5000 + b"}", ProblemKind.BROKEN_LINE, ""),
    ({"x": 1}, ProblemKind.UNKNOWN_FORMAT, "['x']"),
    ({"group": "a", "reward": 1}, ProblemKind.UNKNOWN_FORMAT, "tokens or text missing"),
    ({"input": "p", "output": "o"}, ProblemKind.UNKNOWN_FORMAT, "score missing"),
    (row(reward=math.nan), ProblemKind.BAD_REWARD, "nan"),
    (row(reward=math.inf), ProblemKind.BAD_REWARD, "inf"),
    (row(reward="1.0"), ProblemKind.BAD_REWARD, "'1.0'"),
    (row(reward=10**400), ProblemKind.BAD_REWARD, "reward"),
    (row(tokens=-1), ProblemKind.BAD_TOKENS, "-1"),
    (row(tokens=1.5), ProblemKind.BAD_TOKENS, "1.5"),
    (row(tokens=True), ProblemKind.BAD_TOKENS, "True"),
    (row(tokens="five"), ProblemKind.BAD_TOKENS, "'five'"),
    (row(tokens=10**30), ProblemKind.BAD_TOKENS, "10,000,000"),
    (row(tokens=None, text=["a"]), ProblemKind.BAD_TOKENS, "is no text"),
    (row(group=[1]), ProblemKind.BAD_GROUP, "[1]"),
    (row(group=10**30), ProblemKind.BAD_GROUP, "group"),
    (row(step=-1), ProblemKind.BAD_GROUP, "step"),
    (row(index=[0]), ProblemKind.BAD_GROUP, "index"),
    (row(outcome="yes"), ProblemKind.BAD_OUTCOME, "'yes'"),
    (row(outcome=2), ProblemKind.BAD_OUTCOME, "2"),
    (verl(output=5), ProblemKind.BAD_TOKENS, "output 5"),
    (verl(acc="true"), ProblemKind.BAD_OUTCOME, "acc 'true'"),
    ({"response": [], "score": []}, ProblemKind.EMPTY_GROUP, "empty"),
    ({"response": ["a", "b"], "score": [1]}, ProblemKind.UNEQUAL_LISTS, "2 response, 1 score"),
    ({"response": "a", "score": [1]}, ProblemKind.UNEQUAL_LISTS, "is no list"),
    (
        {"response": ["a"], "score": [1], "pred_score": []},
        ProblemKind.UNEQUAL_LISTS,
        "0 pred_score",
    ),
]


@pytest.mark.parametrize(("bad", "kind", "text"), BAD_ROWS)
def test_a_bad_record_is_named_and_the_rest_goes_on(
    tmp_path: Path, bad: Any, kind: ProblemKind, text: str
) -> None:
    path = write(tmp_path / "x.jsonl", row("a"), bad, row("a"))
    log = read_rollouts([path])
    assert len(log) == 2
    assert kinds(log) == {kind: 1}
    problem = log.problems.first[0]
    assert (problem.path, problem.line) == (str(path), 2)
    assert text in problem.text
    assert "\n" not in str(problem)
    assert len(problem.text) < 200


def test_a_bad_entry_of_a_list_costs_only_itself(tmp_path: Path) -> None:
    problem = {"response": ["a", 5, "c", "d"], "score": [1, 1, math.nan, 0]}
    log = read_rollouts([write(tmp_path / "x.jsonl", problem)])
    assert log.outcomes.tolist() == [True, False]
    assert kinds(log) == {ProblemKind.BAD_TOKENS: 1, ProblemKind.BAD_REWARD: 1}


@pytest.mark.parametrize("score", [math.nan, math.inf, "high", [0.1, 0.2]])
def test_a_rollout_with_a_bad_score_is_used_without(tmp_path: Path, score: Any) -> None:
    log = read_rollouts([write(tmp_path / "x.jsonl", row(score=score), row(score=0.5))])
    assert np.isnan(log.scores).tolist() == [True, False]
    assert kinds(log) == {ProblemKind.BAD_SCORE: 1}
    assert ProblemKind.BAD_SCORE.used


def test_null_means_absent(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", row(score=None, outcome=None, step=None, index=None))
    log = read_rollouts([path])
    assert (len(log), kinds(log)) == (1, {})
    assert np.isnan(log.scores).all()


def test_duplicates(tmp_path: Path) -> None:
    """A rollout with an identity counts once; two samples without may well agree."""
    lists = {"response": ["a"], "score": [1]}
    path = write(
        tmp_path / "x.jsonl",
        row("a", index=0),
        row("a", index=0, reward=0),
        row("a", index=1),
        row("b", index=0),
        verl(request_id="r"),
        verl(request_id="r"),
        verl("q"),
        verl("q"),
        row("c", 5),
        row("c", 5),
        lists,
        lists,
    )
    log = read_rollouts([path])
    assert log.sizes.tolist() == [2, 1, 1, 2, 2, 1]
    assert kinds(log) == {ProblemKind.DUPLICATE: 3, ProblemKind.REPEATED: 1}
    assert [p.line for p in log.problems.first] == [2, 6, 8, 12]


def test_problems_are_all_counted_but_few_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", row(), *[b"{"] * (KEPT_PROBLEMS + 7))
    problems = read_rollouts([path]).problems
    assert problems.counts.total() == KEPT_PROBLEMS + 7
    assert len(problems.first) == KEPT_PROBLEMS


def test_a_gzip_that_breaks_off_gives_what_came_before(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [row(int(g), int(t)) for g, t in rng.integers(0, 10**6, (3000, 2))]
    whole = gzip.compress(b"\n".join(json.dumps(r).encode() for r in rows))
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    log = read_rollouts([path])
    assert 100 < len(log) < 2900
    assert ProblemKind.UNREADABLE_FILE in kinds(log)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "No such file"),
        (b"", "empty"),
        (b"\n\r\n \n", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        (bytes(range(256)) * 20, "zero bytes"),
        ('{"group": 1}'.encode("utf-16"), "zero bytes"),
        (b"\x1f\x8bgarbage", "can't be read"),
        (b"PAR1garbage", "can't be read"),
        (b"PAR1" + bytes(100) + b"PAR1", "can't be read"),
        (b"a,b\n1,2\n", "not JSON"),
    ],
)
def test_a_file_with_nothing_usable(tmp_path: Path, content: bytes | None, text: str) -> None:
    """Alone it is an error of one sentence with the file's name; beside a good file a problem."""
    bad = tmp_path / "bad.jsonl"
    if content is not None:
        bad.write_bytes(content)
    with pytest.raises(ArrolError) as error:
        read_rollouts([bad])
    assert text in str(error.value)
    assert "bad.jsonl" in str(error.value)
    assert "\n" not in str(error.value)
    log = read_rollouts([bad, write(tmp_path / "good.jsonl", row())])
    assert len(log) == 1
    assert any(text in p.text and p.path == str(bad) for p in log.problems.first)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ArrolError, match="the folder holds no file"):
        read_rollouts([tmp_path])


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_content_breaks_the_reader(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "x.jsonl"
    path.write_bytes(json.dumps(row()).encode() + b"\n" + content)
    try:
        assert len(read_rollouts([path])) >= 1
    except ArrolError:
        assert b"\0" in content  # then the whole file is taken for binary


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "a", "é"]),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
KEYS = [
    "group", "tokens", "text", "reward", "score", "outcome", "step", "index", "prompt", "acc",
    "input", "output", "response", "pred_score", "question", "prompt_tokens", "request_id",
]  # fmt: skip


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), JSON_VALUES))
def test_every_record_ends_up_as_rollouts_or_problems(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]
) -> None:
    path = write(tmp_path_factory.mktemp("any") / "x.jsonl", row("sure"), values)
    log = read_rollouts([path])
    assert len(log) + log.problems.counts.total() >= 2
    assert np.isfinite(log.rewards).all()
    assert (log.tokens >= 1).all()
    assert len(log.indices) == len(log) == log.sizes.sum()


# Scores and token counts


def test_scores_within_the_unit_interval_stay() -> None:
    scores, note = unit_scores(np.array([0.0, 0.3, 1.0, np.nan]))
    np.testing.assert_array_equal(scores, [0.0, 0.3, 1.0, np.nan])
    assert "own" in note


def test_scores_of_another_range_become_midranks() -> None:
    scores, note = unit_scores(np.array([-5.0, np.nan, 40.0, 3.0, 3.0]))
    np.testing.assert_array_equal(scores, [0.125, np.nan, 0.875, 0.5, 0.5])
    assert "rank" in note


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_ranks_keep_the_order_and_the_interval(values: list[float]) -> None:
    given_N = np.array(values)
    scores, _ = unit_scores(given_N)
    assert ((scores >= 0) & (scores <= 1)).all()
    np.testing.assert_array_equal(
        np.sign(scores[:, None] - scores), np.sign(given_N[:, None] - given_N)
    )


def test_characters() -> None:
    count = Characters(0.25)
    assert [count(t) for t in ("", "x", "x" * 8, "é" * 8)] == [0, 1, 2, 2]
    for bad in (0.0, -1.0, math.nan, 11.0):
        with pytest.raises(ArrolError, match=r"--tokens-per-char is .*above 0 and at most 10"):
            Characters(bad)


def test_a_missing_tokenizer_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ArrolError, match="--tokenizer some/name needs the package transformers"):
        tokenizer("some/name")


def test_a_tokenizer_counts_without_special_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a stand-in with the one method that is used: a token a word, two around."""

    class Words:
        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            text.encode("utf-8")
            return [0] * (len(text.split()) + (2 if add_special_tokens else 0))

    class AutoTokenizer:
        @staticmethod
        def from_pretrained(name: str) -> Words:
            if name != "good":
                raise OSError(f"{name} is not a local folder\nand more lines")
            return Words()

    module = type("transformers", (), {"AutoTokenizer": AutoTokenizer})
    monkeypatch.setitem(__import__("sys").modules, "transformers", module)
    assert tokenizer("good")("two words") == 2
    assert tokenizer("good")("lone \ud800 surrogate") == 3
    with pytest.raises(ArrolError, match=r"--tokenizer is 'bad'.*is not a local folder\)\.$"):
        tokenizer("bad")


def test_a_pipe_will_do(tmp_path):
    """Read once and forwards: nothing is lost between a look at the format and the reading."""
    lines = [json.dumps({"group": i // 8, "tokens": 9, "reward": i % 2}) for i in range(4000)]
    content = "\n".join(lines).encode()
    for data in (content, gzip.compress(content)):
        pipe = tmp_path / f"pipe{len(data)}"
        os.mkfifo(pipe)
        writer = threading.Thread(target=pipe.write_bytes, args=(data,))
        writer.start()
        log = read_rollouts([pipe])
        writer.join()
        assert len(log.groups) == 4000
        assert log.problems.counts.total() == 0


def test_paths_that_lead_nowhere_are_named_and_the_rest_goes_on(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    good = tmp_path / "good.jsonl"
    good.write_text('{"group": 1, "tokens": 9, "reward": 1}\n', encoding="utf-8")
    log = read_rollouts([tmp_path / "loop", tmp_path / ("a" * 300), good])
    assert len(log.groups) == 1
    assert log.problems.counts == {ProblemKind.UNREADABLE_FILE: 2}


def test_a_time_beyond_pythons_is_named(tmp_path):
    table = pa.table({"group": ["a"], "when": pa.array([2**62], pa.timestamp("us"))})
    path = tmp_path / "far.parquet"
    pq.write_table(table, path)
    with pytest.raises(ArrolError, match=r"far\.parquet: can't be read"):
        read_rollouts([path])
