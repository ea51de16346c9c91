"""What pruning saves of a training step of verl, phase by phase, and whether the simulator knows.

    python bench/verl_step.py                # about 20 minutes on two idle cores

The verl adapter trains on its CPU demo with half of the rollouts pruned (``arrol.mode=on``,
κ = .5, L_detect about .3 of the mean length), in shadow mode, and as plain verl
(``arrol.mode=off``): runs off, on, shadow, shadow, on, off, of which the first steps don't count.
The demo itself is too small to time, so there are 256 rollouts of a larger model, whose weights
are random: a text ends at each token with about the same probability, lengths are geometric and
cut at --longest. Rewards are 0 or 1 by the text alone; scores mean nothing then, and the guard is
off: what is pruned matters for speed only by how much it is. In all modes verl looks for finished
rollouts every .05 s and not every 2 s (see verl_hooks.py); all else of plain verl is as it comes.

Shadow mode is there to tell two things apart. The demo pads a micro-batch to its longest row
(padding is removed where there is a GPU). Plain verl has rows as they ended, the adapter by length
within a mini-batch, so that it pads less: shadow / off is what that alone saves, on / shadow what
pruning does.

Bounds; the exit code is 1 if one fails:

* log-prob and update fall as the kept share of ROWS, within 10%: a kept row may take at most 1.1
  times what a row takes in plain verl, and in shadow mode. Rows, because a padded short row costs
  as much as a long one. The share of tokens is printed beside it; it is lower, as short rollouts
  are never pruned, and counts where padding is removed.
* the adapter's own work (sending the plan, fetching decisions, learning from outcomes, training
  the head, taking rows out) takes at most 2% of the step.

Beside it stands the simulator's prediction, made without a look at the runs that prune. Engine
steps are timed on an engine of its own and played by ``arrol.sim.engine``. Shadow mode takes longer
than that engine (agent loops, TransferQueue, Ray, on the same two cores). Where all of that goes
with the tokens, the engine's ratio is the whole generation's; where all of it goes with the
rollouts, pruned or not, it stays. Shadow mode can't tell, so the prediction is a band. Log-prob,
update and the rest are a + b·f, through shadow mode's times with a full batch and with a quarter
of it; f, the kept share of rows, is simulated too. The difference is that to the band.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, median

import numpy as np
import verl_runs
from scipy.optimize import brentq
from verl_engine import PROMPT_TOKENS
from verl_runs import BATCHED_TOKENS, GROUP_SIZE, Sizes, Step, medians

from arrol.calibration import CalibrationTable, TableKind
from arrol.config import Draw
from arrol.plan import PruningPlan
from arrol.records import Mode
from arrol.sim.cost import StepTime
from arrol.sim.engine import EngineLimits, SimulatedRequest, simulate
from arrol.sim.fit import StepMeasurement, fit_step_time
from arrol.sim.phases import Phase
from arrol.survival import detected_keep_ratio, random_rule

KEEP, EXCESS, OVERHEAD = 0.5, 0.1, 0.02
DETECT = 1 / 7  #: L_detect over the longest rollout's tokens: .3 of the mean length
QUARTER = 4  #: the small batch is the full one divided by it
DRAWS = 20  #: simulated steps
BUSY = 0.2  #: load average a CPU above which figures are another's too
Bands = dict[str, tuple[float, float]]
#: None is shadow mode with a small batch.
RUNS = (Mode.OFF, Mode.ON, Mode.SHADOW, None, Mode.SHADOW, Mode.ON, Mode.OFF)


def machine() -> str:
    """Where figures come from, and whether anybody else was at work."""
    cpus, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    state = "idle" if load <= BUSY * cpus else "BUSY: these figures are not to be trusted"
    return f"{platform.machine()} with {cpus} CPUs; load average {load:.2f} ({state})"


def engine_steps(folder: Path, sizes: Sizes) -> list[StepMeasurement]:
    """Decode steps of an engine of its own."""
    values = [sizes.slots, verl_runs.PROMPT_LIMIT + sizes.longest, BATCHED_TOKENS]
    command = [sys.executable, str(verl_runs.HERE / "verl_engine.py"), str(folder)]
    output = subprocess.run(
        [*command, str(folder / "model"), *map(str, values)],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    return [StepMeasurement(*point) for point in json.loads(output.splitlines()[-1])]


def run_all(
    folder: Path, sizes: Sizes
) -> tuple[dict[Mode | None, list[Step]], list[StepMeasurement]]:
    """Every run in turn, and the engine's steps before and after."""
    steps: dict[Mode | None, list[Step]] = {mode: [] for mode in RUNS}
    points = engine_steps(folder, sizes)
    for number, mode in enumerate(RUNS, 1):
        groups = sizes.groups if mode else sizes.groups // QUARTER
        name = mode.value if mode else "small"
        found = verl_runs.train(folder, mode or Mode.SHADOW, sizes, groups, f"{number}-{name}")
        steps[mode] += found
        walls = ", ".join(f"{step.total:.2f}" for step in found)
        print(f"run {number}, {name}: steps of {walls} s", flush=True)
    return steps, points + engine_steps(folder, sizes)


