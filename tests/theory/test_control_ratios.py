"""Smallest ratios with linear dynamics: published and closed-form values, and dense elimination of the game."""

import numpy as np
import pytest

import ecl2o as ec
from ecl2o.theory import competitive_control_ratio, smallest_control_ratio, smallest_feasible_ratio

LINE = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(10.0, 1))


def dense_ratio(problem: ec.ControlProblem, horizon: int) -> float:
    """Return the smallest ratio by eliminating u_T, d_T, ..., u_1, d_1 from the game's quadratic form, by bisection."""
    n, k, q = problem.state_dim, problem.action_dim, problem.context_dim
    F, B, E, M = (np.asarray(getattr(problem, name), float) for name in "FBEM")
    size = horizon * (q + k)
    state, cost = np.zeros((n, size)), np.zeros((size, size))
    for t in range(horizon):
        start = t * (q + k)  # d_t, then u_t
        d, u = np.eye(size)[start : start + q], np.eye(size)[start + q : start + q + k]
        point = np.vstack([state, u, d])
        cost += point.T @ M @ point
        state = F @ state + B @ u + E @ d
    is_context = (np.arange(size) % (q + k)) < q
    dd, du, uu = (
        cost[np.ix_(a, b)] for a, b in ((is_context, is_context), (is_context, ~is_context), (~is_context, ~is_context))
    )
    optimum = np.zeros_like(cost)
    optimum[np.ix_(is_context, is_context)] = dd - du @ np.linalg.solve(uu, du.T)

    def can_be_kept(ratio: float) -> bool:
        """Whether every action has a minimum and every context a maximum; close to the border solves may fail."""
        game = cost - ratio * optimum
        for t in reversed(range(horizon)):
            start = t * (q + k)
            for first, last, sign in ((start + q, start + q + k, 1), (start, start + q, -1)):
                own, other = game[first:last, first:last], game[:first, first:last]
                if not np.linalg.eigvalsh(sign * own).min() > 1e-14:
                    return False
                game = game[:first, :first] - other @ np.linalg.solve(own, other.T)
        return True

    low, high = 1.0, 2.0
    while not can_be_kept(high):
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if can_be_kept(middle) else (middle, high)
    return high


@pytest.mark.parametrize("seed", range(100))
def test_the_formula_is_the_value_of_the_game(seed):
    rng = np.random.default_rng(seed)
    n, k, q = [(1, 1, 1), (2, 1, 1), (2, 1, 2), (3, 2, 1)][seed % 4]
    root = rng.normal(size=(n + k + q, n + k + q))
    M = root.T @ root
    M[n : n + k, n : n + k] += 0.5 * np.eye(k)
    problem = ec.ControlProblem(0.7 * rng.normal(size=(n, n)), rng.normal(size=(n, k)), rng.normal(size=(n, q)), M)
    np.testing.assert_allclose(smallest_control_ratio(problem, 4), dense_ratio(problem, 4), rtol=1e-7)


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        *((ec.delayed(LINE, steps), value) for steps, value in enumerate([2.370156, 3.043416, 3.777939, 4.582012], 1)),
        *(
            (ec.known_ahead(LINE, steps), value)
            for steps, value in enumerate([1.388767, 1.207085, 1.110309, 1.058758], 1)
        ),
        (ec.with_memory(LINE, (2.0, -1.0)), 3.604881),
        (ec.with_memory(LINE, (0.5, 0.5)), 1.694001),
        (ec.with_memory(LINE, (0.9,)), 1.375556),
        (ec.battery(10.0, 0.05), 1.133192),
    ],
)
def test_runs_without_an_end(problem, expected):
    np.testing.assert_allclose(smallest_control_ratio(problem), expected, rtol=0, atol=1e-6)


def test_a_battery():
    battery = ec.battery(10.0, 0.05)
    np.testing.assert_allclose(smallest_control_ratio(battery, 24), 1.266436, atol=6e-7)
    np.testing.assert_allclose(smallest_control_ratio(battery, every_prefix=True), 3.380708, atol=6e-7)


def test_closed_form_of_delays():
    """1 + lambda_max(D C), D = diag(1, ..., 1, 1 + k), C_ij = 1/k + (min(i, j) - 1)/a."""
    a = 10.0
    k = (np.sqrt(1 + 4 * a) - 1) / 2
    for steps in (1, 3, 6):
        D = np.diag([1.0] * (steps - 1) + [1 + k])
        i = np.arange(1, steps + 1)
        C = 1 / k + (np.minimum.outer(i, i) - 1) / a
        expected = 1 + np.linalg.eigvals(D @ C).real.max()
        np.testing.assert_allclose(smallest_control_ratio(ec.delayed(LINE, steps)), expected, rtol=1e-9)


def test_closed_form_of_known_contexts():
    a, c = 10.0, 0.0
    k = (np.sqrt(1 + 4 * a) - 1) / 2
    for steps in range(1, 6):
        c = 1 / (1 + 1 / (c + 1 / a))
        expected = (1 / k + 1 / (1 + k)) / (1 / k + c)
        np.testing.assert_allclose(smallest_control_ratio(ec.known_ahead(LINE, steps)), expected, rtol=1e-9)


def test_competitive_control_needs_no_inverse_of_the_state_cost():
    """A position whose cost is zero in one direction."""
    ratio = competitive_control_ratio([[1.0, 1.0], [0.0, 1.0]], [[0.0], [1.0]], np.diag([1.0, 0.0]), 1.0)
    near = competitive_control_ratio([[1.0, 1.0], [0.0, 1.0]], [[0.0], [1.0]], np.diag([1.0, 1e-9]), 1.0)
    np.testing.assert_allclose(ratio, near, rtol=1e-6)
    np.testing.assert_allclose(
        competitive_control_ratio(1.0, 1.0, 1.0, 10.0, before_context=True),
        smallest_feasible_ratio(10.0, before_context=True),
        rtol=1e-9,
    )


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"F": np.zeros((3, 2))}, "F"),
        ({"B": np.zeros((3, 1))}, "B"),
        ({"M": -np.eye(4)}, "semidefinite"),
        ({"M": np.diag([1.0, 1.0, 0.0, 1.0])}, "actions"),
        ({"E": np.full((2, 1), np.nan)}, "E"),
    ],
)
def test_bad_matrices_are_rejected(change, match):
    matrices = {name: np.asarray(getattr(ec.battery(10.0, 0.05), name)) for name in "FBEM"} | change
    with pytest.raises(ValueError, match=match):
        ec.ControlProblem(**matrices)


@pytest.mark.parametrize(("x0", "contexts"), [([0.0], [[1.0]]), ([0.0, 0.0], [[1.0, 2.0]])])
def test_instances_that_do_not_fit_are_rejected(x0, contexts):
    with pytest.raises(ValueError, match="numbers"):
        ec.oracle(ec.battery(10.0, 0.05), ec.Instance(x0, contexts))
