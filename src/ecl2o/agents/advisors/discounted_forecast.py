"""Advice from forecasts of the discounted mean of the coming contexts.

In coordinates where A = I and 2Q = diag(a), and with rho the decay root of a, the action x_t = rho x_{t-1} + (1 - rho) zhat_t
costs the optimum of the whole horizon plus 1/2 sum |zhat_t - z_t|^2, up to end effects, where

    z_t = (1 - rho) sum_{j >= 0} rho^j y_{t+j}

is the discounted mean of the present and the coming contexts. So an advisor has to predict z, and nothing else.
"""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start
from ecl2o.planning.decoupling import Modes
from ecl2o.problem import Problem
from ecl2o.problem.arrays import check_count
from ecl2o.theory import decay_root

_SHORTEST = 24  # steps at least, by default, until a forecast is compared with what came


class DiscountedForecast(eqx.Module):
    """zhat, the predicted discounted mean of the contexts from now on, and signals for `GuardAwareCorrection`.

    The signals are the last change, and the profile an eighth and a quarter of a period ahead, less the present context.
    """

    mean: Float[Array, "*n d"]
    signals: Float[Array, "*n s d"]

    @classmethod
    def of_mean(cls, mean: Float[Array, " d"]) -> "DiscountedForecast":
        """Return a forecast without signals: they are 0."""
        return cls(mean, jnp.zeros((3, *mean.shape), mean.dtype))

    def advice(self, modes: Modes, previous: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return rho x_{t-1} + (1 - rho) zhat in every mode: the whole-horizon optimum where zhat is exact."""
        rho = decay_root(1.0, modes.a)
        return previous + modes.from_modes @ ((1 - rho) * (modes.to_modes @ (self.mean - previous)))

    @property
    def info(self) -> Info:
        """The report of an agent that predicts it."""
        return Info(jnp.ones((), bool), details={"discounted_forecast": self})


class RegressionState(eqx.Module):
    """The modes, how many contexts have been seen, and what the regression remembers of them."""

    modes: Modes
    seen: Int[Array, ""]
    memory: Any


class AbstractRegression(AbstractAgent):
    """The base class of advisors that predict z by a regression on features of the contexts so far, not of actions."""

    features: eqx.AbstractVar[Any]

    @abc.abstractmethod
    def empty(self, problem: Problem, start: Start) -> Any:
        """Return the memory before the first context."""

    @abc.abstractmethod
    def advance(self, state: RegressionState, now: Float[Array, " d"], given: Float[Array, " c"]) -> Any:
        """Return the memory after one more context: of what is followed, and of its covariates."""

    @abc.abstractmethod
    def predict(self, state: RegressionState) -> DiscountedForecast:
        """Return the forecast that is due after the last context."""

    def init(self, problem: Problem, start: Start) -> RegressionState:
        modes = Modes.from_problem(problem, start.dim)
        state = RegressionState(modes, jnp.zeros((), int), self.empty(problem, start))
        return start.fold_history(lambda s, context: self.observe(problem, s, context), state)

    def step(self, problem: Problem, state: RegressionState, observation: Observation):
        state = self.observe(problem, state, observation.context)
        forecast = self.predict(state)
        return state, forecast.advice(state.modes, observation.previous_action), forecast.info

    @eqx.filter_jit  # so that JAX traces it once, for pasts and runs of any length
    def observe(self, problem: Problem, state: RegressionState, context: Float[Array, " q"]) -> RegressionState:
        """Return the state after one more context."""
        now = problem.hitting.centre(context, state.modes.a.shape[0])
        given = context[context.shape[0] - len(self.features.leads) :]
        return RegressionState(state.modes, state.seen + 1, self.advance(state, now, given))


class Replayed(AbstractAgent):
    """An advisor that replays recorded forecasts, one per step: a regression without the cost of its steps."""

    forecast: DiscountedForecast

    def init(self, problem: Problem, start: Start) -> RegressionState:
        return RegressionState(Modes.from_problem(problem, start.dim), jnp.zeros((), int), None)

    def step(self, problem: Problem, state: RegressionState, observation: Observation):
        forecast = DiscountedForecast(self.forecast.mean[state.seen], self.forecast.signals[state.seen])
        advice = forecast.advice(state.modes, observation.previous_action)
        return RegressionState(state.modes, state.seen + 1, None), advice, forecast.info


def default_maturity(period: int, ahead: int) -> int:
    """Return after how many steps a forecast is compared with what came: a period, at least 24, from when it is in force."""
    return max(period, _SHORTEST) + ahead


def check_maturity(maturity: int, ahead: int) -> None:
    """Raise unless some contexts from `ahead` steps later on are known by then."""
    check_count("maturity", maturity)
    if type(ahead) is not int or ahead < 0:
        raise ValueError(f"ahead must be a whole number of steps, 0 or more, got {ahead!r}.")
    if maturity < 2 + ahead:
        raise ValueError(f"maturity must be at least {2 + ahead}, got {maturity}.")


def discounted_mean(sums: Float[Array, " m"], rho: Float[Array, ""], rest: Float[Array, ""]) -> Float[Array, ""]:
    """Return z of the oldest of m contexts, from the sums of the last 1, 2, ..., m of them and a value for all later ones."""
    later = jnp.exp(jnp.log(rho) * np.arange(sums.shape[0]))[::-1]  # rho^(m-1), ..., rho, 1: newest context first
    changes = later - jnp.concatenate([later[1:], jnp.zeros((1,), later.dtype)])
    return (1 - rho) * jnp.sum(changes * sums) + rho * later[0] * rest
