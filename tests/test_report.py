"""Tables as text, and the files that come out of the studies."""

from __future__ import annotations

import io
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure as Canvas
from rich.console import Console

from arrol.config import Preset
from arrol.errors import ArrolError
from arrol.sim.cells import Column, blocks, cell, columns_of, step_time_text, total_width
from arrol.sim.intervals import mean_and_half_width, with_intervals
from arrol.sim.page import DEFAULT_SECONDS
from arrol.sim.report import (
    prepare_folder,
    print_checks,
    print_contradictions,
    print_study,
    write_results,
)
from arrol.sim.results import Check, Contradiction, Figure, Study, Table
from arrol.sim.settings import SimSettings
from arrol.sim.studies.runs import batches, generate
from arrol.sim.style import figure_png

VOID = {"meta", "img", "br", "link"}


def table(name: str = "speeds") -> Table:
    frame = pd.DataFrame(
        {
            "phase <of a step>": ["generation", "update"],
            "seconds": [106.82, 1 / 3],
            "seconds ±": [1.25, math.nan],
            "rollouts": [8192, 7],
            "speed-up": [1.46, math.nan],
        }
    )
    return Table(name, "Speeds & ends", frame, {"seconds": ".2f", "speed-up": "+.1f"}, "A note.")


def draw(canvas: Canvas) -> None:
    canvas.subplots().plot([0, 1], [1, 0])


def written(studies: list[Study], settings: SimSettings, out: Path) -> Path:
    """Draw the figures and write everything."""
    pngs = {figure.name: figure_png(figure) for study in studies for figure in study.figures}
    return write_results(studies, pngs, settings, out)


def study(name: str = "one", passed: bool = True) -> Study:
    return Study(
        name=name,
        title=f"Study {name}",
        text="First paragraph.\n\nSecond <paragraph>.",
        tables=(table(f"speeds_{name}"),),
        figures=(Figure(f"line_{name}", "A line", draw, "Falls."),),
        checks=(Check("a law", 0.25, "≤ 1", passed),),
        contradictions=(Contradiction("It is so.", "1", "2", "Because."),),
    )


@pytest.mark.parametrize(
    ("value", "spec", "text"),
    [
        (None, "", "–"),
        (math.nan, ".2f", "–"),
        (-0.0004, ".1%", "0.0%"),
        (0.0004, "+.3f", "0.000"),
        (-0.0006, "+.3f", "-0.001"),
        (-math.inf, "", "-inf"),
        (True, "", "yes"),
        (8192, "", "8,192"),
        (8192, "d", "8192"),
        (2000.0, "", "2,000"),
        (0.123456, "", "0.1235"),
        (0.123456, ".2f", "0.12"),
        ("text", ".2f", "text"),
    ],
)
def test_a_cell_says_its_value(value: object, spec: str, text: str) -> None:
    assert cell(value, spec) == text


def test_the_printed_step_time_can_be_recomputed() -> None:
    cost = SimSettings().cost()
    text = step_time_text(cost)
    names = {"t₀": 1e-3, "t_s": 1e-6, "kv": 1e-9, "m": 1e-3, "c": 1e-6, "r": 1.0, "o": 1e-3}
    t0, t_s, kv, m, c, r, o = (
        unit * float(re.search(rf"(?<!\w){name} = ([0-9.]+)", text)[1])  # type: ignore[index]
        for name, unit in names.items()
    )
    roofline = (m**r + (c * 200) ** r) ** (1 / r)
    seconds = t0 + t_s * 200 + roofline + o + kv * 300_000
    assert seconds == pytest.approx(cost.step(200, 300_000), rel=1e-3)


def test_the_defaults_generate_in_the_time_that_the_report_says() -> None:
    settings = SimSettings()
    seconds = [generate(settings, batch.requests).seconds for batch in batches(settings, 8)]
    assert sum(seconds) / len(seconds) == pytest.approx(DEFAULT_SECONDS, rel=0.1)


def test_only_what_was_asked_for_is_summed_up(tmp_path: Path) -> None:
    bare = Study("bare", "Bare", "Nothing to check.", (table(),))
    source = written([bare], SimSettings(), tmp_path).read_text(encoding="utf-8")
    assert "checks passed" not in source
    assert "<h2>Checks</h2>" not in source
    console = Console(width=80, file=io.StringIO())
    print_checks(console, ())
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("signal", "winner", "said"),
    [
        (-0.125, "smaller", "12.5% ± 2.0% less signal at the same generated tokens"),
        (0.125, "pruning", "12.5% ± 2.0% more signal at the same generated tokens"),
        (-0.01, "neither", "as much signal within the noise (-1.0% ± 2.0%)"),
    ],
)
def test_the_lead_says_whether_pruning_pays_in_your_setting(
    signal: float, winner: str, said: str, tmp_path: Path
) -> None:
    rows = [
        {"scene": scene, "rule": rule, "at same": rival, "signal": value, "signal ±": 0.02,
         "more signal": winner}
        for rival in ("tokens", "time")
        for scene, rule, value in (
            ("your setting", "paper", 9.0), ("your setting", "balanced", signal),
            ("sharp", "balanced", 9.0),
        )
    ]  # fmt: skip
    difference = Table("same_cost_difference", "Differences", pd.DataFrame(rows))
    compared = Study("same-cost", "Same cost", "", (difference,))
    source = written([compared], SimSettings(), tmp_path).read_text(encoding="utf-8")
    lead = source[: source.index("<nav>")]
    assert said in lead
    assert "900.0%" not in lead
    assert ("fewer rollouts a prompt" in lead) == (winner == "smaller")
    assert ("pruning is the better use" in lead) == (winner == "pruning")


