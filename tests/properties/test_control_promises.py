"""Promises on problems with a state: no adversary breaks them, and actions just outside are punished.

Every run has its own dynamics (random ones, batteries, delays, memory, known contexts), ratio, contexts and advice, some of it
NaN or infinite. An adversary turns twice to the contexts that are worst for the state that the guard has reached. The referee is
NumPy: optima are least-squares residuals over all actions. More runs: ECL2O_HOSTILE_RUNS=10000.
"""

import os
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.theory import smallest_control_ratio

RUNS = int(os.environ.get("ECL2O_HOSTILE_RUNS", "120"))
OUTSIDE = max(RUNS // 20, 40)  # of actions just outside
T = 8
PROMISE = 1e-8
ROUNDING = 1e-12  # of the data's square: optima below it are rounding
SIZES = {"plane": (2, 1, 1), "space": (3, 2, 2)}


def random_matrices(rng, n: int, k: int, q: int):
    root = rng.normal(size=(rng.integers(max(k, q) + 1, n + k + q + 1), n + k + q))
    M = root.T @ root
    M[n : n + k, n : n + k] += 0.5 * np.eye(k)
    F = rng.normal(size=(n, n))
    F *= rng.uniform(0.3, 1.2) / np.abs(np.linalg.eigvals(F)).max()
    return ec.ControlProblem(F, rng.normal(size=(n, k)), rng.normal(size=(n, q)), M)


def draw_problem(rng, size: str) -> ec.ControlProblem:
    if size != "plane" or rng.random() < 0.4:
        return random_matrices(rng, *SIZES[size])
    line = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(10.0 ** rng.uniform(-1, 3), 1))
    made = (
        lambda: ec.battery(10.0 ** rng.uniform(-1, 3), 10.0 ** rng.uniform(-3, 0)),
        lambda: ec.delayed(line, 2),
        lambda: ec.with_memory(line, rng.uniform(-1, 2, size=2).tolist()),
        lambda: ec.known_ahead(line, 1),
    )
    return made[rng.integers(len(made))]()


def draw_contexts(rng, runs: int, q: int) -> np.ndarray:
    noise = rng.normal(size=(runs, T, q))
    kinds = [
        noise,
        np.cumsum(noise, axis=1),
        noise[:, :1] + 0 * noise,
        noise * 10.0 ** rng.uniform(-2, 2, (runs, T, 1)),
    ]
    return np.choose(rng.integers(4, size=(runs, 1, 1)), kinds)


def draw_advice(rng, runs: int, k: int) -> np.ndarray:
    advice = rng.normal(size=(runs, T, k)) * 10.0 ** rng.uniform(-2, 4, size=(runs, T, 1))
    broken = np.array([np.nan, np.inf, -np.inf, 1e300])[rng.integers(4, size=(runs, T))]
    advice[..., 0] = np.where(rng.random((runs, T)) < 0.15, broken, advice[..., 0])
    return advice


