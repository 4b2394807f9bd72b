"""Receding Horizon Gradient Descent: a few gradient steps on the whole path, in an order that needs few forecasts."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.agents.base import Info, Observation, Start
from ecl2o.agents.receding_horizon import AbstractRecedingHorizon
from ecl2o.exceptions import NotApplicableError
from ecl2o.problem import AbstractQuadraticCost, Problem
from ecl2o.problem.arrays import as_optional_float, check_finite, check_positive, extreme_eigenvalues


class Iterates(eqx.Module):
    """What the next stage needs: x_{t+W-k}^(k) for k = 0..W as stages t - 1 (`latest`) and t - 2 (`earlier`) left it."""

    latest: Float[Array, "levels d"]
    earlier: Float[Array, "levels d"]
    smoothness: Float[Array, ""]


class RHGD(AbstractRecedingHorizon):
    """Receding Horizon Gradient Descent (Li, Qu and Li 2020): W = window + 1 projected gradient steps per action.

    Iterate 0 is the path of online gradient descent, x_1^(0) = x_0. Stage t computes x_s^(k) for k = 1..W, s = t + W - k,
    by a step of size 1/(l + 4 beta) on the path's cost, from neighbours at iterate k - 1, and plays x_t^(W). The stages
    before the first step run at the first step, on its forecasts. With exact forecasts the actions are those of W steps of
    projected gradient descent on the whole horizon, and
    cost - OPT <= (l + 4 beta)/2 |x^(0) - x*|^2 (1 - m/(l + 4 beta))^W.

    The iterates never see what was played: behind a wrapper that plays something else, they stay on their own path.

    Args:
        window: how many future contexts it uses; 0 or more.
        truncate: whether the path stops at a known horizon. Default: True.
        smoothness: l, the largest curvature of the hitting cost, positive. Default: that of a constant quadratic cost; other
            costs need a value.

    Raises:
        ValueError: if window or smoothness is out of its range.
        NotApplicableError: at the start of a run without the smoothness or the horizon that it needs.

    >>> RHGD(3).lookahead
    3
    """

    window: int = eqx.field(static=True)
    truncate: bool = eqx.field(static=True, default=True)
    smoothness: Float[Array, ""] | None = eqx.field(converter=as_optional_float, default=None)

    def __check_init__(self):
        if self.smoothness is not None:
            check_finite("smoothness", self.smoothness)
            check_positive("smoothness", self.smoothness)

    def init(self, problem: Problem, start: Start) -> Iterates:
        self.check_horizon(self.truncate, start)
        at_start = jnp.broadcast_to(start.x0, (self.window + 2, start.dim))
        return Iterates(at_start, at_start, self._smoothness(problem, start.dim).astype(start.x0.dtype))

    def step(self, problem: Problem, state: Iterates, observation: Observation):
        contexts, W = observation.known_contexts(self.window), self.window + 1
        left = observation.steps_left if self.truncate else W + 1  # beyond every position: it never ends

        def first_stages(iterates):
            # t = 2 - W..1: the window begins at step 1, which is 1 - t steps after t
            def stage(iterates, before):
                return _stage(problem, iterates, contexts, before, left), None

            return jax.lax.scan(stage, iterates, jnp.arange(W - 1, -1, -1))[0]

        def one_stage(iterates):
            return _stage(problem, iterates, contexts, 0, left)

        state = jax.lax.cond(observation.step == 0, first_stages, one_stage, state)
        return state, state.latest[W], Info.plain()

    def _smoothness(self, problem: Problem, dim: int) -> Float[Array, ""]:
        if self.smoothness is not None:
            return self.smoothness
        hitting = problem.hitting
        if isinstance(hitting, AbstractQuadraticCost) and hitting.constant_curvature:
            return extreme_eigenvalues(hitting.curvature(None, dim))[1]
        raise NotApplicableError(
            f"RHGD needs the largest curvature of {type(hitting).__name__}: give it as RHGD(window, smoothness=...)."
        )


def _stage(problem: Problem, iterates: Iterates, contexts: Float[Array, "W q"], before, left) -> Iterates:
    """Stage t, where contexts[0] belongs to step t + before, and the last step of all is number `left` from there.

    Position p = s - t - before is that of step s in the window: below 0 its action is x_0, from `left` on it does not exist.
    """
    W, smoothness = contexts.shape[0], iterates.smoothness
    rate = 1 / (smoothness + 4 * problem.beta)

    def exists(position):
        return (position >= 0) & (position < left)

    def gradient(action, position):
        return problem.hitting.gradient(action, contexts[jnp.where(exists(position), position, 0)])

    def refine(after, level):
        """x_s^(k) from x_s^(k-1), its neighbours before and (already of this stage) after."""
        k, here, preceding = level
        position = W - k - before
        ahead = jnp.where(exists(position + 1), 2 * problem.Q @ (after - here), 0.0)
        slope = gradient(here, position) + 2 * problem.Q @ (here - preceding) - ahead
        refined = jnp.where(exists(position), problem.actions.project(here - rate * slope), here)
        return refined, refined

    newest = iterates.latest[0]  # x_{t+W-1}^(0)
    start = problem.actions.project(newest - gradient(newest, W - 1 - before) / smoothness)
    levels = (jnp.arange(1, W + 1), iterates.latest[:-1], iterates.earlier[:-1])
    _, refined = jax.lax.scan(refine, start, levels)
    return Iterates(jnp.concatenate([start[None], refined]), iterates.latest, smoothness)
