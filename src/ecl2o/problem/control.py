"""Problems with a state: linear dynamics with quadratic costs, and what reduces to them: delay, memory, known contexts.

At step t the context d_t is seen, then the action u_t is chosen. The state moves to xi' = F xi + B u + E d, and the step costs
1/2 |(xi, u, d)|^2_M. Tracking with a cost of movement is the case in which the state is the previous action.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ecl2o.exceptions import NotApplicableError
from ecl2o.problem.actions import AbstractActionSet, Box, Everywhere, Limited, Total
from ecl2o.problem.arrays import AnyArray, as_float, check_count, check_finite, concrete_value
from ecl2o.problem.hitting import Quadratic, SquaredTracking
from ecl2o.problem.instance import Instance
from ecl2o.problem.problem import AbstractProblem, Problem


class ControlProblem(AbstractProblem):
    """min over u_1..u_T of the sum of 1/2 |(xi_t, u_t, d_t)|^2_M, where xi_{t+1} = F xi_t + B u_t + E d_t.

    `rollout`, `oracle` and guards take it as they take a `Problem`. x_0 of an instance is the first state (n,), and
    `Observation.previous_action` is the state. The whole cost of a step counts as `hitting`.

    Args:
        F: (n, n), the effect of the state. Any of the four may have a leading axis of steps, (T, ...).
        B: (n, k), the effect of the action.
        E: (n, q), the effect of the context.
        M: (n + k + q, n + k + q), the cost of state, action and context; positive semidefinite, and definite on actions.
        actions: allowed actions. `oracle`, `RHC` and projections obey it; no promise covers it. Default: all of R^k.
        states_within: bounds on the state after each step, such as those of a battery's charge: a `Box` with infinite ends where
            there is no bound. `oracle`, `RHC` and `WithinLimits` obey it; no promise covers it. Default: all of R^n.

    Raises:
        ValueError: Shapes do not fit, a number is not finite, or M is not as above.
        NotApplicableError: Actions or states have a ramp or a spacing.

    >>> integrator = ControlProblem.regulator(F=1.0, B=1.0, Q=1.0, R=10.0)
    >>> integrator.state_dim, integrator.action_dim, integrator.context_dim
    (1, 1, 1)
    """

    F: Float[Array, "*T n n"] = eqx.field(converter=as_float)
    B: Float[Array, "*T n k"] = eqx.field(converter=as_float)
    E: Float[Array, "*T n q"] = eqx.field(converter=as_float)
    M: Float[Array, "*T s s"] = eqx.field(converter=as_float)
    actions: AbstractActionSet = Everywhere()
    states_within: AbstractActionSet = Everywhere()

    def __check_init__(self):
        for name in "FBEM":
            matrix = getattr(self, name)
            if matrix.ndim not in (2, 3):
                raise ValueError(f"{name} must be a matrix, or one for each step, got shape {matrix.shape}.")
            check_finite(name, matrix)
        if isinstance(self.actions, Limited | Total) or isinstance(self.states_within, Limited | Total):
            raise NotApplicableError(
                "ramps, spacings and totals are for a Problem; bound the actions of a ControlProblem by a Box."
            )
        n, k, q = self.state_dim, self.action_dim, self.context_dim
        expected = {"F": (n, n), "B": (n, k), "E": (n, q), "M": (n + k + q, n + k + q)}
        for name, shape in expected.items():
            if getattr(self, name).shape[-2:] != shape:
                raise ValueError(f"{name} must have shape {shape}, got {getattr(self, name).shape}.")
        if len(lengths := {matrix.shape[0] for matrix in (self.F, self.B, self.E, self.M) if matrix.ndim == 3}) > 1:
            raise ValueError(f"matrices by step must all have the same number of steps, got {sorted(lengths)}.")
        if (M := concrete_value(self.M)) is not None:
            size = np.abs(M).max()
            if not np.allclose(M, np.swapaxes(M, -1, -2), rtol=0, atol=1e-6 * size):
                raise ValueError("M must be symmetric.")
            if not np.linalg.eigvalsh(M).min() >= -1e-6 * size:
                raise ValueError(
                    f"M must be positive semidefinite; its smallest eigenvalue is {np.linalg.eigvalsh(M).min():g}."
                )
            own = np.linalg.eigvalsh(M[..., n : n + k, n : n + k]).min()
            if not own > 0:
                raise ValueError(f"M must be definite on actions; its smallest eigenvalue there is {own:g}.")

    @classmethod
    def regulator(cls, F: Any, B: Any, Q: Any, R: Any, *, before_context: bool = False) -> "ControlProblem":
        """Return the problem of competitive control: x_{t+1} = F x_t + B u_t + w_t, cost of the sum 1/2 x'Qx + 1/2 u'Ru.

        Args:
            F: (n, n).
            B: (n, k).
            Q: (n, n), the cost of the state after each step.
            R: (k, k), the cost of the action.
            before_context: whether u_t is due before w_t is seen. The context of a step is then the w of the step before, and
                the state is counted before the action. Default: false.
        """
        F, B, Q, R = (np.atleast_2d(np.asarray(matrix, float)) for matrix in (F, B, Q, R))
        n, k = B.shape
        if before_context:  # the context completes the state: x = xi + d
            seen = np.hstack([np.eye(n), np.zeros((n, k)), np.eye(n)])
            moved, E = seen, F
        else:
            E = np.eye(n)
            moved = np.hstack([F, B, E])
        M = moved.T @ Q @ moved
        M[n : n + k, n : n + k] += R
        return cls(F, B, E, M)

    @property
    def dynamics(self) -> "ControlProblem":
        return self

    @property
    def covariates(self) -> int:
        return 0

    @property
    def state_dim(self) -> int:
        """n, the dimension of the state."""
        return self.F.shape[-1]

    @property
    def action_dim(self) -> int:
        """k, the dimension of actions."""
        return self.B.shape[-1]

    @property
    def context_dim(self) -> int:
        """q, the dimension of contexts."""
        return self.E.shape[-1]

    @property
    def steps(self) -> int | None:
        """The number of steps for which matrices are given; None where they are constant."""
        return next((matrix.shape[0] for matrix in (self.F, self.B, self.E, self.M) if matrix.ndim == 3), None)

    @property
    def is_bounded(self) -> bool:
        return not (isinstance(self.actions, Everywhere) and isinstance(self.states_within, Everywhere))

    @property
    def is_linear_quadratic(self) -> bool:
        """Whether optimal actions are linear in the contexts: there are no bounds."""
        return not self.is_bounded

    @property
    def is_unbounded_quadratic(self) -> bool:
        return self.is_linear_quadratic

    @property
    def hitting(self) -> NoReturn:
        """Raises `NotApplicableError`: the cost of a step has no hitting and switching part."""
        raise NotApplicableError(
            "this agent needs a Problem with hitting and switching costs, got a ControlProblem; LQR, RHC, Competitive, Guarded "
            "and agents that use neither take one."
        )

    switching = quadratic_movement = Q = m = alpha = beta = hitting

    def action_size(self, state_size: int) -> int:
        return self.action_dim

    def at(self, step: Int[Array, ""] | int) -> "ControlProblem":
        """Return the problem with the matrices of one step, from 0; the last ones for steps beyond the end."""
        if self.steps is None:
            return self
        now = (m if m.ndim == 2 else m[jnp.clip(step, 0, m.shape[0] - 1)] for m in (self.F, self.B, self.E, self.M))
        return ControlProblem(*now, actions=self.actions, states_within=self.states_within)

    def next_state(
        self, state: Float[Array, " n"], action: Float[Array, " k"], context: Float[Array, " q"], step: Any = 0
    ) -> Float[Array, " n"]:
        """Return F xi + B u + E d."""
        now = self.at(step)
        return now.F @ state + now.B @ action + now.E @ context

    def step_costs(
        self, state: Float[Array, " n"], action: Float[Array, " k"], context: Float[Array, " q"], step: Any = 0
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Return 1/2 |(xi, u, d)|^2_M, and 0 for movement."""
        point = jnp.concatenate([state, action, context])
        return 0.5 * point @ self.at(step).M @ point, jnp.zeros((), point.dtype)

    def states(
        self, x0: Float[Array, " n"], actions: Float[Array, "T k"], contexts: Float[Array, "T q"]
    ) -> Float[Array, "T+1 n"]:
        """Return the states of a path, the first and the last included."""

        def advance(state, step):
            after = self.next_state(state, *step)
            return after, after

        steps = jnp.arange(actions.shape[0])
        return jnp.concatenate([x0[None], jax.lax.scan(advance, x0, (actions, contexts, steps))[1]])

    def costs(
        self, x0: Float[Array, " n"], actions: Float[Array, "T k"], contexts: Float[Array, "T q"]
    ) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
        """Return the cost of each step of a path, and zeros for its movement."""
        states = self.states(x0, actions, contexts)[:-1]
        return jax.vmap(self.step_costs)(states, actions, contexts, jnp.arange(actions.shape[0]))

    def check(self, instance: Instance) -> None:
        """Check that an instance fits this problem.

        Raises:
            ValueError: It is a set of instances, or its shapes do not fit.
        """
        if instance.x0.ndim != 1:
            raise ValueError(
                f"this takes one instance, got a set of {instance.x0.shape[0]}; use jax.vmap over the set."
            )
        for name, found, expected in (
            ("x0", instance.dim, self.state_dim),
            ("contexts", instance.contexts.shape[-1], self.context_dim),
        ):
            if found != expected:
                raise ValueError(f"{name} must have {expected} numbers, as the ControlProblem has, got {found}.")
        if self.steps is not None and instance.horizon > self.steps:
            raise ValueError(
                f"the ControlProblem has matrices for {self.steps} steps, got {instance.horizon} contexts."
            )


