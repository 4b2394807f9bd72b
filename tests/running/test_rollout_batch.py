"""A set rolled out at once is the set rolled out one by one, for every kind of agent."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from conformance.registry import CASES, HORIZON
from ecl2o.agents import Start
from ecl2o.running import Stepper, rollout_batch


@functools.cache
def problem_of(dim: int) -> ec.Problem:
    return ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=dim))


@functools.cache
def instances_of(dim: int, history: int) -> ec.Instance:
    rng = np.random.default_rng(dim)
    past = rng.normal(size=(4, history, dim)) if history else None
    return ec.Instance(rng.normal(size=(4, dim)), rng.normal(size=(4, HORIZON, dim)), past)


@eqx.filter_jit
def both_ways(agent, problem, instances):
    """In one program, which compiles faster than two."""
    one_by_one = jax.vmap(lambda s: ec.rollout(agent, problem, s))(instances)
    return rollout_batch(agent, problem, instances), one_by_one


def assert_same(found, expected):
    """Every field, the agent's own report included, up to the order of summation."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10)


def seasonal(dim, days=1):
    """Every weight counts: the default start ignores the profile."""
    advisor = ec.advisors.SeasonalLinear(dim, dim, period=3, days=days)
    weight = np.random.default_rng(5).normal(size=advisor.weights.weight.shape) / 8
    return eqx.tree_at(lambda a: a.weights.weight, advisor, jnp.asarray(weight))


def mlp(dim):
    return ec.advisors.MLP(dim, dim, width=3, depth=2, key=jax.random.key(0))


def lstm(dim):
    return ec.advisors.LSTM(dim, dim, width=3, depth=2, key=jax.random.key(0))


MORE = {
    "MLP": (lambda: mlp(3), 3, 0),
    "LSTM": (lambda: lstm(3), 3, 0),
    "SeasonalLinear without history": (lambda: seasonal(1), 1, 0),
    "SeasonalLinear with a short history": (lambda: seasonal(3, days=2), 3, 4),
    "SeasonalLinear with a long history": (lambda: seasonal(1, days=2), 1, 9),
    "PureML of an LSTM": (lambda: ec.PureML(lstm(1)), 1, 0),
    "Independent of MLAROBD of an MLP": (lambda: ec.Independent(ec.MLAROBD(mlp(1))), 1, 0),
    "MLAROBD of SeasonalLinear": (lambda: ec.MLAROBD(seasonal(3), trust=0.3), 3, 5),
    "Guarded MLAROBD of an LSTM": (lambda: ec.Guarded(ec.MLAROBD(lstm(1))), 1, 0),
    "MLAROBD of RHC": (lambda: ec.MLAROBD(ec.RHC(2)), 1, 0),
    "MLAROBD of PureML of CHC": (lambda: ec.MLAROBD(ec.PureML(ec.CHC(2, 2))), 1, 0),
}


@pytest.mark.parametrize("name", MORE)
def test_a_set_is_its_instances(name):
    make, dim, history = MORE[name]
    assert_same(*both_ways(make(), problem_of(dim), instances_of(dim, history)))


def kind_of(agent: ec.AbstractAgent) -> tuple[type, ...]:
    """The class of an agent; a guard's references tell it from other guards."""
    return type(agent), *map(type, getattr(agent, "references", ()))


ONE_OF_A_KIND = {kind_of(case.make(1)): case for case in reversed(CASES)}.values()


@pytest.mark.parametrize("case", ONE_OF_A_KIND, ids=lambda case: case.name)
def test_a_set_is_its_instances_for_every_kind_of_agent(case):
    assert_same(*both_ways(case.make(1), problem_of(1), instances_of(1, case.history)))


@pytest.mark.parametrize("advisor", ["MLP", "RHC"])
def test_an_agent_may_differ_by_instance(advisor):
    """`agent_axes` as in vmap, on both paths: the loop outside, and the map outside for agents with a lookahead."""
    problem, instances = problem_of(1), instances_of(1, 0)
    base = ec.MLAROBD(mlp(1) if advisor == "MLP" else ec.RHC(1))
    trusts = jnp.array([0.0, 0.3, 1.0, 9.0])
    agents = eqx.tree_at(lambda a: a.trust, base, trusts)
    axes = eqx.tree_at(lambda a: a.trust, jax.tree.map(lambda _: None, base), 0, is_leaf=lambda leaf: leaf is None)
    found = eqx.filter_jit(rollout_batch)(agents, problem, instances, axes)
    for i, trust in enumerate(trusts):
        one = jax.tree.map(lambda leaf, i=i: leaf[i], instances)
        alone = ec.rollout(eqx.tree_at(lambda a: a.trust, base, trust), problem, one)
        np.testing.assert_allclose(found.actions[i], alone.actions, rtol=1e-10)


def test_a_set_works_in_the_precision_of_x0():
    instances = jax.tree.map(lambda leaf: leaf.astype("float32"), instances_of(1, 0))
    assert eqx.filter_jit(rollout_batch)(ec.MLAROBD(mlp(1)), problem_of(1), instances).actions.dtype == np.float32


def test_trust_out_of_range_is_refused_where_it_is_concrete():
    """As after an optimiser's step on all leaves: `eqx.tree_at` does not check."""
    spoiled = eqx.tree_at(lambda a: a.trust, ec.MLAROBD(ec.Greedy()), jnp.asarray(-0.5))
    problem, instances = problem_of(1), instances_of(1, 0)
    with pytest.raises(ValueError, match=r"-0\.5"):
        rollout_batch(spoiled, problem, instances)
    with pytest.raises(ValueError, match=r"-0\.5"):
        Stepper(spoiled, problem).init(Start(jnp.zeros(1), jnp.zeros((0, 1))))
    looking = eqx.tree_at(lambda a: a.trust, ec.MLAROBD(ec.RHC(2)), jnp.asarray(-0.5))
    with pytest.raises(ValueError, match=r"-0\.5"):
        rollout_batch(looking, problem, instances)
