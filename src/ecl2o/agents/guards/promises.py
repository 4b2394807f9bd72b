"""Several promises at once: relative to the optimum and to a baseline, for a run, for each period, for every window.

All promises use the same stiffness S of the future, that of a run without an end. Then one action, which depends on the present
position only, keeps them all (docs/guarantees.md); the advice is pulled toward it until every promise allows it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, State
from ecl2o.agents.guards.base import AbstractGuard, Account, accurate_cost, name_reference
from ecl2o.agents.guards.competitive import Competitive, are_diagonal, as_bounds, sound_value
from ecl2o.agents.guards.limited import ramp_of, round_inside, spacing_of
from ecl2o.agents.promise import Promise, Reference
from ecl2o.agents.wrappers import Independent, OwnTrajectory, PureML
from ecl2o.exceptions import NotApplicableError
from ecl2o.planning.work_function import WorkFunction, is_resolved, quadratic_terms
from ecl2o.problem import AbstractQuadraticCost, Limited, Problem
from ecl2o.problem.arrays import (
    as_float,
    cast_floats,
    check_count,
    check_finite,
    check_nonnegative,
    concrete_value,
    safe_sqrt,
)
from ecl2o.solvers.small_dense import half_quadratic_form, largest_ratio, multiply, parallel_sum, spd_solve
from ecl2o.theory import joint_share, limit_stiffness, smallest_joint_ratio
from ecl2o.theory.promises import largest_joint_shape


class PromiseTerms(eqx.Module):
    """One of several promises, as numbers: `Promises` makes it from a `Promise`.

    Args:
        ratio: the factor, above 1.
        allowance: cost allowed on top in each period, 0 or more. Default: 0.
        period: steps that the promise covers; None: the whole run. Default: None.
        rolling: whether it covers every window of up to `period` steps. Default: False.
        to_baseline: whether it is relative to the baseline; else to the optimum. Default: False.
    """

    ratio: Float[Array, ""] = eqx.field(converter=as_float)
    allowance: Float[Array, ""] = eqx.field(converter=as_float, default=0.0)
    period: int | None = eqx.field(static=True, default=None)
    rolling: bool = eqx.field(static=True, default=False)
    to_baseline: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        check_finite("ratio", self.ratio)
        check_finite("allowance", self.allowance)
        check_nonnegative("allowance", self.allowance)
        if self.period is not None or self.rolling:
            check_count("period", self.period)

    def describe(self, baseline: str, contexts: tuple[tuple[float, float], ...] | None) -> Promise:
        """Return the promise; `baseline` is the name of its reference if it is not the optimum."""
        reference = (Reference.EXPERT, baseline) if self.to_baseline else (Reference.OPTIMUM, None)
        return Promise(
            float(self.ratio), *reference, float(self.allowance), self.period, contexts, rolling=self.rolling
        )

    @property
    def phases(self) -> list[int]:
        """The places in a period at which its accounts restart: one account, or one for each window; -1 is never."""
        if self.period is None:
            return [-1]
        return list(range(self.period)) if self.rolling else [0]


def _as_terms(promises: Sequence[Promise | PromiseTerms]) -> tuple[PromiseTerms, ...]:
    found = []
    for each in promises:
        if isinstance(each, Promise):
            if each.contexts is not None or each.also or each.at_end:
                raise ValueError(f"promises must be plain, without contexts, at_end and also, got {each!r}.")
            to_baseline = each.reference is Reference.EXPERT
            each = PromiseTerms(each.ratio, each.allowance, each.period, each.rolling, to_baseline)
        found.append(each)
    return tuple(found)


class Reserves(eqx.Module):
    """A step before n promises, in actions less the previous one: the reserve 1/2 |u - centre|^2 of each, and its level."""

    matrix: Float[Array, "n d d"]
    centre: Float[Array, "n d"]
    level: Float[Array, " n"]

    def spare(self, A, G, target: Float[Array, " d"], u: Float[Array, " d"]) -> Float[Array, " n"]:
        """Return by how much u, which costs 1/2 |u - target|^2_A + 1/2 |u|^2_G, stays below each level."""
        cost = half_quadratic_form(A, u - target) + half_quadratic_form(G, u)
        return self.level - cost - jax.vmap(half_quadratic_form)(self.matrix, u - self.centre)


_forms = jax.vmap(half_quadratic_form, (0, None))


def pull_inside(
    A: Float[Array, "d d"],
    G: Float[Array, "d d"],
    target: Float[Array, " d"],
    reserves: Reserves,
    safest: Float[Array, " d"],
    advice: Float[Array, " d"],
    grain: Float[Array, " d"],
) -> tuple[Float[Array, " d"], Bool[Array, ""]]:
    """Return the advice, or the last point on the way to it from the safest action that every promise allows.

    An action u costs 1/2 |u - target|^2_A + 1/2 |u|^2_G and must leave the reserves: along the way each promise allows up to the
    positive root of a quadratic. What is moved stays inside by what its rounding, by `grain`, can add.

    Returns:
        The action, and whether it is not the advice.
    """
    shape, away = A + G + reserves.matrix, safest - reserves.centre
    usable = jnp.isfinite(_forms(shape, advice - safest)).all()
    way = jnp.where(usable, advice, safest) - safest
    spare = reserves.spare(A, G, target, safest)
    normal = multiply(A, safest - target) + multiply(G, safest) + jax.vmap(multiply)(reserves.matrix, away)
    turn = jax.vmap(multiply, (0, None))(shape, way)
    slope, bend = jnp.sum(normal * way, axis=-1), jnp.sum(turn * way, axis=-1)
    allowed = (slope + 0.5 * bend <= spare).all() & usable

    def share_of(spare):
        inside = (spare > 0) & (bend > 0)
        room, curve = jnp.where(inside, spare, jnp.finfo(spare.dtype).tiny), jnp.where(inside, bend, 1.0)
        root, falls = safe_sqrt(slope**2 + 2 * curve * room), slope <= 0
        # Two forms of one root: in neither do close numbers cancel.
        share = jnp.where(falls, (root - slope) / curve, 2 * room / jnp.where(falls, 1.0, slope + root))
        return jnp.minimum(jnp.min(jnp.where(inside, share, 0.0)), 1.0)

    rounded = jnp.sum(jnp.abs(normal + share_of(spare)[..., None] * turn) * grain, axis=-1) + _forms(
        jnp.abs(shape), grain
    )
    pulled = safest + share_of(spare - jax.lax.stop_gradient(rounded)) * way
    return jnp.where(allowed, advice, pulled), ~allowed


class PromisesState(eqx.Module):
    """The wrapped agent's state, the past of each account relative to the optimum, the baseline's trajectory of the others, the
    future's stiffness, the ratios that are played, whether they can be kept, the accounts in the order of `_slots`, and the
    steps so far.
    """

    inner: State
    work: WorkFunction
    baseline: OwnTrajectory | None
    future: Float[Array, "d d"]
    ratios: Float[Array, " n"]
    feasible: Bool[Array, ""]
    accounts: Account
    age: Int[Array, ""]


def _select(mask: Bool[Array, " n"], new, old):
    """Return the new tree where the mask holds; leaves of the old one have a leading axis."""
    return jax.tree.map(lambda a, b: jnp.where(mask.reshape(-1, *[1] * (b.ndim - 1)), a, b), new, old)


class Promises(AbstractGuard):
    """The guard that keeps several promises at once, whatever the agent proposes.

    Each promise bounds the cost, in the whole run, in each period, or in every window of up to so many steps, by a ratio times
    the optimum's or the baseline's, which both start from the action in force. At the start of each period its account
    restarts, and the baseline moves to the action in force and keeps its memory. What is allowed is what all of them allow: an
    action that is not allowed is pulled toward an action that keeps them all, until it is.

    For quadratic hitting costs of bounded curvature. The least ratio must exceed the smallest one of any online algorithm
    (`theory.smallest_joint_ratio`), that relative to the baseline too; a single promise below it is `Guarded`'s. Bounds on
    actions are kept where all matrices are diagonal and contexts are known to lie within the bounds.

    The promises are lost (`kept` turns false, the safest action is played, and steps count as not converged) under the
    conditions of `Competitive`: they are kept together or not at all.

    Args:
        agent: the agent whose actions are played as far as the promises allow.
        promises: a list of `Promise`, without `contexts`.
        baseline: the agent whose cost is the reference of promises relative to an expert. Default: None, there is none.
        contexts: (low, high) within which contexts are known to lie, needed where actions are bounded. Default: None.

    Raises:
        ValueError: if a number is out of its range, or a promise needs a baseline that is not given.
        NotApplicableError: at the start of a run, if the problem is not quadratic or the least ratio is too small.

    `Info.details`: of each promise, in vectors, `costs` and `references` of its current period, their `ratios`, and what is
    left in `lefts` (of windows, the least); of the first promise `cost`, `optimum` (or `expert_cost`), `live_ratio` (or
    `expert_ratio`) and `left`; `active`, `kept` and `kept_steps` of all.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> guard = Promises(ec.advisors.Fixed([[1e6]]), [ec.Promise(1.75), ec.Promise(2.5, period=24)])
    >>> run = ec.rollout(guard, problem, ec.Instance([0.0], [[1.0]]))
    >>> bool((run.info.details["lefts"] > -1e-4).all())
    True
    >>> print(guard.promise(problem))
    the cost is at most 1.75 times the optimum over the whole run, and at most 2.5 times the optimum in every 24 steps
    """

    agent: AbstractAgent
    promises: tuple[PromiseTerms, ...] = eqx.field(converter=_as_terms)
    baseline: AbstractAgent | None = None
    contexts: tuple[Float[Array, "*d"], Float[Array, "*d"]] | None = eqx.field(converter=as_bounds, default=None)

    def __check_init__(self):
        if not self.promises:
            raise ValueError("promises must not be empty.")
        if any(each.to_baseline for each in self.promises) != (self.baseline is not None):
            raise ValueError("a baseline and promises relative to an expert need each other.")
        if len(self.promises) == 1 and self.baseline is not None:
            raise ValueError("one promise relative to a baseline is Guarded(agent, expert, slack), which allows more.")

    @property
    def _alone(self) -> Competitive:
        """The guard of a single promise: what it requires of problem and contexts is required here."""
        return Competitive(self.agent, contexts=self.contexts)

    @property
    def _slots(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """(promise, period, phase) of each account, those relative to the optimum first, and how many these are."""
        order = sorted(range(len(self.promises)), key=lambda i: self.promises[i].to_baseline)
        slots = np.array([(i, self.promises[i].period or 1, phase) for i in order for phase in self.promises[i].phases])
        return *slots.T, sum(len(each.phases) for each in self.promises if not each.to_baseline)

    def promise(self, problem: Problem) -> Promise:
        contexts, name = self._alone.promise(problem.relaxed).contexts, name_reference(self.baseline)
        found = [each.describe(name, contexts) for each in self.promises]
        if isinstance(problem.actions, Limited):
            least = min(each.ratio for each in self.promises)
            found = [
                self._alone.promise_within_limits(
                    problem, each, lambda lo, hi, G: largest_joint_shape(lo, hi, G, least)
                )
                for each in found
            ]
        return dataclasses.replace(found[0], also=tuple(found[1:]))

    def rescale(self, factor: float) -> "Promises":
        terms = [dataclasses.replace(each, allowance=each.allowance * factor**2) for each in self.promises]
        return dataclasses.replace(self, promises=terms, contexts=self._alone.rescale(factor).contexts)

    def with_terms(self, allowance: float, contexts: tuple[float, float] | None) -> "Promises":
        """Return the guard with these contexts; each promise keeps its own allowance."""
        return dataclasses.replace(self, contexts=contexts)

    def with_action_bounds(self, low: float, high: float) -> "Promises":
        return dataclasses.replace(self, contexts=self._alone.with_action_bounds(low, high).contexts)

    def check(self, problem: Problem, start: Start) -> None:
        """Reject problems that do not fit and, where numbers are concrete, ratios that cannot be kept together."""
        super().check(problem, start)
        self._check_problem(problem, start)
        ratios = [each.ratio for each in self.promises]
        if any(concrete_value(leaf) is None for leaf in jax.tree.leaves((ratios, problem))):
            return
        alone = self._alone
        with jax.enable_x64(True), jax.core.eval_context():  # the numbers are constants inside a jit too
            counted, real = alone.count(cast_floats(problem, np.float64), start.dim)
            least, greatest, G = cast_floats(alone.curvatures(counted, start.dim), np.float64)
            smallest, is_counted_more = smallest_joint_ratio(least, greatest, G), np.asarray(real) < 1
        if self.baseline is not None and is_counted_more:
            raise NotApplicableError(
                "beside a baseline, a ramp must leave the whole promise: give a wider ramp, a narrower range of contexts, or "
                "promises relative to the optimum only."
            )
        lowest = float(np.min(np.array(ratios)))
        if not lowest > smallest:
            raise NotApplicableError(
                f"promises are kept together if every ratio exceeds {smallest:.8g}, also relative to a baseline, and the least "
                f"is {lowest:g}: raise it, or make that promise alone. Alone, one relative to a baseline takes any ratio above 1."
            )

    def _check_problem(self, problem: Problem, start: Start) -> None:
        if not isinstance(problem.hitting, AbstractQuadraticCost):
            kind = type(problem.hitting).__name__
            raise NotApplicableError(
                f"several promises need a quadratic hitting cost, got {kind}; make one promise alone."
            )
        self._alone.check_problem(problem, start)

    def init(self, problem: Problem, start: Start) -> PromisesState:
        self._check_problem(problem, start)
        return self._state(problem, start, self.agent.init(problem, start))

    def restart(self, problem: Problem, state: PromisesState, start: Start) -> PromisesState:
        return self._state(problem, start, state.inner)

    def _state(self, problem: Problem, start: Start, inner: State) -> PromisesState:
        dtype, dim, (owner, _, _, pasts) = start.x0.dtype, start.dim, self._slots
        counted, real = self._alone.count(problem, dim)
        least, greatest, G = cast_floats(self._alone.curvatures(counted, dim), dtype)
        S = limit_stiffness(greatest, G)
        ratios = jnp.stack([each.ratio for each in self.promises]).astype(dtype)
        allowances = jnp.stack([each.allowance for each in self.promises])
        feasible = jax.lax.stop_gradient(joint_share(jnp.min(ratios), S, least, G) < 1) & jnp.isfinite(ratios).all()
        feasible &= (jnp.isfinite(allowances) & (allowances >= 0)).all()
        if dim > 1:
            feasible &= jax.lax.stop_gradient(is_resolved(least, greatest, G))
        if self._alone.needs_diagonal(problem, dim):
            feasible &= are_diagonal([greatest, G])
        if self.contexts is not None:
            (lower, upper), (low, high) = problem.actions.bounds(dim, dtype), self.contexts
            feasible &= ((lower <= low) & (high <= upper)).all()
            if ramp_of(problem) is not None:
                feasible &= ((low <= start.x0) & (start.x0 <= high)).all() & ((real == 1) | (self.baseline is None))
        # Where the condition fails, the safest action is that of ratios that always satisfy it.
        ratios = jnp.where(feasible, ratios, 2 + 2 * largest_ratio(S, least))[owner]

        def repeat(tree, count):
            return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), tree)

        work = repeat(WorkFunction.from_start(start.x0, G), pasts)
        baseline = None
        if self.baseline is not None:
            baseline = repeat(Independent(PureML(self.baseline)).init(problem, start), len(owner) - pasts)
        accounts = self._open_accounts(feasible, dtype, spacing_of(problem) is not None)
        return PromisesState(inner, work, baseline, S, ratios, feasible, accounts, jnp.zeros((), int))

    def _open_accounts(self, feasible: Bool[Array, ""], dtype: Any, books: bool) -> Account:
        owner, _, _, _ = self._slots
        allowances = jnp.stack([each.allowance for each in self.promises])[owner]
        return jax.vmap(lambda allowance: Account.open(allowance, feasible, dtype, books))(allowances)

    def _renew(self, problem: Problem, state: PromisesState, observation: Observation) -> PromisesState:
        """Restart the accounts whose period starts, with their references, from the action in force."""
        previous, (_, period, phase, pasts) = observation.previous_action, self._slots
        renewed = (observation.place % period == phase) & (state.age > 0)
        books = state.accounts.booked is not None
        accounts = _select(renewed, self._open_accounts(state.feasible, previous.dtype, books), state.accounts)
        G = 2 * self._alone.count(problem, len(previous))[0].Q
        work = _select(renewed[:pasts], WorkFunction.from_start(previous, G), state.work)
        baseline = state.baseline
        if baseline is not None:
            own = baseline.action, baseline.cost
            moved = _select(renewed[pasts:], (previous, jnp.zeros((), previous.dtype)), own)
            baseline = eqx.tree_at(lambda trajectory: (trajectory.action, trajectory.cost), baseline, moved)
        return dataclasses.replace(state, work=work, baseline=baseline, accounts=accounts)

    def step(self, problem: Problem, state: PromisesState, observation: Observation):
        seen = observation.with_lookahead(self.agent.lookahead)
        inner_state, advice, inner = self.agent.step(problem, state.inner, seen)
        state = self._renew(problem, state, observation)
        previous, S, ratios, pasts = observation.previous_action, state.future, state.ratios, self._slots[3]
        dim, real_problem, converged = previous.shape[0], problem, inner.converged
        problem, real = self._alone.count(problem, dim)
        G = 2 * problem.Q
        finite = jnp.isfinite(problem.drop_covariates(observation.context)).all()
        context = jnp.where(finite, observation.context, 0.0)  # a covariate may be missing
        A, target = quadratic_terms(problem, context, dim)

        prefix = jax.vmap(lambda work: work.with_context(A, target))(state.work)
        matrix, definite = jax.vmap(sound_value, (0, None, 0))(prefix.P, S, ratios[:pasts])
        centre = -jax.vmap(type(prefix).from_centre, (0, None))(prefix, previous)
        growth, rounding, baseline = prefix.growth, prefix.rounding, state.baseline
        if baseline is not None and self.baseline is not None:
            expert, before = Independent(PureML(self.baseline)), baseline.action
            baseline, actions, info = jax.vmap(lambda own: expert.step(problem, own, observation))(baseline)
            paid = jax.vmap(accurate_cost, (None, 0, None, 0))(problem, actions, context, before)
            growth, rounding = (jnp.concatenate(pair) for pair in zip((growth, rounding), paid, strict=True))
            over = ratios[pasts:] / (ratios[pasts:] - 1)
            matrix = jnp.concatenate([matrix, over[:, None, None] * S])
            centre, converged = jnp.concatenate([centre, actions - previous]), converged & info.converged.all()
        sound = finite & jnp.isfinite(ratios * growth).all()
        growth = jnp.where(sound, growth, 0.0)
        reserves = Reserves(matrix, centre, state.accounts.left + ratios * growth)

        # The safest action of a run that had arrived where it stands by the least ratio: it is in all allowed sets.
        least, away = jnp.min(ratios), target - previous
        P = A + parallel_sum(S / (least - 1), G)
        V, known = sound_value(P, S, least)
        pull = multiply(A, away)
        safest = spd_solve(A + G + V, pull + multiply(V, spd_solve(P, pull)))
        projected, limits = problem.relaxed.actions.project(advice), problem.actions
        if ramp_of(problem) is not None:
            assert isinstance(limits, Limited)
            assert self.contexts is not None
            projected = jnp.clip(advice, *(jnp.clip(end, *self.contexts) for end in limits.reachable(previous)))
        grain = jax.lax.stop_gradient(jnp.finfo(previous.dtype).eps * jnp.abs(previous + safest))
        moved, active = pull_inside(A, G, away, reserves, safest, projected - previous, grain)
        announced = self._alone.is_as_announced(problem, context, A, target, 0, 0)
        kept = state.accounts.kept & sound & known & definite.all() & announced
        action = problem.relaxed.actions.project(previous + jnp.where(kept.all(), moved, safest))
        action = jnp.where(kept.all() & ~active, projected, action)  # to the last bit
        booked = jnp.zeros_like(growth)
        if isinstance(limits, Limited) and limits.spacing is not None:
            points = previous, projected, previous + moved, previous + safest
            action, active, booked = round_inside(
                limits, *points, kept, lambda x: reserves.spare(A, G, away, x - previous)
            )
        action = problem.limit(previous, jnp.where(sound, action, previous))

        cost, off = accurate_cost(problem, action, context, previous)
        cost, rounding = jnp.where(sound, cost, 0.0), jnp.where(sound, off + ratios * rounding, 0.0)
        reported = None
        if ramp_of(problem) is not None:
            paid = jnp.where(sound, accurate_cost(real_problem, action, context, previous)[0], 0.0)
            reported = jnp.broadcast_to(paid, growth.shape), jnp.multiply(real, growth)
        update = jax.vmap(Account.update, (0, 0, 0, None, 0, 0, 0, 0))
        accounts = update(state.accounts, ratios, growth, cost, rounding, kept, reported, booked)
        work = jax.tree.map(
            lambda new, old: jnp.where(sound, new, old), jax.vmap(lambda p: p.after_move(G))(prefix), state.work
        )
        details = self._details(accounts, active)
        after = dataclasses.replace(
            state, inner=inner_state, work=work, baseline=baseline, accounts=accounts, age=state.age + 1
        )
        return after, action, Info(converged & details["kept"], advice, details, inner)

    def _details(self, accounts: Account, active: Bool[Array, ""]) -> dict[str, Array]:
        """Return the figures of each promise, of windows the account with the least left, and those of the first one."""
        owner, kept = self._slots[0], accounts.kept.all()
        slots = [np.flatnonzero(owner == i) for i in range(len(self.promises))]
        tightest = jnp.stack([mine[jnp.argmin(accounts.left[mine])] for mine in map(jnp.asarray, slots)])
        of_each = jax.tree.map(lambda leaf: leaf[tightest], accounts)
        figures = {"costs": of_each.cost, "references": of_each.reference, "lefts": of_each.left}
        figures |= {} if of_each.booked is None else {"all_booked": of_each.booked}
        names = ("expert_cost", "expert_ratio") if self.promises[0].to_baseline else ("optimum", "live_ratio")
        first = jax.tree.map(lambda leaf: leaf[0], of_each).details(*names, active | ~kept)
        return {**first, **figures, "kept": kept}
