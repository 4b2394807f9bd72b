"""Tables in the terminal: words give way where it is narrow, numbers never."""

import textwrap
from typing import TYPE_CHECKING

from ecl2o.cli import output

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_table(table: "Table", console: "Console | None" = None) -> None:
    """Print a table whose columns of numbers are the right-justified ones.

    Headings break between words, to the width of what stands below them. Where a terminal is narrow, lines between columns go
    first, then words wrap. Where that is not enough the table is wider than the terminal: a figure that is cut is a wrong
    figure. Without a terminal there is no limit.
    """
    from rich import box

    console = console or output.results()
    for column in table.columns:
        cells = [line for cell in column.cells for line in str(cell).splitlines()]
        words = [word for line in str(column.header).splitlines() for word in line.split()]
        if column.justify == "right":
            column.no_wrap = True
            column.min_width = max(map(len, [*cells, *words]), default=0)
            column.header = "\n".join(
                wrapped
                for line in str(column.header).splitlines()
                for wrapped in textwrap.wrap(line, column.min_width, break_long_words=False)
            )
        else:
            column.no_wrap = False
            column.min_width = max((len(word) for word in [*words, *" ".join(cells).split()]), default=0)
    if console.is_terminal and _width(table, console, narrow=False) > console.width:
        table.box, table.padding = box.SIMPLE_HEAD, (0, 1, 0, 0)
    before = console.width
    console.width = max(before, _width(table, console, narrow=console.is_terminal))
    console.print(table)
    console.width = before


def _width(table: "Table", console: "Console", narrow: bool) -> int:
    """Of the table if everything may have the room it likes, or the least that cuts nothing."""
    from rich.measure import Measurement

    found = Measurement.get(console, console.options.update_width(10_000), table)
    return found.minimum if narrow else found.maximum
