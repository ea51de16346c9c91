"""``arrol sim``: run the studies, print them beside the paper's tables, write the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from arrol.config import Preset
from arrol.errors import ArrolError
from arrol.sim.hardware import ACCELERATORS, MODELS, find_accelerator, find_model
from arrol.sim.parameters import PARAMETERS, Parameter
from arrol.sim.report import (
    prepare_folder,
    print_checks,
    print_contradictions,
    print_study,
    write_results,
)
from arrol.sim.results import Study
from arrol.sim.run import cores, run_studies
from arrol.sim.settings import SimSettings
from arrol.sim.studies import STUDIES
from arrol.sim.trace import write_trace

Value = TypeVar("Value")
Command = TypeVar("Command", bound=Callable[..., Any])


def _read_number(parameter: Parameter) -> Callable[..., float | None]:
    """A callback that reads and checks a number by its own rules."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
        return None if value is None else parameter.parse(value)

    return read


def _look_up(find: Callable[[str], Value]) -> Callable[..., Value]:
    """A callback that finds a model or accelerator, and names the flag where it can't."""

    def look_up(ctx: click.Context, param: click.Parameter, value: str) -> Value:
        try:
            return find(value)
        except ArrolError as error:
            raise ArrolError(f"{param.opts[0]}: {error}") from None

    return look_up


def _number_options(command: Command) -> Command:
    """One option for each of :data:`PARAMETERS`, in their order."""
    for parameter in reversed(PARAMETERS):
        default = getattr(SimSettings, parameter.name)
        unit = f" {parameter.unit}" if parameter.unit else ""
        command = click.option(
            parameter.flag,
            parameter.name,
            callback=_read_number(parameter),
            default=None if default is None else str(default),
            show_default="what the memory leaves" if default is None else True,
            metavar="N" if parameter.integer else "X",
            help=f"{parameter.text[0].upper()}{parameter.text[1:]} ({parameter.range_text}{unit}).",
        )(command)
    return command


@click.command("sim", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--model",
    callback=_look_up(find_model),
    default="Qwen3-1.7B",
    show_default=True,
    metavar="NAME",
    help=f"Model: {', '.join(MODELS)}, or its sizes (layers=…,hidden=…,intermediate=…,heads=…,"
    "kv_heads=…,head_dim=…,vocab=…).",
)
@click.option(
    "--accelerator",
    callback=_look_up(find_accelerator),
    default="GH200",
    show_default=True,
    metavar="NAME",
    help=f"Accelerator: {', '.join(ACCELERATORS)}, or its figures (flops=…,bandwidth=…,memory=… in "
    "FLOP/s, B/s and B).",
)
@click.option(
    "--preset",
    type=click.Choice([preset.value for preset in Preset]),
    default=SimSettings.preset.value,
    show_default=True,
    help="Survival rule of your setting.",
)
@_number_options
@click.option(
    "--study",
    "names",
    multiple=True,
    type=click.Choice([name for name, _ in STUDIES]),
    help="Run only this study; may be given several times. Default: all.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    default=cores,
    show_default="one a core",
    metavar="N",
    help="Processes that run studies. The results do not depend on it.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("sim-results"),
    show_default=True,
    help="Folder for report.html, a CSV for each table and a PNG for each figure.",
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write one simulated step of your setting as a Chrome trace (open it in Perfetto).",
)
@click.pass_context
def sim(
    ctx: click.Context,
    /,
    names: Sequence[str],
    jobs: int,
    out: Path,
    trace: Path | None,
    preset: str,
    **values: Any,
) -> None:
    """Simulate ARRoL: what pruning rollouts saves, and what it does to the groups.

    Runs the studies, prints the paper's tables beside the simulated ones, and writes a report.
    Exit code: 0 if all checks pass, 1 if one fails, 2 if a flag is wrong.
    """
    settings = SimSettings(preset=Preset(preset), **values)
    prepare_folder(out)
    if trace is not None:
        prepare_folder(trace.parent, "--trace")
    console = Console(highlight=False)
    chosen = [name for name, _ in STUDIES if not names or name in names]
    studies: list[Study] = []
    pngs: dict[str, bytes] = {}
    bar = _Bar()
    with bar.shown():
        for finished in run_studies(chosen, settings, jobs, bar.progress):
            studies.append(finished.study)
            pngs |= finished.pngs
            with bar.put_aside():
                print_study(console, finished.study)
    if trace is not None:
        write_trace(trace, settings)
    report = write_results(studies, pngs, settings, out)
    checks = [check for study in studies for check in study.checks]
    print_contradictions(console, [item for study in studies for item in study.contradictions])
    print_checks(console, checks)
    console.print(f"Report: {report}", soft_wrap=True)
    if not all(check.passed for check in checks):
        ctx.exit(1)


class _Bar:
    """A progress bar on stderr; it leaves nothing behind."""

    def __init__(self) -> None:
        columns = (TextColumn("simulating"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        console = Console(stderr=True)
        self._bars = Progress(
            *columns,
            console=console,
            transient=True,
            redirect_stdout=False,
            disable=not console.is_terminal,
        )
        self._task = self._bars.add_task("", total=1.0)

    def progress(self, share: float) -> None:
        """Show the share of all work that is done."""
        self._bars.update(self._task, completed=share)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show it within a block."""
        with self._bars:
            yield

    @contextmanager
    def put_aside(self) -> Iterator[None]:
        """Take it off the terminal within a block that prints there."""
        self._bars.stop()
        try:
            yield
        finally:
            self._bars.start()
