"""Identities and bounds, and what every agent owes its callers, for every case of the registry."""

import functools
import importlib
import inspect
import pkgutil

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o import agents
from ecl2o.agents import AbstractAgent, Observation, Start
from ecl2o.agents.guards import references
from ecl2o.agents.guards.references.base import AbstractReference
from ecl2o.forecasters import AbstractClairvoyantForecaster
from ecl2o.problem.arrays import cast_floats, to_device
from ecl2o.theory import decay_root

from .registry import CASES, CONTROLLERS, ELSEWHERE, HORIZON, Case
from .suite import ANY, forecaster_of, instances_of, kinds_of, of_cases, problem_of, settings_of

SCALE, SHIFT = -2.5, 7.0  # of the equivariance check
CHANGED_AFTER = (1, 3)  # steps whose future is changed by the causality check


# --- what was played -------------------------------------------------------------------------------------------------


def _one(instances: ec.Instance, i: int) -> ec.Instance:
    return jax.tree.map(lambda leaf: to_device(np.asarray(leaf)[i]), instances)


def differentiated(case: Case) -> tuple[str, int]:
    """Where this case's gradient is looked at, and its runs are those that come with the gradient."""
    return ("box", case.dims[0]) if ("box", case.dims[0]) in kinds_of(case) else ("open", case.dims[-1])


@functools.cache
def runs_and_slopes(case: Case):
    """A function from contexts and five instances to ((scores, runs), slopes of the scores in the contexts)."""
    kind, dim = differentiated(case)
    problem, agent, forecaster = problem_of(kind, dim), case.make(dim), forecaster_of(case)
    weights = np.random.default_rng(3).normal(size=(HORIZON, dim))

    def score(contexts, instance):
        run = ec.rollout(agent, problem, eqx.tree_at(lambda s: s.contexts, instance, contexts), forecaster)
        return jnp.sum(weights * run.actions) + run.cost, run

    return jax.jit(jax.vmap(jax.value_and_grad(score, has_aux=True)))


@functools.cache
def player(case: Case, kind: str, dim: int):
    """A function from five instances to the runs of this case."""
    if (kind, dim) == differentiated(case) and not case.repeats:
        return lambda instances: runs_and_slopes(case)(instances.contexts, instances)[0][1]
    problem, agent, forecaster = problem_of(kind, dim), case.make(dim), forecaster_of(case)
    return jax.jit(jax.vmap(lambda s: ec.rollout(agent, problem, s, forecaster)))


@functools.cache
def evidence(case: Case, kind: str, dim: int) -> list[ec.Trajectory]:
    """Runs of the five instances, of the scaled and shifted ones, and of those whose future is changed."""
    base = instances_of(dim, case.history)
    moved = jax.tree.map(lambda leaf: SCALE * np.asarray(leaf) + SHIFT, base) if kind == "open" else base
    sees = case.make(dim).lookahead if isinstance(forecaster_of(case), AbstractClairvoyantForecaster) else 0
    changed = [_changed_from(base, t + sees) for t in CHANGED_AFTER]
    run = player(case, kind, dim)
    # Not one batch: products round by place in a batch. Off the device, since what follows would compile every operator.
    return [jax.device_get(run(instances)) for instances in (base, moved, *changed)]


def _changed_from(instances: ec.Instance, first: int) -> ec.Instance:
    """The same with other contexts from step `first` on."""
    contexts = np.array(instances.contexts)
    contexts[:, first:] = 1.0 - 3.0 * contexts[:, first:]
    return eqx.tree_at(lambda s: s.contexts, instances, to_device(contexts))


@functools.cache
def best_of(kind: str, dim: int, history: int = 0) -> ec.Trajectory:
    problem = problem_of(kind, dim)
    return jax.device_get(jax.jit(jax.vmap(lambda s: ec.oracle(problem, s)))(instances_of(dim, history)))


@functools.cache
def greedy_of(kind: str, dim: int, history: int = 0) -> ec.Trajectory:
    problem = problem_of(kind, dim)
    run = jax.jit(jax.vmap(lambda s: ec.rollout(ec.Greedy(), problem, s)))
    return jax.device_get(run(instances_of(dim, history)))


