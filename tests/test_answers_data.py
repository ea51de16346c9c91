"""Verdicts on thousands of real responses equal the labels that came with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arrol.answers import Verdict, Verifier

pytest.importorskip("math_verify", reason="the extra 'verify' is not installed")

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
GSM8K = DATA / "gsm8k_model_solutions.jsonl"
MATH = DATA / "math_rollouts.jsonl"
MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def gsm8k():
    """(solution, gold solution, label) of 1,319 problems by four models."""
    for row in rows(GSM8K):
        for model in MODELS:
            yield row[model]["solution"], row["ground_truth"], row[model]["is_correct"]


def math():
    """(response, gold answer, label) of 60 problems by 8 responses."""
    for row in rows(MATH):
        for response, score in zip(row["response"], row["score"], strict=True):
            yield response, row["answer"], bool(score)


@pytest.mark.parametrize(
    ("read", "path", "count"),
    [(gsm8k, GSM8K, 5_276), (math, MATH, 480)],
    ids=["gsm8k", "math"],
)
def test_every_verdict_is_the_label(read, path, count):
    if not path.exists():
        pytest.skip(f"{path} is not there")
    texts, golds, labels = zip(*read(), strict=True)
    assert len(labels) == count
    expected = [Verdict.RIGHT if label else Verdict.WRONG for label in labels]
    with Verifier(workers=2) as verifier:
        found = verifier.verify_all(texts, golds)
    assert [n for n in range(count) if found[n] is not expected[n]] == []


def test_published_solutions_end_with_their_answers():
    path = DATA / "gsm8k_test.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    golds = [row["answer"] for row in rows(path)]
    numbers = [gold.rpartition("#### ")[2] for gold in golds]
    others = [str(int(number.replace(",", "")) + 1) for number in numbers]
    with Verifier(workers=1) as verifier:
        assert set(verifier.verify_all(golds, numbers)) == {Verdict.RIGHT}
        assert set(verifier.verify_all(numbers, golds)) == {Verdict.RIGHT}
        assert set(verifier.verify_all(others, golds)) == {Verdict.WRONG}
