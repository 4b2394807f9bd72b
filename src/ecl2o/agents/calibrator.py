"""The calibrator R_lambda (Algorithm 1, line 5), and the agents that are R_lambda with some weights (section 4.1).

R_lambda(y, x_prev, advice) = argmin over x in X of f(x, y) + lambda1 c(x, x_prev) + lambda2 c(x, v) + lambda3 c(x, advice),
with v the minimiser of f(., y) over X. For f = 1/2 (x - y)' A (x - y) without active bounds it solves
(A + 2 Lambda Q) x = A y + 2 Q (lambda1 x_prev + lambda2 v + lambda3 advice), Lambda = lambda1 + lambda2 + lambda3, and its
derivatives are Eqns. gradientml and gradientprior: 2 lambda3 Z^{-1} Q and 2 lambda1 Z^{-1} Q with Z = A + 2 Lambda Q.
In one dimension bounds only clip that, and `AsymmetricTracking` has the same solution with the weight of the side that x is on.
Everything else is a bounded Newton solve, differentiated implicitly.
"""

import abc
import warnings
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, State
from ecl2o.problem import Problem
from ecl2o.problem.arrays import as_float, as_optional_float, check_nonnegative, concrete_value
from ecl2o.problem.hitting import Pull, pull_gain
from ecl2o.theory import optimal_lambda2, smallest_lambda1
from ecl2o.theory.forms import Form, check_form


class Weights(eqx.Module):
    """The weights of R_lambda.

    Args:
        previous: lambda1, of the previous action. Default: None, no such term.
        minimizer: lambda2, of the minimiser of the hitting cost. Default: None, no such term.
        advice: lambda3. Default: None, no such term.
    """

    previous: Float[Array, ""] | None = eqx.field(converter=as_optional_float, default=None)
    minimizer: Float[Array, ""] | None = eqx.field(converter=as_optional_float, default=None)
    advice: Float[Array, ""] | None = eqx.field(converter=as_optional_float, default=None)

    def on(
        self,
        previous: Float[Array, " d"],
        minimizer: Float[Array, " d"] | None,
        advice: Float[Array, " d"] | None,
    ) -> list[Pull]:
        """Return the points that have a weight, each with its weight."""
        terms = ((self.previous, previous), (self.minimizer, minimizer), (self.advice, advice))
        return [(weight, point) for weight, point in terms if weight is not None and point is not None]


class Calibration(eqx.Module):
    """R_lambda, prepared once per run.

    Args:
        weights: lambda.
        gain: 2 Z^{-1} Q, by which weighted points pull the action away from the centre; None if the steps differ.
    """

    weights: Weights
    gain: Float[Array, "d d"] | None

    @classmethod
    def of(cls, problem: Problem, weights: Weights, dim: int) -> "Calibration":
        """Prepare R_lambda for a problem with actions of `dim` numbers, once per run.

        Raises:
            NotApplicableError: if the movement cost is not quadratic.
        """
        Q = problem.Q  # raises for movement that is not quadratic: the objective would not be smooth
        has_closed_form = dim == 1 or not problem.is_bounded
        if not (has_closed_form and problem.hitting.constant_curvature):
            return cls(weights, None)
        given = [w for w in (weights.previous, weights.minimizer, weights.advice) if w is not None]
        return cls(weights, pull_gain(problem.hitting.curvature(None, dim), Q, given))


def calibrate(
    problem: Problem,
    calibration: Calibration,
    context: Float[Array, " q"],
    previous: Float[Array, " d"],
    advice: Float[Array, " d"] | None = None,
) -> tuple[Float[Array, " d"], Bool[Array, ""]]:
    """Compute the calibrated action R_lambda(y_t, x_{t-1}, advice).

    Args:
        problem: costs and action set.
        calibration: R_lambda, made by `Calibration.of`.
        context: (q,), y_t.
        previous: (d,), x_{t-1}.
        advice: (d,), for a calibration with a weight for it. Default: none.

    Returns:
        The action (d,), and whether the solve converged (always, in closed form).
    """
    problem = problem.at_context(context).relaxed  # what is played is rounded
    weights, minimizer, found = calibration.weights, None, jnp.ones((), bool)
    if weights.minimizer is not None:
        minimizer, found = minimize_hitting(problem, context, previous)
    objective = problem.objective(context, weights.on(previous, minimizer, advice), calibration.gain)
    action, converged = problem.actions.minimize(objective, previous, previous)
    return action, found & converged


