"""What a policy costs in the user's own units: of the file, squared, or of money where somebody can say what a miss costs."""

import dataclasses

from ecl2o.evaluation.comparison import ScoredEntry
from ecl2o.problem import CurvedTracking, Mahalanobis, Problem, SquaredTracking
from ecl2o.recipes.magnitude import Magnitude


@dataclasses.dataclass(frozen=True)
class Bills:
    """The mean and the dearest day, and what the promise would allow for the dearest of its periods; None without a promise.

    In units of 1/2 miss^2 + alpha/2 change^2; with a `unit_cost`, which is what a miss of one unit for one step costs, in money:
    a miss of two units then costs four times as much, and a change alpha times as much as a miss of its size.
    """

    mean_day: float
    dearest_day: float
    allowed: float | None
    unit_cost: float | None = None

    @classmethod
    def of(cls, entry: ScoredEntry, unit_cost: float | None = None) -> "Bills":
        """The bills of an entry.

        >>> entry = ScoredEntry("it", 1.2, 1.5, {}, 0, 1.0, mean_bill=50.0, dearest_bill=80.0, allowed=120.0)
        >>> Bills.of(entry, unit_cost=3.0)
        Bills(mean_day=300.0, dearest_day=480.0, allowed=720.0, unit_cost=3.0)
        """
        factor = 1.0 if unit_cost is None else 2 * unit_cost  # a miss of 1 costs 1/2
        allowed = None if entry.allowed is None else factor * entry.allowed
        return cls(factor * entry.mean_bill, factor * entry.dearest_bill, allowed, unit_cost)

    def in_words(self, period: str, problem: Problem) -> str:
        """A sentence; `period` is what the promise is for.

        >>> problem = Problem(SquaredTracking(), Mahalanobis.isotropic(10.0, dim=1))
        >>> Bills(mean_day=1.5e8, dearest_day=3.444e8, allowed=1.45379e10).in_words("run", problem)[56:]
        'in millions): 150.0 on a mean day, 344.4 on the dearest; the promise would have allowed 14,537.9 for the whole run.'
        """
        magnitude = Magnitude.of((self.mean_day, self.dearest_day))
        what = "in your money" if self.unit_cost is not None else cost_in_words(problem)
        what += f", in {magnitude.unit}" if magnitude.unit else ""
        said = f"bills ({what}): {magnitude.text(self.mean_day)} on a mean day, "
        said += f"{magnitude.text(self.dearest_day)} on the dearest"
        if self.allowed is not None:
            billed = "whole run" if period == "run" else f"dearest {period}"
            said += f"; the promise would have allowed {magnitude.text(self.allowed)} for the {billed}"
        return said + "."


def cost_in_words(problem: Problem) -> str:
    """What is billed.

    >>> cost_in_words(Problem(CurvedTracking(0.5, 2.0), Mahalanobis.isotropic(10.0, dim=1)))
    "weight/2 miss² + alpha/2 change² in the file's units"
    """
    misses = {SquaredTracking: "1/2 miss²", CurvedTracking: "weight/2 miss²"}.get(type(problem.hitting))
    if misses is None or not isinstance(problem.switching, Mahalanobis):
        return "hitting and switching cost in the problem's units"
    return f"{misses} + alpha/2 change² in the file's units"
