"""Tables and notes in the terminal, and the format of numbers: in narrow terminals words wrap, numbers do not."""

import dataclasses
import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ecl2o.cli import output

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Column, Table


_DIGITS = 4  # of the largest figure in a column
_FEWEST = 3  # of the others
_PLAIN = (1e-2, 1e5)  # the range that is written without a power of a thousand
_LEAST = -300  # smallest power of ten
_WORDS = {3: "thousands", 6: "millions", 9: "billions"}


@dataclasses.dataclass(frozen=True)
class NumberFormat:
    """One format for figures that are compared: units of 10^exponent, and a number of decimals."""

    exponent: int = 0
    decimals: int = 1

    @classmethod
    def of(cls, values: Iterable[float]) -> "NumberFormat":
        """Return the format that gives the largest value four digits.

        >>> NumberFormat.of([1.172e8, 3.445e8]), NumberFormat.of([12345.6, 3.0]), NumberFormat.of([2.5e-7])
        (NumberFormat(exponent=6, decimals=1), NumberFormat(exponent=0, decimals=0), NumberFormat(exponent=-9, decimals=1))
        """
        largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
        if largest == 0:
            return cls()
        place = _place(largest)
        exponent = 0 if _PLAIN[0] <= largest < _PLAIN[1] else max(3 * (place // 3), _LEAST)
        return cls(exponent, max(_DIGITS - 1 - (place - exponent), 0))

    @property
    def unit(self) -> str:
        """The power of a thousand in words, for a heading.

        >>> NumberFormat(6).unit, NumberFormat(0).unit, NumberFormat(12).unit
        ('millions', '', '10^12')
        """
        return _WORDS.get(self.exponent, f"10^{self.exponent}" if self.exponent else "")

    def heading(self, name: str) -> str:
        """Return a heading with the unit.

        >>> NumberFormat(6).heading("mean cost"), NumberFormat().heading("mean cost")
        ('mean cost, millions', 'mean cost')
        """
        return f"{name}, {self.unit}" if self.unit else name

    def text(self, value: float) -> str:
        """Format a value; one too small for the column gets its own exponent.

        >>> column = NumberFormat.of([149.25e6, 2.5e6, 31.0, 0.0])
        >>> [column.text(value) for value in (149.25e6, 2.5e6, 31.0, 0.0, float("inf"))]
        ['149.2', '2.50', '3.1e-05', '0', '∞']
        """
        if not math.isfinite(value):
            return "n/a" if math.isnan(value) else "∞" if value > 0 else "-∞"
        if value == 0:
            return "0"
        scaled = value / 10.0**self.exponent
        decimals = max(self.decimals, _FEWEST - 1 - _place(scaled))
        return f"{scaled:,.{decimals}f}" if decimals <= _DIGITS else f"{scaled:.{_FEWEST}g}"


def _place(value: float) -> int:
    """Return the power of ten of the first digit, after rounding."""
    return int(f"{abs(value):.{_DIGITS - 1}e}".partition("e")[2])


def print_table(table: "Table", console: "Console | None" = None) -> None:
    """Print a table whose right-justified columns hold numbers.

    In a terminal that is too narrow, the lines between columns go first, then headings and words wrap. Numbers never wrap: the
    table may be wider than the terminal. Without a terminal nothing wraps.
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
                column.header = "\n".join(
                    part for line in lines for part in textwrap.wrap(line, _least(column), break_long_words=False)
                )
    before = console.width
    console.width = max(before, _width(table, console, narrow=console.is_terminal))
    console.print(table)
    console.width = before


def print_rows(
    title: str,
    columns: Iterable[str],
    rows: Iterable[Sequence[str]],
    words: Sequence[str] = ("",),
    notes: Iterable[str] = (),
) -> None:
    """Print a table and the notes below it; columns hold numbers, unless their headings are in `words`."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for heading in columns:
        table.add_column(heading, justify="left" if heading in words else "right")
    for row in rows:
        table.add_row(*row)
    print_table(table)
    print_notes(notes)


def print_notes(lines: Iterable[str]) -> None:
    """Print lines of a result on standard output; the terminal wraps them."""
    for line in lines:
        output.results().print(line, soft_wrap=True)


def print_message(text: str) -> None:
    """Print a line on standard error; the terminal wraps it."""
    output.messages().print(text, soft_wrap=True)


def _least(column: "Column") -> int:
    """Return the least width of a column: its longest number or word."""
    cells = " ".join(map(str, column.cells)).split() if column.justify != "right" else map(str, column.cells)
    return max(map(len, [*cells, *str(column.header).split()]), default=0)


def _width(table: "Table", console: "Console", narrow: bool) -> int:
    """Return the width of the table without wrapping, or the least that cuts nothing."""
    from rich.measure import Measurement

    found = Measurement.get(console, console.options.update_width(10_000), table)
    return found.minimum if narrow else found.maximum
