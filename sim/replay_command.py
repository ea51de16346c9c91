"""``arrol replay``: real rollout logs in, what pruning would have done to them out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from arrol.config import Preset
from arrol.errors import ArrolError
from arrol.rollout_log import TOKENS_PER_CHAR, ProblemList, characters, read_rollouts, tokenizer
from arrol.sim.hardware import ACCELERATORS, MODELS, find_accelerator, find_model
from arrol.sim.parameters import PARAMETERS, Parameter
from arrol.sim.replay import ReplaySettings
from arrol.sim.replay_advice import analyse
from arrol.sim.replay_report import write_replay
from arrol.sim.replay_study import studies_of
from arrol.sim.report import prepare_folder, print_study

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
         prompt_tokens or prompt.
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
SHOW_PROBLEMS_PARAMETER = Parameter(
    "show_problems", "problems of the log to print", "lines", 0, 1000, integer=True
)


def _number(parameter: Parameter, default: float) -> Callable[[Command], Command]:
    """An option that is read and checked by the parameter's own rules."""

    def read(ctx: click.Context, param: click.Parameter, value: str) -> float:
        return parameter.parse(value)

    unit = f" {parameter.unit}" if parameter.unit else ""
    return click.option(
        parameter.flag,
        parameter.name,
        callback=read,
        default=str(default),
        show_default=True,
        metavar="N" if parameter.integer else "X",
        help=f"{parameter.text[0].upper()}{parameter.text[1:]} ({parameter.range_text}{unit}).",
    )


def _settings_numbers(command: Command) -> Command:
    """The options of :data:`NUMBERS`."""
    by_name = {parameter.name: parameter for parameter in PARAMETERS}
    by_name["score_auc"] = replace(
        by_name["score_auc"], text="AUC of the quality score that is assumed where a log has none"
    )
    for name in reversed(NUMBERS):
        command = _number(by_name[name], getattr(ReplaySettings, name))(command)
    return command


def _named(find: Callable[[str], Any]) -> Callable[..., Any]:
    """Look up a model or accelerator; what is wrong is said with the flag."""

    def read(ctx: click.Context, param: click.Parameter, value: str) -> Any:
        try:
            return find(value)
        except ArrolError as error:
            raise ArrolError(f"{param.opts[0]}: {error}") from None

    return read


@click.command(
    "replay", context_settings={"help_option_names": ["-h", "--help"]}, epilog=FORMATS.lstrip()
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
@click.option(
    "--model",
    callback=_named(find_model),
    default=ReplaySettings.model.name,
    show_default=True,
    metavar="NAME",
    help=f"Model of the simulated engine: {', '.join(MODELS)}, or its sizes (layers=…,hidden=…,"
    "intermediate=…,heads=…,kv_heads=…,head_dim=…,vocab=…).",
)
@click.option(
    "--accelerator",
    callback=_named(find_accelerator),
    default=ReplaySettings.accelerator.name,
    show_default=True,
    metavar="NAME",
    help=f"Accelerator of the simulated engine: {', '.join(ACCELERATORS)}, or its figures "
    "(flops=…,bandwidth=…,memory=… in FLOP/s, B/s and B).",
)
@_number(TOKENS_PER_CHAR_PARAMETER, TOKENS_PER_CHAR)
@click.option(
    "--tokenizer",
    "tokenizer_name",
    metavar="NAME",
    help="Count tokens with this tokenizer instead (hub name or local path; needs transformers).",
)
@_number(SHOW_PROBLEMS_PARAMETER, 5)
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
    count = tokenizer(tokenizer_name) if tokenizer_name else characters(tokens_per_char)
    prepare_folder(out)
    console = Console(highlight=False)
    with _bar("reading") as progress:
        log = read_rollouts(files, count, progress)
    _print_problems(console, log.problems, show_problems)
    with _bar("replaying") as progress:
        analysis = analyse(log, settings, progress)
    studies = studies_of(analysis)
    for study in studies:
        print_study(console, study)
    report = write_replay(analysis, studies, out)
    console.print(f"Report: {report}", soft_wrap=True)


def _print_problems(console: Console, problems: ProblemList, show: int) -> None:
    """Print the first problems, each on its own line, and how many there are."""
    total = problems.counts.total()
    if not total:
        return
    plural = "problems" if total > 1 else "problem"
    console.print(Text(f"{total:,} {plural} in the log", style="bold yellow"))
    for problem in problems.first[:show]:
        console.print(Text(f"  {problem}"), soft_wrap=True)
    if total > show:
        console.print(Text(f"  … and {total - min(show, total):,} more.", style="dim"))
    console.print()


@contextmanager
def _bar(name: str) -> Iterator[Callable[[float], None]]:
    """A progress bar on stderr, if that is a terminal; it leaves nothing behind."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    quiet = not console.is_terminal
    bars = Progress(*columns, console=console, transient=True, redirect_stdout=False, disable=quiet)
    with bars:
        task = bars.add_task(name, total=1.0)
        yield lambda share: bars.update(task, completed=share)