# ---- prediction ---------------------------------------------------------------------------------


def hazard(mean_length: float, longest: int) -> float:
    """Probability of an end at each token, from the mean of lengths that are cut at ``longest``."""
    return float(brentq(lambda h: (1 - (1 - h) ** longest) / h - mean_length, 1e-6, 1.0))


def draw_requests(sizes: Sizes, ends: float, rng: np.random.Generator) -> list[SimulatedRequest]:
    """A full batch."""
    lengths = np.minimum(rng.geometric(ends, sizes.groups * GROUP_SIZE), sizes.longest)
    return [
        SimulatedRequest(key, key // GROUP_SIZE, key % GROUP_SIZE, GROUP_SIZE, PROMPT_TOKENS,
                         int(length), 0.5)
        for key, length in enumerate(lengths)
    ]  # fmt: skip


def make_plan(sizes: Sizes, ends: float, seed: int) -> PruningPlan:
    """What the controller arrives at with scores that mean nothing."""
    identity = CalibrationTable(TableKind.LINEAR, (0.0, 1.0), (0.0, 1.0))
    early = 1 - (1 - ends) ** sizes.detect_length
    rule = random_rule(detected_keep_ratio(KEEP, early, 0.1, 0.9), 0.1, 0.9)
    return PruningPlan(1, 1, Mode.ON, sizes.detect_length, seed, Draw.SYSTEMATIC, rule, identity, 2)


def play(sizes: Sizes, ends: float, cost: StepTime) -> tuple[float, float, float]:
    """Generation of both modes [s] and the kept share of rows, means over DRAWS steps."""
    limits = EngineLimits(sizes.slots, BATCHED_TOKENS, kv_tokens=10**6)
    rng = np.random.default_rng(0)
    found = []
    for seed in range(DRAWS):
        requests = draw_requests(sizes, ends, rng)
        off = simulate(requests, limits, cost)
        on = simulate(requests, limits, cost, make_plan(sizes, ends, seed))
        kept = mean(rollout.survived for rollout in on.rollouts)
        found.append((off.seconds, on.seconds, kept))
    off_seconds, on_seconds, shares = zip(*found, strict=True)
    return mean(off_seconds), mean(on_seconds), mean(shares)


def fit_phase(full: float, small: float) -> Phase:
    """a + b·f through the times of a full batch and of a small one."""
    variable = max((full - small) / (1 - 1 / QUARTER), 0.0)
    return Phase(max(full - variable, 0.0), variable)


# ---- report -------------------------------------------------------------------------------------


def report_steps(points: list[StepMeasurement], cost: StepTime) -> None:
    """Print the engine's step times, measured and fitted."""
    print("\nengine steps [ms]: sequences, KV tokens, measured, fitted")
    for n in sorted({point.sequences for point in points}):
        chosen = [point for point in points if point.sequences == n]
        kv_tokens = mean(point.kv_tokens for point in chosen)
        seconds = mean(point.seconds for point in chosen)
        fitted = cost.step(n, kv_tokens, 0)
        print(f"  {n:3.0f} {kv_tokens:6.0f}  {seconds * 1e3:7.2f}  {fitted * 1e3:7.2f}")


def report_phases(measured: dict[Mode, dict[str, float]], predicted: Bands) -> None:
    """Print the table of all modes, measured and predicted."""
    off, shadow, on = (measured[mode] for mode in (Mode.OFF, Mode.SHADOW, Mode.ON))
    print(
        "\n                    seconds      shadow     on      on    on / shadow\n"
        "              off shadow     on   / off  / off /shadow   predicted difference"
    )
    for name, (low, high) in predicted.items():
        ratio = on[name] / shadow[name]
        low, high = low / shadow[name], high / shadow[name]
        difference = ratio / min(max(ratio, low), high) - 1
        print(
            f"{name:>10} {off[name]:6.2f} {shadow[name]:6.2f} {on[name]:6.2f}   "
            f"{shadow[name] / off[name]:.3f}  {on[name] / off[name]:.3f}   {ratio:.3f} "
            f"{low:.3f}-{high:.3f} {difference:+10.1%}"
        )


