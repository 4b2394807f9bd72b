"""Figures that are no result: how many solves behind a row of a table did not converge, in numbers, in words and as a mark."""

import equinox as eqx
import numpy as np
from jaxtyping import Bool

from ecl2o.problem.arrays import AnyArray

MARK = " †"


class Unconverged(eqx.Module):
    """How many of an agent's steps, and of the steps of the oracles it is measured by, did not converge.

    The steps of a guard that has lost its promise count too.

    Args:
        steps: of the agent. Default: 0.
        oracle: steps of the oracle. Default: 0.
        of: all steps of the agent. Default: 0.

    >>> print(Unconverged(steps=3, oracle=48, of=48))
    3 of 48 steps, and 48 of the oracle's, did not converge
    >>> bool(Unconverged(of=48))
    False
    """

    steps: int = 0
    oracle: int = 0
    of: int = 0

    @classmethod
    def count(cls, runs: Bool[AnyArray, "n T"], oracles: Bool[AnyArray, "n T"]) -> "Unconverged":
        """Of whether each step of a run, and of the optimum of the same days, converged."""
        steps, oracle = (int(np.sum(~np.asarray(each))) for each in (runs, oracles))
        return cls(steps, oracle, int(runs.size))

    def __add__(self, other: "Unconverged") -> "Unconverged":
        return Unconverged(self.steps + other.steps, self.oracle + other.oracle, self.of + other.of)

    def __bool__(self) -> bool:
        return self.steps > 0 or self.oracle > 0

    def __str__(self) -> str:
        return f"{self.steps} of {self.of} steps, and {self.oracle} of the oracle's, did not converge"

    def as_json(self) -> dict[str, int]:
        """The three numbers."""
        return {"steps": self.steps, "oracle": self.oracle, "of": self.of}

    def marked(self, label: str) -> str:
        """The label of a row, with a mark where its figures are no result."""
        return label + MARK if self else label

    def note(self, label: str) -> str:
        """What the mark of this row means."""
        return f"{MARK.strip()} {label}: {self}: a solve failed, or a promise was lost. These figures are no result."
