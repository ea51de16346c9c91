"""What ``arrol replay`` writes: a CSV a table, a PNG a figure, a summary and a report."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from arrol.files import write_atomically
from arrol.sim import page
from arrol.sim.intervals import mean_and_half_width
from arrol.sim.replay import Measures, ReplaySettings, RuleResult, brings_scores
from arrol.sim.replay_advice import Analysis
from arrol.sim.results import Study
from arrol.sim.style import CSS, figure_png

MEASURES = tuple(field.name for field in fields(Measures))
SUMMARY, REPORT = "replay_summary.json", "report.html"
#: Files that not every run writes; an earlier run's are taken away.
SOMETIMES = ("replay_problems.csv", "replay_rules_best.csv", "replay_scores.png")
TITLE = "ARRoL, replayed on real rollouts"


def write_replay(analysis: Analysis, studies: Sequence[Study], out: Path) -> Path:
    """Write all files into the folder ``out`` and return the report's path.

    The same settings and log give the same bytes in every CSV. Each file is written to a temporary
    one and renamed.

    Raises:
        ArrolError: a file can't be written.
    """
    pngs = {figure.name: figure_png(figure) for study in studies for figure in study.figures}
    contents: dict[str, str | bytes] = {f"{name}.png": png for name, png in pngs.items()}
    for table in (table for study in studies for table in study.tables):
        contents[f"{table.name}.csv"] = table.frame.to_csv(index=False, lineterminator="\n")
    contents |= {SUMMARY: summary(analysis), REPORT: html(studies, pngs)}
    for name, content in contents.items():
        write_atomically(out / name, content)
    for name in SOMETIMES:
        if name not in contents:
            (out / name).unlink(missing_ok=True)
    return out / REPORT


def html(studies: Sequence[Study], pngs: Mapping[str, bytes]) -> str:
    """One page that needs no other file; the advice, which comes last, stands first in it."""
    ordered = [studies[-1], *studies[:-1]]
    links = "".join(f'<a href="#{study.name}">{study.name}</a>' for study in ordered)
    sections = [
        page.section(study.name, study.title, page.study_body(study, pngs)) for study in ordered
    ]
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{TITLE}</title>\n<style>{CSS}</style>\n</head>\n<body>",
            f"<h1>{TITLE}</h1>\n<nav>{links}</nav>",
            *sections,
            "</body>\n</html>\n",
        ]
    )


def summary(analysis: Analysis) -> str:
    """Everything as JSON; figures that can't be had are null."""
    log, advice = analysis.log, analysis.advice
    values = {
        "advice": {
            "prune": advice.prune,
            "headline": advice.headline,
            "keep_ratio": advice.settings.keep_ratio,
            "detect_length": advice.settings.detect_length,
            "strength": advice.settings.strength,
            "preset": advice.settings.preset.value,
            "reasons": advice.reasons,
            "caveats": advice.caveats,
        },
        "settings": _settings_values(analysis.given.settings),
        "log": {
            "rollouts": len(log),
            "groups": len(log.sizes),
            "formats": {path: dict(found) for path, found in log.formats.items()},
            "problems": {kind.value: n for kind, n in sorted(log.problems.counts.items())},
            "notes": log.notes,
            "caveats": log.caveats,
            "scores": "log" if brings_scores(log) else "assumed",
        },
        "signal": {
            "all": asdict(analysis.whole_signal),
            "decided": asdict(analysis.given.signal),
        },
        "rules": _rules_values(analysis.given.results),
        "rules_best": _rules_values(analysis.best.results),
    }
    return json.dumps(_plain(values), ensure_ascii=False, indent=2) + "\n"


def _settings_values(settings: ReplaySettings) -> dict[str, Any]:
    values = {name: getattr(settings, name) for name in settings.__dataclass_fields__}
    return values | {"model": settings.model.name, "accelerator": settings.accelerator.name}


def _rules_values(results: Mapping[str, RuleResult]) -> dict[str, Any]:
    return {
        name: {measure: mean_and_half_width(result.values(measure).tolist())[0]
               for measure in MEASURES}
        for name, result in results.items()
    }  # fmt: skip


def _plain(value: Any) -> Any:
    """JSON values: NaN is null, a tuple a list."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
