"""``arrol sim``: run the studies, print them beside the paper's tables, write the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from arrol.config import Preset
from arrol.errors import ArrolError
from arrol.files import writable_file
from arrol.options import number_option
from arrol.sim.options import accelerator_option, model_option
from arrol.sim.parameters import PARAMETERS
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
from arrol.terminal import Bar, Screen

Command = TypeVar("Command", bound=Callable[..., Any])


def _number_options(command: Command) -> Command:
    """One option for each of :data:`PARAMETERS`, in their order."""
    for parameter in reversed(PARAMETERS):
        default = getattr(SimSettings, parameter.name)
        command = number_option(parameter, default, "what the memory leaves")(command)
    return command


@click.command(
    "sim",
    short_help="Simulate what pruning would save at your setting.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@model_option("Qwen3-1.7B")
@accelerator_option("GH200")
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
        _check_trace(trace, out)
    screen = Screen()
    chosen = [name for name, _ in STUDIES if not names or name in names]
    studies: list[Study] = []
    pngs: dict[str, bytes] = {}
    bar = Bar("simulating")
    with bar.shown():
        for finished in run_studies(chosen, settings, jobs, bar.progress):
            studies.append(finished.study)
            pngs |= finished.pngs
            with bar.put_aside():
                screen.show(partial(print_study, study=finished.study))
    if trace is not None:
        write_trace(trace, settings)
    report = write_results(studies, pngs, settings, out)
    checks = [check for study in studies for check in study.checks]
    contradictions = [item for study in studies for item in study.contradictions]
    screen.show(partial(print_contradictions, contradictions=contradictions))
    screen.show(partial(print_checks, checks=checks))
    screen.show(lambda console: console.print(f"Report: {report}", soft_wrap=True))
    screen.close()
    if not all(check.passed for check in checks):
        ctx.exit(1)


def _check_trace(trace: Path, out: Path) -> None:
    """See that the trace can be written, and to no file of the results."""
    target = writable_file(trace)
    prepare_folder(target.parent, "--trace's folder")
    if target.parent == out.resolve() and target.suffix in (".html", ".csv", ".png"):
        raise ArrolError(
            f"--trace is {str(trace)!r}; allowed in the results' folder is a name that ends in "
            ".json."
        )
