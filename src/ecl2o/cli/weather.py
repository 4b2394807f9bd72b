"""The options of the commands that read weather."""

from pathlib import Path
from typing import Annotated, Literal

import typer

PRESET = "authors-code"  # unless given

Weather = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Demand response: NSRDB, TMY3, EPW or CSV weather; a built-in typical year unless given."
    ),
]
Preset = Annotated[
    Literal["authors-code", "paper"] | None,
    typer.Option(
        metavar="PRESET",
        help=f"Demand response: {PRESET} (unless given), as in the published figures, or paper, as in the text.",
    ),
]
BaseShortage = Annotated[
    str | None,
    typer.Option(metavar="WATTS|auto", help="Demand response: shortage before renewables; the preset's unless given."),
]


def watts(text: str) -> float | Literal["auto"]:
    """The value of --base-shortage."""
    if text == "auto":
        return "auto"
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise typer.BadParameter(
            f"must be a positive number of watts or auto, got {text!r}.", param_hint="--base-shortage"
        )
    return value
