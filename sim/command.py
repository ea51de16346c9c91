"""``arrol sim``: run the studies, print them beside the paper's tables, write the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from arrol.config import Preset
from arrol.sim.options import Bar, accelerator_option, model_option, number_option
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
        prepare_folder(trace.parent, "--trace")
    console = Console(highlight=False)
    chosen = [name for name, _ in STUDIES if not names or name in names]
    studies: list[Study] = []
    pngs: dict[str, bytes] = {}
    bar = Bar("simulating")
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
