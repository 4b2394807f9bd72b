"""The agents that are R_lambda with some choice of weights (section 4.1 of the paper)."""

import abc
import warnings
from typing import Literal

import equinox as eqx
from jaxtyping import Array, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, State
from ecl2o.agents.calibrator import Calibration, Weights, calibrate, minimize_hitting
from ecl2o.problem import Problem
from ecl2o.problem.arrays import as_float, as_optional_float, check_nonnegative, concrete_value
from ecl2o.theory import optimal_lambda2, smallest_lambda1
from ecl2o.theory.forms import Form, check_form


class AbstractCalibrated(AbstractAgent):
    """An agent that plays R_lambda without advice."""

    @abc.abstractmethod
    def weights(self, problem: Problem) -> Weights:
        """Return lambda1 and lambda2."""

    def is_linear(self, problem: Problem) -> bool:
        return problem.is_linear_quadratic

    def init(self, problem: Problem, start: Start) -> Calibration:
        return Calibration.of(problem, self.weights(problem), start.dim)

    def step(self, problem: Problem, state: Calibration, observation: Observation):
        action, converged = calibrate(problem, state, observation.context, observation.previous_action)
        return state, action, Info(converged)


class AbstractAdvised(AbstractAgent):
    """An agent that plays R_lambda with an advisor's advice, projected on X (Algorithm 1, lines 4 and 5)."""

    advisor: eqx.AbstractVar[AbstractAgent]

    @abc.abstractmethod
    def weights(self, problem: Problem) -> Weights:
        """Return lambda1 to lambda3."""

    def is_linear(self, problem: Problem) -> bool:
        return problem.is_linear_quadratic and self.advisor.is_linear(problem)

    def init(self, problem: Problem, start: Start) -> tuple[State, Calibration]:
        return self.advisor.init(problem, start), Calibration.of(problem, self.weights(problem), start.dim)

    def step(self, problem: Problem, state: tuple[State, Calibration], observation: Observation):
        advisor_state, calibration = state
        advisor_state, proposed, inner = self.advisor.step(problem, advisor_state, observation)
        advice = problem.actions.project(proposed)
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
    >>> agent = FollowPrediction(ec.advisors.Fixed([[3.0]]))
    >>> ec.rollout(agent, problem, ec.Instance([0.0], [[1.0]])).actions.tolist()
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
