"""Figures that read well: one power of a thousand for a whole column, chosen from what stands in it."""

import dataclasses
import math
from collections.abc import Iterable

_DIGITS = 4  # of the largest figure
_FEWEST = 3  # of the others, where they are written in the column's own way
_PLAIN = (1e-2, 1e5)  # figures in between need no power of a thousand
_LEAST = -300  # a power of ten that is a number by itself
_WORDS = {3: "thousands", 6: "millions", 9: "billions"}


@dataclasses.dataclass(frozen=True)
class Magnitude:
    """How figures that are compared with each other are written: in units of 10^exponent, with so many decimals."""

    exponent: int = 0
    decimals: int = 1

    @classmethod
    def of(cls, values: Iterable[float]) -> "Magnitude":
        """What suits the largest of them, which gets four digits.

        >>> Magnitude.of([1.172e8, 3.445e8]), Magnitude.of([12345.6, 3.0]), Magnitude.of([2.5e-7])
        (Magnitude(exponent=6, decimals=1), Magnitude(exponent=0, decimals=0), Magnitude(exponent=-9, decimals=1))
        """
        largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
        if largest == 0:
            return cls()
        place = _place(largest)
        exponent = 0 if _PLAIN[0] <= largest < _PLAIN[1] else max(3 * (place // 3), _LEAST)
        return cls(exponent, max(_DIGITS - 1 - (place - exponent), 0))

    @property
    def unit(self) -> str:
        """What a heading says of it.

        >>> Magnitude(6).unit, Magnitude(0).unit, Magnitude(12).unit
        ('millions', '', '10^12')
        """
        return _WORDS.get(self.exponent, f"10^{self.exponent}" if self.exponent else "")

    def heading(self, name: str) -> str:
        """A column's heading.

        >>> Magnitude(6).heading("mean bill"), Magnitude().heading("mean bill")
        ('mean bill, millions', 'mean bill')
        """
        return f"{name}, {self.unit}" if self.unit else name

    def text(self, value: float) -> str:
        """A figure under that heading; one that would lose digits that way is written in a way of its own.

        >>> column = Magnitude.of([149.25e6, 2.5e6, 31.0, 0.0])
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
    """The power of ten of the first digit, after rounding to the digits that are shown."""
    return int(f"{abs(value):.{_DIGITS - 1}e}".partition("e")[2])
