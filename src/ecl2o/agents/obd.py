"""Agents that balance what moving costs against what staying costs (docs/algorithms.md).

All of them use one point: the projection of the previous action on a level set {f(., y) <= l} in the norm of c, with l
such that c(x, x_prev) = gamma f(x, y). The projections on all level sets are the path x(eta) = argmin over X of
eta f(., y) + c(., x_prev); along it c rises and f falls, so the balance is the root of a monotone function of log eta.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, State
from ecl2o.agents.calibrator import Calibration, Weights, calibrate, minimize_hitting
from ecl2o.problem import Problem
from ecl2o.problem.arrays import as_float, check_finite, check_nonnegative, check_positive, concrete_value
from ecl2o.solvers.bisection import bisect_root

# log eta: e^-34 keeps the previous action, e^34 plays the minimiser of f, to double precision.
_LOG_RANGE = 34.0


def balanced_point(
    problem: Problem, gamma: Float[Array, ""], context: Float[Array, " q"], previous: Float[Array, " d"]
) -> tuple[Float[Array, " d"], Bool[Array, ""]]:
    """Return OBD's point and whether the solves converged.

    It has c(x, x_prev) = gamma f(x, y), or it is the minimiser v of f where c(v, x_prev) <= gamma f(v, y). If d = 1, with a
    quadratic cost of curvature k, it is the step sqrt(gamma k) / (sqrt(gamma k) + sqrt(beta)) toward v, clipped to the bounds.
    Everything else bisects log eta.
    """
    hitting = problem.hitting
    if previous.shape[0] == 1 and hitting.is_quadratic:
        pull, drag = jnp.sqrt(gamma * hitting.curvature(context, 1)[0]), jnp.sqrt(2 * problem.Q[0])
        point = previous + pull / (pull + drag) * (hitting.centre(context, 1) - previous)
        return problem.actions.project(point), jnp.ones((), bool)
    minimizer, found = minimize_hitting(problem, context, previous)
    arrives = problem.switching(minimizer, previous) <= gamma * problem.hitting(minimizer, context)
    end = jnp.asarray(_LOG_RANGE, previous.dtype)
    log_eta = bisect_root(_imbalance, -end, end, (problem, gamma, context, previous))
    point, converged = _path_point(log_eta, problem, context, previous)
    return jnp.where(arrives, minimizer, point), found & (arrives | converged)


def _path_point(log_eta, problem: Problem, context, previous):
    """Compute x(eta), which is R_lambda with lambda = (1/eta, 0, 0)."""
    return calibrate(problem, Calibration(Weights(previous=jnp.exp(-log_eta)), None), context, previous)


def _imbalance(log_eta, parameters):
    """Return gamma f - c along the path; it decreases in eta."""
    problem, gamma, context, previous = parameters
    point, _ = _path_point(log_eta, problem, context, previous)
    return gamma * problem.hitting(point, context) - problem.switching(point, previous)


class AbstractBalanced(AbstractAgent):
    """An agent without a state that starts from OBD's point, with balance `gamma`."""

    gamma: eqx.AbstractVar[Float[Array, ""]]

    def __check_init__(self):
        check_finite("gamma", self.gamma)
        check_positive("gamma", self.gamma)

    def is_linear(self, problem: Problem) -> bool:
        return problem.is_linear_quadratic and problem.Q.shape[0] == 1  # elsewhere homogeneous only

    def init(self, problem: Problem, start: Start) -> None:
        _ = problem.quadratic_movement  # rejects any other


class OBD(AbstractBalanced):
    """Online Balanced Descent, primal (Chen, Goel and Wierman 2018): move until c(x, x_prev) = gamma f(x, y).

    If even the minimiser of f is nearer than that, play the minimiser. With a well chosen gamma it is 3 + O(1/m)
    competitive for movement measured by distance. For squared distances its ratio is at least of order m^(-2/3), which R-OBD
    improves on. gamma is in the units of the given c: it does not adapt to m and beta.

    Args:
        gamma: movement cost over hitting cost at the point that is played; positive. Default: 1.

    Raises:
        ValueError: if gamma is not positive and finite.
        NotApplicableError: at the start of a run whose movement cost is not quadratic.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=1.0, dim=1))
    >>> ec.rollout(OBD(), problem, ec.Instance([0.0], [[1.0]])).actions.tolist()
    [[0.5]]
    """

    gamma: Float[Array, ""] = eqx.field(converter=as_float, default=1.0)

    def step(self, problem: Problem, state: None, observation: Observation):
        action, converged = balanced_point(problem, self.gamma, observation.context, observation.previous_action)
        return state, action, Info(converged)


