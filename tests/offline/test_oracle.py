"""The oracles against cvxpy, and against what defines them."""

import cvxpy as cp
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import ecl2o as ec
from ecl2o.planning.optimal_path import _path_cost, _path_curvature
from ecl2o.solvers.bounded_newton import minimize_sequence


def _spd(rng, d: int, smallest: float, largest: float) -> np.ndarray:
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return basis @ np.diag(np.linspace(smallest, largest, d)) @ basis.T


def _softplus_tracking(x, y):
    """Not quadratic, and known to cvxpy."""
    return jnp.sum(jax.nn.softplus(2 * (x - y))) + 0.5 * jnp.sum((x - y) ** 2)


def _referee(hitting, Q, x0, T, box=None, budget=None, free_start=False) -> tuple[np.ndarray, float]:
    """The same problem handed to cvxpy."""
    x = cp.Variable((T, len(x0)))
    root = np.linalg.cholesky(Q).T
    moves = cp.vstack([x[0] - x0] + [x[t] - x[t - 1] for t in range(1, T)]) @ root.T
    constraints = [] if box is None else [x >= box[0], x <= box[1]]
    if budget is not None:
        constraints.append(cp.sum_squares(moves[1:] if free_start else moves) <= budget)
    problem = cp.Problem(cp.Minimize(hitting(x) + cp.sum_squares(moves)), constraints)
    if problem.is_qp():  # polished on its active set, OSQP is exact to rounding
        problem.solve(solver=cp.OSQP, eps_abs=1e-9, eps_rel=1e-9, max_iter=200_000, polishing=True)
    else:
        problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    assert x.value is not None
    return x.value, float(problem.value)


def _quadratic_referee(A, y):
    root = np.linalg.cholesky(A).T
    return lambda x: 0.5 * cp.sum_squares((x - y) @ root.T)


def _softplus_referee(y):
    return lambda x: cp.sum(cp.logistic(2 * (x - y))) + 0.5 * cp.sum_squares(x - y)


@pytest.mark.parametrize(("d", "T"), [(1, 200), pytest.param(3, 40, marks=pytest.mark.optimised), (8, 20)])
@pytest.mark.parametrize("bounded", [False, True])
def test_agrees_with_cvxpy(d, T, bounded):
    rng = np.random.default_rng(d + T)
    A, Q = _spd(rng, d, 0.5, 4.0), _spd(rng, d, 0.3, 5.0)
    x0, y = rng.uniform(-0.3, 0.5, d), 2 * rng.normal(size=(T, d))
    box = (-0.4, 0.6) if bounded else None
    actions = ec.Everywhere() if box is None else ec.Box(*box)
    best = ec.oracle(ec.Problem(ec.Quadratic(A), ec.Mahalanobis(Q), actions), ec.Instance(x0, y))
    expected, cost = _referee(_quadratic_referee(A, y), Q, x0, T, box)
    assert bool(best.converged.all())
    np.testing.assert_allclose(best.cost, cost, rtol=1e-8)
    np.testing.assert_allclose(best.actions, expected, atol=1e-6)
    if bounded:
        assert float(((best.actions == box[0]) | (best.actions == box[1])).mean()) > 0.1


@pytest.mark.optimised
def test_agrees_with_cvxpy_on_a_general_cost():
    d, T = 3, 20
    rng = np.random.default_rng(7)
    Q, x0, y = _spd(rng, d, 0.3, 2.0), rng.uniform(-0.3, 0.5, d), 2 * rng.normal(size=(T, d))
    box = (-0.9, 0.6)
    problem = ec.Problem(ec.ConvexCost(_softplus_tracking, 1.0), ec.Mahalanobis(Q), ec.Box(*box))
    best = ec.oracle(problem, ec.Instance(x0, y))
    expected, cost = _referee(_softplus_referee(y), Q, x0, T, box)
    assert bool(best.converged.all())
    np.testing.assert_allclose(best.cost, cost, rtol=1e-7)
    np.testing.assert_allclose(best.actions, expected, atol=1e-5)  # as exact as the conic solver is