def delayed(problem: Problem, steps: int) -> ControlProblem:
    """Return the problem in which y_t is seen only after x_t, ..., x_{t+steps-1} have been chosen.

    The state is (x_{t-1}, ..., x_{t-steps}), latest first. At step t the context is y_{t-steps}, and the cost is that of
    x_{t-steps} under it plus that of the move to x_t. The same problem describes actions that take effect `steps` steps after
    they are chosen. x_0 of an instance repeats the first action, `jnp.tile(x0, steps)`.

    Args:
        problem: a `SquaredTracking` or `Quadratic` hitting cost with a `Mahalanobis` switching cost, without bounds.
        steps: the delay, 1 or more.

    >>> delayed(_line(10.0), 2).state_dim
    2
    """
    check_count("steps", steps)
    A, G = _tracking_matrices(problem)
    d = len(G)
    before, action, context = _rows(steps * d, d, d)
    miss, move = before[-d:] - context, action - before[:d]
    F = np.eye(steps * d, k=-d)
    B = np.eye(steps * d, d)
    return ControlProblem(F, B, np.zeros((steps * d, d)), miss.T @ A @ miss + move.T @ G @ move)


def with_memory(problem: Problem, coefficients: Sequence[float]) -> ControlProblem:
    """Return the problem in which the move at step t is x_t - sum_i coefficients[i] x_{t-1-i}.

    (1,) is the problem itself; (2, -1) makes a change of the rate of change costly. The state is (x_{t-1}, x_{t-2}, ...).

    Args:
        problem: as in `delayed`.
        coefficients: one number for each remembered action, the latest first.

    >>> with_memory(_line(10.0), (2.0, -1.0)).state_dim
    2
    """
    weights = np.asarray(coefficients, float)
    if weights.ndim != 1 or not len(weights) or not np.isfinite(weights).all():
        raise ValueError(f"coefficients must be one finite number for each remembered action, got {coefficients!r}.")
    A, G = _tracking_matrices(problem)
    d, steps = len(G), len(weights)
    before, action, context = _rows(steps * d, d, d)
    miss, move = action - context, action - np.kron(weights, np.eye(d)) @ before
    return ControlProblem(
        np.eye(steps * d, k=-d), np.eye(steps * d, d), np.zeros((steps * d, d)), miss.T @ A @ miss + move.T @ G @ move
    )