class GreedyOBD(AbstractBalanced):
    """Greedy OBD (Goel, Lin, Sun and Wierman 2019): from OBD's point a further share toward the minimiser v of f.

    x = kappa v + (1 - kappa) o with kappa = min(1, mu sqrt(m/beta)); its ratio is O(sqrt(beta/m)). The original is written
    for c = 1/2 |x - z|^2, where beta = 1.

    Args:
        gamma: OBD's, positive. Default: 1.
        mu: the further share over sqrt(m/beta), 0 or more. Default: 1.

    Raises:
        ValueError: if gamma or mu is out of its range.
        NotApplicableError: at the start of a run whose movement cost is not quadratic.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=4.0, dim=1))
    >>> run = ec.rollout(GreedyOBD(), problem, ec.Instance([0.0], [[1.0]]))
    >>> round(float(run.actions[0, 0]), 4)
    0.6667
    """

    gamma: Float[Array, ""] = eqx.field(converter=as_float, default=1.0)
    mu: Float[Array, ""] = eqx.field(converter=as_float, default=1.0)

    def __check_init__(self):
        check_nonnegative("mu", self.mu)

    def step(self, problem: Problem, state: None, observation: Observation):
        context, previous = observation.context, observation.previous_action
        balanced, converged = balanced_point(problem, self.gamma, context, previous)
        minimizer, found = minimize_hitting(problem, context, previous)
        share = jnp.minimum(1.0, self.mu * jnp.sqrt(problem.m / problem.beta))
        return state, share * minimizer + (1 - share) * balanced, Info(converged & found)


class ABCS(AbstractAgent):
    """Adaptive Balanced Capacity Scaling (Rutten and Mukherjee 2021), adapted to discrete steps and squared movement.

    The original scales a server's capacity in continuous time, fast toward the advice and slowly away from it. Here
    `slow` and `fast` are gammas of OBD: the action is the point nearest to the advice, in the norm of c, on the segment
    between their two points. In one dimension slow f(x) <= c(x, x_prev) <= fast f(x) unless x is the minimiser of f. The
    adaptation is ours and has no proven ratio.

    Args:
        advisor: the agent whose actions are taken as advice.
        slow: gamma of the nearer end of the segment, positive. Default: 0.5.
        fast: gamma of the farther end, at least `slow`. Default: 2.

    Raises:
        ValueError: if slow or fast is out of its range.
        NotApplicableError: at the start of a run whose movement cost is not quadratic.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=1.0, dim=1))
    >>> ec.rollout(ABCS(ec.advisors.Fixed([[0.5]])), problem, ec.Instance([0.0], [[1.0]])).actions.tolist()
    [[0.5]]
    """

    advisor: AbstractAgent
    slow: Float[Array, ""] = eqx.field(converter=as_float, default=0.5)
    fast: Float[Array, ""] = eqx.field(converter=as_float, default=2.0)

    def __check_init__(self):
        for name, rate in (("slow", self.slow), ("fast", self.fast)):
            check_finite(name, rate)
            check_positive(name, rate)
        slow, fast = concrete_value(self.slow), concrete_value(self.fast)
        if slow is not None and fast is not None and (slow > fast).any():
            raise ValueError(f"slow must not exceed fast, got slow = {slow:g} and fast = {fast:g}.")

    def init(self, problem: Problem, start: Start) -> State:
        _ = problem.quadratic_movement  # rejects any other
        return self.advisor.init(problem, start)

    def step(self, problem: Problem, state: State, observation: Observation):
        state, proposed, inner = self.advisor.step(problem, state, observation)
        advice = problem.actions.project(proposed)
        ends, converged = jax.vmap(balanced_point, in_axes=(None, 0, None, None))(
            problem, jnp.stack([self.slow, self.fast]), observation.context, observation.previous_action
        )
        nearer, farther, Q = ends[0], ends[1], problem.Q
        along = farther - nearer
        length = along @ Q @ along
        share = (advice - nearer) @ Q @ along / jnp.where(length > 0, length, 1.0)
        action = nearer + jnp.clip(share, 0.0, 1.0) * along
        return state, action, Info(converged.all() & inner.converged, advice=advice, inner=inner)
