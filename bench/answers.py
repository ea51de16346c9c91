"""How fast answers are checked, against math-verify in a plain loop. Bound: 1.5× on two cores.

``nox -s bench -- answers.py FILE`` reads GSM8K solutions by four models, one JSON object a line, as
published with the data set (grade-school-math's example_model_solutions.jsonl).
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path

from math_verify import parse
from math_verify import verify as math_verify

from arrol.answers import Verdict, Verifier

MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
WORKERS, LOOP, BOUND = 2, 1_000, 1.5


def main() -> None:
    logging.disable(logging.WARNING)
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
        sys.exit("usage: bench/answers.py FILE")
    path = Path(sys.argv[1])
    texts, golds, labels = _read(path)
    print(f"{len(texts):,} solutions, {WORKERS} workers; their start is part of the time")

    with Verifier(workers=WORKERS) as verifier:
        start = time.perf_counter()
        verdicts = verifier.verify_all(texts, golds)
        ours = len(texts) / (time.perf_counter() - start)
        start = time.perf_counter()
        verifier.verify_all(texts, golds)
        warm = len(texts) / (time.perf_counter() - start)
    _print("this", ours, [verdict is Verdict.RIGHT for verdict in verdicts], labels)
    print(f"{'again':>12}: {warm:,.0f} answers/s, workers running")

    # Formulas, so that no answer is a plain number and each goes through a worker.
    hard = [f"\\boxed{{x + {text.rsplit(' ', 1)[-1]}}}" for text in texts]
    hard_golds = [f"{gold.rsplit(' ', 1)[-1]} + x" for gold in golds]
    start = time.perf_counter()
    with Verifier(workers=WORKERS) as verifier:
        verifier.verify_all(hard, hard_golds)
    ours_hard = len(hard) / (time.perf_counter() - start)

    step = len(texts) // LOOP
    start = time.perf_counter()
    found = [_plainly(text, gold) for text, gold in zip(texts[::step], golds[::step], strict=True)]
    loop = len(found) / (time.perf_counter() - start)
    _print("math-verify", loop, found, labels[::step])
    start = time.perf_counter()
    for text, gold in zip(hard[::step], hard_golds[::step], strict=True):
        _plainly(text, gold)
    loop_hard = len(found) / (time.perf_counter() - start)

    for name, ratio in (("as they are", ours / loop), ("as formulas", ours_hard / loop_hard)):
        verdict = "meets" if ratio >= BOUND else "MISSES"
        print(f"{name}: {ratio:.1f}×, {verdict} the bound of {BOUND:g}×")


def _read(path: Path) -> tuple[list[str], list[str], list[bool]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    solutions = [(row[model], row["ground_truth"]) for row in rows for model in MODELS]
    texts = [solution["solution"] for solution, _ in solutions]
    return texts, [gold for _, gold in solutions], [one["is_correct"] for one, _ in solutions]


def _plainly(text: str, gold: str) -> bool:
    return bool(math_verify(parse(gold), parse(text)))


def _print(name: str, rate: float, found: list[bool], labels: list[bool]) -> None:
    agree = sum(a == b for a, b in zip(found, labels, strict=True))
    print(f"{name:>12}: {rate:,.0f} answers/s; {agree:,} of {len(found):,} verdicts are the label")


if __name__ == "__main__":
    main()
