"""The agents that are R_lambda with some choice of weights (section 4.1 of the paper)."""

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


class Greedy(AbstractAgent):
    """Minimise what this step will cost, f(x, y) + c(x, x_prev): lambda = (1, 0, 0). At most 1 + beta/m competitive."""

    def is_linear(self, problem: Problem) -> bool:
        return problem.is_linear_quadratic

    def init(self, problem: Problem, start: Start) -> Calibration:
        return Calibration.of(problem, Weights(previous=1.0), start.dim)

    def step(self, problem: Problem, state: Calibration, observation: Observation):
        action, converged = calibrate(problem, state, observation.context, observation.previous_action)
        return state, action, Info(converged)


class HittingMinimizer(AbstractAgent):
    """Play the minimiser of the hitting cost and ignore movement: lambda = (0, 0, 0). At most 1 + 4 beta/m competitive."""

    def is_linear(self, problem: Problem) -> bool:
        return problem.is_linear_quadratic

    def init(self, problem: Problem, start: Start) -> None:
        return None

    def step(self, problem: Problem, state: None, observation: Observation):
        action, converged = minimize_hitting(problem, observation.context, observation.previous_action)
        return state, action, Info(converged)


def _check_lambda1(lambda1: Float[Array, ""]) -> None:
    value = concrete_value(lambda1)
    if value is not None and not ((value > 0) & (value <= 1)).all():
        raise ValueError(f"lambda1 must lie in (0, 1], got {value}.")


def _best_weights(problem: Problem, lambda1, trust, form: Form) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(lambda1, lambda2) of Theorem 4.1; warns where lambda1 is too small for lambda2 to be optimal (erratum E4)."""
    constants = (problem.m, problem.alpha, problem.beta, trust)
    smallest = concrete_value(smallest_lambda1(*constants, form=form))
    value = concrete_value(lambda1)
    if smallest is not None and value is not None and (value < smallest * (1 - 1e-6)).any():
        warnings.warn(
            f"lambda1 = {value} is below {smallest}, the smallest for which Theorem 4.1's lambda2 exists; "
            "lambda2 is set to 0 and the bound is theory.mla_robd_bound_at.",
            stacklevel=3,
        )
    return lambda1, optimal_lambda2(*constants, lambda1=lambda1, form=form)


class ROBD(AbstractAgent):
    """Regularized Online Balanced Descent (Goel, Lin, Sun and Wierman 2019): lambda = (lambda1, lambda2, 0).

    lambda2 is the optimal one of Theorem 4.1 at trust 0; no online algorithm has a smaller worst-case ratio
    (`theory.robd_ratio`). lambda1 in [2/(1 + S0), 1] does not change the guarantee.

    Args:
        lambda1: the weight of the previous action, in (0, 1]. Default: 1.
        form: "tight", or "paper": which form of the theorem gives lambda2. Default: "tight".
    """

    lambda1: Float[Array, ""] = eqx.field(converter=as_float, default=1.0)
    form: Form = eqx.field(static=True, default="tight")

    def __check_init__(self):
        check_form(self.form)
        _check_lambda1(self.lambda1)

    def is_linear(self, problem: Problem) -> bool:
        return problem.is_linear_quadratic

    def init(self, problem: Problem, start: Start) -> Calibration:
        lambda1, lambda2 = _best_weights(problem, self.lambda1, 0.0, self.form)
        return Calibration.of(problem, Weights(lambda1, lambda2), start.dim)

    def step(self, problem: Problem, state: Calibration, observation: Observation):
        action, converged = calibrate(problem, state, observation.context, observation.previous_action)
        return state, action, Info(converged)


def _calibrate_advice(advisor: AbstractAgent, problem: Problem, state, observation: Observation):
    """Ask the advisor, clip its advice to X, calibrate it (Algorithm 1, lines 4 and 5)."""
    advisor_state, calibration = state
    advisor_state, proposed, inner = advisor.step(problem, advisor_state, observation)
    advice = problem.actions.project(proposed)
    action, converged = calibrate(problem, calibration, observation.context, observation.previous_action, advice)
    return (advisor_state, calibration), action, Info(converged & inner.converged, advice=advice, inner=inner)


class MLAROBD(AbstractAgent):
    """ML-augmented R-OBD (Algorithm 1): the expert calibrator R_lambda behind an advisor, lambda3 = trust lambda1.

    The advisor sees the action that was played, not the one it proposed. Trained through the calibrator it is the paper's
    EC-L2O; with an advisor that was trained alone it is the two-stage MLA-ROBD; with `Independent(advisor)` the advisor
    follows its own trajectory instead (erratum E23). lambda2 is Theorem 4.1's unless given.

    Args:
        advisor: the agent whose actions are taken as advice.
        trust: theta = lambda3/lambda1, not negative. Default: 0.5.
        lambda1: the weight of the previous action, in (0, 1]. Default: 1.
        lambda2: the weight of the hitting cost's minimiser, not negative. Default: the optimal one of Theorem 4.1.
        form: "tight", or "paper": which form of the theorem gives lambda2. Default: "tight".
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

    def is_linear(self, problem: Problem) -> bool:
        return problem.is_linear_quadratic and self.advisor.is_linear(problem)

    def init(self, problem: Problem, start: Start) -> State:
        lambda1, lambda2 = self.lambda1, self.lambda2
        if lambda2 is None:
            lambda1, lambda2 = _best_weights(problem, lambda1, self.trust, self.form)
        weights = Weights(lambda1, lambda2, self.trust * lambda1)
        return self.advisor.init(problem, start), Calibration.of(problem, weights, start.dim)

    def step(self, problem: Problem, state: State, observation: Observation):
        return _calibrate_advice(self.advisor, problem, state, observation)


class FollowPrediction(AbstractAgent):
    """Follow the Prediction (Antoniadis et al. 2020): minimise f(x, y) + c(x, advice), lambda = (0, 0, 1).

    The paper prints lambda = (1, 0, 1) for it, which also holds on to the previous action (erratum E5): `form="paper"`.

    Args:
        advisor: whose advice is followed.
        form: "original", or "paper" as printed there. Default: "original".
    """

    advisor: AbstractAgent
    form: Literal["original", "paper"] = eqx.field(static=True, default="original")

    def __check_init__(self):
        if self.form not in ("original", "paper"):
            raise ValueError(f"form must be 'original' or 'paper', got {self.form!r}.")

    def is_linear(self, problem: Problem) -> bool:
        return problem.is_linear_quadratic and self.advisor.is_linear(problem)

    def init(self, problem: Problem, start: Start) -> State:
        weights = Weights(previous=1.0 if self.form == "paper" else None, advice=1.0)
        return self.advisor.init(problem, start), Calibration.of(problem, weights, start.dim)

    def step(self, problem: Problem, state: State, observation: Observation):
        return _calibrate_advice(self.advisor, problem, state, observation)
