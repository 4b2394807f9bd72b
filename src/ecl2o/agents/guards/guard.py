"""The one guard: it lets another agent act as far as its promises allow.

Every promise bounds the cost by a ratio times that of a reference. At a step each reference says how its cost grows and which
actions leave the promise possible, a convex set. The advice is played if it is in all sets, else it is pulled toward an action
that is.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ecl2o.agents.base import AbstractAgent, AnyProblem, Info, Observation, Start, State
from ecl2o.agents.guards.account import Account
from ecl2o.agents.guards.level_sets import AbstractLevelSet, Action, Origin, pull_inside
from ecl2o.agents.guards.limits import round_inside
from ecl2o.agents.guards.references.base import AbstractReference, PromiseTerms
from ecl2o.agents.promise import Promise
from ecl2o.agents.wrappers import PureML
from ecl2o.problem.arrays import check_count, check_finite, check_nonnegative, to_host


class GuardState(eqx.Module):
    """What a guard carries from step to step.

    Args:
        inner: the wrapped agent's state.
        prepared: of each reference, what does not change.
        references: of each reference, the state of each of its accounts.
        ratios: those that are played, by account.
        feasible: whether they can be promised.
        accounts: the balance of each promise, of windows one for each phase.
        age: steps since the start, or since the only promise was renewed.
    """

    inner: State
    prepared: tuple[Any, ...]
    references: tuple[Any, ...]
    ratios: Float[Array, "*n"]
    feasible: Bool[Array, ""]
    accounts: Account
    age: Int[Array, ""] | None


@dataclasses.dataclass(frozen=True)
class Slots:
    """The accounts of a guard in their order, by reference: the promise, the period and the phase of each.

    Args:
        promise: the place of its promise in the guard.
        period: steps after which it may restart.
        phase: the place in the period at which it restarts; -1 is never.
        counts: how many accounts each reference has.
    """

    promise: np.ndarray
    period: np.ndarray
    phase: np.ndarray
    counts: tuple[int, ...]

    @classmethod
    def of(cls, promises: tuple[PromiseTerms, ...], references: int) -> "Slots":
        """Order the accounts of promises."""
        order = sorted(range(len(promises)), key=lambda i: promises[i].reference)
        found = [(i, promises[i].period or 1, phase) for i in order for phase in promises[i].phases]
        owners = [promises[i].reference for i, _, _ in found]
        owner, period, phase = np.array(found).T
        return cls(owner, period, phase, tuple(owners.count(each) for each in range(references)))

    @property
    def several(self) -> bool:
        """Whether there are several accounts."""
        return len(self.promise) > 1


class Guard(AbstractAgent):
    """An agent that lets another one act as far as its promises allow, whatever it proposes.

    `Competitive`, `Guarded`, `Promises`, `CompetitiveBand`, `CompetitiveControl` and `GuardedControl` make guards. An allowed
    action is played as it is; another one is pulled toward an action that all promises allow, until it is allowed. NaN and
    infinite actions count as no advice.

    A promise with a period restarts: its account, and its reference from the action in force, while agents keep what they have
    learned. The agent inside sees the clock of the period if there is one promise: `Observation.step` counts from 0 after each
    restart, `place` from the start of the period, and `remaining` to its end. A run may start within a period; its first period
    is then shorter.

    A promise is lost (`kept` turns false, the safest action is played, and steps count as not converged) where its conditions are
    not met. Several promises are kept together or not at all.

    Args:
        agent: the agent whose actions are played as far as the promises allow.
        promises: the numbers of the promises.
        references: whose costs they multiply.

    `Info.details`, each with one number for each promise in their order: `cost` and `reference` of its period so far, their
    `ratio`, what is `left` of it, whether it was `active`, that is changed the advice, and whether it is `kept`; and for how
    many steps all were (`kept_steps`). Of windows it is the account with the least left. With a spacing of actions
    `rounding_allowance`, what rounding has added to the allowance.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> guard = ec.Competitive(ec.advisors.Fixed([[1e6]]), ratio=2.0)
    >>> run = ec.rollout(guard, problem, ec.Instance([0.0], [[1.0]]))
    >>> bool((run.info.details["ratio"] <= 2.0 * (1 + 1e-4)).all())
    True
    """

    agent: AbstractAgent
    promises: tuple[PromiseTerms, ...]
    references: tuple[AbstractReference, ...]

    def __check_init__(self):
        if not self.promises:
            raise ValueError("promises must not be empty.")
        for each in self.promises:
            check_finite("ratio", each.ratio)
            check_finite("allowance", each.allowance)
            check_nonnegative("allowance", each.allowance)
            if each.period is not None or each.rolling:
                check_count("period", each.period)

    @property
    def lookahead(self) -> int:
        return max(self.agent.lookahead, *(reference.lookahead for reference in self.references))

    @property
    def ratio(self) -> Float[Array, ""]:
        """The ratio of the first promise."""
        return self.promises[0].ratio

    @property
    def _slots(self) -> Slots:
        return Slots.of(self.promises, len(self.references))

    @property
    def _own_period(self) -> int | None:
        """The period of the only promise; None where there are several, windows, or no period."""
        one = self.promises[0]
        return None if len(self.promises) > 1 or one.rolling else one.period

    @property
    def periods(self) -> list[int]:
        """The periods of all restarts; those of windows do not depend on the clock."""
        own = [each.period for each in self.promises if each.period is not None and not each.rolling]
        return [*own, *super().periods]

    @property
    def renews_promise(self) -> bool:
        return any(each.period is not None for each in self.promises) or self.agent.renews_promise

    @property
    def known_as(self) -> tuple[str, ...]:
        return tuple(reference.known_as for reference in self.references)

    def every(self, period: int | None) -> "Guard":
        """Return the guard whose promises for the run restart every `period` steps; None: as they are."""
        promises = (dataclasses.replace(each, period=each.period or period) for each in self.promises)
        return dataclasses.replace(self, promises=tuple(promises))

    def around_proposals(self, wrap: Callable[[AbstractAgent], AbstractAgent]) -> "Guard":
        references = tuple(each.map_agent(lambda agent: wrap(PureML(agent))) for each in self.references)
        return dataclasses.replace(self, agent=self.agent.around_proposals(wrap), references=references)

    def map_agents(self, function: Callable[[AbstractAgent], AbstractAgent]) -> "Guard":
        """Return the guard with other agents instead of the one inside and those of the references."""
        references = tuple(each.map_agent(function) for each in self.references)
        return dataclasses.replace(self, agent=function(self.agent), references=references)

    def with_terms(self, allowance: float, contexts: tuple[float, float] | None) -> "Guard":
        """Return the guard with these numbers in its promise; several promises keep their own allowances."""
        promises = self.promises
        if len(promises) == 1:
            promises = (dataclasses.replace(promises[0], allowance=allowance),)
        references = tuple(each.with_contexts(contexts) for each in self.references)
        return dataclasses.replace(self, promises=promises, references=references)

    def rescale(self, factor: float) -> "Guard":
        """Return the guard for contexts `factor` times as large, with the same wrapped agent."""
        promises = [dataclasses.replace(each, allowance=to_host(each.allowance) * factor**2) for each in self.promises]
        references = tuple(reference.rescale(factor) for reference in self.references)
        return dataclasses.replace(self, promises=tuple(promises), references=references)

    def with_action_bounds(self, low: float, high: float) -> "Guard":
        """Return the guard for actions between `low` and `high`. A promise may then require contexts there."""
        return dataclasses.replace(self, references=tuple(each.within(low, high) for each in self.references))

    def promise(self, problem: AnyProblem) -> Promise:
        """Return what is promised about the cost, the first promise with the others in `also`."""
        least = min(float(each.ratio) for each in self.promises) if self._slots.several else None
        references = [reference.on(problem) for reference in self.references]
        found = [references[each.reference].describe(problem, each, least) for each in self.promises]
        return dataclasses.replace(found[0], also=tuple(found[1:]))

    def check(self, problem: AnyProblem, start: Start) -> None:
        """Reject problems that do not fit and, where numbers are concrete, ratios that cannot be promised."""
        start = self._in_period(start)
        super().check(problem, start)
        several, ratios = self._slots.several, [each.ratio for each in self.promises]
        for reference in self.references:
            reference = reference.on(problem)
            reference.check_problem(problem, start, several)
            reference.check(problem, start, ratios, several)

    def _in_period(self, start: Start) -> Start:
        period = self._own_period
        return start if period is None else dataclasses.replace(start, horizon=period)

    def init(self, problem: AnyProblem, start: Start) -> GuardState:
        start = self._in_period(start)
        return self._open(problem, start, self.agent.init(problem, start))

    def restart(self, problem: AnyProblem, state: GuardState, start: Start) -> GuardState:
        """Return the state with accounts and references restarted at `start.x0` and the wrapped agent's state unchanged."""
        return self._open(problem, self._in_period(start), state.inner)

    def _map(self, function: Callable[..., Any], *trees: Any) -> tuple[Any, ...]:
        """Call function(i, *trees of reference i) for each reference, mapped over its accounts if there are several."""
        several, found = self._slots.several, []
        for i, mine in enumerate(zip(*trees, strict=True)):
            of_one = functools.partial(function, i)
            found.append(jax.vmap(of_one)(*mine) if several else of_one(*mine))
        return tuple(found)

    def _by_reference(self, values: Any) -> list[Any]:
        """Return what belongs to the accounts of each reference."""
        if not self._slots.several:
            return [values]
        ends = np.cumsum((0, *self._slots.counts))
        return [jax.tree.map(lambda leaf, i=i: leaf[ends[i] : ends[i + 1]], values) for i in range(len(ends) - 1)]

    def _join(self, found: Sequence[Any]) -> Any:
        """Return what belongs to all accounts."""
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *found) if self._slots.several else found[0]

    def _asked_ratios(self, dtype: Any) -> Float[Array, " n"]:
        return jnp.stack([each.ratio for each in self.promises]).astype(dtype)

    def _by_account(self, numbers: Float[Array, " promises"]) -> Float[Array, "*n"]:
        """Return what is given by promise by account."""
        return numbers[self._slots.promise] if self._slots.several else numbers[0]

    def _open(self, problem: AnyProblem, start: Start, inner: State) -> GuardState:
        slots, dtype = self._slots, start.x0.dtype
        ratios = self._asked_ratios(dtype)
        allowances = jnp.stack([each.allowance for each in self.promises])
        feasible = jnp.isfinite(ratios).all() & (jnp.isfinite(allowances) & (allowances >= 0)).all()
        prepared, states, instead = [], [], []
        for reference, count in zip(self.references, slots.counts, strict=True):
            reference = reference.on(problem)
            reference.check_problem(problem, start, slots.several)
            prepared.append(reference.prepare(problem, start, slots.several))
            possible, other = reference.feasible(problem, prepared[-1], start, ratios, slots.several)
            feasible, state = feasible & possible, reference.init(problem, prepared[-1], start)
            instead.append(other)
            if slots.several:
                state = jax.tree.map(lambda leaf, n=count: jnp.broadcast_to(leaf, (n, *jnp.shape(leaf))), state)
            states.append(state)
        # Where ratios cannot be promised, the safest action is that of ratios that can.
        ratios = jnp.where(feasible, self._by_account(ratios), jnp.max(jnp.stack(instead)))
        accounts = self._open_accounts(problem, feasible, dtype)
        age = jnp.zeros((), int) if (slots.phase >= 0).any() else None
        return GuardState(inner, tuple(prepared), tuple(states), ratios, feasible, accounts, age)

    def _open_accounts(self, problem: AnyProblem, feasible: Bool[Array, ""], dtype: Any) -> Account:
        allowances = self._by_account(jnp.stack([each.allowance for each in self.promises]))
        return Account.open(allowances, feasible, dtype, problem.actions.spacing is not None)

    def _renew(self, problem: AnyProblem, state: GuardState, observation: Observation) -> GuardState:
        """Restart the accounts whose period starts, with their references, from the position in force."""
        if state.age is None:
            return state
        position, slots = observation.previous_action, self._slots
        period, phase = (slots.period, slots.phase) if slots.several else (slots.period[0], slots.phase[0])
        renewed = (observation.place % period == phase) & (state.age > 0)

        def restart(i, own, renewed):
            new = self.references[i].on(problem).restart(problem, state.prepared[i], own, position)
            return jax.tree.map(lambda new, old: jnp.where(renewed, new, old), new, own)

        references = self._map(restart, state.references, self._by_reference(renewed))
        opened = self._open_accounts(problem, state.feasible, position.dtype)
        accounts = jax.tree.map(lambda new, old: jnp.where(renewed, new, old), opened, state.accounts)
        age = state.age if self._own_period is None else jnp.where(renewed, 0, state.age)
        return dataclasses.replace(state, accounts=accounts, references=references, age=age)

    def step(self, problem: AnyProblem, state: GuardState, observation: Observation):
        state = self._renew(problem, state, observation)
        if self._own_period is not None and state.age is not None:
            observation = observation.in_period(self._own_period, state.age)
        seen = observation.with_lookahead(self.agent.lookahead)
        inner_state, advice, inner = self.agent.step(problem, state.inner, seen)

        finite = jnp.isfinite(problem.drop_covariates(observation.context)).all()  # a covariate may be missing
        observation = dataclasses.replace(observation, context=jnp.where(finite, observation.context, 0.0))

        def observe(i, own, ratio):
            reference = self.references[i].on(problem)
            return reference.observe(problem, state.prepared[i], own, ratio, observation).only_if(finite)

        terms = self._map(observe, state.references, self._by_reference(state.ratios))
        choice = self._allow(problem, state, observation, terms, finite).choose(problem, advice)
        accounts, references = self._settle(problem, state, observation, terms, choice)
        age = None if state.age is None else state.age + 1
        after = dataclasses.replace(state, inner=inner_state, references=references, accounts=accounts, age=age)
        solved = [_all(term.converged) for term in terms if term.converged is not None]
        converged = functools.reduce(jnp.logical_and, solved, inner.converged & _all(accounts.kept))
        return after, choice.action, Info(converged, advice, self._details(accounts, choice.active), inner)

    def _allow(
        self,
        problem: AnyProblem,
        state: GuardState,
        observation: Observation,
        terms: tuple[Any, ...],
        finite: Bool[Array, ""],
    ) -> "Allowed":
        """Return what the promises allow together."""
        first, previous = self.references[0].on(problem), problem.last_action(observation.previous_action)
        usable = functools.reduce(jnp.logical_and, [_all(term.usable) for term in terms], finite)
        kept = functools.reduce(jnp.logical_and, [_all(term.announced) for term in terms], state.accounts.kept & usable)
        left, reach = self._by_reference(state.accounts.left), first.reachable(problem, previous)
        if self._slots.several:
            origin = Origin.at(previous)
            given = problem, state.prepared[0], observation, jnp.min(state.ratios), origin
            safest, known = first.common_action(*given)
            sets = self._join(self._map(lambda i, term, left: term.level_set(left, origin), terms, left))
            kept &= known & jnp.all(jax.vmap(lambda one: one.sound)(sets))
            rounding = jax.lax.stop_gradient(jnp.finfo(previous.dtype).eps * jnp.abs(previous + safest))
            known = {"safest": safest, "when_lost": safest, "hold": previous, "rounding": rounding}
            return Allowed(origin, sets, previous, kept, usable, reach, several=True, **known)
        term, sets = terms[0], terms[0].level_set(left[0])
        safest = sets.lowest() if term.safest is None else term.safest
        known = {
            "safest": safest,
            "when_lost": safest if term.when_lost is None else term.when_lost,
            "hold": previous if term.hold is None else term.hold,
            "rounding": term.origin.rounding,
        }
        kept &= sets.sound
        return Allowed(term.origin, sets, previous, kept, usable, reach, is_lowest=term.safest is None, **known)

    def _settle(
        self,
        problem: AnyProblem,
        state: GuardState,
        observation: Observation,
        terms: tuple[Any, ...],
        choice: "Choice",
    ) -> tuple[Account, tuple[Any, ...]]:
        """Return the accounts, and the references' states, after the action was played."""

        def settle(i, term, own, ratio):
            return self.references[i].on(problem).settle(problem, term, own, ratio, observation, choice.action)

        settled = self._map(settle, terms, state.references, self._by_reference(state.ratios))
        names = ("growth", "rounding", "reported", "cost", "cost_rounding", "paid")
        growth, error, *reported = (self._join([getattr(each, name) for each in settled]) for name in names)
        gained, *costs = reported
        cost, rounding, paid = (jnp.where(choice.usable, each, 0.0) for each in costs)
        asked = self._by_account(self._asked_ratios(growth.dtype))
        given = growth, cost, rounding + asked * error, choice.kept, (paid, gained), choice.rounded
        return state.accounts.update(asked, *given), tuple(each.state for each in settled)

    def _details(self, accounts: Account, active: Bool[Array, "*n"]) -> dict[str, Array]:
        """Return the figures of each promise, of windows those of the account with the least left."""
        found = accounts.details() | {
            "active": active | ~accounts.kept,
            "kept": accounts.kept,
            "kept_steps": accounts.steps,
        }
        if not self._slots.several:
            return {name: figure[None] for name, figure in found.items()}
        mine = [np.flatnonzero(self._slots.promise == i) for i in range(len(self.promises))]
        tightest = jnp.stack([jnp.asarray(each)[jnp.argmin(accounts.left[each])] for each in mine])
        by_promise = {name: figure[tightest] for name, figure in found.items()}
        by_promise["active"] = jnp.stack([jnp.any(found["active"][each]) for each in mine])
        by_promise["kept"] = jnp.stack([jnp.all(accounts.kept[each]) for each in mine])
        return by_promise


