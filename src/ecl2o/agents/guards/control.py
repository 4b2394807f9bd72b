"""Guards for problems with a state: relative to the optimum, and to a baseline (docs/guarantees.md, linear dynamics).

After an action u the state is xi' = F xi + B u + E d. The action is allowed if its cost and the reserve that xi' needs against
all later contexts are within what the account leaves. Both are quadratic in u, so the allowed set is an ellipsoid around the
safest action, and other advice is pulled toward its centre.
"""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, State
from ecl2o.agents.control import LQR
from ecl2o.agents.guards.base import AbstractGuard, Account
from ecl2o.agents.promise import Promise, Reference
from ecl2o.agents.wrappers import Independent, OwnTrajectory
from ecl2o.exceptions import NotApplicableError
from ecl2o.problem import ControlProblem
from ecl2o.problem.arrays import as_float, check_finite, check_nonnegative, check_positive, concrete_value
from ecl2o.solvers.ellipsoid import pull_into_ellipsoid
from ecl2o.solvers.small_dense import accurate_half_form, half_quadratic_form, spd_solve
from ecl2o.theory.control import (
    ControlReserve,
    Future,
    Past,
    Stage,
    baseline_reserve,
    control_future,
    smallest_control_ratio,
)


class Controls(eqx.Module):
    """The safest action, the advice pulled inside, whether it was pulled, and the allowed set: 1/2 |u - safest|^2 <= left."""

    safest: Float[Array, " k"]
    action: Float[Array, " k"]
    active: Bool[Array, ""]
    shape: Float[Array, "k k"]
    left: Float[Array, ""]

    def spare(self, u: Float[Array, " k"]) -> Float[Array, ""]:
        """Return by how much an action stays below the level."""
        return self.left - half_quadratic_form(self.shape, u - self.safest)


def choose_controls(
    stage: Stage,
    state: Float[Array, " n"],
    context: Float[Array, " q"],
    reserve: ControlReserve,
    level: Float[Array, ""],
    advice: Float[Array, " k"],
) -> Controls:
    """Pull advice into {u: cost of the step + reserve of the next state <= level}, an ellipsoid around the safest action."""
    x, u, d = stage.places
    drift = stage.F @ state + stage.E @ context
    shape = stage.M[u, u] + stage.B.T @ reserve.curvature @ stage.B
    shape = 0.5 * (shape + shape.T)
    pull = stage.M[u, x] @ state + stage.M[u, d] @ context + stage.B.T @ (reserve.curvature @ drift - reserve.slope)
    safest = -spd_solve(shape, pull)
    point = jnp.concatenate([state, safest, context])
    left = level - 0.5 * point @ stage.M @ point - reserve.value(drift + stage.B @ safest)
    action, active = pull_into_ellipsoid(advice, safest, shape, left)
    return Controls(safest, action, active, shape, left)


# The action that is played, whether it is not the advice, and what it exceeds the level by and is booked.
Settle = Callable[[Controls, Bool[Array, ""], Float[Array, " k"]], tuple[Array, Array, Array]]


def play_chosen(chosen: Controls, kept: Bool[Array, ""], advice: Float[Array, " k"]):
    """Play what was chosen: nothing is rounded."""
    return jnp.where(kept, chosen.action, chosen.safest), chosen.active, jnp.zeros_like(chosen.left)


class ControlGuardState(eqx.Module):
    """The wrapped agent's state, the reference's, the future by step, the least growth ahead, the ratio, and the account."""

    inner: State
    reference: Past | OwnTrajectory
    future: Future
    friendly: Float[Array, ""]
    ratio: Float[Array, ""]
    account: Account


