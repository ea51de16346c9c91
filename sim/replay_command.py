"""``arrol replay``: real rollout logs in, what pruning would have done to them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from arrol.config import Preset
from arrol.options import Parameter, number_option
from arrol.rollout_log import read_rollouts, tokenizer
from arrol.rollout_rows import TOKENS_PER_CHAR, Characters
from arrol.sim.options import accelerator_option, model_option
from arrol.sim.parameters import PARAMETERS
from arrol.sim.replay import ReplaySettings
from arrol.sim.replay_advice import analyse
from arrol.sim.replay_report import write_replay
from arrol.sim.replay_study import studies_of
from arrol.sim.report import prepare_folder, print_study
from arrol.terminal import Bar, Screen, print_problems

Command = TypeVar("Command", bound=Callable[..., Any])

FORMATS = """
\b
Formats (JSON lines, also gzipped, or Parquet; told by content, not by name):
  verl   rows with input, output, score: what verl writes to
         trainer.rollout_data_dir. Also used: step, acc (the outcome),
         request_id, quality_score. A group: same input, same step.
  lists  a problem a row: response[], score[]; also pred_score[] (quality
         scores), question, system.
  rows   a rollout a row: group, reward, and tokens (a count or ids) or
         text; also score (quality score), outcome, step, index,
         prompt_tokens or prompt, and finish_reason (pruned and failed
         rollouts are left out). This is what arrol generate writes.

\b
A rollout is right if its outcome says so or, where there is none, if its
reward is above --right-above. Groups never span files or steps: the same
group, or input, in two files is two groups.
"""

NUMBERS = (
    "keep_ratio", "target_ratio", "strength", "detect_length", "max_num_seqs", "score_auc", "seed",
    "seeds",
)  # fmt: skip

TOKENS_PER_CHAR_PARAMETER = Parameter(
    "tokens_per_char",
    "tokens of a character, where a log has only text; the default is about what Qwen’s vocabulary "
    "makes of solutions to MATH problems",
    "tokens", 0, 10, open_low=True,
)  # fmt: skip
RIGHT_ABOVE_PARAMETER = Parameter(
    "right_above", "reward above which a rollout that states no outcome counts as right", "",
    -1e6, 1e6,
)  # fmt: skip
SHOW_PROBLEMS_PARAMETER = Parameter(
    "show_problems", "problems of the log to print", "lines", 0, 1000, integer=True
)


def _settings_numbers(command: Command) -> Command:
    """The options of :data:`NUMBERS`."""
    by_name = {parameter.name: parameter for parameter in PARAMETERS}
    by_name["score_auc"] = replace(
        by_name["score_auc"], text="AUC of the quality score that is assumed where a log has none"
    )
    for name in reversed(NUMBERS):
        command = number_option(by_name[name], getattr(ReplaySettings, name))(command)
    return command


@click.command(
    "replay",
    short_help="Replay your own rollout logs through the rule.",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=FORMATS.lstrip(),
)
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--preset",
    type=click.Choice([preset.value for preset in Preset]),
    default=ReplaySettings.preset.value,
    show_default=True,
    help="Rule that is judged; the others are shown beside it.",
)
@_settings_numbers
@model_option(ReplaySettings.model.name)
@accelerator_option(ReplaySettings.accelerator.name)
@number_option(TOKENS_PER_CHAR_PARAMETER, TOKENS_PER_CHAR)
@click.option(
    "--tokenizer",
    "tokenizer_name",
    metavar="NAME",
    help="Count tokens with this tokenizer instead (hub name or local path; needs transformers).",
)
@number_option(RIGHT_ABOVE_PARAMETER, 0.0)
@number_option(SHOW_PROBLEMS_PARAMETER, 5)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("replay-results"),
    show_default=True,
    help="Folder for report.html, replay_summary.json, a CSV a table and a PNG a figure.",
)
def replay(
    files: Sequence[Path],
    preset: str,
    tokens_per_char: float,
    tokenizer_name: str | None,
    right_above: float,
    show_problems: int,
    out: Path,
    **values: Any,
) -> None:
    """Replay real rollouts: what pruning would have saved and changed, and whether it pays.

    Each FILE is a log of whole rollouts, or a folder of such files. Prints what they hold, what
    each rule would have made of them, and advice. Exit code: 0, or 2 if a flag is wrong or no
    rollout can be used.
    """
    settings = ReplaySettings(preset=Preset(preset), **values)
    count = tokenizer(tokenizer_name) if tokenizer_name else Characters(tokens_per_char)
    prepare_folder(out)
    screen = Screen()
    with Bar("reading").shown() as progress:
        log = read_rollouts(files, count, progress, right_above)
    screen.show(partial(print_problems, problems=log.problems, show=show_problems))
    with Bar("replaying").shown() as progress:
        analysis = analyse(log, settings, progress)
    studies = studies_of(analysis)
    report = write_replay(analysis, studies, out)
    for study in studies:
        screen.show(partial(print_study, study=study))
    screen.show(lambda console: console.print(f"Report: {report}", soft_wrap=True))
    screen.close()