def predict(
    full: dict[str, float], small: dict[str, float], engine: tuple[float, float], kept: float
) -> Bands:
    """Seconds of every phase and of the step with pruning, from the least to the most."""
    beyond = max(full["generation"] - engine[0], 0.0)
    phases = {name: fit_phase(full[name], small[name]) for name in ("log-prob", "update", "rest")}
    print(
        f"\ngeneration [s]: engine {engine[0]:.2f} unpruned, {engine[1]:.2f} pruned (simulated); "
        f"beyond it {beyond:.2f}\na + b·f [s]: "
        + ", ".join(f"{name} {p.fixed:.2f} + {p.variable:.2f}·f" for name, p in phases.items())
    )
    later = {name: phase.seconds(kept) for name, phase in phases.items()}
    fewest = {"generation": (engine[0] + beyond) * engine[1] / engine[0], **later}
    most = {"generation": engine[1] + beyond, **later}
    for times in (fewest, most):
        times["step"] = sum(times.values())
    return {name: (fewest[name], max(fewest[name], most[name])) for name in most}


def check(words: str, value: float, most: float) -> bool:
    """Print one bound; whether it is kept."""
    met = value <= most
    print(f"{'kept  ' if met else 'FAILED'} {words}: {value:.3f}, at most {most:.3f}")
    return met


def report_bounds(steps: dict[Mode | None, list[Step]]) -> bool:
    """Print bounds; whether all are kept."""
    on = steps[Mode.ON]
    share = median(s.share for s in on)
    tokens = median(s.tokens for s in on) / median(s.tokens for s in steps[Mode.OFF])
    padding = median(s.padding for s in on)
    print(
        f"\nkept: {share:.3f} of the rows, {tokens:.3f} of their tokens (prompts included); "
        f"{padding:.1%}\nmore rows fill up micro-batches"
    )
    met = True
    for name in ("log-prob", "update"):
        per_row = median(s.seconds[name] / s.share for s in on)
        for mode in (Mode.OFF, Mode.SHADOW):
            whole = median(s.seconds[name] for s in steps[mode])
            words = f"{name}, time of a kept row / of a row, mode {mode}"
            met &= check(words, per_row / whole, 1 + EXCESS)
    own = median(sum(s.overhead.values()) / s.total for s in on)
    met &= check("adapter, share of a step that prunes", own, OVERHEAD)
    parts = {name: median(s.overhead[name] for s in on) for name in on[0].overhead}
    print("       [ms] " + ", ".join(f"{name} {s * 1e3:.0f}" for name, s in parts.items()))
    return met


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=32, help=f"of {GROUP_SIZE} (default: 32)")
    parser.add_argument("--longest", type=int, default=160, help="tokens (default: 160)")
    parser.add_argument("--slots", type=int, default=32, help="sequences at once (default: 32)")
    parser.add_argument("--steps", type=int, default=7, help="of a run, 2 warm it up (default: 7)")
    parser.add_argument("--folder", type=Path, help="for models, data and logs")
    return parser.parse_args()


def main() -> int:
    """Measure, predict and report; the exit status."""
    chosen = options()
    print(machine(), flush=True)
    folder = (chosen.folder or Path(tempfile.gettempdir()) / "arrol-verl-step").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    verl_runs.make_model(folder / "model")
    detect_length = round(DETECT * chosen.longest)
    sizes = Sizes(chosen.groups, chosen.longest, chosen.slots, detect_length, chosen.steps, 2)
    print(
        f"{sizes.groups * GROUP_SIZE} rollouts in groups of {GROUP_SIZE}, of at most "
        f"{sizes.longest} tokens,\n{sizes.slots} slots; κ = {KEEP} at L_detect = "
        f"{sizes.detect_length}", flush=True
    )  # fmt: skip
    steps, points = run_all(folder, sizes)
    times = {mode: medians(found) for mode, found in steps.items() if mode}
    cost = fit_step_time(points)
    report_steps(points, cost)
    ends = hazard(mean(step.length for step in steps[Mode.OFF]), sizes.longest)
    unpruned, pruned, kept = play(sizes, ends, cost)
    report_phases(
        times, predict(times[Mode.SHADOW], medians(steps[None]), (unpruned, pruned), kept)
    )
    counts = ", ".join(str(len(steps[mode])) for mode in times)
    print(
        f"medians of {counts} steps; predicted share of rows: {kept:.3f}\n"
        f"load average now {os.getloadavg()[0]:.2f}"
    )
    return 0 if report_bounds(steps) else 1


if __name__ == "__main__":
    sys.exit(main())