def minimize_hitting(
    problem: Problem, context: Float[Array, " q"], guess: Float[Array, " d"]
) -> tuple[Float[Array, " d"], Bool[Array, ""]]:
    """Compute v = argmin over X of f(., y), R_lambda with all weights zero, and whether the solve converged."""
    return problem.actions.at_context(context).minimize(problem.objective(context), guess)


def find_hitting_minimizer(problem: Problem, context: Float[Array, " q"], dim: int | None = None) -> Float[Array, " d"]:
    """Return argmin over X of f(., y), where a run starts if no action was in force. Default of dim: that of Q."""
    lower, upper = problem.actions.bounds(problem.Q.shape[0] if dim is None else dim, context.dtype)
    bounded = jnp.isfinite(lower) & jnp.isfinite(upper)
    middle = jnp.where(bounded, 0.5 * (lower + upper), jnp.clip(0.0, lower, upper))
    return minimize_hitting(problem, context, middle)[0]


class AbstractCalibrated(AbstractAgent):
    """An agent that plays R_lambda, here without advice."""

    @abc.abstractmethod
    def weights(self, problem: Problem) -> Weights:
        """Return lambda1 to lambda3."""

    def is_linear(self, problem: Problem) -> bool:
        return problem.is_linear_quadratic

    def init(self, problem: Problem, start: Start) -> State:
        return Calibration.of(problem, self.weights(problem), start.dim)

    def step(self, problem: Problem, state: State, observation: Observation):
        action, converged = calibrate(problem, state, observation.context, observation.previous_action)
        return state, action, Info(converged)


class AbstractAdvised(AbstractCalibrated):
    """An agent that plays R_lambda with an advisor's advice, projected on X (Algorithm 1, lines 4 and 5)."""

    advisor: eqx.AbstractVar[AbstractAgent]

    def is_linear(self, problem: Problem) -> bool:
        return problem.is_linear_quadratic and self.advisor.is_linear(problem)

    def init(self, problem: Problem, start: Start) -> tuple[State, Calibration]:
        return self.advisor.init(problem, start), Calibration.of(problem, self.weights(problem), start.dim)

    def step(self, problem: Problem, state: tuple[State, Calibration], observation: Observation):
        advisor_state, calibration = state
        advisor_state, proposed, inner = self.advisor.step(problem, advisor_state, observation)
        advice = problem.relaxed.actions.project(proposed)
        action, converged = calibrate(problem, calibration, observation.context, observation.previous_action, advice)
        return (advisor_state, calibration), action, Info(converged & inner.converged, advice=advice, inner=inner)


class Greedy(AbstractCalibrated):
    """The agent that minimises the cost of the step, f(x, y) + c(x, x_prev): lambda = (1, 0, 0).

    At most 1 + beta/m competitive (`theory.greedy_ratio`).

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=1.0, dim=1))
    >>> ec.rollout(Greedy(), problem, ec.Instance([0.0], [[1.0]])).actions.tolist()
    [[0.5]]
    """

    def weights(self, problem: Problem) -> Weights:
        return Weights(previous=1.0)


class HittingMinimizer(AbstractAgent):
    """The agent that plays the minimiser of the hitting cost and ignores movement: lambda = (0, 0, 0).

    At most 1 + 4 beta/m competitive (`theory.hitting_minimizer_ratio`).

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=1.0, dim=1))
    >>> ec.rollout(HittingMinimizer(), problem, ec.Instance([0.0], [[1.0]])).actions.tolist()
    [[1.0]]
    """

    def is_linear(self, problem: Problem) -> bool:
        return problem.is_linear_quadratic

    def init(self, problem: Problem, start: Start) -> None:
        return None

    def step(self, problem: Problem, state: None, observation: Observation):
        action, converged = minimize_hitting(problem, observation.context, observation.previous_action)
        return state, action, Info(converged)


class ROBD(AbstractCalibrated):
    """Regularized Online Balanced Descent (Goel, Lin, Sun and Wierman 2019): lambda = (lambda1, lambda2, 0).

    lambda2 is the optimal one of Theorem 4.1 at trust 0. No online algorithm has a smaller worst-case ratio
    (`theory.robd_ratio`). lambda1 in [2/(1 + S0), 1] does not change the guarantee.

    Args:
        lambda1: the weight of the previous action, in (0, 1]. Default: 1.
        form: "tight" or "paper", the form of the theorem that gives lambda2. Default: "tight".

    Raises:
        ValueError: if lambda1 or form is none of these.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> print(ec.certify(ROBD(), problem, horizon=24))
    worst-case ratio exactly 1.729844 over 24 steps
    """

    lambda1: Float[Array, ""] = eqx.field(converter=as_float, default=1.0)
    form: Form = eqx.field(static=True, default="tight")

    def __check_init__(self):
        check_form(self.form)
        _check_lambda1(self.lambda1)

    def weights(self, problem: Problem) -> Weights:
        return Weights(self.lambda1, _optimal_lambda2(problem, self.lambda1, 0.0, self.form))


