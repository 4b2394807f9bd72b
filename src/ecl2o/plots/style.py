"""One look for all figures, readable in print, in grey and by colour-blind people, and for report.html, light and dark.

Colours are those of Okabe and Ito (without their yellow, which is too light on white) and three of Paul Tol's; no two rows differ
by colour alone, each has a marker and a dash pattern too. A row looks the same in every figure.
"""

import base64
import contextlib
import dataclasses
import datetime
import itertools
import os
import tempfile
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import dates
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

BLACK, GREY, LIGHT = "#000000", "#767676", "#d9d9d9"
ORANGE, SKY, GREEN, BLUE = "#E69F00", "#56B4E9", "#009E73", "#0072B2"
VERMILLION, PURPLE = "#D55E00", "#CC79A7"
INDIGO, WINE, OLIVE = "#332288", "#882255", "#999933"

FORMATS = ("png", "svg", "pdf")  # of a figure file
REPORT_FORMATS = ("png", "svg")  # of a folder
_DPI = 200


@dataclasses.dataclass(frozen=True)
class Look:
    """How a row is drawn."""

    color: str
    marker: str
    dash: Any


_LOOKS = {
    "oracle": Look(BLACK, "*", "-"),
    "greedy": Look(GREY, "v", (0, (1, 1))),
    "r-obd": Look(BLUE, "s", (0, (5, 2))),
    "rhc": Look(GREEN, "D", (0, (6, 2, 1, 2))),
    "pure-ml": Look(VERMILLION, "X", (0, (1, 2))),
    "switch": Look(PURPLE, "P", (0, (3, 1, 1, 1, 1, 1))),
    "mla-robd": Look(SKY, "^", (0, (3, 1))),
    "ec-l2o": Look(ORANGE, "o", "-"),
    "ec-l2o-tuned": Look(WINE, "h", (0, (8, 2))),
    "seasonal": Look(INDIGO, "<", (0, (4, 1, 2, 1))),
    "guarded": Look(OLIVE, ">", (0, (2, 1))),
}
# For rows of other names, by their place among those.
_OTHERS = (
    Look(GREY, "d", (0, (1, 1))),
    Look(GREEN, "p", (0, (4, 2))),
    Look(PURPLE, "1", (0, (2, 2))),
    Look(WINE, "2", (0, (6, 1))),
    Look(SKY, "3", (0, (3, 3))),
    Look(INDIGO, "4", (0, (5, 1, 1, 1))),
    Look(VERMILLION, "8", (0, (1, 3))),
    Look(ORANGE, "H", (0, (7, 3))),
)

_SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.handlelength": 3.2,
    "lines.linewidth": 1.5,
    "lines.markersize": 5,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "svg.fonttype": "path",  # looks the same everywhere
    "svg.hashsalt": "ecl2o",  # the same figure is the same file
}


@contextlib.contextmanager
def apply_style() -> Iterator[None]:
    """Set matplotlib up for our figures, within a `with` block or a function that this decorates."""
    with matplotlib.rc_context(_SETTINGS):
        yield


def new_figure(height: float) -> Figure:
    """Return an empty figure of a page's width and this height in inches, free of global state."""
    return Figure(figsize=(7.2, height), layout="constrained")


def row_looks(names: Sequence[str]) -> dict[str, Look]:
    """Return how to draw each of these rows.

    >>> row_looks(["r-obd"])["r-obd"].marker
    's'
    """
    spare = itertools.cycle(_OTHERS)
    return {name: _LOOKS.get(name) or next(spare) for name in names}


def label_log_axis(axis, ticks: Sequence[float | int] | None = None) -> None:
    """Write plain numbers on a logarithmic axis, at those of the given ticks that are in view."""
    if ticks is not None:
        low, high = axis.get_view_interval()
        axis.set_ticks([tick for tick in ticks if low <= tick <= high])
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def label_days(axes, interval: int = 1) -> None:
    """Write the date at every midnight of an axis of times, or at every `interval`-th."""
    axes.xaxis.set_major_locator(dates.DayLocator(interval=interval))
    axes.xaxis.set_major_formatter(dates.DateFormatter("%d %b"))


