"""Promises relative to a baseline, and several at once: no adversary breaks them, and what they forbid can be punished.

Every run has its own alpha, from 1e-3 to 1e6, ratios, contexts and advice. After some steps the adversary turns to the worst
future for a promise, once or at every step. The referee is NumPy: costs of actions, optima by dense dynamic programming, the
baseline's path; of promises that are of the size of rounding, and of runs that lost theirs, 60 digits. More runs:
ECL2O_HOSTILE_RUNS=5000 (for each cost and number of dimensions), with -s for the largest figures.
"""

import decimal
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents import Observation, Start
from ecl2o.agents.guards.references.base import PromiseTerms
from ecl2o.agents.guards.references.baseline import Baseline
from ecl2o.agents.guards.references.optimum import Optimum
from ecl2o.theory import limit_stiffness, smallest_joint_ratio, worst_future
from matrices import spd

RUNS = int(os.environ.get("ECL2O_HOSTILE_RUNS", "240"))
T = 36
PROMISE = 1e-9
MOST_EXACT = 200  # runs of a case that are judged in 60 digits
ROUNDING = 1e-25  # of the square of the contexts' size: a promise of this size is what rounding an action costs


class Homing(ec.AbstractAgent):
    """The best path for who knows that the context stays: the baseline that an adversary would choose."""

    greatest: jax.Array

    def init(self, problem, start):
        return limit_stiffness(self.greatest.astype(start.x0.dtype), 2 * problem.Q)

    def step(self, problem, S, seen):
        A, y = problem.hitting.curvature(seen.context, len(S)), problem.hitting.centre(seen.context, len(S))
        action = jnp.linalg.solve(A + 2 * problem.Q + S, (A + S) @ y + 2 * problem.Q @ seen.previous_action)
        return S, action, ec.Info.plain()


