"""Does a quality head tell right from wrong rollouts early, and better than confidence does?

    python bench/head_vs_confidence.py             # up to 10 minutes on two idle cores
    python bench/head_vs_confidence.py --quick
    python bench/head_vs_confidence.py --prompts gsm8k_test.jsonl --tokens 200 --lengths 16 32 64

The paper's Figure 2 on a real model: SmolLM2-135M-Instruct answers small word problems (or those
of a JSONL file) in groups at temperature 1. From the first L tokens alone, at several L, come the
score of a quality head, the mean token confidence, and DeepConf's three: lowest window, mean of the
lowest tenth, tail. The head learns on one half of the prompts; all figures are of the other half.
How long it learns is chosen inside the first half, by a quarter of its prompts.

Prints Spearman's ρ and AUC over all pairs, and AUC over the pairs of one prompt, which is all that
can help pruning to choose within a group; with 95% bootstrap intervals over prompts. Writes a CSV
and a PNG to --out. It passes no judgement by exit code: what it shows is what it prints.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import smollm2  # before vLLM
from arithmetic import make_problems, read_problems
from matplotlib.figure import Figure as Canvas
from prefixes import SLOTS, Rollouts, collect
from prompt_bootstrap import Measures, PromptBootstrap

from arrol.columns import Flags, Floats, Integers
from arrol.confidence import trace_confidence
from arrol.files import write_atomically
from arrol.sim.report import prepare_folder
from arrol.sim.results import Figure
from arrol.sim.style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, figure_png

if TYPE_CHECKING:
    from arrol.head_trainer import HeadTrainer

CLAIM = (
    "Paper (arXiv 2603.24840, Figure 2): early in a rollout its quality head tells right from "
    "wrong better than trace confidence. The figure's values were not available to us: none stands "
    "here."
)
HEAD, MEAN = "head", "mean confidence"
COLOURS = {HEAD: ORANGE, MEAN: BLUE, "lowest window": SKY, "lowest tenth": GREEN, "tail": PURPLE}
ROUNDS = 40  #: of the head's training, at most
NAME = "head_vs_confidence"


@dataclass(frozen=True)
class AtLength:
    """What the test half shows at one L.

    Attributes:
        length: L.
        rollouts: that pruning at L would decide on.
        left_out: share that ended by L.
        right: pass rate of those that did not.
        mixed: prompts with a right and a wrong one among them.
        rounds: of the head's training.
        seconds: time to L.
        measures: of each score.
        gains: of the head on each other score, paired.
    """

    length: int
    rollouts: int
    left_out: float
    right: float
    mixed: int
    rounds: int
    seconds: float
    measures: dict[str, Measures]
    gains: dict[str, Measures]


@dataclass(frozen=True)
class Nearness:
    """How far two sets of hidden states are apart, in the rows that both have."""

    rows: int
    largest: float
    mean: float
    scale: float
    cosine: float

    def __str__(self) -> str:
        return (
            f"{self.rows:,} rollouts, largest difference {self.largest:.3g}, mean {self.mean:.3g} "
            f"(largest value {self.scale:.3g}), least cosine {self.cosine:.5f}"
        )

    @classmethod
    def of(cls, one_NH: Floats, other_NH: Floats) -> Nearness:
        """Rows with a NaN count in neither."""
        both = np.isfinite(one_NH).all(axis=1) & np.isfinite(other_NH).all(axis=1)
        one, other = one_NH[both], other_NH[both]
        gaps = np.abs(one - other)
        norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
        return cls(
            int(both.sum()), float(gaps.max()), float(gaps.mean()), float(np.abs(other).max()),
            float(((one * other).sum(axis=1) / norms).min()),
        )  # fmt: skip


def halves(prompts: int, rng: np.random.Generator) -> tuple[Integers, Integers, Integers]:
    """Prompts to learn on, to choose the number of rounds by, and to test on: 3/8, 1/8, 1/2."""
    order = rng.permutation(prompts)
    learn, choose = round(prompts * 3 / 8), round(prompts / 2)
    return order[:learn], order[learn:choose], order[choose:]


def train_head(
    hidden_NH: Floats, outcomes_N: Flags, learn_N: Flags, choose_N: Flags, seed: int
) -> tuple[Floats, int]:
    """Scores of all rows, float64[N], and the number of rounds that was best by log loss.

    Rows of neither kind are scored only.
    """
    losses: list[float] = []
    trainer = _trainer(hidden_NH[learn_N], outcomes_N[learn_N], seed)
    for _ in range(ROUNDS):
        trainer.train()
        scores = np.clip(_scores(trainer, hidden_NH[choose_N]), 1e-6, 1 - 1e-6)
        right = outcomes_N[choose_N]
        losses.append(-float(np.log(np.where(right, scores, 1 - scores)).mean()))
    rounds = int(np.argmin(losses)) + 1
    both = learn_N | choose_N
    trainer = _trainer(hidden_NH[both], outcomes_N[both], seed)
    for _ in range(rounds):
        trainer.train()
    return _scores(trainer, hidden_NH), rounds


def _trainer(hidden_NH: Floats, outcomes_N: Flags, seed: int) -> HeadTrainer:
    import torch

    from arrol.head_config import HeadConfig
    from arrol.head_trainer import HeadTrainer

    trainer = HeadTrainer(hidden_NH.shape[1], HeadConfig(seed=seed, buffer_rows=len(hidden_NH)))
    trainer.observe(torch.from_numpy(hidden_NH).float(), outcomes_N.astype(float))
    return trainer


def _scores(trainer: HeadTrainer, hidden_NH: Floats) -> Floats:
    import torch

    scores: Floats = trainer.head.scores(torch.from_numpy(hidden_NH).float()).numpy()
    return scores


def window(length: int) -> int:
    """DeepConf's window [tokens] on L tokens; its own 2,048 are longer than these rollouts."""
    return max(4, length // 4)


def confidence_scores(confidences: Sequence[Floats], length: int) -> dict[str, Floats]:
    """Each confidence score of the first L tokens."""
    found = [trace_confidence(values[:length], window(length)) for values in confidences]
    return {
        MEAN: np.array([trace.mean for trace in found]),
        "lowest window": np.array([trace.lowest for trace in found]),
        "lowest tenth": np.array([trace.bottom for trace in found]),
        "tail": np.array([trace.tail for trace in found]),
    }


def look(rollouts: Rollouts, length: int, seed: int, draws: int) -> AtLength:
    """Train at one L and measure on the test half."""
    parts = halves(int(rollouts.prompts_N.max()) + 1, np.random.default_rng(seed))
    there = rollouts.decidable(length)
    prompts, outcomes = rollouts.prompts_N[there], rollouts.outcomes_N[there]
    learn, choose, test = (np.isin(prompts, part) for part in parts)
    for name, rows in (("learning", learn), ("choosing", choose), ("test", test)):
        if len(set(outcomes[rows])) < 2:
            raise SystemExit(
                f"At L = {length} the {name} prompts' rollouts are not both right and wrong: "
                "take more of them, easier problems, or a shorter --lengths."
            )
    scores, rounds = train_head(rollouts.hidden[length][there], outcomes, learn, choose, seed)
    confidences = [rollouts.confidences[row] for row in np.flatnonzero(there)]
    every = {HEAD: scores, **confidence_scores(confidences, length)}
    boot = PromptBootstrap(prompts[test], outcomes[test], draws, seed)
    drawn = {name: boot.draws(values[test]) for name, values in every.items()}
    return AtLength(
        length=length,
        rollouts=int(test.sum()),
        left_out=1 - float(there[np.isin(rollouts.prompts_N, parts[2])].mean()),
        right=float(outcomes[test].mean()),
        mixed=boot.mixed,
        rounds=rounds,
        seconds=rollouts.seconds[length],
        measures={name: found.measures() for name, found in drawn.items()},
        gains={
            name: (drawn[HEAD] - found).measures() for name, found in drawn.items() if name != HEAD
        },
    )


def print_sample(rollouts: Rollouts, group_size: int, detect_length: int, seed: int) -> None:
    """Print what was generated, and how far the two hidden states of one rollout differ."""
    low, middle, high = np.quantile(rollouts.lengths_N, [0.05, 0.5, 0.95])
    prompts = len(rollouts.lengths_N) // group_size
    sizes = [len(part) for part in halves(prompts, np.random.default_rng(seed))]
    print(
        f"{len(rollouts.lengths_N):,} rollouts of {prompts} prompts ({group_size} each) in "
        f"{rollouts.wall:.0f} s; pass rate {rollouts.outcomes_N.mean():.3f}; {low:.0f} to "
        f"{high:.0f} tokens (5% to 95%, median {middle:.0f}), {rollouts.capped:.1%} cut off. The "
        f"head learns on {sizes[0] + sizes[1]} prompts ({sizes[1]} of them choose its rounds); "
        f"figures are of the other {sizes[2]}."
    )
    other_NH = rollouts.hidden[detect_length]
    near, yardstick = (Nearness.of(o, other_NH) for o in (rollouts.engine_NH, rollouts.exact_NH))
    print(
        f"Hidden states at L = {detect_length}: the adapter's against transformers', both "
        f"bfloat16: {near}. For scale, transformers' own in float32 against bfloat16: {yardstick}."
    )


def print_length(found: AtLength) -> None:
    """Print one L."""
    print(
        f"\nL = {found.length}: {found.rollouts:,} rollouts ({found.left_out:.1%} ended by then "
        f"and are left out), {found.right:.3f} right, {found.mixed} prompts with both; "
        f"{found.seconds:.2f} s; head: {found.rounds} rounds; window {window(found.length)}"
    )
    print(f"  {'':24}{'Spearman':>24}{'AUC, all pairs':>24}{'AUC, within a prompt':>24}")
    for name, row in found.measures.items():
        print(f"  {name:<24}{row.spearman!s:>24}{row.overall!s:>24}{row.within!s:>24}")
    for name, row in found.gains.items():
        label = f"head − {name}"
        print(f"  {label:<24}{row.spearman!s:>24}{row.overall!s:>24}{row.within!s:>24}")


def verdict(found: Sequence[AtLength]) -> str:
    """Whether the head beats mean confidence, by paired intervals, in words."""
    parts = []
    for field, words in (("overall", "over all pairs"), ("within", "within a prompt")):
        gains = [getattr(at.gains[MEAN], field) for at in found]
        better = [at.length for at, gain in zip(found, gains, strict=True) if gain.low > 0]
        worse = [at.length for at, gain in zip(found, gains, strict=True) if gain.high < 0]
        if len(better) == len(found):
            word = "supports the claim"
        elif len(worse) == len(found):
            word = "contradicts the claim"
        elif better and not worse:
            word = "supports the claim in part"
        elif better:
            word = "is divided"
        else:
            word = "does not support the claim"
        parts.append(
            f"{words} it {word} (head above mean confidence at L = {better or 'none'}, below at "
            f"L = {worse or 'none'}, of {[at.length for at in found]}; 95% intervals of the paired "
            "difference)"
        )
    return (
        f"This run: {'; '.join(parts)}. A 135M model on small arithmetic is not the paper's "
        "setting (models of 1B to 8B, L = 512), and the head has seen other problems of the same "
        "kinds where confidence has learnt nothing."
    )


def as_frame(found: Sequence[AtLength]) -> pd.DataFrame:
    """A row for each L and score, and for each difference."""
    rows = []
    for at in found:
        known = {
            "length": at.length, "rollouts": at.rollouts, "left_out": at.left_out,
            "right": at.right, "mixed_prompts": at.mixed, "rounds": at.rounds,
            "seconds": at.seconds, "window": window(at.length),
        }  # fmt: skip
        named = [*at.measures.items(), *((f"head - {name}", m) for name, m in at.gains.items())]
        rows += [{**known, "score": name, **measures.columns()} for name, measures in named]
    return pd.DataFrame(rows)


def make_figure(found: Sequence[AtLength]) -> Figure:
    """AUC over L: all pairs, and pairs of one prompt."""
    panels = (("overall", "AUC, all pairs"), ("within", "AUC, pairs of one prompt"))

    def draw(canvas: Canvas) -> None:
        for axes, (field, title) in zip(canvas.subplots(1, 2, sharey=True), panels, strict=True):
            axes.axhline(0.5, color=GREY, linewidth=1, linestyle=":")
            for place, (name, colour) in enumerate(COLOURS.items()):
                points = [getattr(at.measures[name], field) for at in found]
                middle = np.array([point.value for point in points])
                bars = [middle - [p.low for p in points], [p.high for p in points] - middle]
                places = np.arange(len(found)) + 0.09 * (place - 2)
                axes.errorbar(
                    places, middle, bars, fmt="o-", color=colour, elinewidth=0.9,
                    label=name if field == "overall" else None, zorder=3 if name == HEAD else 2,
                )  # fmt: skip
            axes.set_xticks(range(len(found)), [f"{at.length}\n{at.seconds:.1f} s" for at in found])
            axes.set(title=title, xlabel="detection length L [tokens], time to it")
        canvas.axes[0].set_ylabel("AUC, 95% intervals")
        canvas.legend(loc="outside lower center", ncols=len(COLOURS))

    return Figure(NAME, "Right or wrong, from the first L tokens", draw)


def options() -> argparse.Namespace:
    """What was asked for."""
    parser = smollm2.parser(__doc__ or "")
    parser.add_argument("--rollouts", type=int, default=2048, help="in all (default: 2048)")
    parser.add_argument("--group-size", type=int, default=8, help="of a prompt (default: 8)")
    parser.add_argument("--quick", action="store_true", help="384 rollouts")
    parser.add_argument("--prompts", type=Path, help="JSONL with question and answer")
    parser.add_argument(
        "--tokens", type=int, default=64, help="of a rollout, at most (default: 64)"
    )
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[8, 16, 24, 32],
        help="L; the plan's is the second one (default: 8 16 24 32; rollouts are 28 to 60 long)",
    )  # fmt: skip
    parser.add_argument("--draws", type=int, default=1000, help="of the bootstrap (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, help="of everything (default: 0)")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder to write")
    given = parser.parse_args()
    if given.quick:
        given.rollouts = 384
    if given.rollouts < 16 * given.group_size or given.group_size < 2:
        parser.error("--rollouts must be at least 16 groups of --group-size, which is 2 or more")
    if given.prompts and not given.prompts.is_file():
        parser.error(f"--prompts is {str(given.prompts)!r}, which is no file")
    given.lengths = sorted(set(given.lengths))
    if not 4 <= given.lengths[0] <= given.lengths[-1] < given.tokens:
        parser.error("--lengths must lie between 4 and below --tokens")
    return given


