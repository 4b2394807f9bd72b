"""Promises for contexts in a band around a forecast: closed forms, referees, attacks from inside the band, gradients."""

import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.optimize import lsq_linear

import ecl2o as ec
from ecl2o.exceptions import NotApplicableError
from ecl2o.forecasters import AbstractClairvoyantForecaster
from ecl2o.forecasters.forecasters import Slices
from ecl2o.solvers.box_qp import maximize_on_box
from ecl2o.theory import smallest_control_ratio

RUNS = int(os.environ.get("ECL2O_HOSTILE_RUNS", "240"))
T = 8
LINE = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(10.0, 1))
BATTERY = ec.battery(10.0, 0.05)


class Told(AbstractClairvoyantForecaster):
    """Forecasts that are given, (T, q)."""

    centre: jax.Array

    def prepare(self, contexts, window, key):
        return Slices(jnp.concatenate([self.centre, jnp.zeros((window, contexts.shape[1]))]), window)


def run(agent, problem, x0, contexts, centre):
    return ec.rollout(agent, problem, ec.Instance(x0, contexts), Told(jnp.asarray(centre)))


# --- the quadratic program


def test_a_box_program_is_solved_as_by_scipy():
    rng = np.random.default_rng(0)
    roots = rng.normal(size=(40, 9, 9)) + 0.3 * np.eye(9)
    H, c = -roots.transpose(0, 2, 1) @ roots, 3 * rng.normal(size=(40, 9))
    low = rng.normal(size=(40, 9))
    high = low + rng.exponential(size=(40, 9))
    found, gap = map(np.asarray, jax.jit(jax.vmap(maximize_on_box))(H, c, low, high))
    for place in range(40):
        target = np.linalg.solve(roots[place].T, c[place])
        best = lsq_linear(roots[place], target, (low[place], high[place]), method="bvls", tol=1e-14, max_iter=500).x
        values = [0.5 * d @ H[place] @ d + c[place] @ d for d in (found[place], best)]
        np.testing.assert_allclose(values[0], values[1], rtol=1e-9)
    assert (found >= low).all()
    assert (found <= high).all()
    assert gap.max() < 1e-9


@pytest.mark.parametrize("ratio", [1.75, 2.5])
def test_a_constant_band_is_the_closed_form(ratio):
    rng = np.random.default_rng(1)
    contexts, advice = rng.uniform(0, 0.8, size=(T, 1)), ec.advisors.Fixed(2 * rng.normal(size=(T, 1)))
    for half_width, known in ((0.4, (0.0, 0.8)), (1e4, None)):
        ours = run(ec.CompetitiveBand(advice, half_width, ratio, T), LINE, [0.3], contexts, np.full((T, 1), 0.4))
        theirs = ec.rollout(ec.Competitive(advice, ratio, T, contexts=known), LINE, ec.Instance([0.3], contexts))
        assert theirs.details["active"].sum() > T // 2
        np.testing.assert_allclose(ours.actions, theirs.actions, atol=1e-8)


# --- attacks


class Referee:
    """A game in dense matrices: residuals of the best path as a matrix of (x0, d), by least squares over all actions."""

    def __init__(self, problem: ec.ControlProblem, ratio: float):
        self.problem, self.ratio = problem, ratio
        n, k, q = problem.state_dim, problem.action_dim, problem.context_dim
        F, B, E, M = (np.asarray(getattr(problem, name)) for name in "FBEM")
        sizes, basis = np.linalg.eigh(M)
        root = np.sqrt(np.maximum(sizes, 0.0))[:, None] * basis.T
        eye, rows = np.eye(n + T * (k + q)), []
        state, u, d = eye[:n], eye[n : n + T * k].reshape(T, k, -1), eye[n + T * k :].reshape(T, q, -1)
        for t in range(T):
            rows.append(root @ np.vstack([state, u[t], d[t]]))
            state = F @ state + B @ u[t] + E @ d[t]
        self.rows, self.n, self.k, self.q = np.stack(rows), n, k, q

    def best(self, steps: int) -> np.ndarray:
        rows = self.rows[:steps].reshape(-1, self.rows.shape[-1])
        actions, given = (
            rows[:, self.n : self.n + steps * self.k],
            np.hstack([rows[:, : self.n], self.contexts(rows, steps)]),
        )
        basis = np.linalg.qr(actions)[0]
        return given - basis @ (basis.T @ given)

    def contexts(self, rows, steps):
        first = self.n + T * self.k
        return rows[:, first : first + steps * self.q]

    def optimum(self, x0, contexts) -> float:
        return 0.5 * np.sum((self.best(T) @ np.concatenate([x0, contexts.ravel()])) ** 2)

    def worst(self, x0, state, contexts, step: int, low, high):
        """The later contexts in the band that maximise the cost to go less ratio * optimum, and that difference."""
        to_go, whole, split = self.best(T - step - 1), self.best(T), self.n + (step + 1) * self.q
        fixed, told = to_go[:, : self.n] @ state, whole[:, :split] @ np.concatenate([x0, contexts[: step + 1].ravel()])
        ahead, later = to_go[:, self.n :], whole[:, split:]
        hessian = self.ratio * later.T @ later - ahead.T @ ahead
        slope = ahead.T @ fixed - self.ratio * later.T @ told
        root = np.linalg.cholesky(hessian).T
        ends = low[step + 1 :].ravel(), high[step + 1 :].ravel()
        found = lsq_linear(root, np.linalg.solve(root.T, slope), ends, method="bvls", tol=1e-14, max_iter=500).x
        value = np.sum((fixed + ahead @ found) ** 2) - self.ratio * np.sum((told + later @ found) ** 2)
        return np.concatenate([contexts[: step + 1], found.reshape(-1, self.q)]), 0.5 * value

    def follow(self, x0, actions, contexts):
        F, B, E, M = (np.asarray(getattr(self.problem, name)) for name in "FBEM")
        states, cost = [np.asarray(x0)], []
        for action, context in zip(actions, contexts, strict=True):
            point = np.concatenate([states[-1], action, context])
            cost.append(0.5 * point @ M @ point)
            states.append(F @ states[-1] + B @ action + E @ context)
        return states, np.cumsum(cost)