def assert_close(found, expected, case: Case):
    """Equal up to the case's tolerance, relative to the largest number (the far jump makes some of them large)."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=case.tolerance * (1 + np.abs(expected).max()))


# --- the list itself ------------------------------------------------------------------------------------------------


def _exported() -> dict[type, str]:
    return {
        cls: f"{home.__name__}.{name}"
        for home in (agents, agents.advisors)
        for name, cls in vars(home).items()
        if inspect.isclass(cls) and issubclass(cls, AbstractAgent) and not inspect.isabstract(cls)
    }


def _inside(value) -> set[type]:
    """The classes of an agent and of every agent in its fields."""
    if isinstance(value, AbstractAgent):
        parts = [getattr(value, name) for name in value.__dataclass_fields__]
        return {type(value)}.union(*map(_inside, parts))
    if isinstance(value, tuple | list):
        return set().union(*map(_inside, value))
    return set()


def test_every_agent_is_registered():
    covered = set().union(*(_inside(case.make(case.dims[0])) for case in CASES)) | CONTROLLERS
    missing = sorted(name for cls, name in _exported().items() if cls not in covered)
    assert not missing, f"in no case of tests/conformance/registry.py: {missing}"


def _kinds_of_promises() -> set[type]:
    for module in pkgutil.iter_modules(references.__path__, f"{references.__name__}."):
        importlib.import_module(module.name)
    found, classes = set(), [AbstractReference]
    while classes:
        found.add(one := classes.pop())
        classes += one.__subclasses__()
    return {one for one in found if not inspect.isabstract(one)}


def _promised(case: Case) -> set[type]:
    """The references of a case's guards, on the problems on which it is run."""
    settings = [(problem_of(kind, dim), ec.agents.walk_agents(case.make(dim))) for kind, dim in kinds_of(case)]
    guards = [(problem, agent) for problem, inside in settings for agent in inside if isinstance(agent, ec.Guard)]
    return {type(reference.on(problem)) for problem, guard in guards for reference in guard.references}


def test_every_kind_of_promise_is_registered():
    missing = _kinds_of_promises() - set().union(ELSEWHERE, *map(_promised, CASES))
    assert not missing, f"in no case of tests/conformance/registry.py: {missing}"


def test_names_of_cases_are_unique():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)


# --- the acceptance matrix ------------------------------------------------------------------------------------------


@of_cases()
def test_runs_are_finite_and_converge(case):
    for kind, dim in settings_of(case, *ANY):
        for runs in evidence(case, kind, dim):
            assert np.isfinite(runs.actions).all(), (kind, dim)
            assert runs.converged.all(), (kind, dim)


@of_cases(lambda case: case.box == "refuses" or not case.convex)
def test_refuses_what_it_does_not_support(case):
    unsupported = [("box", case.dims[0])] * (case.box == "refuses") + [("function", case.dims[0])] * (not case.convex)
    for kind, dim in unsupported:
        with pytest.raises(ec.NotApplicableError):
            case.make(dim).init(
                problem_of(kind, dim), Start(to_device(np.zeros(dim)), to_device(np.zeros((0, dim))), HORIZON)
            )


@of_cases(lambda case: case.ema)
def test_is_the_moving_average_of_contexts(case):
    base = jax.device_get(instances_of(1, case.history))
    r, x = float(decay_root(1.0, 10.0)), base.x0
    runs = evidence(case, "open", 1)[0]
    for t in range(HORIZON):
        y = base.contexts[:, t]
        x = y + r * (x - y)
        assert_close(runs.actions[:, t], x, case)


@of_cases(lambda case: case.equals_greedy)
def test_equals_greedy(case):
    for kind, dim in settings_of(case, *ANY):
        assert_close(evidence(case, kind, dim)[0].actions, greedy_of(kind, dim, case.history).actions, case)


@of_cases(lambda case: case.equals_oracle)
def test_equals_oracle(case):
    for kind, dim in settings_of(case, *ANY):
        assert_close(evidence(case, kind, dim)[0].actions, best_of(kind, dim, case.history).actions, case)


@of_cases(lambda case: case.equivariant)
def test_equivariant_under_shift_and_scale(case):
    for _, dim in settings_of(case, "open"):
        base, moved, *_ = evidence(case, "open", dim)
        assert_close(moved.actions, SCALE * base.actions + SHIFT, case)
        expected = SCALE**2 * np.asarray(base.cost)
        np.testing.assert_allclose(moved.cost, expected, rtol=1e3 * case.tolerance, atol=1e-9)


IDENTITIES = {
    "ema": test_is_the_moving_average_of_contexts,
    "equals_greedy": test_equals_greedy,
    "equals_oracle": test_equals_oracle,
    "equivariant": test_equivariant_under_shift_and_scale,
}


