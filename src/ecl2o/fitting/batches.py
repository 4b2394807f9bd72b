"""Sites of one shape, run as one program: what differs from site to site is on a leading axis of every array."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax

from ecl2o.data import Contexts
from ecl2o.evaluation import DailyScore, TestDays, score_runs_batch
from ecl2o.evaluation.comparison import Contender, score_contender
from ecl2o.fitting.settings import FitSettings, PromiseSpec
from ecl2o.problem import Problem
from ecl2o.running.rollout import stack_trees


@dataclasses.dataclass(frozen=True)
class FitTask:
    """A series, what is decided there, and how its policy is made."""

    contexts: Contexts
    problem: Problem
    settings: FitSettings

    @property
    def terms(self) -> PromiseSpec:
        """The promise that is asked for."""
        assert self.settings.promise is not None
        return self.settings.promise


def check_same_shape(sites: Sequence[Contexts]) -> None:
    """Refuse series that differ in their shape or in how their days are divided."""
    shapes = {(site.values.shape, site.steps_per_day, site.split) for site in sites}
    if len(shapes) != 1:
        raise ValueError(
            f"sites that run as one program must have one shape and one split, got {sorted(map(str, shapes))}."
        )


def score_together(entries: Sequence[Contender], beds: Sequence[TestDays]) -> list[DailyScore]:
    """One entry on one bed for each site, all of them in one program; that of a comparison where there is one site."""
    if len(beds) == 1:
        return [score_contender(entries[0], beds[0])]
    if len({entry.run for entry in entries}) != 1:
        raise ValueError("entries that run as one program must go through the days in one way.")
    made = [
        (entry.agent, entry.forecaster if entry.agent.lookahead else None, bed.problem, bed.x0, bed.days, bed.history)
        for entry, bed in zip(entries, beds, strict=True)
    ]
    runs, starts = _run_each(entries[0].run, stack_trees(made))
    return score_runs_batch(runs, starts, beds)


@eqx.filter_jit
def _run_each(run: Callable, made: Any) -> Any:
    def one(agent, forecaster, problem, *place):
        return run(agent, problem, *place, forecaster)

    return jax.vmap(one)(*made)