def main() -> None:
    """Generate, train, measure and report."""
    given = options()
    prepare_folder(given.out)
    print(CLAIM, smollm2.machine(), sep="\n", flush=True)
    count = given.rollouts // given.group_size
    problems = (
        read_problems(given.prompts, count, given.seed)
        if given.prompts
        else make_problems(count, given.seed)
    )
    detect_length = given.lengths[min(1, len(given.lengths) - 1)]
    rollouts = collect(
        smollm2.model_folder(given.model), problems, given.group_size, given.tokens,
        given.lengths, detect_length, given.seed,
    )  # fmt: skip
    print_sample(rollouts, given.group_size, detect_length, given.seed)
    found = [look(rollouts, length, given.seed, given.draws) for length in given.lengths]
    for at in found:
        print_length(at)
    print(
        f"\n[low, high]: 95% over {given.draws:,} resamples of the test prompts, the same for all "
        "scores. Of fewer than 20 windows the lowest tenth is the lowest. Spearman's ρ with an "
        "outcome of 0 or 1 is AUC − ½ but for a factor that the pass rate and ties set. Seconds: "
        "median time from a rollout's first step to the end of its step number L, by the engine's "
        f"own steps, {SLOTS} rollouts at once, log-probs asked for."
    )
    write_atomically(given.out / f"{NAME}.csv", as_frame(found).to_csv(index=False))
    write_atomically(given.out / f"{NAME}.png", figure_png(make_figure(found)))
    print(f"{given.out / NAME}.csv and .png are written.\n{verdict(found)}")


if __name__ == "__main__":
    main()