def known_ahead(problem: Problem, steps: int) -> ControlProblem:
    """Return the problem in which y_{t+steps} is seen, for certain, at step t: a tariff, a schedule, orders.

    The state is (x_{t-1}, y_t, ..., y_{t+steps-1}), and the context of step t is y_{t+steps}.

    Args:
        problem: as in `delayed`.
        steps: how many contexts after the present one are known; 1 or more.

    >>> known_ahead(_line(10.0), 3).state_dim
    4
    """
    check_count("steps", steps)
    A, G = _tracking_matrices(problem)
    d = len(G)
    n = (steps + 1) * d
    before, action, _ = _rows(n, d, d)
    miss, move = action - before[d : 2 * d], action - before[:d]
    F = np.eye(n, k=d)
    F[:d] = 0.0
    B, E = np.eye(n, d), np.eye(n)[:, -d:]
    return ControlProblem(F, B, E, miss.T @ A @ miss + move.T @ G @ move)


def battery(
    alpha: float,
    charge: float,
    weight: float = 1.0,
    *,
    power_within: tuple[float, float] | None = None,
    charge_within: tuple[float, float] | None = None,
) -> ControlProblem:
    """Return a battery's problem: power u follows a demand y, at a cost of changes in power and of charge away from its middle.

    The cost of a step is weight/2 (u - y)^2 + alpha/2 (u - u_{t-1})^2 + charge/2 c^2, where c, the charge less its middle, falls
    by u in the step. The state is (u_{t-1}, c).

    Args:
        alpha: cost of changes in power, positive.
        charge: cost of charge away from the middle, positive.
        weight: cost of demand that is not met. Default: 1.
        power_within: (low, high), hard limits of u. Default: none.
        charge_within: (low, high), hard limits of c, measured from the middle. Default: none.

    >>> battery(alpha=10.0, charge=0.05).state_dim
    2
    """
    inf = float("inf")
    low, high = (-inf, inf) if charge_within is None else charge_within
    states = Everywhere() if charge_within is None else Box([-inf, low], [inf, high])
    actions = Everywhere() if power_within is None else Box(*power_within)
    miss, move, left = np.array([[0, 0, 1, -1], [-1, 0, 1, 0], [0, 1, -1, 0]], float)
    M = weight * np.outer(miss, miss) + alpha * np.outer(move, move) + charge * np.outer(left, left)
    return ControlProblem([[0.0, 0.0], [0.0, 1.0]], [[1.0], [-1.0]], np.zeros((2, 1)), M, actions, states)


