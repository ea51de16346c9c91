"""``arrol vote`` end to end: what it prints, what it writes, and how it refuses."""

from __future__ import annotations

import io
import itertools
import json
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.cells import cell_len

from arrol import cli
from arrol.sim.vote_command import vote

pytest.importorskip("math_verify", reason="needs the extra 'verify'")

REAL = Path(__file__).resolve().parents[2] / "shared" / "data" / "math_rollouts.jsonl"


def arrol(*arguments: object, width: int = 100) -> tuple[int, str, str]:
    """Run ``arrol vote`` in this process: exit code, stdout, stderr."""
    printed, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(errors):
        patch.setattr(cli.arrol, "get_command", lambda *_: vote)
        patch.setenv("COLUMNS", str(width))
        code = cli.run(["vote", *map(str, arguments)])
    return code, printed.getvalue(), errors.getvalue()


def write(path: Path, rows: list[Any]) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def boxed(answer: object) -> str:
    return rf"So it is \boxed{{{answer}}}."


def row(group: object, said: object, **more: Any) -> dict[str, Any]:
    return {"group": group, "text": boxed(said), "answer": "5", **more}


def everything(groups: int = 6, size: int = 4) -> list[dict[str, Any]]:
    """Rows with all scores there are; right ones have the higher ones."""
    rng = np.random.default_rng(0)
    rows = []
    for place in range(groups * size):
        right = bool(rng.random() < 0.5)
        q = 0.2 + 0.6 * right + 0.1 * float(rng.random())
        scores = {"score": q, "posterior": q, "confidence": 10 + q, "orm": 4 * q - 2}
        rows.append(row(place // size, "5" if right else 100 + place, index=place % size, **scores))
    return rows


def table(out: Path) -> pd.DataFrame:
    return pd.read_csv(out / "vote.csv", dtype={"k": "Int64"}).set_index(["method", "k"])


def accuracy(out: Path, method: str, k: int) -> float:
    return float(table(out).loc[(method, k), "accuracy"])


class TestOutput:
    @pytest.mark.parametrize("width", [80, 120])
    def test_all_methods_stand_in_a_table_that_fits(self, tmp_path: Path, width: int) -> None:
        log = write(tmp_path / "log.jsonl", everything())
        code, text, errors = arrol(log, "--out", tmp_path / "out", width=width)
        assert (code, errors) == (0, "")
        lines = [line for line in text.split("\n") if "Written:" not in line]
        assert max(map(cell_len, lines)) <= width
        assert "…" not in text
        for name in ("majority", "confidence", "rank", "naive Bayes", "reward model", "pass@k"):
            assert f"\n{name} " in text
        assert "need what no rollout here has" not in text
        assert "6 problems with 4 rollouts each, 24 in all" in text
        assert (tmp_path / "out" / "vote.png").read_bytes().startswith(b"\x89PNG")

    def test_the_table_has_every_method_and_k(self, tmp_path: Path) -> None:
        rows = everything()
        arrol(write(tmp_path / "log.jsonl", rows), "--out", tmp_path, "--draws", 500)
        found = table(tmp_path)
        assert sorted(set(found.index.get_level_values("k"))) == [1, 2, 4]
        assert len(found) == 7 * 3
        assert (found["low"] <= found["accuracy"] + 1e-9).all()
        assert (found["accuracy"] <= found["high"] + 1e-9).all()
        right = np.array([r["text"] == boxed(5) for r in rows]).reshape(6, 4)
        assert accuracy(tmp_path, "avg@k", 4) == pytest.approx(right.mean())
        assert accuracy(tmp_path, "pass@k", 4) == pytest.approx(right.any(axis=1).mean())
        for method in ("majority", "confidence", "rank", "naive Bayes", "reward model"):
            assert accuracy(tmp_path, method, 1) == pytest.approx(right.mean())
        # Every right score is above every wrong one, so the heaviest vote is right where one is.
        assert accuracy(tmp_path, "naive Bayes", 4) == pytest.approx(right.any(axis=1).mean())

    def test_a_method_without_scores_is_listed_with_the_reason(self, tmp_path: Path) -> None:
        log = write(tmp_path / "log.jsonl", [row("a", 5, score=0.5), row("a", 6)])
        _, text, _ = arrol(log, "--out", tmp_path, width=80)
        listed = " ".join(text.split("need what no rollout here has")[1].split())
        for words in ("confidence confidence the", "naive Bayes posterior a", "reward model orm a"):
            assert words in listed
        assert "rank " not in listed
        absent = pd.read_csv(tmp_path / "vote.csv").set_index("method")["absent"]
        assert absent["naive Bayes"] == (
            "no rollout that votes has posterior: a calibrated P(right)"
        )
        assert absent["rank"].isna().all()
        assert "scored" in text  # half of the votes have a score
        assert table(tmp_path)["scored"]["rank", 2] == 0.5

    def test_the_same_seed_gives_the_same_bytes(self, tmp_path: Path) -> None:
        log = write(tmp_path / "log.jsonl", everything(4, 12))
        for name, seed in (("a", 7), ("b", 7), ("c", 8)):
            arrol(log, "--out", tmp_path / name, "--seed", seed)
        for name in ("vote.csv", "vote.png"):
            same = (tmp_path / "a" / name).read_bytes()
            assert same == (tmp_path / "b" / name).read_bytes()
            assert same != (tmp_path / "c" / name).read_bytes()

    def test_neither_the_place_of_a_file_nor_its_order_matters(self, tmp_path: Path) -> None:
        rows = everything(3, 14)
        (tmp_path / "folder").mkdir()
        one = write(tmp_path / "log.jsonl", rows)
        other = write(tmp_path / "folder" / "other.jsonl", rows[14:] + rows[:14])
        for name, log in (("a", one), ("b", other)):
            arrol(log, "--out", tmp_path / name)
        columns = ["accuracy", "gain", "scored"]
        pd.testing.assert_frame_equal(
            table(tmp_path / "a")[columns], table(tmp_path / "b")[columns]
        )

    def test_k_is_the_largest(self, tmp_path: Path) -> None:
        log = write(tmp_path / "log.jsonl", everything())
        arrol(log, "--out", tmp_path, "--k", 3)
        assert sorted(set(table(tmp_path).index.get_level_values("k"))) == [1, 2, 3]


class TestFormats:
    def test_equal_answers_are_one(self, tmp_path: Path) -> None:
        rows = [row("a", text, answer="0.5") for text in (r"\frac{1}{2}", "0.5", "1/2", "3", "3")]
        arrol(write(tmp_path / "log.jsonl", rows), "--out", tmp_path)
        assert accuracy(tmp_path, "majority", 5) == 1.0
        assert accuracy(tmp_path, "avg@k", 5) == pytest.approx(0.6)

    def test_pruned_and_failed_rollouts_do_not_count(self, tmp_path: Path) -> None:
        rows = [
            row("a", 5, outcome=1, finish_reason="stop"),
            row("a", 6, outcome=0, finish_reason="length"),
            *(row("a", 6, finish_reason="pruned") for _ in range(3)),
            {"group": "a", "text": None, "finish_reason": "failed"},
        ]
        _, text, _ = arrol(write(tmp_path / "log.jsonl", rows), "--out", tmp_path)
        assert "Not counted: 3 pruned, 1 failed." in " ".join(text.split())
        assert "2 in all" in text
        assert accuracy(tmp_path, "majority", 2) == 0.5

    def test_rows_with_a_detection(self, tmp_path: Path) -> None:
        detection = {"posterior": 0.9, "survival": 0.5, "score": 0.8}
        rows = [
            row("a", 5, outcome=1, score=0.8, detection=detection),
            row("a", 6, outcome=0, detection=None),
            row("a", 6, outcome=0, detection=detection | {"posterior": 0.1, "score": 0.1}),
        ]
        arrol(write(tmp_path / "log.jsonl", rows), "--out", tmp_path)
        assert table(tmp_path)["scored"]["naive Bayes", 2] == pytest.approx(2 / 3)
        assert table(tmp_path)["scored"]["rank", 2] == pytest.approx(2 / 3)
        assert accuracy(tmp_path, "majority", 3) == 0.0
        # log 9 for the right one; for the other −log 9 and the mean of both, 0.
        assert accuracy(tmp_path, "naive Bayes", 3) == 1.0

    @pytest.mark.parametrize(("labels", "right"), [((1, 1, 0), 1.0), ((0, 1, 0), 0.0)])
    def test_labels_come_before_gold_and_contradictions_are_counted(
        self, tmp_path: Path, labels: tuple[int, ...], right: float
    ) -> None:
        rows = [row("a", 6, outcome=label) for label in labels]
        _, text, _ = arrol(write(tmp_path / "log.jsonl", rows), "--out", tmp_path)
        assert "Of the labels, 1 say otherwise" in " ".join(text.split())
        assert accuracy(tmp_path, "majority", 3) == right
        assert accuracy(tmp_path, "avg@k", 3) == pytest.approx(sum(labels) / 3)

    def test_no_answer_does_not_vote(self, tmp_path: Path) -> None:
        silent = {"group": "a", "text": "I give up.\nSorry.", "answer": "5"}
        rows = [silent, silent, silent, row("a", 5)]
        _, text, _ = arrol(write(tmp_path / "log.jsonl", rows), "--out", tmp_path)
        assert "No answer could be read from 3" in " ".join(text.split())
        assert accuracy(tmp_path, "majority", 4) == 1.0
        assert accuracy(tmp_path, "majority", 2) == 0.5  # in half of the pairs somebody votes

    def test_problems_of_unequal_size_stand_with_all_they_have(self, tmp_path: Path) -> None:
        rows = [row("a", 5), *(row("b", 5 + place % 2) for place in range(4))]
        _, text, _ = arrol(write(tmp_path / "log.jsonl", rows), "--out", tmp_path)
        assert "all they have: 1 at k = 2, 1 at k = 4" in " ".join(text.split())
        assert table(tmp_path)["full"]["pass@k", 4] == 1
        assert accuracy(tmp_path, "majority", 4) == 0.75  # 1 and a tie

    def test_long_group_names_that_differ_at_their_end_are_two(self, tmp_path: Path) -> None:
        rows = [row("x" * 80 + end, 5, index=0) for end in "ab"]
        _, text, _ = arrol(write(tmp_path / "log.jsonl", rows), "--out", tmp_path)
        assert "2 problems with 1 rollout each, 2 in all" in text

    def test_lists(self, tmp_path: Path) -> None:
        record = {
            "response": [boxed(5), boxed(6), boxed(6)],
            "score": [True, False, False],
            "pred_score": [[0.9], [0.1], [0.2]],
        }
        log = write(tmp_path / "log.jsonl", [record, record | {"score": [0, 0, 0]}])
        arrol(log, "--out", tmp_path)
        assert accuracy(tmp_path, "majority", 3) == 0.0
        assert accuracy(tmp_path, "reward model", 3) == 0.5
        assert accuracy(tmp_path, "rank", 3) == 0.5

    def test_what_cannot_be_used_is_named_and_the_rest_goes_on(self, tmp_path: Path) -> None:
        bad = [
            "{",
            {"input": "x"},
            {"group": "a", "text": boxed(5)},
            {"group": "a", "text": 7, "answer": "5"},
            row("a", 5, answer="6"),
            row("a", 5, index=0),
            row("a", 5, posterior=1.5),
            {"response": [boxed(5)], "score": [1, 0]},
        ]
        log = write(tmp_path / "log.jsonl", [row("a", 5, index=0), *bad])
        code, text, _ = arrol(log, "--out", tmp_path)
        assert code == 0
        assert "8 problems in the log" in text
        for place, words in {
            2: "not JSON", 3: "neither response nor group", 4: "neither outcome nor answer",
            5: "text 7 is no text", 6: "answer '6' is not that of its group, '5'",
        }.items():  # fmt: skip
            assert f"{log}:{place}: {words}" in text
        assert "… and 3 more" in text
        assert "1 problem with 2 rollouts each" in text


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (["--k", "5"], "--k is 5; allowed is an integer from 1 to 4, the rollouts of the"),
            (["--k", "0"], "--k is 0; allowed is an integer from 1"),
            (["--k", "two"], "--k is 'two'; allowed is an integer"),
            (["--draws", "9"], "--draws is 9; allowed is an integer from 100"),
            (["--seed", "-1"], "--seed is -1; allowed is an integer from 0"),
            (["--out", __file__], "which is a file; allowed is a folder"),
            (["--nonsense"], "--nonsense"),
        ],
    )
    def test_a_bad_flag_is_one_sentence_and_exit_code_2(
        self, tmp_path: Path, arguments: list[str], text: str
    ) -> None:
        log = write(tmp_path / "log.jsonl", everything())
        code, printed, errors = arrol(log, "--out", tmp_path / "out", *arguments)
        assert (code, printed) == (2, "")
        assert errors.startswith("arrol vote: ")
        assert errors.count("\n") == 1
        assert text in errors

    @pytest.mark.parametrize("name", ["missing.jsonl", "empty.jsonl", "pruned.jsonl"])
    def test_nothing_to_vote_over_is_one_sentence(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "empty.jsonl").touch()
        write(tmp_path / "pruned.jsonl", [row("a", 5, finish_reason="pruned")])
        code, printed, errors = arrol(tmp_path / name, "--out", tmp_path / "out")
        assert (code, printed) == (2, "")
        assert "FILE has no rollout that can vote" in errors
        assert errors.count("\n") == 1
        assert name == "pruned.jsonl" or name in errors

    def test_help_states_formats_and_defaults(self) -> None:
        code, text, _ = arrol("--help", width=80)
        assert code == 0
        words = " ".join(text.split())
        for part in ("--k N", "--draws N", "[default: 2000]", "vote-results", "pred_score[]"):
            assert part in words


@pytest.mark.skipif(not REAL.exists(), reason="the data of 60 MATH problems is not here")
def test_real_rollouts_agree_with_their_labels_and_extracted_answers(tmp_path: Path) -> None:
    code, _, _ = arrol(REAL, "--out", tmp_path)
    assert code == 0
    records = [json.loads(line) for line in REAL.open(encoding="utf-8")]
    labels = np.array([record["score"] for record in records], dtype=float)
    assert accuracy(tmp_path, "avg@k", 8) == pytest.approx(labels.mean())
    for k in (1, 2, 4, 8):
        hits = [
            np.mean([max(chosen) for chosen in itertools.combinations(row, k)]) for row in labels
        ]
        assert accuracy(tmp_path, "pass@k", k) == pytest.approx(np.mean(hits))
    # Our majority is that of the answers which the file says it extracted, counted as texts.
    shares = []
    for record in records:
        right = dict(zip(record["pred"], record["score"], strict=True))
        counts = Counter(record["pred"])
        shares.append(np.mean([right[t] for t in counts if counts[t] == max(counts.values())]))
    assert accuracy(tmp_path, "majority", 8) == pytest.approx(np.mean(shares))
