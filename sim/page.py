"""The report: one HTML page that needs no other file, read from top to bottom."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from arrol.sim import paper
from arrol.sim.cells import cell, columns_of, step_time_text
from arrol.sim.parameters import PARAMETERS
from arrol.sim.results import Check, Contradiction, Study, Table
from arrol.sim.settings import SimSettings
from arrol.sim.studies import same_cost
from arrol.sim.style import CSS

TITLE = "ARRoL, simulated"
YOURS = "your flag"  #: source of a value that is not the default
DEFAULT_SECONDS = 200.0  #: in about which the default setting generates without pruning
SHORT = 28  #: characters of a text that is kept on one line


def page(studies: Sequence[Study], settings: SimSettings, pngs: Mapping[str, bytes]) -> str:
    """The whole report.

    Args:
        studies: in the order in which they are told.
        settings: what was simulated.
        pngs: name of a figure → its PNG.
    """
    checks = [check for study in studies for check in study.checks]
    contradictions = [item for study in studies for item in study.contradictions]
    sections = [
        section("settings", "What was simulated", _settings(settings)),
        *(section(study.name, study.title, study_body(study, pngs)) for study in studies),
        section("open", "What the paper’s numbers do not pin down", _unpinned()),
        section("contradictions", "Does not reproduce", _contradictions(contradictions)),
    ]
    links = [
        ("settings", "parameters"),
        *((study.name, study.name) for study in studies),
        ("open", "not pinned down"),
        ("contradictions", "does not reproduce"),
    ]
    if checks:
        sections.append(section("checks", "Checks", _checks(checks)))
        links.append(("checks", "checks"))
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{TITLE}</title>\n<style>{CSS}</style>\n</head>\n<body>",
            f"<h1>{TITLE}</h1>",
            _summary(checks, contradictions),
            _verdict(studies, settings),
            "<nav>" + "".join(f'<a href="#{to}">{escape(name)}</a>' for to, name in links),
            "</nav>",
            *sections,
            "</body>\n</html>\n",
        ]
    )


def section(name: str, title: str, body: str) -> str:
    """One titled section; ``name`` is its anchor, ``body`` its HTML."""
    return f'<section id="{escape(name)}">\n<h2>{escape(title)}</h2>\n{body}\n</section>'


def _summary(checks: Sequence[Check], contradictions: Sequence[Contradiction]) -> str:
    passed = sum(check.passed for check in checks)
    verdict = "pass" if passed == len(checks) else "fail"
    counts = []
    if checks:
        counts.append(f'<span class="{verdict}">{passed} of {len(checks)} checks passed</span>')
    if contradictions:
        one = len(contradictions) == 1
        claims = "1 claim" if one else f"{len(contradictions)} claims"
        counts.append(f"{claims} of the paper {'does' if one else 'do'} not reproduce")
    return (
        '<p class="lead">Rollouts of reinforcement learning, pruned while they are generated: the '
        f"rule of {escape(paper.SOURCE)} and ours, carried out by a simulated engine, beside the "
        "figures that the paper publishes.</p>\n"
        + (f"<p>{'; '.join(counts)}.</p>" if counts else "")
    )


def _verdict(studies: Sequence[Study], settings: SimSettings) -> str:
    """Whether pruning pays in your setting, if the study that asks it ran."""
    frames = [
        table.frame
        for study in studies
        for table in study.tables
        if table.name == same_cost.DIFFERENCE_TABLE
    ]
    text = " ".join(same_cost.verdict(frame, settings.preset) for frame in frames)
    return f'<p class="lead">{escape(text)}</p>' if text else ""


def _settings(settings: SimSettings) -> str:
    default = SimSettings()
    preset = "ours" if settings.preset is default.preset else YOURS
    named = (
        ("model", "--model", settings.model, default.model, settings.model.source),
        (
            "accelerator",
            "--accelerator",
            settings.accelerator,
            default.accelerator,
            settings.accelerator.source,
        ),
    )
    rows = [
        *(
            (text, flag, value.name, usual.name, "", source)
            for text, flag, value, usual, source in named
        ),
        ("survival rule", "--preset", settings.preset.value, default.preset.value, "", preset),
    ]
    for parameter in PARAMETERS:
        value, usual = (getattr(which, parameter.name) for which in (settings, default))
        source = parameter.source if value == usual else YOURS
        if parameter.name == "kv_tokens":
            value, usual = settings.limits().kv_tokens, "what fits"
        rows.append(
            (parameter.text, parameter.flag, cell(value), cell(usual), parameter.unit, source)
        )
    header = ("parameter", "flag", "value", "default", "unit", "source")
    baseline = paper.TABLE_5[0].grpo_seconds
    return (
        "<p>The setting below is the one that “your setting” and the flags refer to. Studies of a "
        "published table use the paper’s setting, which is this table’s defaults, and say where "
        f"they leave it. The defaults generate in about {DEFAULT_SECONDS:.0f} s without pruning, "
        f"and Table 5’s baseline in {baseline} s; so the study of Table 5 solves the mean length "
        "that takes its time.</p>\n"
        f"{_grid(header, rows, numbers=(2, 3))}<p>{escape(step_time_text(settings.cost()))}</p>"
    )


def study_body(study: Study, pngs: Mapping[str, bytes]) -> str:
    """A study as HTML: its text, tables and figures, with the PNGs inside."""
    parts = [_paragraphs(study.text)]
    parts += [_table(table) for table in study.tables]
    for figure in study.figures:
        data = b64encode(pngs[figure.name]).decode("ascii")
        parts.append(
            f"<figure>\n<figcaption>{escape(figure.title)}</figcaption>\n"
            f'<img alt="{escape(figure.title)}" src="data:image/png;base64,{data}">\n'
            f"{_note(figure.note)}</figure>"
        )
    return "\n".join(parts)


def _table(table: Table) -> str:
    columns = columns_of(table)
    rows = zip(*(column.cells for column in columns), strict=True)
    numbers = [place for place, column in enumerate(columns) if column.number]
    grid = _grid([column.header for column in columns], rows, numbers)
    return f"<h3>{escape(table.title)}</h3>\n{grid}\n{_note(table.note)}"


def _unpinned() -> str:
    rows = [(item.what, item.why, item.ours) for item in paper.UNPINNED]
    return _grid(("what", "why", "what we do"), rows)


def _contradictions(contradictions: Sequence[Contradiction]) -> str:
    if not contradictions:
        return "<p>The studies that ran contradict none of the paper’s claims.</p>"
    rows = [(item.claim, item.paper, item.simulated, item.reason) for item in contradictions]
    return "<p>These are findings about the paper’s claims, not failed checks.</p>\n" + _grid(
        ("claim", "paper", "simulated", "reason"), rows
    )


def _checks(checks: Sequence[Check]) -> str:
    rows = [
        (check.name, cell(check.figure), check.bound, "pass" if check.passed else "FAIL")
        for check in checks
    ]
    return _grid(("check", "figure", "must be", "result"), rows, numbers=(1,))


def _grid(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table; the columns ``numbers`` stand to the right, short texts are not broken."""
    body_rows = list(rows)
    kinds = ["number" if place in numbers else "" for place in range(len(header))]
    for place, cells in enumerate(zip(*body_rows, strict=True)):
        if not kinds[place] and max(map(len, cells)) <= SHORT:
            kinds[place] = "short"

    def line(tag: str, values: Sequence[str]) -> str:
        cells = (
            f'<{tag} class="{kind}">{_value(value)}</{tag}>' if kind else
            f"<{tag}>{_value(value)}</{tag}>"
            for kind, value in zip(kinds, values, strict=True)
        )  # fmt: skip
        return f"<tr>{''.join(cells)}</tr>"

    body = "\n".join(line("td", row) for row in body_rows)
    return (
        f'<div class="scroll"><table>\n<thead>{line("th", header)}</thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def _value(text: str) -> str:
    if text in ("pass", "FAIL"):
        return f'<span class="{text.lower()}">{text}</span>'
    return f"<code>{escape(text)}</code>" if text.startswith("--") else escape(text)


def _paragraphs(text: str) -> str:
    blocks = (" ".join(block.split()) for block in text.split("\n\n"))
    return "\n".join(f"<p>{escape(block)}</p>" for block in blocks if block)


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>' if text else ""
