"""How figures and the report look."""

from __future__ import annotations

import io
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.figure import Figure as Canvas

from arrol.sim.results import Figure

#: Okabe and Ito's colours, which colour-blind readers tell apart.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
YELLOW, SKY, BLACK, GREY = "#E69F00", "#56B4E9", "#222222", "#8A8F98"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY, BLACK)

WIDTH, HEIGHT = 7.4, 3.9  #: of a figure, inches
DPI = 160

RC: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.labelcolor": BLACK,
    "axes.prop_cycle": cycler(color=PALETTE),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "grid.color": "#E4E6EA",
    "grid.linewidth": 0.8,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "xtick.color": BLACK,
    "ytick.color": BLACK,
}


def figure_png(figure: Figure) -> bytes:
    """The figure as a PNG. The same figure gives the same bytes."""
    with mpl.rc_context(RC):
        canvas = Canvas(figsize=(WIDTH, HEIGHT), dpi=DPI, layout="constrained")
        figure.draw(canvas)
        buffer = io.BytesIO()
        canvas.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


CSS = """
:root { --ink: #1f2328; --soft: #5b626c; --line: #dfe2e7; --wash: #f6f7f9; --good: #00734f;
  --bad: #b3261e; --link: #0060a0; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 2.5rem 1.5rem 5rem; color: var(--ink);
  background: white; font: 16px/1.55 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.35rem; margin: 3rem 0 .6rem; padding-top: .9rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1.02rem; margin: 1.8rem 0 .4rem; }
p { margin: .5rem 0; max-width: 48rem; }
a { color: var(--link); }
.lead { font-size: 1.08rem; }
.note { color: var(--soft); font-size: .88rem; max-width: 52rem; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: 1.2rem 0; padding: .7rem 1rem;
  background: var(--wash); border-radius: 6px; font-size: .92rem; }
nav a { white-space: nowrap; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; margin: .3rem 0; }
th, td { padding: .32rem .6rem; text-align: left; vertical-align: top; }
thead th { border-bottom: 2px solid var(--ink); vertical-align: bottom; font-weight: 600;
  line-height: 1.25; }
tbody tr + tr td { border-top: 1px solid var(--line); }
tbody tr:hover td { background: var(--wash); }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.short { white-space: nowrap; }
thead th.number, thead th.short { white-space: normal; }
.scroll:has(th:nth-child(11)) :is(th, td) { padding-inline: .38rem; white-space: normal; }
figure { margin: 1.4rem 0; }
img { max-width: 100%; height: auto; display: block; }
figcaption { font-weight: 600; font-size: .95rem; margin-bottom: .3rem; }
code { font: .92em ui-monospace, Menlo, Consolas, monospace; }
.pass { color: var(--good); font-weight: 600; }
.fail { color: var(--bad); font-weight: 600; }
@media print { body { max-width: none; padding: 0; } nav { display: none; } }
"""
