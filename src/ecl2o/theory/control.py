"""Which promises can be kept on a `ControlProblem` (proofs: docs/guarantees.md).

|u|^2_M = u'Mu. L is the promised ratio.

*The past.* The least cost of a path through the contexts so far that ends in the state z is r + 1/2 |z - m|^2 in the norm of
Sigma^-1. Sigma, m and r follow a Kalman filter, in covariance form because Sigma may be singular: it is 0 at the start.

*The future.* The cost to go from x is 1/2 |x|^2_S if all later contexts are 0 (the Riccati matrix), and 1/2 |x|^2_{S0} if they
are the best ones for the player. S0 = 0 where contexts can make any state free, as in tracking.

*The theorem.* cost <= L * optimum at the end can be kept if L > 1 + lambda_max(Sigma (I + S0 Sigma)^-1 (S - S0)) at every step,
and cannot be below. The reserve needed at x is `ControlReserve.value`.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ecl2o.problem.control import ControlProblem
from ecl2o.solvers.small_dense import eigenvalues, eigh, is_definite, solve, spd_solve

Matrix = Float[Array, "n n"]

# Steps after which a Riccati recursion that has not settled is given up.
_LONGEST = 50_000
# Contexts cost nothing in directions in which they cost less than this power of the precision: 1e-11 in 64 bits, 1e-5 in 32.
_SINGULAR_POWER = 0.7


class Stage(eqx.Module):
    """The matrices of one step, and what remains of them when the best action is taken."""

    F: Float[Array, "n n"]
    B: Float[Array, "n k"]
    E: Float[Array, "n q"]
    M: Float[Array, "s s"]

    @classmethod
    def of(cls, problem: ControlProblem) -> "Stage":
        """Make the stage of a problem; its matrices may have an axis of steps, over which `jax.vmap` maps."""
        return cls(problem.F, problem.B, problem.E, problem.M)

    @classmethod
    def of_tracking(cls, A: Matrix, G: Matrix) -> "Stage":
        """Make the stage of 1/2 |x - y|^2_A + 1/2 |x - x_{t-1}|^2_G: the state is the previous action."""
        zero, identity = jnp.zeros_like(A), jnp.eye(len(A), dtype=A.dtype)
        M = jnp.block([[G, -G, zero], [-G, A + G, -A], [zero, -A, A]])
        return cls(zero, identity, zero, M)

    @property
    def joint(self) -> Float[Array, "n s"]:
        """[F B E], the next state from (xi, u, d)."""
        return jnp.concatenate([self.F, self.B, self.E], axis=1)

    @property
    def places(self) -> tuple[slice, slice, slice]:
        """The places of state, action and context in (xi, u, d)."""
        n, k = self.B.shape
        return slice(n), slice(n, n + k), slice(n + k, None)

    def without_action(self, S: Matrix) -> tuple[Float[Array, "k s"], Float[Array, "s s"]]:
        """Return the gain and the cost of (xi, u, d) after the step plus 1/2 |xi'|^2_S, when u is the best one.

        u = -gain (xi, ., d). Rows and columns of u in the cost are zero.
        """
        _, u, _ = self.places
        N = self.M + self.joint.T @ S @ self.joint
        gain = solve(N[u, u], N[u])
        cost = N - N[:, u] @ gain
        return gain, 0.5 * (cost + cost.T)

    def riccati_step(self, S: Matrix) -> Matrix:
        """Return the Riccati matrix before the step."""
        x, _, _ = self.places
        return self.without_action(S)[1][x, x]

    def best_case_step(self, S0: Matrix) -> Matrix:
        """Return the cost to go before the step when context and action are the best ones.

        What is smaller than rounding counts as zero, else it would add up from step to step. A smaller S0 promises less.
        """
        x, _, d = self.places
        cost = self.without_action(S0)[1]
        sizes, directions = eigh(cost[d, d])
        smallest = jnp.finfo(cost.dtype).eps ** _SINGULAR_POWER * jnp.trace(self.M)
        free = sizes <= smallest  # contexts that cost nothing change nothing
        through = cost[x, d] @ directions / jnp.where(free, jnp.inf, jnp.sqrt(jnp.maximum(sizes, smallest)))
        sizes, directions = eigh(cost[x, x] - through @ through.T)
        return (directions * jnp.where(sizes > smallest, sizes, 0.0)) @ directions.T

    def advance(self, covariance: Matrix) -> Matrix:
        """Return Sigma after the step."""
        return Past(covariance, jnp.zeros(len(covariance), covariance.dtype)).after(self, None)[0].covariance


class Past(eqx.Module):
    """What the contexts so far say about the end of the best path: the work function r + 1/2 |z - m|^2 in Sigma^-1, less r."""

    covariance: Matrix
    centre: Float[Array, " n"]

    def after(self, stage: Stage, context: Float[Array, " q"] | None) -> tuple["Past", Float[Array, ""]]:
        """Return the past after a step, and the growth of r; without a context, for the covariance alone."""
        x, u, d = stage.places
        no_future = jnp.zeros_like(stage.F)
        gain, cost = stage.without_action(no_future)
        identity = jnp.eye(len(stage.F), dtype=stage.F.dtype)
        F, E = stage.F - stage.B @ gain[:, x], stage.E - stage.B @ gain[:, d]
        posterior = solve(identity + self.covariance @ cost[x, x], self.covariance)
        noise = stage.B @ solve(stage.M[u, u], stage.B.T)
        covariance = F @ posterior @ F.T + noise
        covariance = 0.5 * (covariance + covariance.T)
        if context is None:
            return Past(covariance, self.centre), jnp.zeros((), F.dtype)
        slope = cost[x, x] @ self.centre + cost[x, d] @ context
        seen = jnp.concatenate([self.centre, jnp.zeros_like(stage.B[0]), context])
        growth = 0.5 * seen @ cost @ seen - 0.5 * slope @ posterior @ slope
        return Past(covariance, F @ (self.centre - posterior @ slope) + E @ context), growth


class Future(eqx.Module):
    """The cost to go after a step: S with contexts of 0, S0 with the best contexts."""

    S: Float[Array, "*T n n"]
    S0: Float[Array, "*T n n"]


def control_future(problem: ControlProblem, horizon: int | None, every_prefix: bool = False) -> Future:
    """Return S_t and S0_t after each of `horizon` steps, with an axis of steps; without a horizon, their limits, as one step.

    Args:
        problem: the dynamics; without a horizon, constant ones.
        horizon: T, or None.
        every_prefix: whether a promise is for every step and not for the end: S0 is then 0.
    """
    zero = jnp.zeros((problem.state_dim,) * 2, problem.F.dtype)

    def step_back(future, stage):
        return Future(stage.riccati_step(future.S), zero if every_prefix else stage.best_case_step(future.S0))

    end = Future(zero, zero)
    if horizon is None:
        stage = Stage.of(problem)
        return jax.tree.map(lambda leaf: leaf[None], _settle(lambda future: step_back(future, stage), end))
    stages = all_stages(problem, horizon)
    _, futures = jax.lax.scan(lambda future, stage: (step_back(future, stage), future), end, stages, reverse=True)
    return futures


class KnownFuture(eqx.Module):
    """The cost to go from x through known contexts d: 1/2 x'Sx + x'N d + 1/2 d'Phi d.

    d holds the contexts of all T steps; those that are past have no effect.
    """

    S: Float[Array, "*T n n"]
    N: Float[Array, "*T n all"]
    Phi: Float[Array, "*T all all"]


def known_future(stages: Stage) -> KnownFuture:
    """Return S_t, N_t and Phi_t after each step.

    Args:
        stages: of all T steps, with a leading axis.
    """
    horizon, n, q = stages.E.shape

    def step_back(to_go, now):
        stage, step = now
        x, u, d = stage.places
        # The next state is joint (xi, u, d) and the later contexts are D: the cost in (xi, u, d) and in its products with D.
        own, mixed = stage.M + stage.joint.T @ to_go.S @ stage.joint, stage.joint.T @ to_go.N
        gain, through = solve(own[u, u], own[u]), solve(own[u, u], mixed[u])
        own, mixed, late = own - own[:, u] @ gain, mixed - own[:, u] @ through, to_go.Phi - mixed[u].T @ through
        place = step * q
        N = jax.lax.dynamic_update_slice(mixed[x], own[x, d], (0, place))
        late = jax.lax.dynamic_update_slice(late, mixed[d], (place, 0))
        late = jax.lax.dynamic_update_slice(late, mixed[d].T, (0, place))
        late = jax.lax.dynamic_update_slice(late, own[d, d], (place, place))
        S = own[x, x]
        return KnownFuture(0.5 * (S + S.T), N, 0.5 * (late + late.T)), to_go

    size, dtype = horizon * q, stages.F.dtype
    end = KnownFuture(jnp.zeros((n, n), dtype), jnp.zeros((n, size), dtype), jnp.zeros((size, size), dtype))
    return jax.lax.scan(step_back, end, (stages, jnp.arange(horizon)), reverse=True)[1]


def game_future(problem: ControlProblem, horizon: int | None, level: Float[Array, ""]) -> Float[Array, "T n n"]:
    """Return the H-infinity counterpart of S: contexts are the worst ones at a cost of level^2/2 |d|^2 to the adversary.

    NaN where the level is too small.
    """

    def step_back(S, stage):
        x, _, d = stage.places
        cost = stage.without_action(S)[1]
        power = level**2 * jnp.eye(cost[d, d].shape[0], dtype=cost.dtype) - cost[d, d]
        before = cost[x, x] + cost[x, d] @ spd_solve(power, cost[d, x])
        return jnp.where(is_definite(power), 0.5 * (before + before.T), jnp.nan)

    zero = jnp.zeros((problem.state_dim,) * 2, problem.F.dtype)
    if horizon is None:
        return _settle(lambda S: step_back(S, Stage.of(problem)), zero)[None]
    return jax.lax.scan(lambda S, stage: (step_back(S, stage), S), zero, all_stages(problem, horizon), reverse=True)[1]


def all_stages(problem: ControlProblem, horizon: int) -> Stage:
    """Return the stages of all steps, with a leading axis."""
    return jax.vmap(lambda step: Stage.of(problem.at(step)))(jnp.arange(horizon))


def _settle(advance, first):
    """Apply a step until its values no longer change, up to rounding."""

    def change(before, after):
        size = jnp.array([jnp.abs(leaf).max() for leaf in jax.tree.leaves(after)]).max()
        moved = jax.tree.map(lambda a, b: jnp.abs(a - b).max(), before, after)
        return jnp.array(jax.tree.leaves(moved)).max() / jnp.maximum(size, jnp.finfo(size.dtype).tiny)

    def is_moving(carry):
        _, moved, steps = carry
        return (moved > 4 * jnp.finfo(moved.dtype).eps) & (steps < _LONGEST)

    def again(carry):
        value, _, steps = carry
        after = advance(value)
        return after, change(value, after), steps + 1

    start = (first, jnp.full((), jnp.inf, jax.tree.leaves(first)[0].dtype), 0)
    return jax.lax.while_loop(is_moving, again, start)[0]


class ControlReserve(eqx.Module):
    """The value of the game from the state x on: 1/2 x'Sx - L/2 m'S (I + Sigma S)^-1 m + 1/2 |g|^2_Z less L times o.

    g = L (I + Sigma S)^-1 m - x, Z = D ((L - 1) I - L Y D)^-1, Y = Sigma (I + S Sigma)^-1, D = S - S0. o is the least that the
    optimum can still grow by, so that L (r + o) bounds the cost at every step.

    Args:
        curvature: S + Z, (n, n).
        slope: L Z (I + Sigma S)^-1 m, (n,): the value is least where curvature x = slope.
        level: the part that does not depend on x, with o counted.
        least_growth: o = 1/2 m'S0 (I + Sigma S0)^-1 m.
        sound: whether L exceeds the smallest ratio of this step, as all this requires.
    """

    curvature: Matrix
    slope: Float[Array, " n"]
    level: Float[Array, ""]
    least_growth: Float[Array, ""]
    sound: Array

    @classmethod
    def of(cls, past: Past, S: Matrix, S0: Matrix, ratio: Float[Array, ""]) -> "ControlReserve":
        """Make the reserve after a step."""
        L, m, covariance = ratio, past.centre, past.covariance
        identity = jnp.eye(len(S), dtype=S.dtype)
        Y = solve(identity + covariance @ S, covariance)
        D = S - S0
        Z = solve(((L - 1) * identity - L * Y @ D).T, D)  # D and Z are symmetric
        Z = 0.5 * (Z + Z.T)
        shrunk = solve(identity + covariance @ S, m)
        least_growth = 0.5 * m @ S0 @ solve(identity + covariance @ S0, m)
        goal = L * shrunk
        level = -0.5 * L * m @ S @ shrunk + 0.5 * goal @ Z @ goal
        return cls(S + Z, Z @ goal, level, least_growth, _is_above_share(L - 1, covariance, S, S0))

    def value(self, x: Float[Array, " n"]) -> Float[Array, ""]:
        """Return max over the contexts to come of the cost to go less L times the growth of the optimum."""
        return 0.5 * x @ self.curvature @ x - self.slope @ x + self.level


def baseline_reserve(baseline: Float[Array, " n"], S: Matrix, S0: Matrix, ratio: Float[Array, ""]) -> ControlReserve:
    """Return the reserve of a promise relative to a baseline whose state is b, for any L > 1.

    The value is 1/2 x'Sx - L/2 b'Sb + 1/(2 (L - 1)) |L b - x|^2_D, D = S - S0.
    """
    D, L = S - S0, ratio
    toward = L / (L - 1) * D @ baseline
    level = 0.5 * L * (toward - S @ baseline) @ baseline
    least_growth = 0.5 * baseline @ S0 @ baseline
    return ControlReserve(S + D / (L - 1), toward, level, least_growth, L > 1)


def largest_control_share(covariance: Matrix, S: Matrix, S0: Matrix) -> Float[Array, ""]:
    """Return lambda_max(Sigma (I + S0 Sigma)^-1 (S - S0)), one less than the smallest ratio at a step."""
    identity = jnp.eye(len(S), dtype=S.dtype)
    left = solve(identity + covariance @ S0, covariance)
    sizes, basis = eigh(0.5 * (left + left.T))
    root = basis * jnp.sqrt(jnp.maximum(sizes, 0.0))
    return eigenvalues(root.T @ (S - S0) @ root)[-1]


def _is_above_share(excess: Float[Array, ""], covariance: Matrix, S: Matrix, S0: Matrix) -> Array:
    """Return whether `excess` exceeds `largest_control_share`; by trace and determinant up to two dimensions."""
    if len(S) > 2:
        return largest_control_share(covariance, S, S0) < excess
    identity = jnp.eye(len(S), dtype=S.dtype)
    above = excess * identity - solve(identity + covariance @ S0, covariance) @ (S - S0)
    det = above[0, 0] if len(S) == 1 else above[0, 0] * above[1, 1] - above[0, 1] * above[1, 0]
    return (jnp.trace(above) > 0) & (det > 0)


def _all_covariances(problem: ControlProblem, horizon: int) -> Float[Array, "T n n"]:
    """Return Sigma after each step."""

    def advance(covariance, stage):
        after = stage.advance(covariance)
        return after, after

    zero = jnp.zeros((problem.state_dim,) * 2, problem.F.dtype)
    return jax.lax.scan(advance, zero, all_stages(problem, horizon))[1]


@eqx.filter_jit
def _largest_share(problem: ControlProblem, horizon: int | None, every_prefix: bool) -> Float[Array, ""]:
    future = control_future(problem, horizon, every_prefix)
    if horizon is not None:
        covariances = _all_covariances(problem, horizon)
        return jnp.max(jax.vmap(largest_control_share)(covariances, future.S, future.S0))
    stage, zero = Stage.of(problem), jnp.zeros((problem.state_dim,) * 2, problem.F.dtype)

    # The share may be largest on the way: it is followed until the covariance settles.
    def advance_with_share(carry):
        covariance, share = carry
        after = stage.advance(covariance)
        return after, jnp.maximum(share, largest_control_share(after, future.S[0], future.S0[0]))

    return _settle(advance_with_share, (zero, jnp.zeros((), zero.dtype)))[1]


def smallest_control_ratio(problem: ControlProblem, horizon: int | None = None, *, every_prefix: bool = False) -> float:
    """Return the infimum of the ratios that can be promised on a `ControlProblem`. Computed in double precision.

    Args:
        problem: the dynamics and costs, without bounds on actions.
        horizon: for runs of exactly so many steps; None, the default, for runs without an end.
        every_prefix: the promise is for every step, not for the end alone. The two are the same where contexts can make any
            state free (tracking, delay, memory, full disturbances). Default: false.

    >>> from ecl2o.problem.control import battery
    >>> round(smallest_control_ratio(battery(alpha=10.0, charge=0.05), horizon=24), 6)
    1.266436
    >>> round(smallest_control_ratio(battery(alpha=10.0, charge=0.05), every_prefix=True), 6)
    3.380708
    """
    if horizon is None and problem.steps is not None:
        raise ValueError(f"the matrices of the problem are for {problem.steps} steps; give a horizon of at most that.")
    if horizon is not None and horizon < 1:
        raise ValueError(f"horizon must be at least 1, got {horizon}.")
    with jax.enable_x64(True):
        double = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf, np.float64)), problem)
        return float(1 + _largest_share(double, horizon, every_prefix))


@eqx.filter_jit
def _control_shapes(problem: ControlProblem, ratio, horizon: int | None, every_prefix: bool) -> Float[Array, "T k k"]:
    """Return the curvature of cost plus reserve in the action after each step; without a horizon, its limit."""
    future, nowhere = control_future(problem, horizon, every_prefix), jnp.zeros(problem.state_dim, problem.F.dtype)
    if horizon is None:
        covariances = _settle(Stage.of(problem).advance, jnp.zeros_like(future.S[0]))[None]
    else:
        covariances = _all_covariances(problem, horizon)

    def shape(covariance, S, S0, step):
        stage = Stage.of(problem.at(step))
        _, u, _ = stage.places
        return (
            stage.M[u, u] + stage.B.T @ ControlReserve.of(Past(covariance, nowhere), S, S0, ratio).curvature @ stage.B
        )

    return jax.vmap(shape)(covariances, future.S, future.S0, jnp.arange(len(covariances)))


def largest_control_shape(
    problem: ControlProblem, ratio: float, horizon: int | None = None, *, every_prefix: bool = False
) -> np.ndarray:
    """Return bounds on the curvature of what an action costs and must reserve: entry by entry the largest size of any step.

    Sigma only grows, and the reserve's curvature with it, so that in runs without an end the limit is the largest. Computed in
    double precision.

    Args:
        problem: the dynamics and costs, constant ones without a horizon.
        ratio: L, above the smallest one.
        horizon: as in `smallest_control_ratio`.
        every_prefix: as in `smallest_control_ratio`.

    Returns:
        (k, k), for actions of k numbers.

    >>> from ecl2o.problem import Mahalanobis, Problem, SquaredTracking, delayed
    >>> late = delayed(Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=2.0, dim=1)), 1)
    >>> round(
    ...     float(largest_control_shape(late, 5.0)[0, 0]), 6
    ... )  # G = 2, and L/((L - 1)/S - Sigma) for S = 2 and Sigma = 1
    7.0
    """
    with jax.enable_x64(True):
        double = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf, np.float64)), problem)
        return np.asarray(jnp.max(jnp.abs(_control_shapes(double, jnp.asarray(ratio), horizon, every_prefix)), axis=0))


def competitive_control_ratio(F: Any, B: Any, Q: Any, R: Any, *, before_context: bool = False) -> float:
    """Return the infimum of the ratios of controllers of x_{t+1} = F x_t + B u_t + w_t, for the cost sum x'Qx + u'Ru.

    The horizon is infinite. This is the optimal ratio of competitive control (Goel and Hassibi).

    Args:
        F: (n, n), the dynamics.
        B: (n, k), the effect of the control.
        Q: (n, n), the cost of the state.
        R: (k, k), the cost of the control.
        before_context: whether u_t is due before w_t is seen. Default: false.

    >>> round(competitive_control_ratio(1.0, 1.0, 1.0, 10.0), 6)  # tracking: the state is the miss
    1.729844
    """
    with jax.enable_x64(True):
        return smallest_control_ratio(ControlProblem.regulator(F, B, Q, R, before_context=before_context))