class AbstractControlGuard(AbstractGuard):
    """What the two guards share: the future, the account, and the step. A subclass follows its reference."""

    horizon: eqx.AbstractVar[int | None]
    every_prefix: eqx.AbstractVar[bool]
    allowance: eqx.AbstractVar[Float[Array, ""]]

    def __check_init__(self):
        check_finite("allowance", self.allowance)
        check_nonnegative("allowance", self.allowance)
        if self.horizon is not None and (type(self.horizon) is not int or self.horizon < 1):
            raise ValueError(f"horizon must be at least 1, or None where it is not known, got {self.horizon!r}.")

    def check(self, problem: ControlProblem, start: Start) -> None:
        super().check(problem, start)
        name = type(self).__name__
        if not isinstance(problem, ControlProblem):
            raise NotApplicableError(f"{name} is for a ControlProblem, got {type(problem).__name__}.")
        if problem.is_bounded:
            raise NotApplicableError(f"{name} promises for actions without bounds; the problem has some.")
        if self.horizon is None and problem.steps is not None:
            raise NotApplicableError(
                f"{name} needs horizon={problem.steps}, as the matrices of the problem are for so many."
            )
        if self.horizon is not None and start.horizon != self.horizon:
            raise NotApplicableError(
                f"{name} promises for the end of horizon = {self.horizon} steps, but this run has "
                f"{'no end' if start.horizon is None else start.horizon}."
            )

    def _open(self, problem, start: Start, inner: State, reference, ratio, feasible) -> ControlGuardState:
        future = jax.lax.stop_gradient(control_future(problem, self.horizon, self.every_prefix))
        allowance = jnp.asarray(self.allowance, start.x0.dtype)
        feasible &= jnp.isfinite(allowance) & (allowance >= 0)
        zero = jnp.zeros((), start.x0.dtype)
        return ControlGuardState(inner, reference, future, zero, ratio, Account.open(allowance, feasible, zero.dtype))

    def _play(
        self, problem, state: ControlGuardState, observation: Observation, reference, growth, reserve, names, settle
    ):
        """Play the advice, pulled inside, and account for it; `reserve` is a function of the future's matrices."""
        position, place = observation.previous_action, observation.place
        last = state.future.S.shape[0] - 1
        ahead = reserve(*(matrix[jnp.minimum(place, last)] for matrix in (state.future.S, state.future.S0)))
        inner_state, advice, inner = self.agent.step(
            problem, state.inner, observation.with_lookahead(self.agent.lookahead)
        )
        sound = jnp.isfinite(observation.context).all() & jnp.isfinite(state.ratio * growth) & ahead.sound
        kept = state.account.kept & sound & (True if self.horizon is None else place < self.horizon)
        level = state.account.left + state.ratio * (growth - state.friendly)
        stage = Stage.of(problem.at(observation.step))
        chosen = choose_controls(stage, position, observation.context, ahead, level, advice)
        action, active, booked = settle(chosen, kept, advice)

        point = jnp.concatenate([position, action, observation.context])
        cost, rounding = accurate_half_form(stage.M, point)
        growth = growth + ahead.friendly - state.friendly
        eps = jnp.finfo(cost.dtype).eps
        rounding += jax.lax.stop_gradient(8 * len(point) * eps * state.ratio * (jnp.abs(growth) + ahead.friendly))
        account = state.account.update(state.ratio, growth, cost, rounding, kept, booked=booked)
        after = ControlGuardState(inner_state, reference, state.future, ahead.friendly, state.ratio, account)
        reference_name, ratio_name = names
        details = account.details(reference_name, ratio_name, active | ~account.kept)
        return after, action, Info(inner.converged & account.kept, advice, details, inner)


class CompetitiveControl(AbstractControlGuard):
    """The guard that keeps cost <= ratio * optimum on a `ControlProblem`, whatever the agent proposes and whatever contexts come.

    It allows every action with which the promise can still be kept. Where contexts cannot make every state free, as with a
    battery's charge, the promise is for the end of the run: before it, cost <= ratio * (the optimum so far and the least that it
    will still grow by). `every_prefix` promises cost <= ratio * optimum at every step, at a larger smallest ratio.

    Args:
        agent: the agent whose actions are played as far as the promise allows.
        ratio: above `theory.smallest_control_ratio`. Default: 2.5.
        horizon: the number of steps of the run. Default: None, a run without an end.
        every_prefix: whether the promise is for every step instead of the end. Default: false.
        allowance: cost allowed on top of ratio * optimum, 0 or more. Default: 0.

    Raises:
        ValueError: if a number is out of its range.
        NotApplicableError: at the start of a run, if the problem does not fit or the ratio cannot be promised.

    `Info.details`: as `Competitive` has; `optimum` includes the least growth that is still ahead.

    >>> import ecl2o as ec
    >>> battery = ec.battery(alpha=10.0, charge=0.05)
    >>> guard = CompetitiveControl(ec.advisors.Fixed([[1e6], [-1e6]]), ratio=2.0, horizon=2)
    >>> run = ec.rollout(guard, battery, ec.Instance([0.0, 0.0], [[1.0], [3.0]]))
    >>> bool(run.cost <= 2.0 * ec.oracle(battery, ec.Instance([0.0, 0.0], [[1.0], [3.0]])).cost * (1 + 1e-4))
    True
    """

    agent: AbstractAgent
    ratio: Float[Array, ""] = eqx.field(converter=as_float, default=2.5)
    horizon: int | None = eqx.field(static=True, default=None)
    every_prefix: bool = eqx.field(static=True, default=False)
    allowance: Float[Array, ""] = eqx.field(converter=as_float, default=0.0)

    def promise(self, problem: ControlProblem) -> Promise:
        return Promise(
            float(self.ratio),
            Reference.OPTIMUM,
            None,
            float(self.allowance),
            self.horizon,
            at_end=not self.every_prefix,
        )

    def rescale(self, factor: float) -> "CompetitiveControl":
        return dataclasses.replace(self, allowance=self.allowance * factor**2)

    def check(self, problem: ControlProblem, start: Start) -> None:
        super().check(problem, start)
        ratio = concrete_value(self.ratio)
        if ratio is not None and not any(concrete_value(leaf) is None for leaf in jax.tree.leaves(problem)):
            with jax.core.eval_context():
                smallest = smallest_control_ratio(problem, self.horizon, every_prefix=self.every_prefix)
            if not ratio > smallest:
                raise NotApplicableError(
                    f"`ratio` = {ratio:g} cannot be promised: it must exceed {smallest:.8g}, the smallest competitive "
                    "ratio that any online algorithm has on this problem."
                )

    def init(self, problem: ControlProblem, start: Start) -> ControlGuardState:
        return self._state(problem, start, self.agent.init(problem, start))

    def restart(self, problem: ControlProblem, state: ControlGuardState, start: Start) -> ControlGuardState:
        return self._state(problem, start, state.inner)

    def _state(self, problem: ControlProblem, start: Start, inner: State) -> ControlGuardState:
        past = Past(jnp.zeros((start.dim,) * 2, start.x0.dtype), start.x0)
        ratio = jnp.asarray(self.ratio, start.x0.dtype)
        return self._open(problem, start, inner, past, ratio, jnp.isfinite(ratio) & (ratio > 1))

    def step(self, problem: ControlProblem, state: ControlGuardState, observation: Observation):
        return self.step_settled(problem, state, observation, play_chosen)

    def step_settled(self, problem: ControlProblem, state: ControlGuardState, observation: Observation, settle: Settle):
        """Step as `step` does, where another action than the chosen one may be played."""
        assert isinstance(state.reference, Past)
        stage = Stage.of(problem.at(observation.step))
        past, growth = state.reference.after(stage, observation.context)

        def reserve(S, S0):
            return ControlReserve.of(past, S, S0, state.ratio)

        return self._play(problem, state, observation, past, growth, reserve, ("optimum", "live_ratio"), settle)