def _line(alpha: float) -> Problem:
    from ecl2o.problem.switching import Mahalanobis

    return Problem(SquaredTracking(), Mahalanobis.isotropic(alpha, dim=1))


def _tracking_matrices(problem: Problem) -> tuple[AnyArray, AnyArray]:
    """Return A and G = 2Q of a quadratic problem whose contexts are the centres."""
    if not (isinstance(problem.hitting, SquaredTracking | Quadratic) and problem.is_linear_quadratic):
        raise NotApplicableError(
            "linear dynamics need SquaredTracking or Quadratic with Mahalanobis and no bounds, got "
            f"{type(problem.hitting).__name__}, {type(problem.switching).__name__} and {type(problem.actions).__name__}: leave "
            "out `short` and `long` (misses of equal weight), `weights` and `bounds`, or the promise."
        )
    A, G = problem.hitting.curvature(None, problem.Q.shape[-1]), 2 * problem.Q
    if concrete_value(A) is None or concrete_value(G) is None:  # inside a compiled program
        return A, G
    return np.asarray(A, float), 2 * np.asarray(problem.Q, float)


def _rows(*sizes: int) -> list[np.ndarray]:
    """Return the matrices that pick state, action and context out of (xi, u, d)."""
    return np.split(np.eye(sum(sizes)), np.cumsum(sizes)[:-1])