def shapes_of(kind: str, dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A_lo, A_hi, and G for alpha = 1."""
    least = np.eye(dim) if dim == 1 or kind == "curved" else spd(dim, 5, 1.0, 6.0)
    return least, 5 * least if kind == "curved" else least, np.eye(dim) if dim == 1 else spd(dim, 6, 0.4, 3.0)


def problem_of(kind: str, dim: int, alpha) -> ec.Problem:
    least, _, G = shapes_of(kind, dim)
    hitting = ec.CurvedTracking(1.0, 5.0) if kind == "curved" else ec.Quadratic(least)
    return ec.Problem(hitting, ec.Mahalanobis(alpha / 2 * G))


def draw(kind: str, dim: int, runs: int, seed: int):
    """(alpha, x0, contexts, advice, mode, turn): what a run is given; mode 0: contexts, 1: punished once, 2: at every step."""
    rng = np.random.default_rng(seed)
    alpha, x0 = 10.0 ** rng.uniform(-3, 6, size=runs), rng.normal(size=(runs, dim))
    noise = rng.normal(size=(runs, T, dim))
    contexts = np.choose(
        rng.integers(4, size=(runs, 1, 1)),
        [
            noise,
            np.cumsum(noise, axis=1) / 3,
            noise * (rng.uniform(size=(runs, T, 1)) < 0.1) * 10,
            noise[:, :1] * (-1.0) ** np.arange(T)[None, :, None],
        ],
    )
    if kind == "curved":
        weights = np.clip(10.0 ** rng.uniform(-0.3, 1.0, size=(runs, T, 1)), 1.0, 5.0)
        contexts = np.concatenate([contexts, weights], axis=-1)
    size = 10.0 ** rng.integers(-2, 6, size=(runs, 1, 1))
    advice = size * np.choose(
        rng.integers(2, size=(runs, 1, 1)), [rng.normal(size=noise.shape), noise[:, :1] + 0 * noise]
    )
    broken = np.array([np.nan, np.inf, -np.inf, 1e200])[rng.integers(4, size=(runs, T))]
    hits = (rng.uniform(size=(runs, T)) < 0.2) & (rng.uniform(size=(runs, 1)) < 0.3)
    advice[..., 0] = np.where(hits, broken, advice[..., 0])
    return alpha, x0, contexts, advice, rng.integers(3, size=runs), rng.integers(1, T, size=runs)


def play(agent, problem, x0, contexts, mode, turn, worst, answer):
    """(action, context, details, the baseline's actions) of each step.

    From `turn` on contexts are worst(state, x), and advice may be the best answer.
    """

    def act(carry, now):
        x, state, n = carry
        t, given = now
        found = worst(state, x)
        n = jnp.where((t == turn) | (mode == 2), jnp.where(jnp.isfinite(found), found, given[: len(x)]), n)
        y = given.at[: len(x)].set(jnp.where((mode > 0) & (t >= turn), n, given[: len(x)]))
        y = y if len(y) == len(x) else y.at[-1].set(jnp.where((mode > 0) & (t >= turn), 5.0, y[-1]))
        guard = eqx.tree_at(lambda g: g.agent, agent, Answering(agent.agent, (mode == 1) & (t >= turn), answer))
        state, action, info = guard.step(problem, state, Observation(y, x, t))
        return (action, state, n), (action, y, info.details, state.references[-1].action)

    start = Start(x0, jnp.zeros((0, contexts.shape[-1])), None)
    init = eqx.tree_at(lambda g: g.agent, agent, Answering(agent.agent, jnp.zeros((), bool), answer)).init(
        problem, start
    )
    return jax.lax.scan(act, (x0, init, x0), (jnp.arange(T), contexts))[1]


class Answering(ec.AbstractAgent):
    """An agent, or the best answer to contexts that stay."""

    agent: ec.AbstractAgent
    homes: jax.Array
    answer: Homing

    def init(self, problem, start):
        return self.agent.init(problem, start), self.answer.init(problem, start)

    def step(self, problem, state, seen):
        (inner, S), answer = state, self.answer.step(problem, state[1], seen)[1]
        inner, action, info = self.agent.step(problem, inner, seen)
        return (inner, S), jnp.where(self.homes, answer, action), ec.Info(info.converged)


# --- the referee


def terms(kind, dim, contexts):
    A = shapes_of(kind, dim)[0] * np.ones((*contexts.shape[:2], 1, 1))
    return (A * contexts[..., -1][..., None, None] if kind == "curved" else A), contexts[..., :dim]


def form(M, u):
    return 0.5 * np.einsum("...i,...ij,...j", u, M, u)


def prefix_costs(A, y, G, before, actions):
    moves = np.diff(np.concatenate([before[:, None], actions], axis=1), axis=1)
    return np.cumsum(form(A, actions - y) + form(G[:, None], moves), axis=1)


def prefix_optima(A, y, G, before):
    K, m, total, found = G, before, 0.0, []
    for t in range(y.shape[1]):
        P = A[:, t] + K
        new = m + np.linalg.solve(P, np.einsum("nij,nj->ni", A[:, t], y[:, t] - m)[..., None])[..., 0]
        total = total + form(A[:, t], y[:, t] - new) + form(K, new - m)
        K, m = np.linalg.solve(P + G, P).transpose(0, 2, 1) @ G, new
        K = (K + K.transpose(0, 2, 1)) / 2
        found.append(total)
    return np.stack(found, axis=1)


def baseline_path(kind, dim, A, y, G, before):
    S = stiffness(kind, dim, G)
    x, found = before, []
    for t in range(y.shape[1]):
        pull = np.einsum("nij,nj->ni", A[:, t] + S, y[:, t]) + np.einsum("nij,nj->ni", G, x)
        x = np.linalg.solve(A[:, t] + G + S, pull[..., None])[..., 0]
        found.append(x)
    return np.stack(found, axis=1)


def stiffness(kind, dim, G):
    return np.asarray(jax.jit(jax.vmap(lambda g: limit_stiffness(jnp.asarray(shapes_of(kind, dim)[1]), g)))(G))


def windows_of(period, rolling):
    if period is None:
        return [(0, T)]
    return [(s, min(s + period, T)) for s in (range(T) if rolling else range(0, T, period))]


def largest_use(kind, dim, G, x0, contexts, actions, ratio, allowance, period=None, rolling=False, reference=0):
    """The largest cost over promise of any prefix of any window of the promise, and whether one is below rounding, by run."""
    A, y = terms(kind, dim, contexts)
    path, worst, tiny = np.concatenate([x0[:, None], actions], axis=1), np.zeros(len(x0)), np.zeros(len(x0), bool)
    # The baseline's own actions are rounded; the referee's are not.
    floor = (1e-13 if reference else ROUNDING) * (1 + alpha_of(G)) * (1 + np.abs(y).max(axis=(1, 2)))[:, None] ** 2
    for first, last in windows_of(period, rolling):
        span, before = np.s_[:, first:last], path[:, first, None]
        here, targets, start = (
            A[span],
            y[span] - before,
            np.zeros_like(x0),
        )  # from the start: no digits are lost to the level
        cost = prefix_costs(here, targets, G, start, actions[span] - before)
        if reference:
            base = baseline_path(kind, dim, here, targets, G, start)
            due = prefix_costs(here, targets, G, start, base)
        else:
            due = prefix_optima(here, targets, G, start)
        promised = ratio[:, None] * due + allowance
        use = np.where(promised > floor, cost / np.maximum(promised, floor), np.where(cost <= 2 * floor, 0.0, np.inf))
        worst, tiny = np.maximum(worst, use.max(axis=1)), tiny | (promised <= floor).any(axis=1)
    return worst, tiny


def exact_excess(kind, dim, G, x0, contexts, actions, base, kept, ratios, allowances):
    """The largest (cost - promise)/(cost + promise) of any prefix of any window, as far as the promises were said to be kept."""
    exact = np.vectorize(decimal.Decimal, otypes=[object])
    A, y = terms(kind, dim, contexts[None])
    given = (A[0], y[0], G, np.concatenate([x0[None], actions]), base, ratios, allowances)
    with decimal.localcontext(decimal.Context(prec=60)):
        A, y, G, path, base, ratios, allowances = (exact(np.asarray(each, float)) for each in given)

        def half(M, u):
            return u @ M @ u / 2

        found = decimal.Decimal(0)
        for i, each in enumerate(TERMS):
            for first, last in windows_of(each.get("period"), each.get("rolling", False)):
                cost = reference = 0 * ratios[0]
                K, m, b = G, path[first], path[first]
                for t in range(first, last):
                    if not kept[first : t + 1].all():
                        break
                    cost += half(A[t], path[t + 1] - y[t]) + half(G, path[t + 1] - path[t])
                    if each.get("reference"):
                        now = base[t, i - 3]
                        reference, b = reference + half(A[t], now - y[t]) + half(G, now - b), now
                    else:
                        new = m + exact_solve(A[t] + K, A[t] @ (y[t] - m))
                        reference, m = reference + half(A[t], new - y[t]) + half(K, new - m), new
                        K = (A[t] + K) @ exact_solve(A[t] + K + G, G)
                    promised = ratios[i] * reference + allowances[i]
                    found = max(found, (cost - promised) / (cost + promised)) if cost + promised else found
    return float(found)


def exact_solve(matrix, right):
    """Gauss's elimination, for a positive definite matrix of any numbers."""
    matrix, right = matrix.copy(), right.copy()
    for j in range(len(matrix)):
        for i in range(len(matrix)):
            if i != j:
                factor = matrix[i, j] / matrix[j, j]
                matrix[i], right[i] = matrix[i] - factor * matrix[j], right[i] - factor * right[j]
    return (right.T / np.diagonal(matrix)).T


def alpha_of(G):
    return np.abs(G).max(axis=(1, 2))[:, None]


@pytest.mark.parametrize(("kind", "dim"), [("constant", 1), ("constant", 2), ("curved", 1), ("curved", 3)])
def test_no_adversary_makes_guarded_pay_more_than_the_baseline_and_its_slack(kind, dim):
    alpha, x0, contexts, advice, mode, turn = draw(kind, dim, RUNS, seed=dim)
    slack = 10.0 ** np.random.default_rng(1).uniform(-2, 1, size=RUNS)
    allowance = np.where(np.arange(RUNS) % 3 == 0, 0.1, 0.0)
    best = Homing(jnp.asarray(shapes_of(kind, dim)[1]))

    @jax.jit
    @jax.vmap
    def run(alpha, x0, contexts, advice, mode, turn, slack, allowance):
        def worst(state, x):
            b = state.references[0].action
            return b + (b - x) / slack

        agent = ec.Guarded(ec.advisors.Fixed(advice), best, slack, allowance=allowance)
        return play(agent, problem_of(kind, dim, alpha), x0, contexts, mode, turn, worst, best)

    given = (alpha, x0, contexts, advice, mode, turn, slack, allowance)
    actions, met, details, _ = jax.device_get(run(*given))
    assert details["kept"].all()
    G = alpha[:, None, None] * shapes_of(kind, dim)[2]
    use, _ = largest_use(kind, dim, G, x0, met, actions, 1 + slack, allowance[:, None], reference=1)
    print(f"Guarded, {kind}, d = {dim}: largest cost over promise 1 + {use.max() - 1:.1e} in {RUNS} runs")
    assert use.max() <= 1 + PROMISE
    assert (use[mode == 1] > 0.99).mean() > 0.2  # the promise is used up where it is punished
    assert 0.1 < details["active"].mean() < 0.98


TERMS = [{}, {"period": 12}, {"period": 5, "rolling": True}, {"reference": 1}, {"period": 9, "reference": 1}]


@pytest.mark.parametrize(("kind", "dim"), [("constant", 1), ("constant", 2), ("curved", 1), ("curved", 3)])
def test_no_adversary_breaks_one_of_several_promises(kind, dim):
    runs, rng = RUNS, np.random.default_rng(2)
    alpha, x0, contexts, advice, mode, turn = draw(kind, dim, runs, seed=dim + 10)
    smallest = smallest_ratios(kind, dim, alpha)
    ratios = smallest[:, None] + 10.0 ** rng.uniform(-3, 0.7, size=(runs, len(TERMS)))
    allowances = np.where(rng.uniform(size=(runs, len(TERMS))) < 0.2, 0.1, 0.0)
    target = rng.integers(len(TERMS), size=runs)  # the promise that is attacked
    best = Homing(jnp.asarray(shapes_of(kind, dim)[1]))
    greatest = jnp.asarray(shapes_of(kind, dim)[1])

    @jax.jit
    @jax.vmap
    def run(alpha, x0, contexts, advice, mode, turn, ratios, allowances, target):
        problem = problem_of(kind, dim, alpha)
        listed = tuple(PromiseTerms(ratios[i], allowances[i], **each) for i, each in enumerate(TERMS))
        agent = ec.Guard(ec.advisors.Fixed(advice), listed, (Optimum(), Baseline(best)))
        G = 2 * problem.Q
        S = limit_stiffness(greatest, G)

        def worst(state, x):
            slot = jnp.minimum(target, 2)  # the accounts of the first two promises, and the first one of the windows
            optima, bases = state.references
            K, m = optima.work.stiffness[slot], optima.work.centre[slot]
            P = jnp.linalg.inv(jnp.linalg.inv(K) - jnp.linalg.inv(G))
            against = m + worst_future(x - m, (P + P.T) / 2, S, ratios[slot])
            b = bases.action[jnp.maximum(target - 3, 0)]
            return jnp.where(target < 3, against, b + (b - x) / (ratios[target] - 1))

        return play(agent, problem, x0, contexts, mode, turn, worst, best)

    given = (alpha, x0, contexts, advice, mode, turn, ratios, allowances, target)
    actions, met, details, base = jax.device_get(run(*given))
    G = alpha[:, None, None] * shapes_of(kind, dim)[2]
    found = [
        largest_use(kind, dim, G, x0, met, actions, ratios[:, i], allowances[:, i, None], **each)
        for i, each in enumerate(TERMS)
    ]
    uses, tiny = (np.stack(part) for part in zip(*found, strict=True))
    all_kept = details["kept"].all(axis=2)
    kept = all_kept.all(axis=1)
    assert (kept | tiny.any(axis=0)).all()
    assert kept.mean() > 0.95
    assert uses[:, kept].max() <= 1 + PROMISE
    doubtful = np.flatnonzero(~kept | tiny.any(axis=0))[:MOST_EXACT]
    excess = [
        exact_excess(kind, dim, *(each[i] for each in (G, x0, met, actions, base, all_kept, ratios, allowances)))
        for i in doubtful
    ]
    print(
        f"Promises, {kind}, d = {dim}: largest cost over promise 1 + {uses[:, kept].max() - 1:.1e} in {kept.sum()} of {runs}"
        f" runs; in 60 digits {len(doubtful)} runs, at most {max(excess, default=0.0):.1e} of cost and promise above it"
    )
    assert max(excess, default=0.0) <= PROMISE
    tightest = uses.max(axis=0)
    assert (tightest[mode == 1] > 0.95).mean() > 0.2
    assert 0.1 < details["active"].any(axis=2).mean() < 0.98
    np.testing.assert_array_equal((uses.max(axis=1) > 0.9), True)  # each of them is the one that binds, somewhere


def smallest_ratios(kind, dim, alpha):
    """1 + k_M/(m + k_m) in each direction in which A and G are diagonal; the largest of them."""
    least, greatest, G = shapes_of(kind, dim)
    modes = np.linalg.eigvals(np.linalg.solve(least, G)).real * alpha[:, None]  # G in units of A_lo
    weight = greatest[0, 0] / least[0, 0]
    k = lambda w: (np.sqrt(w * w + 4 * modes * w) - w) / 2  # noqa: E731
    return 1 + (k(weight) / (1 + k(1.0))).max(axis=1)


CASES, TURN, MANY = 200, 11, 150  # after so many steps nothing moves: alpha is at most 100 here


@pytest.mark.parametrize("guard", ["Guarded", "Promises"])
@pytest.mark.parametrize(("kind", "dim"), [("constant", 2), ("curved", 1)])
def test_an_action_just_outside_is_punished(guard, kind, dim):
    """For promises of the whole run: from an action .1 % beyond the last allowed one, some future breaks one of them.

    The last allowed action is that of far advice, the safest that of no advice. Contexts then stay at the worst place, the
    baseline takes the best path there, and so does the player: from .1 % less far none of these futures breaks a promise.
    """
    rng, (_, greatest, G) = np.random.default_rng(7), shapes_of(kind, dim)
    alpha = 10.0 ** rng.uniform(-1, 2, size=CASES)
    x0, noise = rng.normal(size=(CASES, dim)), rng.normal(size=(CASES, T, dim))
    contexts = noise if kind == "constant" else np.concatenate([noise, rng.uniform(1, 5, (CASES, T, 1))], axis=-1)
    ratios = smallest_ratios(kind, dim, alpha)[:, None] + 10.0 ** rng.uniform(-2, 0.5, size=(CASES, 3))
    ratios = 1 + 10.0 ** rng.uniform(-1.5, 0.7, size=(CASES, 3)) if guard == "Guarded" else ratios
    best = Homing(jnp.asarray(greatest))

    @jax.jit
    @jax.vmap
    def run(alpha, x0, contexts, ratios, advice):
        agent = ec.Guarded(ec.advisors.Fixed(advice), best, ratios[2] - 1)
        if guard == "Promises":
            listed = PromiseTerms(ratios[0]), PromiseTerms(ratios[1], 0.2), PromiseTerms(ratios[2], reference=1)
            agent = ec.Guard(ec.advisors.Fixed(advice), listed, (Optimum(), Baseline(best)))
        never = jnp.zeros((), int)
        return play(agent, problem_of(kind, dim, alpha), x0, contexts, never, never, lambda state, x: x, best)[0]

    advice = 3 * rng.normal(size=noise.shape)
    far, none = advice.copy(), advice.copy()
    far[:, TURN], none[:, TURN] = 1e3 * advice[:, TURN], np.nan
    edge, safest = (np.asarray(run(alpha, x0, contexts, ratios, each)) for each in (far, none))
    assert (np.abs(edge - safest)[:, TURN].max(axis=-1) > 0).all()

    G = alpha[:, None, None] * G
    S, (A, y) = stiffness(kind, dim, G), terms(kind, dim, contexts)
    seen = np.s_[:, : TURN + 1]
    base, hard = baseline_path(kind, dim, A[seen], y[seen], G, x0), np.broadcast_to(greatest, (CASES, MANY, dim, dim))
    K, m = G, x0
    for t in range(TURN + 1):
        P = A[:, t] + K
        m = m + np.linalg.solve(P, np.einsum("nij,nj->ni", A[:, t], y[:, t] - m)[..., None])[..., 0]
        K = np.linalg.inv(np.linalg.inv(P) + np.linalg.inv(G))

    def largest_ratio(x):
        """Of cost to promise, over the worst futures of the promises."""
        path, found, curves = edge[seen].copy(), np.zeros(CASES), np.concatenate([A[seen], hard], axis=1)
        path[:, TURN] = x
        for number in range(3) if guard == "Promises" else [2]:
            ratio, b = ratios[:, number], base[:, -1]
            n = b + (b - x) / (ratio - 1)[:, None]
            if number < 2:
                outweighs = (ratio - 1)[:, None, None] * P - S
                n = m - np.linalg.solve(outweighs, np.einsum("nij,nj->ni", P + S, x - m)[..., None])[..., 0]
            later = np.repeat(n[:, None], MANY, axis=1)
            all_seen = np.concatenate([y[seen], later], axis=1)
            played, followed = (
                np.concatenate([before, baseline_path(kind, dim, hard, later, G, before[:, -1])], axis=1)
                for before in (path, base)
            )
            due = (
                prefix_optima(curves, all_seen, G, x0)
                if number < 2
                else prefix_costs(curves, all_seen, G, x0, followed)
            )
            paid = prefix_costs(curves, all_seen, G, x0, played)[:, -1]
            found = np.maximum(found, paid / (ratio * due[:, -1] + 0.2 * (number == 1)))
        return found

    way = (edge - safest)[:, TURN]
    assert (largest_ratio(edge[:, TURN] + 1e-3 * way) > 1).sum() == CASES
    assert (largest_ratio(edge[:, TURN] - 1e-3 * way) > 1).sum() == 0


def test_the_smallest_joint_ratio():
    """On a line and for the matrices of the library's costs the smallest ratio of a single promise; else by definition."""
    for kind, dim in [("constant", 1), ("constant", 3), ("curved", 1), ("curved", 3)]:
        for alpha in (1e-3, 1.0, 1e6):
            least, greatest, G = (jnp.asarray(part) for part in shapes_of(kind, dim))
            found = smallest_joint_ratio(least, greatest, alpha * G)
            assert found == pytest.approx(smallest_ratios(kind, dim, np.array([alpha]))[0], rel=1e-9)
    for low, high, golden in [(1.0, 5.0, 2.350781059), (0.5, 5.0, 3.0), (1.0, 2.0, 1.967855078)]:
        one = jnp.eye(1)
        assert smallest_joint_ratio(low * one, high * one, 10 * one) == pytest.approx(golden, abs=1e-9)
    least, greatest, G = spd(3, 1, 0.5, 3.0), 4 * np.eye(3), spd(3, 2, 0.2, 9.0)  # in three bases
    smallest = smallest_joint_ratio(*map(jnp.asarray, (least, greatest, G)))
    S = np.asarray(limit_stiffness(jnp.asarray(greatest), jnp.asarray(G)))
    for ratio, holds in ((smallest + 1e-6, True), (smallest - 1e-6, False)):
        sigma = S / (ratio - 1)
        margin = least + np.linalg.inv(np.linalg.inv(sigma) + np.linalg.inv(G)) - sigma
        assert (np.linalg.eigvalsh(margin)[0] > 0) == holds