@jax.jit
def _play(ratio, half_width, x0, contexts, centre, advice):
    def alone(ratio, half_width, x0, contexts, centre, advice):
        guard = ec.CompetitiveBand(ec.advisors.Fixed(advice), half_width, ratio, T)
        made = run(guard, BATTERY, x0, contexts, centre)
        return made.actions, made.details["kept"][:, 0], made.details["active"][:, 0]

    return jax.vmap(alone)(ratio, half_width, x0, contexts, centre, advice)


def draw(runs: int, seed: int):
    rng = np.random.default_rng(seed)
    smallest = smallest_control_ratio(BATTERY, T)
    ratio = 1 + rng.choice([1.01, 1.2, 2.0], size=runs) * (smallest - 1)
    centre = np.cumsum(rng.normal(size=(runs, T, 1)), axis=1)
    half_width = 10.0 ** rng.uniform(-2, 1, size=(runs, 1))
    contexts = centre + half_width[:, None] * np.where(
        rng.random((runs, 1, 1)) < 0.5, rng.uniform(-1, 1, centre.shape), rng.choice([-1, 1], centre.shape)
    )
    advice = rng.normal(size=(runs, T, 1)) * 10.0 ** rng.uniform(-1, 3, size=(runs, T, 1))
    advice[rng.random((runs, T)) < 0.1] = np.nan
    return ratio, half_width, rng.normal(size=(runs, 2)), contexts, centre, advice


def play(ratio, half_width, x0, contexts, centre, advice):
    return map(np.asarray, _play(ratio, half_width, x0, contexts, centre, advice))


def test_no_adversary_inside_the_band_breaks_the_promise():
    runs = RUNS // 10
    ratio, half_width, x0, contexts, centre, advice = draw(runs, seed=2)
    low, high = centre - half_width[:, None], centre + half_width[:, None]
    referees, largest = [Referee(BATTERY, each) for each in ratio], 0.0
    actions, _, _ = play(ratio, half_width, x0, contexts, centre, advice)
    for turn in (1, 4):
        states = [r.follow(x0[i], actions[i], contexts[i])[0][turn + 1] for i, r in enumerate(referees)]
        worst = [r.worst(x0[i], states[i], contexts[i], turn, low[i], high[i])[0] for i, r in enumerate(referees)]
        contexts = np.stack(worst)
        actions, kept, _ = play(ratio, half_width, x0, contexts, centre, advice)
        assert kept.all()  # the set was never empty
        for i, r in enumerate(referees):
            optimum = r.optimum(x0[i], contexts[i])
            largest = max(largest, r.follow(x0[i], actions[i], contexts[i])[1][-1] / (ratio[i] * optimum))
    print(f"{runs} games of two rounds: {largest - 1:+.1e}")
    assert 0.99 < largest <= 1 + 1e-8


