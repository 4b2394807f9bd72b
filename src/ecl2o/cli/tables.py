"""Tables in the terminal: words give way where it is narrow, numbers never."""

import textwrap
from typing import TYPE_CHECKING

from ecl2o.cli import output

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Column, Table


def print_table(table: "Table", console: "Console | None" = None) -> None:
    """Print a table whose columns of numbers are the right-justified ones.

    Where a terminal is too narrow for it, lines between columns go first and headings break between words, then words wrap. Where
    that is not enough the table is wider than the terminal: a figure that is cut is a wrong figure. Without a terminal nothing
    wraps.
    """
    from rich import box

    console = console or output.results()
    for column in table.columns:
        column.no_wrap = column.justify == "right"
        column.min_width = _least(column)
    if console.is_terminal and _width(table, console, narrow=False) > console.width:
        table.box, table.padding = box.SIMPLE_HEAD, (0, 1, 0, 0)
        for column in table.columns:
            if column.justify == "right":
                lines = str(column.header).splitlines()
                column.header = "\n".join(part for line in lines for part in _broken(line, _least(column)))
    before = console.width
    console.width = max(before, _width(table, console, narrow=console.is_terminal))
    console.print(table)
    console.width = before


def _least(column: "Column") -> int:
    """How narrow a column may become: a cell that is a number stays whole, and so does a word."""
    cells = " ".join(map(str, column.cells)).split() if column.justify != "right" else map(str, column.cells)
    return max(map(len, [*cells, *str(column.header).split()]), default=0)


def _broken(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width, break_long_words=False)


def _width(table: "Table", console: "Console", narrow: bool) -> int:
    """Of the table if everything may have the room it likes, or the least that cuts nothing."""
    from rich.measure import Measurement

    found = Measurement.get(console, console.options.update_width(10_000), table)
    return found.minimum if narrow else found.maximum
