"""Check that an agent plays a problem or raises `NotApplicableError`. Traced only: nothing is compiled or run."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents import Observation, Start
from ecl2o.problem.arrays import to_device

from .registry import CASES, HORIZON, Case

SQUARED = ec.Mahalanobis.isotropic(alpha=10.0, dim=1)


class _Cosh(eqx.Module):
    def __call__(self, x, y):
        return jnp.sum(jnp.cosh(x - y) - 1)


# (problem, numbers in a context); the closed ones beside the open ones are for `init` alone, where agents refuse
PLAYED = {
    "curved": (ec.Problem(ec.CurvedTracking(), SQUARED), 2),
    "two-sided": (ec.Problem(ec.AsymmetricTracking(), SQUARED), 1),
    "linear movement": (ec.Problem(ec.SquaredTracking(), ec.LinearSwitching(2.0)), 1),
}
BEGUN = {
    "any function": (ec.Problem(ec.ConvexCost(_Cosh(), 1.0), SQUARED), 1),
    "any function, linear movement": (ec.Problem(ec.ConvexCost(_Cosh(), 1.0), ec.LinearSwitching(2.0)), 1),
    "linear movement in a box": (ec.Problem(ec.SquaredTracking(), ec.LinearSwitching(2.0), ec.Box(-1.0, 1.0)), 1),
    "box": (ec.Problem(ec.SquaredTracking(), SQUARED, ec.Box(-1.0, 1.0)), 1),
    "curved in a box": (ec.Problem(ec.CurvedTracking(), SQUARED, ec.Box(-1.0, 1.0)), 2),
}


def trace(case: Case, problem: ec.Problem, width: int, horizon: int | None, forecasts: bool, play: bool) -> str | None:
    """Begin a run, and play its first step if wanted: why the agent is not for it, None if it is."""
    agent = case.make(1)
    forecast = to_device(np.zeros((agent.lookahead, width))) if agent.lookahead and forecasts else None
    remaining = None if horizon is None else to_device(np.asarray(horizon - 1))

    def run():
        state = agent.init(problem, Start(jnp.zeros(1), jnp.zeros((case.history, width)), horizon))
        seen = Observation(jnp.zeros(width), jnp.zeros(1), jnp.asarray(0), remaining, forecast)
        return agent.step(problem, state, seen) if play else state

    try:
        jax.eval_shape(run)
    except ec.NotApplicableError as reason:
        return str(reason)
    return None


@pytest.mark.parametrize("case", [case for case in CASES if not case.variant], ids=lambda case: case.name)
def test_an_agent_plays_or_says_that_it_is_not_for_this(case):
    reasons = {name: trace(case, *problem, HORIZON, True, play=True) for name, problem in PLAYED.items()}
    reasons |= {name: trace(case, *problem, HORIZON, True, play=False) for name, problem in BEGUN.items()}
    reasons |= {f"{name}, no end": trace(case, *problem, None, True, play=False) for name, problem in PLAYED.items()}
    blind = trace(case, *PLAYED["curved"], HORIZON, False, play=True) if case.make(1).lookahead else None
    for reason in (*reasons.values(), blind):
        assert reason is None or reason.endswith(".")
    if case.make(1).lookahead:
        assert blind is not None
    if not case.convex:
        assert reasons["any function"]
    if case.box == "refuses":
        assert reasons["box"]