@pytest.mark.parametrize(("d", "T"), [(1, 200), (2, 40)])
@pytest.mark.parametrize("bounded", [False, True])
def test_agrees_with_cvxpy_on_two_sided_costs(d, T, bounded):
    rng = np.random.default_rng(17 + d)
    Q, x0, y = _spd(rng, d, 0.5, 3.0), rng.uniform(-0.3, 0.5, d), 2 * rng.normal(size=(T, d))
    box = (-0.4, 0.6) if bounded else None
    actions = ec.Everywhere() if box is None else ec.Box(*box)
    best = ec.oracle(ec.Problem(ec.AsymmetricTracking(4.0, 0.5), ec.Mahalanobis(Q), actions), ec.Instance(x0, y))
    expected, cost = _referee(
        lambda x: 2.0 * cp.sum_squares(cp.pos(y - x)) + 0.25 * cp.sum_squares(cp.pos(x - y)), Q, x0, T, box
    )
    assert bool(best.converged.all())
    np.testing.assert_allclose(best.cost, cost, rtol=1e-8)
    np.testing.assert_allclose(best.actions, expected, atol=1e-6)
    assert 0.05 < float((best.actions < y).mean()) < 0.95


def test_two_sided_costs_take_few_newton_steps():
    """Newton's method on a piecewise quadratic ends after finitely many steps: few, also over a year of hours."""
    rng = np.random.default_rng(19)
    for alpha in (0.1, 10.0, 1e4):
        problem = ec.Problem(ec.AsymmetricTracking(3.0, 1.0), ec.Mahalanobis.isotropic(alpha, dim=1))
        y = np.cumsum(rng.normal(size=(8760, 1)), axis=0)
        shape, edge = jnp.zeros((8760, 1)), jnp.full((8760, 1), jnp.inf)
        parameters = (problem, jnp.zeros(1), jnp.asarray(y), jnp.ones(8760))
        found = minimize_sequence(_path_cost, _path_curvature, shape, parameters, -edge, edge)
        assert bool(found.converged)
        assert int(found.steps) <= 25


def test_an_optimum_that_overflows_did_not_converge():
    problem = ec.Problem(ec.Quadratic([[8.0]]), ec.Mahalanobis([[1.0]]))
    assert bool(ec.oracle(problem, ec.Instance([0.0], [[1.0], [2.0]])).converged.all())
    assert not bool(ec.oracle(problem, ec.Instance([0.0], [[1e308], [2.0]])).converged.any())


def test_varying_curvature_equals_the_general_path():
    """CurvedTracking in closed form, and the same cost as an arbitrary function."""
    rng = np.random.default_rng(8)
    x0, contexts = rng.normal(size=2), np.concatenate([rng.normal(size=(9, 2)), rng.uniform(0, 30, (9, 1))], axis=1)
    switching = ec.Mahalanobis(_spd(rng, 2, 0.3, 2.0))
    cost = ec.CurvedTracking(1.0)
    instance = ec.Instance(x0, contexts)
    closed = ec.oracle(ec.Problem(cost, switching), instance)
    general = ec.oracle(ec.Problem(ec.ConvexCost(lambda x, y: cost(x, y), 1.0), switching), instance)
    np.testing.assert_allclose(closed.actions, general.actions, atol=1e-10)


def test_long_and_short_paths_agree():
    """Short paths are inverted, long ones swept: the first steps of a long calm path are those of a short one."""
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=0.2, dim=1))
    y = np.random.default_rng(9).normal(size=(120, 1))
    short, long = (ec.oracle(problem, ec.Instance([0.0], y[:T])) for T in (60, 120))
    np.testing.assert_allclose(short.actions[:20], long.actions[:20], atol=1e-12)


def test_gradient_of_the_optimal_actions_with_active_bounds():
    rng = np.random.default_rng(10)
    A, x0, y = _spd(rng, 2, 0.5, 2.0), np.array([0.1, 0.2]), 2 * rng.normal(size=(4, 2))
    problem = ec.Problem(ec.Quadratic(A), ec.Mahalanobis(_spd(rng, 2, 0.3, 2.0)), ec.Box(-0.5, 0.6))

    @jax.jit
    def best(y, upper):
        moved = eqx.tree_at(lambda p: p.actions.upper, problem, upper)
        return ec.oracle(moved, ec.Instance(jnp.asarray(x0), y)).actions

    y, upper = jnp.asarray(y), jnp.asarray(0.6)
    assert float((best(y, upper) == 0.6).sum()) > 0
    check_grads(best, (y, upper), order=1, modes=("rev",), eps=1e-5, rtol=1e-6, atol=1e-8)


# --- under a movement budget ----------------------------------------------------------------------------------------

