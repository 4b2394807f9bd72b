"""The cluster's cost against its definition, and the oracle against the same model in cvxpy."""

import re
from pathlib import Path

import cvxpy as cp
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.paper.right_sizing import Cluster, cheapest_actions, make_synthetic_workload
from ecl2o.problem import ClusterCost
from ecl2o.problem.arrays import to_device

CLUSTER = Cluster()
PROBLEM = CLUSTER.problem()
UPPER = CLUSTER.of_kinds("capacity")


def _cost() -> ClusterCost:
    fn = PROBLEM.hitting.fn
    assert isinstance(fn, ClusterCost)
    return fn


def _points(n: int, largest_load: float = 80.0):
    random = np.random.default_rng(1)
    return random.uniform(0, UPPER, (n, 3)), random.uniform(0, largest_load, (n, 1))


def _bill(racks, loads, workload) -> float:
    """The hour's bill for a given split, kind by kind, in the words of `problem.cluster_cost`."""
    total, speed = 0.0, 0.0
    for kind, x, load in zip(CLUSTER.kinds, racks, loads, strict=True):
        n = x + kind.standby
        u = load / (kind.speed * n)
        power = kind.idle * n + kind.losses * n**2 / 2 + kind.dynamic * n * u**2
        total += CLUSTER.energy_price * power + CLUSTER.delay_price * load * u
        speed += kind.speed * n
    late = CLUSTER.softness * np.logaddexp(0, (workload - CLUSTER.headroom * speed) / CLUSTER.softness)
    return total + CLUSTER.overload_price * late


def test_the_split_is_the_cheapest_one_and_its_bill_is_the_cost():
    random = np.random.default_rng(2)
    split, cost = eqx.filter_jit(_cost().split), eqx.filter_jit(PROBLEM.hitting)
    for racks, workload in zip(*_points(30), strict=True):
        y = float(workload[0])
        best = np.asarray(split(racks, workload[0]))
        assert best.min() > 0
        assert np.isclose(best.sum(), y)
        bill = _bill(racks, best, y)
        np.testing.assert_allclose(float(cost(racks, workload)), bill, rtol=1e-12)
        for other in random.dirichlet(np.ones(3), 20) * y:
            assert _bill(racks, other, y) >= bill - 1e-9


def test_m_is_the_smallest_curvature_and_is_nearly_attained():
    racks, loads = _points(4000)
    smallest = jax.jit(jax.vmap(lambda x, y: jnp.linalg.eigvalsh(PROBLEM.hitting.hessian(x, y))[0]))
    assert float(smallest(racks, loads).min()) >= float(PROBLEM.m)
    assert float(smallest(racks, 1e-3 * loads).min()) <= 1.001 * float(PROBLEM.m)
    assert float(PROBLEM.m) == pytest.approx(0.12 * 0.3)


def test_the_cost_is_finite_and_not_negative_however_large_the_load():
    racks, loads = _points(500, largest_load=1e5)
    racks = np.concatenate([racks, np.zeros((1, 3))])
    costs = np.asarray(jax.jit(jax.vmap(PROBLEM.hitting))(racks, np.concatenate([loads, [[1e6]]])))
    slopes = jax.jit(jax.vmap(PROBLEM.hitting.gradient))(racks[:-1], loads)
    assert np.isfinite(costs).all()
    assert (costs > 0).all()
    assert np.isfinite(slopes).all()


def test_movement_couples_the_kinds():
    Q = np.asarray(PROBLEM.Q)
    assert (Q[~np.eye(3, dtype=bool)] > 0).all()
    assert 0 < float(PROBLEM.alpha) < float(PROBLEM.beta)
    swap, both = np.array([1.5, -1.0, 0.0]), np.array([1.5, 1.0, 0.0])  # 1.5 krps one way and the other
    separate, move = 1.5**2 * Q[0, 0] + Q[1, 1], eqx.filter_jit(PROBLEM.switching)
    assert float(move(swap, np.zeros(3))) < separate < float(move(both, np.zeros(3)))


def test_the_figures_are_those_of_the_page():
    page = (Path(__file__).parents[2] / "docs" / "right-sizing.md").read_text(encoding="utf-8")
    for names in (["capacity", "standby"], *[[name] for name in ("speed", "idle", "dynamic", "losses", "start_up")]):
        start = "| " + ", ".join(f"`{name}`" for name in names)
        (row,) = [line.split("|")[2:5] for line in page.splitlines() if line.startswith(start)]
        shown = np.array([[float(number) for number in cell.split(",")] for cell in row])
        np.testing.assert_array_equal(shown.T, [CLUSTER.of_kinds(name) for name in names])
    for name in ("energy_price", "delay_price", "overload_price", "softness", "migration"):
        assert re.search(rf"`{name}`( is)? {getattr(CLUSTER, name):g} ", page), name
    assert f"`headroom` of {100 * CLUSTER.headroom:g} %" in page


def test_bad_figures_are_refused_by_name():
    with pytest.raises(ValueError, match="losses must be positive"):
        eqx.tree_at(lambda c: c.losses, _cost(), jnp.zeros(3)).__check_init__()
    with pytest.raises(ValueError, match="migration"):
        Cluster(migration=-1.0)
    with pytest.raises(ValueError, match="kinds"):
        Cluster(kinds=())