def test_a_value_that_was_chosen_stands_beside_its_default(tmp_path: Path) -> None:
    settings = SimSettings(preset=Preset.PAPER, prompts=7)
    source = written([], settings, tmp_path).read_text(encoding="utf-8")
    for flag, value, usual in (("--preset", "paper", "balanced"), ("--prompts", "7", "64")):
        row = next(line for line in source.splitlines() if f"<code>{flag}</code>" in line)
        cells = re.findall(r"<td[^>]*>(.*?)</td>", row)
        assert cells[2:4] == [value, usual]
        assert cells[-1] == "your flag"


def test_a_half_width_joins_its_mean() -> None:
    columns = {column.header: column for column in columns_of(table())}
    assert list(columns) == ["phase <of a step>", "seconds", "rollouts", "speed-up"]
    assert columns["seconds"].cells == ("106.82 ±1.25", "0.33")
    assert columns["speed-up"].cells == ("+1.5", "–")
    assert [column.number for column in columns.values()] == [False, True, True, True]


words = st.text(st.sampled_from("abρ̂é("), min_size=1, max_size=9)
headers = st.lists(words, min_size=1, max_size=6).map(" ".join)
figures = st.from_regex(r"[0-9]{1,12}", fullmatch=True)


@st.composite
def tables(draw: st.DrawFn) -> list[Column]:
    """One or two text columns, then figures; headers are all different."""
    columns = []
    for place, number in enumerate(
        [False] * draw(st.integers(1, 2)) + [True] * draw(st.integers(0, 9))
    ):
        cells = draw(st.lists(figures if number else words, min_size=2, max_size=2))
        columns.append(Column(f"{place} {draw(headers)}", tuple(cells), number))
    return columns


@given(columns=tables(), width=st.integers(40, 130))
def test_blocks_hold_every_column_once_beside_the_names_of_the_rows(
    columns: list[Column], width: int
) -> None:
    found = blocks(columns, width)
    names = [column for column in columns if not column.number]
    if len(found) == 1:
        assert found[0][0] == columns
    else:
        assert all(part[: len(names)] == names for part, _ in found)
        figures_of_parts = [column for part, _ in found for column in part[len(names) :]]
        assert names + figures_of_parts == columns
    for part, header_width in found:
        assert total_width(part, header_width) <= width or len(part) <= len(names) + 1


@given(headers, st.integers(1, 40))
def test_header_lines_lose_no_word(header: str, width: int) -> None:
    lines = Column(header, (), True).header_lines(width)
    assert " ".join(lines) == header
    assert all(len(line) <= width or " " not in line for line in lines if line.isascii())


@pytest.mark.parametrize("width", [80, 120])
def test_what_is_printed_fits_the_terminal_and_truncates_nothing(width: int) -> None:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    wide = pd.DataFrame({"rule": ["paper"]} | {f"a long measure {i}": [i / 7] for i in range(12)})
    result = study()
    print_study(console, Study("wide", "Wide", "", (Table("wide", "Wide", wide), *result.tables)))
    print_contradictions(console, result.contradictions)
    print_checks(console, result.checks)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for value in [*(f"{i / 7:.4g}" for i in range(12)), "106.82 ±1.25", "A note.", "Because."]:
        assert value in text
    assert "1 of 1 checks passed." in text


def test_files_hold_what_the_studies_found(tmp_path: Path) -> None:
    report = written([study("one"), study("two", passed=False)], SimSettings(), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "speeds_one.csv", "speeds_two.csv", "line_one.png", "line_two.png", "report.html",
    }  # fmt: skip
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "speeds_one.csv"), table().frame)
    assert (tmp_path / "line_one.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert report == tmp_path / "report.html"


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        written([study()], SimSettings(), tmp_path / name)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


class Reader(HTMLParser):
    """Checks that tags are closed in order, and collects text and references."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_report_is_one_whole_page_that_needs_no_other_file(tmp_path: Path) -> None:
    page = written([study("one"), study("two", passed=False)], SimSettings(prompts=7), tmp_path)
    source = page.read_text(encoding="utf-8")
    reader = Reader()
    reader.feed(source)
    assert reader.open == []
    assert all(r.startswith(("data:image/png;base64,", "#")) for r in reader.references)
    assert "url(" not in source
    assert "@import" not in source
    text = " ".join(reader.text)
    for expected in (
        "Second <paragraph>.", "106.82 ±1.25", "Speeds & ends", "A note.", "Falls.", "It is so.",
        "Because.", "a law", "1 of 2 checks passed", "FAIL", "--keep-ratio", "GH200", "your flag",
        "What the paper’s numbers do not pin down",
    ):  # fmt: skip
        assert expected in text, expected


def test_a_figure_gives_the_same_bytes_twice() -> None:
    figure = study().figures[0]
    assert figure_png(figure) == figure_png(figure)


def test_a_folder_that_is_a_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "results"
    file.write_text("mine")
    for path in (file, file / "deeper"):
        with pytest.raises(ArrolError, match=r"^--out is .*; allowed is a folder.*\.$"):
            prepare_folder(path)
    assert file.read_text() == "mine"


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_an_interval_is_students() -> None:
    mean, half = mean_and_half_width([1.0, 2.0, 3.0])
    assert mean == pytest.approx(2.0)
    assert half == pytest.approx(4.302653 / math.sqrt(3.0), rel=1e-6)  # t(.975, 2), sd 1
    assert mean_and_half_width([5.0, math.nan])[0] == 5.0
    assert math.isnan(mean_and_half_width([5.0, math.nan])[1])
    assert math.isnan(mean_and_half_width([])[0])
    assert list(with_intervals([{"x": 1.0}, {"x": 3.0}])) == ["x", "x ±"]
