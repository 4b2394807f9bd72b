"""One look for all figures: readable in print, in grey and by colour-blind people.

Colours are those of Okabe and Ito (without their yellow, which is too light on white) and three of Paul Tol's; no two rows differ
by colour alone, each has a marker and a dash pattern too. A row looks the same in every figure.
"""

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

BLACK, GREY, LIGHT = "#000000", "#767676", "#d9d9d9"
ORANGE, SKY, GREEN, BLUE = "#E69F00", "#56B4E9", "#009E73", "#0072B2"
VERMILLION, PURPLE = "#D55E00", "#CC79A7"
INDIGO, WINE, OLIVE = "#332288", "#882255", "#999933"

WIDTH = 7.2  # inches: a page's text
FORMATS = ("png", "svg", "pdf")
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
_OTHERS = tuple(
    Look(color, marker, dash)
    for color, marker, dash in zip(
        (GREY, GREEN, PURPLE, WINE, SKY, INDIGO, VERMILLION, ORANGE),
        ("d", "p", "1", "2", "3", "4", "8", "H"),
        ((0, (1, 1)), (0, (4, 2)), (0, (2, 2)), (0, (6, 1)), (0, (3, 3)), (0, (5, 1, 1, 1)), (0, (1, 3)), (0, (7, 3))),
        strict=True,
    )
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
def house_style() -> Iterator[None]:
    """Matplotlib set up for our figures, and as it was afterwards."""
    with matplotlib.rc_context(_SETTINGS):
        yield


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """An empty figure of the given size in inches, free of global state; legends go outside the axes."""
    return Figure(figsize=(width, height), layout="constrained")


def looks(names: Sequence[str]) -> dict[str, Look]:
    """How to draw each of these rows.

    >>> looks(["r-obd"])["r-obd"].marker
    's'
    """
    others = [name for name in names if name not in _LOOKS]
    spare = {name: _OTHERS[place % len(_OTHERS)] for place, name in enumerate(others)}
    return {name: _LOOKS.get(name) or spare[name] for name in names}


def line_style(look: Look) -> dict[str, Any]:
    """Keyword arguments of a line."""
    return {"color": look.color, "linestyle": look.dash}


def save_as(figure: Figure, path: Path) -> None:
    """Write a figure to a file, whole or not at all; the suffix says in which format."""
    kind = path.suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise ValueError(f"{path}: a figure's file must end in {', '.join(f'.{known}' for known in FORMATS)}.")
    if not path.parent.is_dir():
        raise FileNotFoundError(2, "No such folder", str(path.parent))
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    try:
        with house_style():
            figure.savefig(name, format=kind, dpi=_DPI, metadata=_UNDATED[kind])
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError as error:  # a full disk names no file by itself
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        Path(name).unlink(missing_ok=True)


# No time stamps: the same figure is the same file.
_UNDATED: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
