"""Plans of a `ControlProblem` with hard limits of actions and states, beside cvxpy."""

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.forecasters import Persistence
from ecl2o.planning.control_path import find_optimal_controls

T = 12
BATTERY = ec.battery(10.0, 0.05, power_within=(-1.0, 0.8), charge_within=(-2.0, 1.5))


def solve(problem, x0, contexts, price=None):
    """Return actions and cost of the plan by cvxpy; with a price, violations of states' bounds are allowed at that price."""
    F, B, E, M = (np.asarray(each, float) for each in (problem.F, problem.B, problem.E, problem.M))
    sizes, directions = np.linalg.eigh(M)
    root = (directions * np.sqrt(np.clip(sizes, 0, None))).T
    u, x, cost, kept, over = cp.Variable((len(contexts), B.shape[1])), x0, 0, [], 0
    ends = [
        np.asarray(problem.actions.bounds(B.shape[1], float)),
        np.asarray(problem.states_within.bounds(len(F), float)),
    ]
    for t, d in enumerate(contexts):
        cost += 0.5 * cp.sum_squares(root @ cp.hstack([x, u[t], d]))
        x = F @ x + B @ u[t] + E @ d
        for place, (point, (low, high)) in enumerate(zip((u[t], x), ends, strict=True)):
            for i in np.flatnonzero(np.isfinite(low)):
                if place == 0 or price is None:
                    kept += [low[i] <= point[i], point[i] <= high[i]]
                else:
                    over += cp.pos(low[i] - point[i]) + cp.pos(point[i] - high[i])
    found = cp.Problem(cp.Minimize(cost + (0 if price is None else price * over)), kept)
    found.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    return found.status, u.value


plan = jax.jit(lambda problem, x0, contexts: find_optimal_controls(problem, x0, contexts))


def path_cost(problem, x0, actions, contexts):
    return float(problem.costs(jnp.asarray(x0), jnp.asarray(actions), jnp.asarray(contexts))[0].sum())


@pytest.mark.parametrize("seed", range(3))
def test_a_plan_of_a_battery_with_limits_is_the_optimum(seed):
    rng = np.random.default_rng(seed)
    x0, contexts = rng.uniform([-1.0, -2.0], [0.8, 1.5]), 2 * rng.normal(size=(T, 1)).cumsum(0)
    found = plan(BATTERY, jnp.asarray(x0), jnp.asarray(contexts))
    _, best = solve(BATTERY, x0, contexts)
    charge = x0[1] - np.cumsum(found.actions)
    assert found.converged
    assert np.abs(found.actions - best).max() < 1e-4  # Clarabel's tolerance too
    assert path_cost(BATTERY, x0, found.actions, contexts) <= path_cost(BATTERY, x0, best, contexts) * (1 + 1e-8)
    assert charge.min() >= -2.0 - 1e-9
    assert charge.max() <= 1.5 + 1e-9
    power = np.asarray(found.actions)
    assert min(charge.min() + 2.0, 1.5 - charge.max(), power.min() + 1.0, 0.8 - power.max()) < 1e-6  # a limit binds


@pytest.mark.parametrize(("seed", "size"), [(0, 0.5), (7, 1.5)])
def test_disturbances_that_no_action_can_absorb_are_violated_least(seed, size):
    rng = np.random.default_rng(seed)
    F, B, E, R = (rng.normal(size=shape) for shape in ((3, 3), (3, 2), (3, 2), (7, 7)))
    low, high = np.array([-0.8, -np.inf, -0.7]), np.array([0.9, np.inf, 0.7])
    F /= np.abs(np.linalg.eigvals(F)).max()
    problem = ec.ControlProblem(F, B, 0.3 * E, R.T @ R, ec.Box(-1.0, 1.0), ec.Box(low, high))
    contexts = size * rng.normal(size=(T, 2))
    found = plan(problem, jnp.zeros(3), jnp.asarray(contexts))
    status, best = solve(problem, np.zeros(3), contexts)
    assert (status == cp.OPTIMAL) == (size < 1)
    if status != cp.OPTIMAL:
        _, best = solve(problem, np.zeros(3), contexts, price=1e5)
    assert found.converged
    assert np.abs(found.actions).max() <= 1.0

    def violation(actions):
        states = np.asarray(problem.states(jnp.zeros(3), jnp.asarray(actions), jnp.asarray(contexts)))[1:]
        return (np.maximum(low - states, 0) + np.maximum(states - high, 0)).sum()

    assert violation(found.actions) == pytest.approx(violation(best), abs=1e-5)
    assert path_cost(problem, np.zeros(3), found.actions, contexts) <= path_cost(
        problem, np.zeros(3), best, contexts
    ) * (1 + 1e-4)