@of_cases()
def test_identities_hold_only_where_they_are_claimed(case):
    """Which shows that those four checks can fail, and that a case's instances tell it from its simpler relatives."""
    for claim, check in IDENTITIES.items():
        if not getattr(case, claim):
            with pytest.raises(AssertionError):
                check(case)
    assert not (case.ema and case.equals_greedy)  # so at least one of them was asked


@of_cases()
def test_says_that_it_is_linear_where_it_is_claimed(case):
    """Never on a box or with a function that the library knows nothing about, but for advice that does not look at problems."""
    says = {dim for _, dim in settings_of(case, "open") if case.make(dim).is_linear(problem_of("open", dim))}
    assert says == set(case.linear)
    for kind, dim in set(kinds_of(case)) - {("open", dim) for dim in case.dims}:
        assert case.make(dim).is_linear(problem_of(kind, dim)) == (case.name in ("HoldStill", "SeasonalLinear")), kind


@of_cases(lambda case: case.linear)
def test_linear_as_it_says(case):
    """A combination of instances, some of it large, is played as the combination of what was played."""

    def combined(leaf):
        return np.asarray(leaf) - 700.0 * np.roll(leaf, 1, axis=0)

    for dim in case.linear:
        mixed = player(case, "open", dim)(jax.tree.map(combined, instances_of(dim, case.history)))
        assert_close(mixed.actions, combined(evidence(case, "open", dim)[0].actions), case)


@of_cases()
def test_causal(case):
    for kind, dim in settings_of(case, *ANY):
        base, _, *changed = evidence(case, kind, dim)
        for t, runs in zip(CHANGED_AFTER, changed, strict=True):
            np.testing.assert_array_equal(runs.actions[:, :t], base.actions[:, :t])


@of_cases()
def test_costs_no_less_than_the_oracle(case):
    for kind, dim in settings_of(case, *(("open",) if case.box == "ignores" else ANY)):
        runs, best = evidence(case, kind, dim)[0], best_of(kind, dim, case.history)
        cost, least = np.asarray(runs.cost), np.asarray(best.cost)
        assert (cost >= least * (1 - 1e-9) - 1e-12).all(), (kind, dim, cost / least)


@of_cases(lambda case: case.bound is not None)
def test_never_exceeds_its_bound(case):
    for kind, dim in settings_of(case, *ANY):
        runs, best = evidence(case, kind, dim)[0], best_of(kind, dim, case.history)
        largest = case.bound(problem_of(kind, dim), instances_of(dim, case.history), runs, best)
        assert largest.shape == (5,)
        cost = np.asarray(runs.cost)
        assert (cost <= largest * (1 + 1e-9) + 1e-12).all(), (kind, dim, cost / largest)


@of_cases(lambda case: case.box == "inside" and not case.variant)
def test_stays_in_the_box(case):
    for kind, dim in settings_of(case, "box", "function"):
        for runs in evidence(case, kind, dim):
            assert ((runs.actions >= -0.4) & (runs.actions <= 0.7)).all(), (kind, dim)


@of_cases(lambda case: case.total)
def test_shares_the_total(case):
    """In the instances as they are; others are variations of them."""
    contexts = instances_of(3, case.history).contexts
    actions = np.asarray(evidence(case, "total", 3)[0].actions)
    np.testing.assert_allclose(actions.sum(axis=-1), contexts[..., 0], rtol=1e-9, atol=1e-9)


@of_cases(lambda case: ("function", case.dims[0]) in kinds_of(case))
def test_fast_path_equals_general_path(case):
    """A quadratic cost that the library knows to be one, and the same cost given as an arbitrary function."""
    for kind, dim in settings_of(case, "function"):
        assert_close(evidence(case, kind, dim)[0].actions, evidence(case, "box", dim)[0].actions, case)


# --- what callers rely on -------------------------------------------------------------------------------------------


@of_cases()
def test_leaves_are_arrays(case):
    for dim in case.dims:
        assert all(eqx.is_array(leaf) for leaf in jax.tree.leaves(case.make(dim)))


@of_cases(lambda case: not case.repeats)
def test_vmap_equals_a_loop_with_one_trace(case):
    dim = case.dims[-1]
    problem, instances, forecaster = problem_of("open", dim), instances_of(dim, case.history), forecaster_of(case)
    run = eqx.filter_jit(eqx.debug.assert_max_traces(ec.rollout, max_traces=1))
    batch = evidence(case, "open", dim)[0]
    cost = np.asarray(batch.cost)
    for i in range(5):
        alone = run(case.make(dim), problem, _one(instances, i), forecaster)
        assert_close(alone.actions, batch.actions[i], case)
        np.testing.assert_allclose(alone.cost, cost[i], rtol=1e3 * case.tolerance, atol=1e-9)