class Games:
    """A batch of games, as least squares: the residuals of a path are `actions` u + `given` (x0, d)."""

    def __init__(self, problems: list[ec.ControlProblem], ratios, seed: int):
        self.problems = jax.tree.map(lambda *leaves: jnp.stack(leaves), *problems)
        self.F, self.B, self.E, self.M = (np.asarray(getattr(self.problems, name)) for name in "FBEM")
        self.runs, self.n, self.k = self.B.shape
        self.q, self.ratios = self.E.shape[-1], np.asarray(ratios)
        rng = np.random.default_rng(seed)
        self.x0 = rng.normal(size=(self.runs, self.n)) * 10.0 ** rng.uniform(-2, 1, size=(self.runs, 1))
        self.contexts, self.advice = draw_contexts(rng, self.runs, self.q), draw_advice(rng, self.runs, self.k)
        sizes, basis = np.linalg.eigh(self.M)
        root = np.sqrt(np.maximum(sizes, 0.0))[..., None] * basis.swapaxes(1, 2)  # root' root = M
        places = np.cumsum([0, self.n, T * self.k])
        width = places[2] + T * self.q
        state, rows = np.zeros((self.runs, self.n, width)), []
        state[:, :, : self.n] = np.eye(self.n)
        for t in range(T):
            u, d = np.zeros((self.k, width)), np.zeros((self.q, width))
            u[:, places[1] + t * self.k :][:, : self.k] = np.eye(self.k)
            d[:, places[2] + t * self.q :][:, : self.q] = np.eye(self.q)
            u, d = (np.broadcast_to(part, (self.runs, *part.shape)) for part in (u, d))
            rows.append(root @ np.concatenate([state, u, d], axis=1))
            state = self.F @ state + self.B @ u + self.E @ d
        rows = np.concatenate(rows, axis=1)
        self.rows, self.actions = rows.shape[1] // T, rows[:, :, places[1] : places[2]]
        self.given = np.concatenate([rows[:, :, : self.n], rows[:, :, places[2] :]], axis=2)

    def residual(self, steps: int) -> np.ndarray:
        """The residuals of the best path of the first steps, as a matrix of (x0, d)."""
        rows = steps * self.rows
        basis = np.linalg.qr(self.actions[:, :rows, : steps * self.k])[0]
        given = self.given[:, :rows, : self.n + steps * self.q]
        return given - basis @ (basis.swapaxes(1, 2) @ given)

    def optimum(self, contexts, steps: int) -> np.ndarray:
        seen = np.concatenate([self.x0, contexts[:, :steps].reshape(self.runs, -1)], axis=1)
        return 0.5 * (np.einsum("nij,nj->ni", self.residual(steps), seen) ** 2).sum(1)

    def advance(self, state, action, context):
        point = np.concatenate([state, action, context], axis=1)
        cost = 0.5 * np.einsum("ni,nij,nj->n", point, self.M, point)
        after = sum(np.einsum("nij,nj->ni", m, v) for m, v in ((self.F, state), (self.B, action), (self.E, context)))
        return after, cost

    def follow(self, actions, contexts) -> tuple[list[np.ndarray], np.ndarray]:
        """The states of paths, and their costs so far."""
        states, costs = [self.x0], []
        for t in range(T):
            state, cost = self.advance(states[-1], actions[:, t], contexts[:, t])
            states.append(state)
            costs.append(cost)
        return states, np.cumsum(np.stack(costs, axis=1), axis=1)

    def worst(self, state, contexts, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The contexts after `step` that maximise the cost to go less ratio * optimum, and that difference."""
        to_go, whole = self.residual(T - step - 1), self.residual(T)
        split = self.n + (step + 1) * self.q
        seen = np.concatenate([self.x0, contexts[:, : step + 1].reshape(self.runs, -1)], axis=1)
        fixed = np.einsum("nij,nj->ni", to_go[:, :, : self.n], state)
        told = np.einsum("nij,nj->ni", whole[:, :, :split], seen)
        ahead, later, L = to_go[:, :, self.n :], whole[:, :, split:], self.ratios
        hessian = ahead.swapaxes(1, 2) @ ahead - L[:, None, None] * later.swapaxes(1, 2) @ later
        slope = np.einsum("nij,ni->nj", ahead, fixed) - L[:, None] * np.einsum("nij,ni->nj", later, told)
        found = -np.einsum("nij,nj->ni", np.linalg.pinv(hessian, rcond=1e-11, hermitian=True), slope)
        value = 0.5 * ((fixed + np.einsum("nij,nj->ni", ahead, found)) ** 2).sum(1)
        value -= 0.5 * L * ((told + np.einsum("nij,nj->ni", later, found)) ** 2).sum(1)
        return np.concatenate([contexts[:, : step + 1], found.reshape(self.runs, -1, self.q)], axis=1), value


@partial(jax.jit, static_argnums=0)
def _run(make, problems, ratios, x0, contexts, advice):
    def alone(problem, ratio, x0, contexts, advice):
        run = ec.rollout(make(ec.advisors.Fixed(advice), ratio), problem, ec.Instance(x0, contexts))
        return run.actions, run.details["kept"][:, 0]

    return jax.vmap(alone)(problems, ratios, x0, contexts, advice)


def play(games: Games, make, contexts, advice=None):
    advice = games.advice if advice is None else advice
    return map(np.asarray, _run(make, games.problems, games.ratios, games.x0, contexts, advice))


def competitive(every_prefix, agent, ratio):
    return ec.CompetitiveControl(agent, ratio, T, every_prefix)


def guarded(every_prefix, agent, ratio):
    return ec.GuardedControl(agent, ec.LQR(), ratio - 1, T, every_prefix)


MAKERS = {
    ("optimum", False): partial(competitive, False),
    ("optimum", True): partial(competitive, True),
    ("baseline", False): partial(guarded, False),
    ("baseline", True): partial(guarded, True),
}


def draw_games(size: str, runs: int, every_prefix: bool, reference: str, seed: int) -> Games:
    rng = np.random.default_rng(seed)
    problems = [draw_problem(rng, size) for _ in range(runs)]
    above = rng.choice([1.001, 1.03, 1.3, 3.0], size=runs)
    least = [
        smallest_control_ratio(p, T, every_prefix=every_prefix) if reference == "optimum" else 2.0 for p in problems
    ]
    return Games(problems, 1 + above * (np.array(least) - 1), seed + 1)


@eqx.filter_jit
def _baseline_costs(problems, x0, contexts):
    return jax.vmap(lambda p, x, d: jnp.cumsum(ec.rollout(ec.LQR(), p, ec.Instance(x, d)).hitting))(
        problems, x0, contexts
    )


CASES = [(size, *maker) for maker in MAKERS for size in SIZES]


@pytest.mark.parametrize(("size", "reference", "every_prefix"), CASES)
def test_no_adversary_breaks_a_promise(size, reference, every_prefix):
    games = draw_games(size, RUNS // len(CASES), every_prefix, reference, seed=len(size) + 7 * every_prefix)
    make, contexts = MAKERS[reference, every_prefix], games.contexts
    largest, counted, lost, states = 0.0, 0, 0, []
    for turn in (None, 2, 5):
        if turn is not None:
            contexts, _ = games.worst(states[turn + 1], contexts, turn)
        actions, kept = play(games, make, contexts)
        states, costs = games.follow(actions, contexts)
        data = (games.x0**2).sum(1) + (contexts**2).sum((1, 2))
        for end in range(1, T + 1) if every_prefix else (T,):
            if reference == "optimum":
                bound = games.optimum(contexts, end)
            else:
                bound = np.asarray(_baseline_costs(games.problems, games.x0, contexts))[:, end - 1]
            counts = kept[:, end - 1] & (bound > ROUNDING * data)
            ratio = costs[:, end - 1][counts] / (games.ratios * bound)[counts]
            largest, counted = max(largest, ratio.max(initial=0.0)), counted + counts.sum()
        lost += (~kept[:, -1]).sum()
    print(f"{size} {reference} every_prefix={every_prefix}: {largest - 1:+.1e}, {counted} bounds, {lost} lost")
    assert largest <= 1 + PROMISE
    assert largest > 0.9
    assert lost <= 0.03 * 3 * games.runs


@pytest.mark.parametrize("size", SIZES)
def test_actions_just_outside_are_punished(size):
    games = draw_games(size, OUTSIDE, False, "optimum", seed=11)
    games.contexts = np.random.default_rng(1).normal(size=games.contexts.shape)
    make, at = MAKERS["optimum", False], 3
    calm = np.nan_to_num(games.advice, nan=0.0, posinf=1.0, neginf=-1.0)
    calm /= 1 + np.abs(calm)
    advice = {name: calm.copy() for name in ("safest", "border")}
    advice["safest"][:, at], advice["border"][:, at] = np.nan, 1e7
    safest, border = (next(play(games, make, games.contexts, each)) for each in advice.values())
    states, costs = games.follow(safest, games.contexts)
    apart = np.abs(border[:, at] - safest[:, at]).max(1) > 1e-4 * (1 + np.abs(safest[:, at]).max(1))
    for share, punished in ((1.001, True), (0.999, False)):
        action = safest[:, at] + share * (border[:, at] - safest[:, at])
        after, cost = games.advance(states[at], action, games.contexts[:, at])
        _, value = games.worst(after, games.contexts, at)
        over = costs[:, at - 1] + cost + value
        print(size, share, ((over > 0) == punished)[apart].sum(), "of", apart.sum())
        assert ((over > 0) == punished)[apart].all()
    assert apart.sum() > 0.8 * games.runs