class GuardedControl(AbstractControlGuard):
    """The guard that keeps cost <= (1 + slack) * cost of a baseline on a `ControlProblem`, whatever the agent proposes.

    The baseline runs on its own trajectory. Promises at the end and at every step differ as in `CompetitiveControl`.

    Args:
        agent: the agent whose actions are played as far as the promise allows.
        baseline: the agent whose cost is the reference. Default: `LQR()`.
        slack: extra cost allowed, as a share of the baseline's; positive. Default: 0.5.
        horizon: as in `CompetitiveControl`.
        every_prefix: as in `CompetitiveControl`.
        allowance: as in `CompetitiveControl`.

    Raises:
        ValueError: if a number is out of its range.
        NotApplicableError: at the start of a run, if the problem does not fit.

    `Info.details`: as `Guarded` has.

    >>> import ecl2o as ec
    >>> battery, day = ec.battery(alpha=10.0, charge=0.05), ec.Instance([0.0, 0.0], [[1.0], [3.0]])
    >>> guard = GuardedControl(ec.advisors.Fixed([[1e6], [-1e6]]), slack=0.25, horizon=2)
    >>> run, baseline = ec.rollout(guard, battery, day), ec.rollout(ec.LQR(), battery, day)
    >>> bool(run.cost <= 1.25 * baseline.cost * (1 + 1e-4))
    True
    """

    agent: AbstractAgent
    baseline: AbstractAgent = eqx.field(default_factory=LQR)
    slack: Float[Array, ""] = eqx.field(converter=as_float, default=0.5)
    horizon: int | None = eqx.field(static=True, default=None)
    every_prefix: bool = eqx.field(static=True, default=False)
    allowance: Float[Array, ""] = eqx.field(converter=as_float, default=0.0)

    def __check_init__(self):
        check_finite("slack", self.slack)
        check_positive("slack", self.slack)

    def promise(self, problem: ControlProblem) -> Promise:
        name = type(self.baseline).__name__
        extra, at_end = float(self.allowance), not self.every_prefix
        return Promise(float(1 + self.slack), Reference.EXPERT, name, extra, self.horizon, at_end=at_end)

    def rescale(self, factor: float) -> "GuardedControl":
        return dataclasses.replace(self, allowance=self.allowance * factor**2)

    def init(self, problem: ControlProblem, start: Start) -> ControlGuardState:
        return self._state(problem, start, self.agent.init(problem, start))

    def restart(self, problem: ControlProblem, state: ControlGuardState, start: Start) -> ControlGuardState:
        return self._state(problem, start, state.inner)

    def _state(self, problem: ControlProblem, start: Start, inner: State) -> ControlGuardState:
        baseline = Independent(self.baseline).init(problem, start)
        ratio = jnp.asarray(1 + self.slack, start.x0.dtype)
        return self._open(problem, start, inner, baseline, ratio, jnp.isfinite(ratio) & (ratio > 1))

    def step(self, problem: ControlProblem, state: ControlGuardState, observation: Observation):
        assert isinstance(state.reference, OwnTrajectory)
        baseline, _, info = Independent(self.baseline).step(problem, state.reference, observation)

        def reserve(S, S0):
            return baseline_reserve(baseline.action, S, S0, state.ratio)

        growth, names = info.details["step_cost"], ("expert_cost", "expert_ratio")
        after, action, report = self._play(problem, state, observation, baseline, growth, reserve, names, play_chosen)
        return after, action, dataclasses.replace(report, converged=report.converged & info.converged)