D, T = 2, 12
RNG = np.random.default_rng(11)
A, Q = _spd(RNG, D, 0.5, 3.0), _spd(RNG, D, 0.4, 2.0)
X0, Y = RNG.uniform(-0.3, 0.5, D), 2 * RNG.normal(size=(T, D))
INSTANCE = ec.Instance(X0, Y)
OPEN = ec.Problem(ec.Quadratic(A), ec.Mahalanobis(Q))


@pytest.mark.parametrize("free_start", [False, True])
@pytest.mark.parametrize("share", [0.02, 0.5])
def test_constrained_oracle_agrees_with_cvxpy(free_start, share):
    best = ec.oracle(OPEN, INSTANCE)
    budget = share * float(best.switching[1:].sum() if free_start else best.switching.sum())
    tight = ec.constrained_oracle(OPEN, INSTANCE, budget, free_start=free_start)
    expected, cost = _referee(_quadratic_referee(A, Y), Q, X0, T, None, budget, free_start)
    spent = float(tight.switching[1:].sum() if free_start else tight.switching.sum())
    np.testing.assert_allclose(spent, budget, rtol=1e-9)
    np.testing.assert_allclose(tight.cost, cost, rtol=1e-6)
    np.testing.assert_allclose(tight.actions, expected, atol=1e-4)  # as exact as the conic solver is


def test_constrained_oracle_in_a_box_agrees_with_cvxpy():
    line = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=3.0, dim=1), ec.Box(-0.4, 0.8))
    instance = ec.Instance(X0[:1], Y[:, :1])
    budget = 0.3 * float(ec.oracle(line, instance).switching.sum())
    tight = ec.constrained_oracle(line, instance, budget)
    expected, cost = _referee(_quadratic_referee(np.eye(1), Y[:, :1]), 1.5 * np.eye(1), X0[:1], T, (-0.4, 0.8), budget)
    np.testing.assert_allclose(tight.cost, cost, rtol=1e-6)
    np.testing.assert_allclose(tight.actions, expected, atol=1e-4)  # as exact as the conic solver is
    assert bool(tight.converged.all())


def test_a_budget_of_zero_stays():
    still = ec.constrained_oracle(OPEN, INSTANCE, 0.0)
    np.testing.assert_array_equal(still.actions, np.broadcast_to(X0, (T, D)))


def test_a_budget_of_zero_with_a_free_start_is_the_best_static_action():
    static = ec.constrained_oracle(OPEN, INSTANCE, 0.0, free_start=True)
    expected = np.linalg.solve(T * A + 2 * Q, A @ Y.sum(axis=0) + 2 * Q @ X0)
    np.testing.assert_allclose(static.actions, np.broadcast_to(expected, (T, D)), atol=1e-9)


def test_enough_budget_is_the_oracle():
    best = ec.oracle(OPEN, INSTANCE)
    for factor in (1.0, 1.001, 50.0):
        rich = ec.constrained_oracle(OPEN, INSTANCE, factor * float(best.switching.sum()) * (1 + 1e-12))
        np.testing.assert_array_equal(rich.actions, best.actions)


def test_cost_falls_and_movement_grows_with_the_budget():
    total = float(ec.oracle(OPEN, INSTANCE).switching.sum())
    budgets = jnp.linspace(0.0, 1.2 * total, 25)
    runs = jax.jit(jax.vmap(lambda L: ec.constrained_oracle(OPEN, INSTANCE, L)))(budgets)
    assert bool((jnp.diff(runs.cost) <= 1e-9).all())
    assert bool((jnp.sum(runs.switching, axis=1) <= budgets * (1 + 1e-9) + 1e-12).all())
    np.testing.assert_allclose(jnp.sum(runs.switching, axis=1)[:20], budgets[:20], rtol=1e-8)


# --- day after day --------------------------------------------------------------------------------------------------


def test_oracle_days_is_a_loop_of_oracles():
    days = RNG.normal(size=(4, 5, D))
    runs, starts = ec.oracle_days(OPEN, jnp.asarray(X0), jnp.asarray(days))
    x0 = jnp.asarray(X0)
    for k in range(4):
        np.testing.assert_allclose(starts[k], x0, atol=1e-12)
        run = ec.oracle(OPEN, ec.Instance(x0, days[k]))
        np.testing.assert_allclose(runs.actions[k], run.actions, atol=1e-12)
        np.testing.assert_allclose(runs.cost[k], run.cost, rtol=1e-12)
        x0 = run.actions[-1]