def _all(of_accounts: Bool[Array, "*n"]) -> Bool[Array, ""]:
    """Return whether something is so for all accounts, one or several."""
    return jnp.all(of_accounts) if of_accounts.ndim else of_accounts


class Choice(eqx.Module):
    """The action that is played, and by account: whether it differs from the advice, whether the promise is kept so far, and what
    rounding to a spacing adds to its allowance.
    """

    action: Action
    active: Bool[Array, "*n"]
    kept: Bool[Array, "*n"]
    rounded: Float[Array, "*n"]
    usable: Bool[Array, ""]


class Allowed(eqx.Module):
    """What the promises allow at a step.

    Args:
        origin: from where the sets, and the actions below except `hold`, are measured.
        sets: what each account allows.
        previous: (d,), the action in force, absolute.
        kept: by account, whether the promise is kept so far.
        usable: whether the step has a cost.
        reach: the least and the greatest action that a ramp and the promise allow, absolute; None without a ramp.
        safest: (d,), an action in all sets.
        when_lost: (d,), what is played once a promise is lost.
        hold: (d,), what is played where the step is not usable, absolute.
        rounding: (d,), as in `pull_inside`.
        several: whether there are several accounts.
        is_lowest: whether the safest action has the least cost and reserve.
    """

    origin: Origin
    sets: AbstractLevelSet
    previous: Action
    kept: Bool[Array, "*n"]
    usable: Bool[Array, ""]
    reach: tuple[Action, Action] | None
    safest: Action
    when_lost: Action
    hold: Action
    rounding: Action
    several: bool = eqx.field(static=True, default=False)
    is_lowest: bool = eqx.field(static=True, default=False)

    def choose(self, problem: AnyProblem, advice: Action) -> Choice:
        """Return the advice if it is allowed, else an action on the way to it, within what limits on actions leave."""
        origin, inside, safest, is_lowest = self.origin, problem.relaxed.actions, self.safest, self.is_lowest
        target, when_lost = inside.project(advice), self.when_lost
        if self.reach is not None:
            target, is_lowest = jnp.clip(advice, *self.reach), False
            safest, when_lost = (jnp.clip(u, *map(origin.away, self.reach)) for u in (safest, when_lost))
        away = origin.away(target)
        pulled = pull_inside(self.sets, safest, away, self.rounding, several=self.several, is_lowest=is_lowest)
        all_kept, active, rounded = _all(self.kept), pulled.active, jnp.zeros_like(self.kept, safest.dtype)
        action = inside.project(origin.back(jnp.where(all_kept, pulled.action, when_lost)))
        action = jnp.where(all_kept & _all(~active), target, action)  # to the last bit
        if problem.actions.spacing is not None:
            points = self.previous, target, origin.back(pulled.action), origin.back(when_lost)
            action, active, rounded = round_inside(problem.actions, *points, self.kept, self._spare)
        action = problem.limit(self.previous, jnp.where(self.usable, action, self.hold))
        return Choice(action, active, self.kept, rounded, self.usable)

    def _spare(self, action: Action) -> Float[Array, "*n"]:
        away = self.origin.away(action)
        return jax.vmap(lambda one: one.spare(away))(self.sets) if self.several else self.sets.spare(away)