@of_cases(lambda case: not case.repeats)
def test_gradient_with_respect_to_contexts(case):
    instances = instances_of(differentiated(case)[1], case.history)
    slopes = np.asarray(runs_and_slopes(case)(instances.contexts, instances)[1])
    assert np.isfinite(slopes).all()
    if not case.smooth:
        return
    directions, contexts = np.random.default_rng(4).normal(size=slopes.shape), np.asarray(instances.contexts)
    step = 1e-5
    (ahead, _), _ = runs_and_slopes(case)(contexts + step * directions, instances)
    (behind, _), _ = runs_and_slopes(case)(contexts - step * directions, instances)
    expected = (np.asarray(ahead) - np.asarray(behind))[:3] / (2 * step)
    np.testing.assert_allclose(np.sum(slopes * directions, axis=(1, 2))[:3], expected, rtol=2e-5, atol=2e-6)


@of_cases(lambda case: not case.repeats)
def test_single_precision_stays_single(case):
    dim = case.dims[0]
    problem = problem_of("open", dim)
    instance = cast_floats(_one(instances_of(dim, case.history), 0), jnp.float32)
    run = ec.rollout(case.make(dim), problem, instance, forecaster_of(case))
    for values in (run.actions, run.hitting, run.switching, run.cost):
        assert values.dtype == jnp.float32
    np.testing.assert_allclose(run.actions, evidence(case, "open", dim)[0].actions[0], rtol=0, atol=2e-3)


@functools.cache
def _known_from(case: Case, dim: int):
    """(start, observation of step t) of the first instance, as a streaming runner makes them."""
    instance = _one(instances_of(dim, case.history), 0)
    horizon = HORIZON if case.uses_horizon else None
    window = case.make(dim).lookahead
    start = Start(instance.x0, instance.past, horizon)
    forecasts = _forecasts(forecaster_of(case), instance, window) if window else [None] * HORIZON
    contexts = np.asarray(instance.contexts)

    def observation(t, previous):
        remaining = None if horizon is None else to_device(np.asarray(horizon - 1 - t))
        return Observation(to_device(contexts[t]), previous, to_device(np.asarray(t)), remaining, forecasts[t])

    return start, observation


def _forecasts(forecaster, instance: ec.Instance, window: int) -> list:
    """What is foreseen at each step, asked for one by one."""
    steps, contexts = range(HORIZON), np.asarray(instance.contexts)
    if isinstance(forecaster, AbstractClairvoyantForecaster):
        ask = jax.jit(lambda contexts, t: forecaster.prepare(contexts, window, None).at(t))
        return [ask(contexts, np.asarray(t)) for t in steps]
    memory, forecasts = forecaster.init(instance.past, window), []
    step = jax.jit(lambda memory, context: forecaster.step(memory, context, window))
    for t in steps:
        memory, forecast = step(memory, contexts[t])
        forecasts.append(forecast)
    return forecasts


@of_cases(lambda case: not case.repeats)
def test_stepping_by_hand_equals_rollout(case):
    dim = case.dims[-1]
    problem, agent = problem_of("open", dim), case.make(dim)
    start, observation = _known_from(case, dim)
    step = jax.jit(lambda state, seen: agent.step(problem, state, seen))
    begin = jax.jit(lambda x0, history: agent.init(problem, Start(x0, history, start.horizon)))
    state, action, actions = begin(start.x0, start.history), start.x0, []
    for t in range(HORIZON):
        state, action, _ = step(state, observation(t, action))
        actions.append(action)
    assert_close(np.stack(actions), evidence(case, "open", dim)[0].actions[0], case)


@of_cases(lambda case: not case.repeats)
def test_state_is_arrays_of_stable_structure(case):
    dim = case.dims[-1]
    problem, agent = problem_of("open", dim), case.make(dim)
    start, observation = _known_from(case, dim)

    def begin():
        state = agent.init(problem, start)
        assert all(eqx.is_array(leaf) for leaf in jax.tree.leaves(state))
        return state

    before = jax.eval_shape(begin)
    after, action, info = jax.eval_shape(agent.step, problem, before, observation(0, start.x0))
    assert jax.tree.structure(after) == jax.tree.structure(before)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert (old.shape, old.dtype) == (new.shape, new.dtype)
    assert (action.shape, action.dtype) == ((dim,), start.x0.dtype)
    assert (info.converged.shape, info.converged.dtype) == ((), jnp.bool_)
