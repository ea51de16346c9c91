"""``arrol vote``: rollouts of whole texts in, what every way to vote makes of them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import click

from arrol.answers import Verdict, Verifier, extract_answer
from arrol.errors import ArrolError
from arrol.files import write_atomically
from arrol.options import Parameter, number_option
from arrol.sim.parameters import PARAMETERS
from arrol.sim.report import prepare_folder, print_study
from arrol.sim.style import figure_png
from arrol.sim.vote_study import measure, results_frame, study_of
from arrol.terminal import Bar, Screen, print_problems
from arrol.vote_log import VoteLog, read_voters
from arrol.vote_problems import grade

FORMATS = """
\b
Formats (JSON lines, also gzipped, or Parquet; told by content, not by name):
  lists  a problem a row: response[] and score[] (labels: right if above
         0) or answer (the gold answer); also pred_score[] (a reward
         model's scores, which stand in for quality scores too).
  rows   a rollout a row: group, text, and outcome or answer (the gold
         answer); also score (quality score), posterior (calibrated
         P(right)), confidence (of the trace), orm (a reward model's
         score), index, step, finish_reason, detection. This is what
         arrol generate writes.

\b
Pruned and failed rollouts don't count. Labels come before gold answers.
"""

SHOWN_PROBLEMS = 5
SAME = {Verdict.RIGHT: True, Verdict.WRONG: False, Verdict.UNVERIFIABLE: None}
SEED = next(parameter for parameter in PARAMETERS if parameter.name == "seed")
K = Parameter("k", "largest number of rollouts to vote over", "rollouts", 1, 100_000, integer=True)
DRAWS = Parameter(
    "draws", "bootstrap resamples behind the 95% intervals", "", 100, 100_000, integer=True
)


@click.command(
    "vote",
    short_help="Compare ways to vote over your own rollouts.",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=FORMATS.lstrip(),
)
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@number_option(K, None, "what the largest problem has")
@number_option(DRAWS, 2000)
@number_option(SEED, 0)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("vote-results"),
    show_default=True,
    help="Folder for vote.csv (every figure with its interval) and vote.png (accuracy over k).",
)
def vote(files: Sequence[Path], k: int | None, draws: int, seed: int, out: Path) -> None:
    """Vote over rollouts: majority beside every method whose scores the files hold.

    Each FILE holds rollouts with their texts, or is a folder of such files. Prints the accuracy
    of each method over k. Exit code: 0, or 2 if a flag is wrong or no rollout can be used.
    """
    prepare_folder(out)
    screen = Screen()
    with Bar("reading").shown() as progress:
        log = read_voters(files, extract_answer, progress)
    largest = _largest(k, log)
    screen.show(partial(print_problems, problems=log.errors, show=SHOWN_PROBLEMS))
    with Verifier() as verifier, Bar("comparing").shown() as progress:
        graded = grade(log.ballots, partial(_compare, verifier, progress))
    with Bar("voting").shown() as progress:
        found = measure(graded, largest, draws, seed, progress)
    study = study_of(graded, found, log.left_out)
    table = results_frame(graded, found).to_csv(index=False, lineterminator="\n")
    write_atomically(out / "vote.csv", table)
    for figure in study.figures:
        write_atomically(out / f"{figure.name}.png", figure_png(figure))
    screen.show(partial(print_study, study=study))
    line = f"Written: {out / 'vote.csv'} and {out / 'vote.png'}"
    screen.show(lambda console: console.print(line, soft_wrap=True))
    screen.close()


def _largest(k: int | None, log: VoteLog) -> int:
    """The largest k that is looked at."""
    most = max(len(ballot.voters) for ballot in log.ballots)
    if k is None:
        return most
    if k > most:
        raise ArrolError(
            f"--k is {k}; allowed is an integer from 1 to {most}, the rollouts of the largest "
            "problem."
        )
    return k


def _compare(
    verifier: Verifier, progress: Callable[[float], None], pairs: Sequence[tuple[str, str]]
) -> list[bool | None]:
    """Whether the answers of each pair mean the same; None where that can't be told."""
    ones, others = zip(*pairs, strict=True)
    verdicts = verifier.verify_all(ones, others, lambda done, count: progress(done / count))
    return [SAME[verdict] for verdict in verdicts]
