"""How long a plan takes to decide on one step's rollouts. Bound: 2 ms for 8,192 scores."""

from __future__ import annotations

import statistics
import time

import numpy as np

from arrol.calibration import CalibratorKind, fit_calibration
from arrol.config import Draw
from arrol.plan import PruningPlan
from arrol.records import Mode, Request
from arrol.survival import FeedbackRule, Rule, solve_paper

GROUPS, GROUP_SIZE, RUNS, BOUND_MS = 512, 16, 31, 2.0


def main() -> None:
    rng = np.random.default_rng(0)
    total = GROUPS * GROUP_SIZE
    scores = rng.random(total)
    outcomes = rng.random(total) < scores
    groups = np.repeat(np.arange(GROUPS, dtype=np.uint64), GROUP_SIZE)
    indices = np.tile(np.arange(GROUP_SIZE), GROUPS)
    order = rng.permutation(total)  # rollouts reach the detection length in no order
    keys = np.arange(total, dtype=np.uint64)
    columns = (scores[order], keys[order], groups[order], indices[order], GROUP_SIZE)

    isotonic = fit_calibration(scores, outcomes, kind=CalibratorKind.ISOTONIC)
    histogram = fit_calibration(scores, outcomes, kind=CalibratorKind.HISTOGRAM)
    assert isotonic is not None
    assert histogram is not None
    line, _ = solve_paper(histogram.posteriors_of(scores), 0.5, 0.5, 0.5, 0.1, 0.9)
    feedback = FeedbackRule(0.5, 0.0, 0.5, 0.5, 0.5, 0.05, 0.1, 0.9, 2)

    print(f"{total:,} scores, {GROUPS} groups of {GROUP_SIZE}; medians of {RUNS} runs")
    cases: list[tuple[str, Rule, Draw, object, int]] = [
        ("balanced", feedback, Draw.SYSTEMATIC, isotonic, 2),
        ("paper", line, Draw.BERNOULLI, histogram, 0),
    ]
    for name, rule, draw, table, survivors in cases:
        plan = PruningPlan(1, 1, Mode.ON, 512, 0, draw, rule, table, survivors)  # type: ignore[arg-type]
        together = _median_seconds(lambda plan=plan: plan.decide(*columns))
        requests = [
            Request(int(k), int(g), int(i), GROUP_SIZE)
            for k, g, i in zip(*columns[1:4], strict=True)
        ]
        decider = plan.decider()
        start = time.perf_counter()
        for request, score in zip(requests, columns[0].tolist(), strict=True):
            decider.decide_one(request, score)
        single = (time.perf_counter() - start) / total
        verdict = "meets" if together * 1e3 <= BOUND_MS else "MISSES"
        print(
            f"{name:>9}: decide {together * 1e3:.2f} ms, {verdict} the bound of {BOUND_MS:g} ms; "
            f"one by one {single * 1e6:.1f} µs each ({single * total / together:.0f}× as long)"
        )


def _median_seconds(call: object) -> float:
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        call()  # type: ignore[operator]
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
