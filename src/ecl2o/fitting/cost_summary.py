"""Figures that read well: one power of a thousand for a whole column, chosen from what stands in it.

What a policy costs in the user's own units: of the file, squared, or of money where somebody can say what a miss costs.
"""

import dataclasses
import math
from collections.abc import Iterable

from ecl2o.evaluation.comparison import ComparisonRow
from ecl2o.problem import CurvedTracking, Mahalanobis, Problem, SquaredTracking

_DIGITS = 4  # of the largest figure
_FEWEST = 3  # of the others, where they are written in the column's own way
_PLAIN = (1e-2, 1e5)  # figures in between need no power of a thousand
_LEAST = -300  # a power of ten that is a number by itself
_WORDS = {3: "thousands", 6: "millions", 9: "billions"}


@dataclasses.dataclass(frozen=True)
class NumberFormat:
    """How figures that are compared with each other are written: in units of 10^exponent, with so many decimals."""

    exponent: int = 0
    decimals: int = 1

    @classmethod
    def of(cls, values: Iterable[float]) -> "NumberFormat":
        """What suits the largest of them, which gets four digits.

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
        """What a heading says of it.

        >>> NumberFormat(6).unit, NumberFormat(0).unit, NumberFormat(12).unit
        ('millions', '', '10^12')
        """
        return _WORDS.get(self.exponent, f"10^{self.exponent}" if self.exponent else "")

    def heading(self, name: str) -> str:
        """A column's heading.

        >>> NumberFormat(6).heading("mean bill"), NumberFormat().heading("mean bill")
        ('mean bill, millions', 'mean bill')
        """
        return f"{name}, {self.unit}" if self.unit else name

    def text(self, value: float) -> str:
        """A figure under that heading; one that would lose digits that way is written in a way of its own.

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
    """The power of ten of the first digit, after rounding to the digits that are shown."""
    return int(f"{abs(value):.{_DIGITS - 1}e}".partition("e")[2])


@dataclasses.dataclass(frozen=True)
class CostSummary:
    """The mean and the dearest day, and what the promise would allow for the dearest of its periods; None without a promise.

    In units of 1/2 miss^2 + alpha/2 change^2; with a `unit_cost`, which is what a miss of one unit for one step costs, in money:
    a miss of two units then costs four times as much, and a change alpha times as much as a miss of its size.
    """

    mean_day: float
    dearest_day: float
    allowed: float | None
    unit_cost: float | None = None

    @classmethod
    def of(cls, entry: ComparisonRow, unit_cost: float | None = None) -> "CostSummary":
        """The bills of an entry.

        >>> entry = ComparisonRow("it", 1.2, 1.5, {}, 0, 1.0, mean_cost=50.0, highest_cost=80.0, allowed_cost=120.0)
        >>> CostSummary.of(entry, unit_cost=3.0)
        CostSummary(mean_day=300.0, dearest_day=480.0, allowed=720.0, unit_cost=3.0)
        """
        factor = 1.0 if unit_cost is None else 2 * unit_cost  # a miss of 1 costs 1/2
        allowed = None if entry.allowed_cost is None else factor * entry.allowed_cost
        return cls(factor * entry.mean_cost, factor * entry.highest_cost, allowed, unit_cost)

    def in_words(self, period: str, problem: Problem) -> str:
        """A sentence; `period` is what the promise is for.

        >>> problem = Problem(SquaredTracking(), Mahalanobis.isotropic(10.0, dim=1))
        >>> CostSummary(mean_day=1.5e8, dearest_day=3.444e8, allowed=1.45379e10).in_words("run", problem)[56:]
        'in millions): 150.0 on a mean day, 344.4 on the dearest; the promise would have allowed 14,537.9 for the whole run.'
        """
        magnitude = NumberFormat.of((self.mean_day, self.dearest_day))
        what = "in your money" if self.unit_cost is not None else describe_cost(problem)
        what += f", in {magnitude.unit}" if magnitude.unit else ""
        said = f"bills ({what}): {magnitude.text(self.mean_day)} on a mean day, "
        said += f"{magnitude.text(self.dearest_day)} on the dearest"
        if self.allowed is not None:
            billed = "whole run" if period == "run" else f"dearest {period}"
            said += f"; the promise would have allowed {magnitude.text(self.allowed)} for the {billed}"
        return said + "."


def describe_cost(problem: Problem) -> str:
    """What is billed.

    >>> describe_cost(Problem(CurvedTracking(0.5, 2.0), Mahalanobis.isotropic(10.0, dim=1)))
    "weight/2 miss² + alpha/2 change² in the file's units"
    """
    misses = {SquaredTracking: "1/2 miss²", CurvedTracking: "weight/2 miss²"}.get(type(problem.hitting))
    if misses is None or not isinstance(problem.switching, Mahalanobis):
        return "hitting and switching cost in the problem's units"
    return f"{misses} + alpha/2 change² in the file's units"