def test_mpc_keeps_limits_whatever_comes_and_returns_from_outside():
    rng = np.random.default_rng(1)
    contexts = np.concatenate([3 * rng.normal(size=(12, 1)), np.full((12, 1), 9.0), np.full((12, 1), -9.0)])
    run = ec.rollout(ec.RHC(5, truncate=False), BATTERY, ec.Instance([0.0, 0.0], contexts), Persistence())
    states = np.asarray(BATTERY.states(jnp.zeros(2), run.actions, jnp.asarray(contexts)))[1:]
    assert np.asarray(run.converged).all()
    assert states[:, 1].min() >= -2.0 - 1e-9
    assert states[:, 1].max() <= 1.5 + 1e-9
    assert np.asarray(run.actions).min() >= -1.0
    assert np.asarray(run.actions).max() <= 0.8
    outside = plan(BATTERY, jnp.array([0.0, 5.0]), jnp.zeros((T, 1)))  # at full power 0.8 until the charge is 1.5
    charge = 5.0 - np.cumsum(outside.actions)
    assert charge[:4] == pytest.approx(5.0 - 0.8 * np.arange(1, 5), abs=1e-5)
    assert charge[4:].max() <= 1.5 + 1e-6


def test_within_limits_moves_only_what_must_be_moved():
    wishes = np.array([[0.3], [5.0], [-5.0], [np.nan], [0.1]] * 3)
    instance = ec.Instance([0.0, 0.5], np.zeros((15, 1)))
    run = ec.rollout(ec.agents.WithinLimits(ec.advisors.Fixed(wishes)), BATTERY, instance)
    expected, charge = [], 0.5
    for wish in np.nan_to_num(wishes[:, 0]):
        expected.append(np.clip(wish, max(-1.0, charge - 1.5), min(0.8, charge + 2.0)))
        charge -= expected[-1]
    assert np.asarray(run.converged).all()
    assert np.asarray(run.actions)[:, 0] == pytest.approx(expected, abs=1e-7)
    assert float(run.actions[0, 0]) == 0.3


def test_the_derivative_of_a_plan_is_that_of_central_differences():
    contexts, x0 = jnp.linspace(2.0, -1.0, T)[:, None], jnp.array([0.1, 0.2])
    weights = jnp.cos(jnp.arange(float(T)))

    def value(high, shift):
        problem = ec.battery(10.0, 0.05, power_within=(-1.0, 0.8), charge_within=(-2.0, 1.5))
        problem = ec.ControlProblem(
            problem.F, problem.B, problem.E, problem.M, problem.actions, ec.Box(jnp.array([-jnp.inf, -2.0]), high)
        )
        return jnp.sum(weights * find_optimal_controls(problem, x0, contexts + shift).actions[:, 0])

    high, shift = jnp.array([jnp.inf, 0.1]), 0.3
    ours = jax.jit(jax.grad(value, (0, 1)))(high, shift)
    step, run = 1e-5, jax.jit(value)
    by_high = (run(high.at[1].add(step), shift) - run(high.at[1].add(-step), shift)) / (2 * step)
    by_shift = (run(high, shift + step) - run(high, shift - step)) / (2 * step)
    assert float(ours[0][1]) == pytest.approx(float(by_high), rel=1e-4, abs=1e-5)
    assert float(ours[1]) == pytest.approx(float(by_shift), rel=1e-4, abs=1e-5)
    assert abs(float(by_shift)) > 1e-3