class MLAROBD(AbstractAdvised):
    """ML-augmented R-OBD (Algorithm 1): the expert calibrator R_lambda behind an advisor, lambda3 = trust lambda1.

    The advisor sees the action that was played, not the one it proposed. Trained through the calibrator it is the paper's
    EC-L2O; with an advisor that was trained alone it is the two-stage MLA-ROBD. With `Independent(advisor)` the advisor
    follows its own trajectory instead (erratum E23).

    Args:
        advisor: the agent whose actions are taken as advice.
        trust: theta = lambda3/lambda1, 0 or more. Default: 0.5.
        lambda1: the weight of the previous action, in (0, 1]. Default: 1.
        lambda2: the weight of the hitting cost's minimiser, 0 or more. Default: the optimal one of Theorem 4.1.
        form: "tight" or "paper", the form of the theorem that gives lambda2. Default: "tight".

    Raises:
        ValueError: if a number is out of its range.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> run = ec.rollout(MLAROBD(ec.RHC(1), trust=0.5), problem, ec.Instance([0.0], [[1.0], [1.0]]))
    >>> run.advice.shape
    (2, 1)
    """

    advisor: AbstractAgent
    trust: Float[Array, ""] = eqx.field(converter=as_float, default=0.5)
    lambda1: Float[Array, ""] = eqx.field(converter=as_float, default=1.0)
    lambda2: Float[Array, ""] | None = eqx.field(converter=as_optional_float, default=None)
    form: Form = eqx.field(static=True, default="tight")

    def __check_init__(self):
        check_form(self.form)
        _check_lambda1(self.lambda1)
        check_nonnegative("trust", self.trust)
        if self.lambda2 is not None:
            check_nonnegative("lambda2", self.lambda2)

    def weights(self, problem: Problem) -> Weights:
        lambda2 = self.lambda2
        if lambda2 is None:
            lambda2 = _optimal_lambda2(problem, self.lambda1, self.trust, self.form)
        return Weights(self.lambda1, lambda2, self.trust * self.lambda1)


class FollowPrediction(AbstractAdvised):
    """Follow the Prediction (Antoniadis et al. 2020): minimise f(x, y) + c(x, advice), lambda = (0, 0, 1).

    The paper prints lambda = (1, 0, 1) for it, which also holds on to the previous action (erratum E5): `form="paper"`.

    Args:
        advisor: the agent whose actions are taken as advice.
        form: "original" or "paper". Default: "original".

    Raises:
        ValueError: if form is neither.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=1.0, dim=1))
    >>> ec.rollout(FollowPrediction(ec.advisors.Fixed([[3.0]])), problem, ec.Instance([0.0], [[1.0]])).actions.tolist()
    [[2.0]]
    """

    advisor: AbstractAgent
    form: Literal["original", "paper"] = eqx.field(static=True, default="original")

    def __check_init__(self):
        if self.form not in ("original", "paper"):
            raise ValueError(f"form must be 'original' or 'paper', got {self.form!r}.")

    def weights(self, problem: Problem) -> Weights:
        return Weights(previous=1.0 if self.form == "paper" else None, advice=1.0)


def _check_lambda1(lambda1: Float[Array, ""]) -> None:
    value = concrete_value(lambda1)
    if value is not None and not ((value > 0) & (value <= 1)).all():
        raise ValueError(f"lambda1 must lie in (0, 1], got {value}.")


def _optimal_lambda2(problem: Problem, lambda1, trust, form: Form) -> Float[Array, ""]:
    """Return lambda2 of Theorem 4.1; warn where lambda1 is too small for it to be optimal (erratum E4)."""
    constants = (problem.m, problem.alpha, problem.beta, trust)
    smallest = concrete_value(smallest_lambda1(*constants, form=form))
    value = concrete_value(lambda1)
    if smallest is not None and value is not None and (value < smallest * (1 - 1e-6)).any():
        warnings.warn(
            f"lambda1 = {value} is below {smallest}, the smallest for which Theorem 4.1's lambda2 exists; "
            "lambda2 is set to 0 and the bound is theory.mla_robd_bound_at.",
            stacklevel=3,
        )
    return optimal_lambda2(*constants, lambda1=lambda1, form=form)