class _Referee:
    """The week's problem for cvxpy, with the load of each kind as a variable of its own: no closed form is assumed."""

    def __init__(self, hours: int):
        speed, standby = CLUSTER.of_kinds("speed"), CLUSTER.of_kinds("standby")
        self.y, self.x0 = cp.Parameter(hours, nonneg=True), cp.Parameter(3)
        x, loads, squares = cp.Variable((hours, 3)), cp.Variable((hours, 3)), cp.Variable((hours, 3))
        on = x + np.tile(standby, (hours, 1))
        within = cp.multiply(np.tile(speed, (hours, 1)), on)
        ones = np.ones(hours)
        being_on = CLUSTER.energy_price * (
            cp.sum(on @ CLUSTER.of_kinds("idle")) + cp.sum(cp.square(on) @ CLUSTER.of_kinds("losses")) / 2
        )
        # squares_ti >= loads_ti^2 / within_ti as a rotated cone
        flat = cp.vstack([2 * cp.vec(loads, order="F"), cp.vec(squares - within, order="F")])
        cones = cp.SOC(cp.vec(squares + within, order="F"), flat, axis=0)
        per_load = CLUSTER.delay_price + CLUSTER.energy_price * CLUSTER.of_kinds("dynamic") / speed
        beyond = (self.y - CLUSTER.headroom * within @ np.ones(3)) / CLUSTER.softness
        late = CLUSTER.overload_price * CLUSTER.softness * cp.sum(cp.logistic(beyond))
        root = np.linalg.cholesky(np.asarray(PROBLEM.Q))
        before = cp.vstack([cp.reshape(self.x0, (1, 3), order="C"), x[:-1]])
        bill = being_on + cp.sum(squares @ per_load) + late + cp.sum_squares((x - before) @ root)
        limits = [cones, x >= 0, x <= np.tile(UPPER, (hours, 1)), loads @ np.ones(3) == cp.multiply(ones, self.y)]
        self.problem = cp.Problem(cp.Minimize(bill), limits)

    def cost(self, x0, workload) -> float:
        self.x0.value, self.y.value = np.asarray(x0), np.asarray(workload)
        self.problem.solve(solver=cp.CLARABEL)
        assert self.problem.status == cp.OPTIMAL
        return float(self.problem.value)


def test_oracle_agrees_with_cvxpy_on_twenty_random_weeks():
    random, hours = np.random.default_rng(3), 168
    values = make_synthetic_workload(seed=4).values
    starts = random.integers(0, len(values) - hours, 20)
    weeks = np.asarray(values[starts[:, None] + np.arange(hours)])
    x0 = random.uniform(0, UPPER, (20, 3))
    best = jax.device_get(jax.jit(jax.vmap(lambda x, y: ec.oracle(PROBLEM, ec.Instance(x, y))))(x0, weeks))
    assert bool(best.converged.all())
    referee = _Referee(hours)
    expected = [referee.cost(x, week[:, 0]) for x, week in zip(x0, weeks, strict=True)]
    np.testing.assert_allclose(np.asarray(best.cost), expected, rtol=1e-5)
    at_bound = (best.actions <= 0) | (best.actions >= UPPER)
    assert 0.2 < float(at_bound.any(-1).mean()) < 1.0


def test_gradients_through_newton_with_active_bounds_match_differences():
    """EC-L2O's whole loss, on days with bounds active on many steps and free coordinates on others."""
    contexts = make_synthetic_workload(seed=5)
    days = to_device(np.asarray(contexts.validation_days().days[:4]))
    x0 = cheapest_actions(PROBLEM, days[:, 0])
    instances = ec.Instance(x0, days)
    oracles = jax.jit(jax.vmap(lambda i: ec.oracle(PROBLEM, i)))(instances)
    scale = ec.advisors.Scaling.of(oracles.actions.reshape(-1, 3))
    network = ec.advisors.MLP(
        3, 1, width=4, depth=1, key=jax.random.key(0), contexts=ec.advisors.Scaling(10.0, 5.0), actions=scale
    )
    agent, loss = ec.MLAROBD(network, trust=0.5), ec.CalibratedLoss(mu=0.3)
    leaves, shape = jax.tree.flatten(agent.advisor.layers)
    sizes = np.cumsum([leaf.size for leaf in leaves])[:-1]

    def layers(flat):
        parts = [part.reshape(leaf.shape) for part, leaf in zip(jnp.split(flat, sizes), leaves, strict=True)]
        return jax.tree.unflatten(shape, parts)

    def value(flat):
        return loss(eqx.tree_at(lambda a: a.advisor.layers, agent, layers(flat)), PROBLEM, instances, oracles)

    weights = np.concatenate([np.ravel(leaf) for leaf in leaves]).astype(float)
    directions = np.random.default_rng(1).normal(size=(6, weights.size))
    step = 1e-5
    moves = step * np.concatenate([np.zeros((1, weights.size)), directions, -directions])
    # One after the other: a program for one point is half as long as one for all of them at once.
    every = jax.jit(lambda points: jax.lax.map(jax.value_and_grad(value), points))
    values, slopes = jax.device_get(every(weights + moves))
    np.testing.assert_allclose(directions @ slopes[0], (values[1:7] - values[7:]) / (2 * step), rtol=2e-5, atol=1e-7)
    runs = jax.device_get(jax.jit(jax.vmap(lambda i: ec.rollout(agent, PROBLEM, i)))(instances))
    held = (runs.actions <= 0) | (runs.actions >= UPPER)
    assert bool(runs.converged.all())
    assert 0.05 < float(held.mean()) < 0.95