def test_actions_just_outside_are_punished_inside_the_band():
    runs, at = RUNS // 10, 3
    ratio, half_width, x0, contexts, centre, advice = draw(runs, seed=3)
    low, high = centre - half_width[:, None], centre + half_width[:, None]
    advice = np.nan_to_num(advice) / (1 + np.abs(np.nan_to_num(advice)))
    given = {name: advice.copy() for name in ("safest", "border")}
    given["safest"][:, at], given["border"][:, at] = np.nan, 1e5
    safest, border = (next(play(ratio, half_width, x0, contexts, centre, each)) for each in given.values())
    apart = np.abs(border[:, at, 0] - safest[:, at, 0]) > 1e-3
    assert apart.mean() > 0.7
    for i in np.flatnonzero(apart):
        r = Referee(BATTERY, ratio[i])
        for share, over in ((1.001, True), (0.999, False)):
            action = safest[i, at] + share * (border[i, at] - safest[i, at])
            path = np.concatenate([safest[i, :at], action[None], safest[i, at + 1 :]])
            states, costs = r.follow(x0[i], path, contexts[i])
            _, value = r.worst(x0[i], states[at + 1], contexts[i], at, low[i], high[i])
            assert (costs[at] + value > 0) == over
    print(f"{apart.sum()} of {apart.sum()} punished")


# --- what ends a promise, and what is rejected


def test_a_context_outside_the_band_ends_the_promise():
    contexts = np.full((T, 1), 1.0)
    contexts[4] = 1.6
    guard = ec.CompetitiveBand(ec.advisors.Fixed(np.zeros((T, 1))), 0.5, 2.0, T)
    kept = np.asarray(run(guard, LINE, [0.0], contexts, np.ones((T, 1))).details["kept"][:, 0])
    assert kept[:4].all()
    assert not kept[4:].any()
    contexts[4] = 1.5  # the very end of the band
    assert run(guard, LINE, [0.0], contexts, np.ones((T, 1))).details["kept"].all()


def test_the_band_of_a_period_starts_with_it():
    """Periods of a run have bands of their own, around the forecast of their first step."""
    rng = np.random.default_rng(4)
    contexts = np.concatenate([np.zeros(T), np.full(T, 50.0)])[:, None] + rng.uniform(-0.5, 0.5, size=(2 * T, 1))
    advice = ec.advisors.Fixed(rng.normal(size=(2 * T, 1)))
    centre = np.concatenate([np.zeros(T), np.full(T, 50.0)])[:, None]
    daily = ec.CompetitiveBand(advice, 0.5, 2.0, T, period=T)
    both = run(daily, LINE, [0.0], contexts, centre)
    assert both.details["kept"].all()
    for first, x0 in ((0, [0.0]), (T, both.actions[T - 1])):
        day = ec.Instance(x0, contexts[first : first + T])
        cost = float((both.hitting + both.switching)[first : first + T].sum())
        assert cost <= 2.0 * float(ec.oracle(LINE, day).cost) * (1 + 1e-9)
    assert "at the end of every 8 steps" in str(daily.promise(LINE))
    assert "band" in str(daily.promise(LINE))


@pytest.mark.parametrize(
    ("problem", "ratio", "steps"),
    [
        (LINE, 1.5, T),
        (LINE, 2.0, T + 1),
        (eqx.tree_at(lambda p: p.actions, LINE, ec.Box(0.0, 1.0)), 2.0, T),
        (ec.Problem(ec.CurvedTracking(1.0, 2.0), ec.Mahalanobis.isotropic(10.0, 1)), 2.0, T),
        (BATTERY, 1.01, T),
    ],
)
def test_what_cannot_be_promised_is_rejected(problem, ratio, steps):
    q = 2 if isinstance(getattr(problem, "F", None), type(None)) and "Curved" in repr(problem) else 1
    x0 = np.zeros(2 if problem is BATTERY else 1)
    guard = ec.CompetitiveBand(ec.advisors.Fixed(np.zeros((steps, 1))), 0.5, ratio, T)
    with pytest.raises(NotApplicableError):
        ec.rollout(guard, problem, ec.Instance(x0, np.ones((steps, q))))


# --- gradients


def test_training_through_the_band():
    rng = np.random.default_rng(5)
    contexts = rng.normal(size=(T, 1)).cumsum(0)
    network = ec.advisors.MLP(1, 1, width=4, depth=1, key=jax.random.key(3), state_dim=2)
    guard = ec.CompetitiveBand(network, 0.6, 1.3, T)
    weights, frozen = eqx.partition(guard, ec.trainable_mask(guard))
    flat, restore = ravel_pytree(weights)
    centre = contexts + 0.3

    def loss(flat):
        made = run(eqx.combine(restore(flat), frozen), BATTERY, jnp.array([0.5, -1.0]), contexts, centre)
        return made.cost, made.details["active"]

    slope, active = jax.jit(jax.grad(loss, has_aux=True))(flat)
    assert active.any()
    direction = jnp.asarray(rng.normal(size=flat.shape))
    value = jax.jit(lambda share: loss(flat + share * direction)[0])
    np.testing.assert_allclose(slope @ direction, (value(1e-5) - value(-1e-5)) / 2e-5, rtol=1e-5, atol=1e-8)