def line_style(look: Look) -> dict[str, Any]:
    """Return the keyword arguments of a line."""
    return {"color": look.color, "linestyle": look.dash}


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure to a file, whole or not at all; the suffix says in which format."""
    kind = path.suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise ValueError(f"{path}: a figure's file must end in {', '.join(f'.{known}' for known in FORMATS)}.")
    if not path.parent.is_dir():
        raise FileNotFoundError(2, "No such folder", str(path.parent))
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    try:
        with apply_style():
            figure.savefig(name, format=kind, dpi=_DPI, metadata=_UNDATED[kind])
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError as error:  # a full disk names no file by itself
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        Path(name).unlink(missing_ok=True)


# No time stamps: the same figure is the same file.
_UNDATED: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


PAGE_CSS = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1a1a1a; --soft: #595959; --rule: #d0d0d0; --tint: #f5f5f5;
  --mark: #0072B2; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ground: #16181b; --ink: #e8e8e8; --soft: #a9adb2; --rule: #3a3e43; --tint: #202428; --mark: #56B4E9; }
  figure img { background: #fff; border-radius: 4px; padding: .5rem; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: .1rem 0 .5rem; }
h2 { font-size: 1.3rem; margin: 2.8rem 0 1rem; padding-bottom: .3rem; border-bottom: 2px solid var(--ink); }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
p, dd, li { max-width: 46rem; }
.kind { margin: 0; color: var(--soft); }
.facts { color: var(--soft); margin-top: 0; }
.note { border-left: 4px solid #D55E00; background: var(--tint); padding: .5rem .8rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.results { width: 100%; font-size: .92rem; }
.results th, .results td { padding: .38rem .6rem; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap; }
.results thead th { border-bottom: 2px solid var(--ink); white-space: normal; vertical-align: bottom; line-height: 1.25; }
.results th[scope=row] { text-align: left; font-weight: 600; white-space: normal; min-width: 9rem; }
.results td.reason { text-align: left; white-space: normal; color: var(--soft); }
.results td.best { font-weight: 700; color: var(--mark); }
.pairs { font-size: .9rem; }
.pairs th, .pairs td { text-align: left; vertical-align: top; padding: .18rem 1.2rem .18rem 0;
  border-bottom: 1px solid var(--rule); overflow-wrap: anywhere; }
.pairs th { font-weight: 500; color: var(--soft); white-space: nowrap; }
dl { margin: 1rem 0; display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.2rem; }
dt { font-weight: 600; }
dd { margin: 0; }
.terms { font-size: .88rem; color: var(--soft); }
.parameters { color: var(--soft); font-size: .9em; }
.parameters::before { content: "("; }
.parameters::after { content: ")"; }
figure { margin: 0 0 2.6rem; }
figure img { display: block; width: 100%; max-width: 50rem; height: auto; }
figcaption { margin-top: .5rem; font-size: .92rem; max-width: 50rem; color: var(--soft); }
pre { background: var(--tint); border: 1px solid var(--rule); padding: .8rem 1rem; overflow-x: auto;
  font-size: .82rem; line-height: 1.45; }
code { font-size: .92em; }
@media (max-width: 40rem) {
  main { padding: 1rem .9rem 3rem; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .6rem; }
}
@media print {
  body { font-size: 10pt; }
  main { max-width: none; padding: 0; }
  figure, .results { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  .results { font-size: 8pt; }
  .results th, .results td { padding: .25rem .3rem; }
  .wide { overflow: visible; }
  pre { white-space: pre-wrap; font-size: 7.5pt; }
}
"""


def html_page(title: str, parts: Sequence[str]) -> str:
    """Return a page that needs nothing but itself, on a screen or on paper."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{PAGE_CSS}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def html_figure(svg: bytes, title: str, caption: str, name: str = "figure") -> str:
    """Return a figure that the page holds itself; `caption` is HTML, `name` its anchor."""
    data = base64.b64encode(svg).decode("ascii")
    return (
        f'<figure id="{name}">\n<img src="data:image/svg+xml;base64,{data}" alt="{escape(title)}">\n'
        f"<figcaption>{caption}</figcaption>\n</figure>"
    )


def html_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column names the rows; the other cells are HTML, with or without their own <td>."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    lines = []
    for name, *cells in rows:
        cells = [cell if cell.startswith("<td") else f"<td>{cell}</td>" for cell in cells]
        lines.append(f'<tr><th scope="row">{escape(name)}</th>{"".join(cells)}</tr>')
    body = "\n".join(lines)
    return f'<div class="wide"><table class="results">\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def html_date() -> str:
    """Return a paragraph that says when the page was made."""
    return f"<p>Made on {escape(datetime.datetime.now().astimezone().strftime('%Y-%m-%d %H:%M %Z'))}.</p>"


def html_section(title: str, content: str) -> str:
    """Return a section of a page."""
    return f"<section>\n<h2>{escape(title)}</h2>\n{content}\n</section>"
