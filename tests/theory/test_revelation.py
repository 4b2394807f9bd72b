"""The revelation theorem: Bellman's equation, golden values, and what follows for weights, horizons and dynamics."""

import decimal
from decimal import Decimal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ecl2o.problem.arrays import to_device
from ecl2o.solvers.small_dense import largest_ratio, parallel_sum, riccati_fixed_point
from ecl2o.theory import (
    competitive_control_ratio,
    decay_root,
    future_stiffness,
    largest_share,
    limit_stiffness,
    past_stiffness,
    promise_value,
    recurring_stiffness,
    smallest_feasible_ratio,
    worst_future,
)
from matrices import spd


def _game_one_step_earlier(V, A, G, K, ratio):
    """The value's matrix by Bellman's equation itself: sup over y of min over x, both by Schur complements.

    With m_{t-1} = 0, e = x_{t-1} and m_t = M y, M = P^-1 A: 1/2 |x - y|^2_A + 1/2 |x - e|^2_G + 1/2 |x - M y|^2_V
    - L/2 |y|^2 in the norm of A : K. The quadratic form has the blocks (x, y, e).
    """
    d = len(A)
    M = np.linalg.solve(A + K, A)
    growth = A @ np.linalg.solve(A + K, K)
    xx, xy, xe = A + G + V, -A - V @ M, -G
    yy, ye, ee = A + M.T @ V @ M - ratio * growth, np.zeros((d, d)), G
    inner = np.linalg.inv(xx)
    yy, ye, ee = yy - xy.T @ inner @ xy, ye - xy.T @ inner @ xe, ee - xe.T @ inner @ xe
    assert np.linalg.eigvalsh((yy + yy.T) / 2)[-1] < 0  # the adversary's best context is finite
    return ee - ye.T @ np.linalg.solve(yy, ye)


def test_bellmans_equation_for_matrices_that_vary_and_do_not_commute():
    """200 problems, A_t and G_t new at every step: the value one step back is the formula's."""
    rng = np.random.default_rng(0)
    value, together, share = jax.jit(promise_value), jax.jit(parallel_sum), jax.jit(largest_ratio)
    for case in range(200):
        d, T = (1, 2, 3)[case % 3], 4
        A = [spd(d, 10 * case + t, *np.sort(10 ** rng.uniform(-1, 1, 2))) for t in range(T)]
        G = [spd(d, 7000 + 10 * case + t, *np.sort(10 ** rng.uniform(-1, 1, 2))) for t in range(T + 1)]
        K, P = [G[0]], []
        for t in range(T):
            P.append(A[t] + K[t])
            K.append(np.asarray(together(P[t], G[t + 1])))
        S = [np.zeros((d, d))]
        for t in reversed(range(1, T)):  # S after step t, from the step after it
            S.insert(0, np.asarray(together(S[0] + A[t], G[t])))
        smallest = 1 + max(float(share(S[t], P[t])) for t in range(T))
        ratio = smallest + 10 ** rng.uniform(-1, 0.7)
        V = [np.asarray(value(P[t], S[t], ratio)) for t in range(T)]
        for t in range(1, T):
            earlier = _game_one_step_earlier(V[t], A[t], G[t], K[t], ratio)
            np.testing.assert_allclose(earlier, V[t - 1], rtol=1e-10, atol=1e-10 * np.abs(V[t - 1]).max())


@pytest.mark.parametrize("dim", [1, 3])
def test_the_value_is_the_worst_futures(dim):
    """V and n: what the future takes from x when it is revealed to lie at n for ever, less L times what the optimum grows by."""
    ratio, away = 2.6, jnp.asarray(np.random.default_rng(3).normal(size=dim))

    @jax.jit
    def stiffness_and_worst(A, G):
        S = limit_stiffness(A, G)
        P = A + S
        return S, parallel_sum(P, S), promise_value(P, S, ratio), worst_future(away, P, S, ratio)

    matrices = spd(dim, 1, 0.5, 4.0), spd(dim, 2, 1.0, 9.0)
    away, S, H, V, n = jax.device_get((away, *stiffness_and_worst(*matrices)))
    taken = 0.5 * (away - n) @ S @ (away - n) - 0.5 * ratio * n @ H @ n
    np.testing.assert_allclose(taken, 0.5 * away @ V @ away, rtol=1e-12)
    np.testing.assert_allclose(-S @ (away - n) - ratio * H @ n, 0.0, atol=1e-11)  # the slope there, and the curvature:
    assert np.linalg.eigvalsh(S - ratio * H)[-1] < 0


GOLDEN = [
    (10.0, (1.0, 2.0), 1.967855078),
    (10.0, (1.0, 5.0), 2.350781059),
    (10.0, (1.0, 10.0), 2.669657212),
    (10.0, (1.0, 100.0), 3.474846440),
    (10.0, (0.5, 5.0), 3.0),
    (1.0, (1.0, 3.0), 1.489042785),
    (100.0, (1.0, 4.0), 2.721737425),
]


@pytest.mark.parametrize(("a", "weights", "golden"), GOLDEN)
def test_smallest_ratio_where_weights_vary(a, weights, golden):
    """1 + k_M / (m + k_m), k_w = (sqrt(w^2 + 4 a w) - w)/2."""
    k = {w: (np.sqrt(w * w + 4 * a * w) - w) / 2 for w in weights}
    found = smallest_feasible_ratio(a, weights=weights)
    np.testing.assert_allclose(found, golden, rtol=1e-9)
    np.testing.assert_allclose(found, 1 + k[weights[1]] / (weights[0] + k[weights[0]]), rtol=1e-13)


def test_smallest_ratio_in_its_limits():
    np.testing.assert_allclose(smallest_feasible_ratio(10.0, 24), 1.728527, atol=1e-6)
    np.testing.assert_allclose(smallest_feasible_ratio(10.0, 1), 1.0)
    np.testing.assert_allclose(smallest_feasible_ratio(10.0), 1 + decay_root(1.0, 10.0), rtol=1e-14)
    np.testing.assert_allclose(smallest_feasible_ratio(10.0, before_context=True), 2.370156, atol=1e-6)
    np.testing.assert_allclose(smallest_feasible_ratio(10.0, before_context=True), 1 + 1 / decay_root(1.0, 10.0))
    unbounded = (1 + np.sqrt(1 + 40.0)) / 2  # the lower bound that the paper quotes
    np.testing.assert_allclose(smallest_feasible_ratio(10.0, weights=(1.0, 1e14)), unbounded, rtol=1e-6)
    ratios = [float(smallest_feasible_ratio(10.0, T)) for T in (1, 2, 6, 24)]
    assert all(np.diff(ratios) > 0)
    assert ratios[-1] < smallest_feasible_ratio(10.0)


def test_two_steps_by_hand():
    """T = 2: the best guarantee of any first action x = q y_1 against any y_2, by the exact ratio's own optimisation."""
    a = 10.0
    D = np.array([[1.0, 0.0], [-1.0, 1.0]])
    form = np.eye(2) + a * D.T @ D  # of the path, times 1/2
    optimum = np.eye(2) - np.linalg.inv(form)  # of the contexts, times 1/2

    def ratio(q):
        K = np.array([[q, 0.0], [a * q / (1 + a), 1 / (1 + a)]])  # the last step is Greedy
        bill = (K - np.eye(2)).T @ (K - np.eye(2)) + a * (D @ K).T @ (D @ K)
        return np.linalg.eigvals(np.linalg.solve(optimum, bill)).real.max()

    best = min(ratio(q) for q in np.linspace(0, 0.4, 8001))
    np.testing.assert_allclose(smallest_feasible_ratio(a, 2), best, atol=1e-5)


def test_matrices_are_as_bad_as_their_worst_direction():
    """Matrices that commute fall apart into lines; a rotation of both changes nothing."""
    basis, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))
    A, G = (basis @ np.diag(d) @ basis.T for d in ([1.0, 2.0, 0.5], [10.0, 3.0, 4.0]))
    for horizon in (None, 5):
        lines = smallest_feasible_ratio(np.array([10.0, 1.5, 8.0]), horizon)
        np.testing.assert_allclose(smallest_feasible_ratio(G, horizon, curvature=A), lines.max(), rtol=1e-12)


def test_more_weight_to_come_costs_more():
    """V grows with S, and S with every weight: the greatest weight is the worst."""
    rng = np.random.default_rng(5)

    @jax.jit
    def values(A, G, weights):
        K, after = limit_stiffness(A, G), limit_stiffness(4 * A, G)
        return jax.lax.map(lambda w: promise_value(A + K, parallel_sum(after + w * A, G), 6.0), weights)

    for seed in range(20):
        weights = np.append(np.sort(rng.uniform(1, 4, size=6)), 4.0)
        V = np.asarray(values(spd(3, seed, 0.5, 3.0), spd(3, 50 + seed, 1.0, 9.0), weights))
        assert np.linalg.eigvalsh(np.diff(V, axis=0))[:, 0].min() > -1e-11


@pytest.mark.parametrize("dim", [1, 4])
def test_the_limit_reproduces_itself(dim):
    @jax.jit
    def stiffnesses(A, G):
        K = limit_stiffness(A, G)
        return K, parallel_sum(K + A, G), future_stiffness(A, G, 400)[0], past_stiffness(A, G, 400)[-1]

    A, G = spd(dim, 3, 0.2, 1.0), spd(dim, 4, 1.0, 1e2)
    K, again, long, past = jax.device_get(stiffnesses(A, G))
    np.testing.assert_allclose(again, K, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(long, K, rtol=1e-9)
    np.testing.assert_allclose(past, A + K, rtol=1e-9)


def test_derivatives_are_finite_for_equal_modes():
    def score(matrices):
        A, G = matrices
        K = limit_stiffness(A, G)
        return jnp.sum(promise_value(A + K, K, 2.5) * np.arange(9.0).reshape(3, 3))

    evaluate, at = jax.jit(jax.value_and_grad(score)), np.stack([np.eye(3), 10 * np.eye(3)])
    slopes, turn = np.asarray(evaluate(at)[1]), spd(3, 8, -1.0, 1.0)
    assert np.isfinite(slopes).all()
    for place in (0, 1):
        move = 1e-6 * turn * (np.arange(2) == place)[:, None, None]
        difference = float(evaluate(at + move)[0]) - float(evaluate(at - move)[0])
        np.testing.assert_allclose(np.sum(slopes[place] * turn), difference / 2e-6, rtol=1e-6)


def test_a_tariff_that_recurs_is_a_long_tariff():
    G, tariff = jnp.array([[10.0]]), jnp.array([1.0, 4.0, 2.0])[:, None, None]
    rounds = jnp.tile(tariff, (200, 1, 1))

    @jax.jit
    def both():
        short = *recurring_stiffness(tariff, G), largest_share(tariff, tariff, G, None)
        P, S = past_stiffness(rounds, G, 600)[-3:], future_stiffness(rounds, G, 600)[:3]
        return short, (P, S, largest_share(rounds, rounds, G, 600))

    for short, long in zip(*both(), strict=True):
        np.testing.assert_allclose(short, long, rtol=1e-10)
    constant = jnp.ones((4, 1, 1))
    np.testing.assert_allclose(
        1 + largest_share(constant, constant, G, None), smallest_feasible_ratio(10.0), rtol=1e-10
    )


def _led_back_to(weights: list[float], movement: float) -> Decimal:
    """The positive s that the steps s -> (s + w) a / (s + w + a) lead back to, in sixty digits: a round is a Moebius map."""
    decimal.getcontext().prec, a = 60, Decimal(movement)
    (p, q), (r, s) = (Decimal(1), Decimal(0)), (Decimal(0), Decimal(1))
    for w in map(Decimal, weights):
        (p, q), (r, s) = (a * (p + w * r), a * (q + w * s)), (p + (w + a) * r, q + (w + a) * s)
    return ((p - s) + ((p - s) ** 2 + 4 * q * r).sqrt()) / (2 * r)


@pytest.mark.parametrize("movement", [10.0, 1e7, 1e16])
def test_what_recurs_is_found_however_slowly_it_settles(movement):
    """At 1e7 it takes ten thousand steps to come within a percent."""
    tariff = np.array([1.0, 4.0, 0.5, 2.0])
    P, S = recurring_stiffness(to_device(tariff[:, None, None]), jnp.array([[movement]]))
    expected = _led_back_to(tariff.tolist(), movement), _led_back_to(tariff[::-1].tolist(), movement)
    np.testing.assert_allclose(float(P[0, 0, 0]), tariff[0] + float(expected[0]), rtol=4e-15)
    np.testing.assert_allclose(float(S[-1, 0, 0]), float(expected[1]), rtol=4e-15)


def test_matrices_that_recur_lead_back_to_themselves():
    """Matrices that do not commute, in an order that matters."""
    A, G = np.stack([spd(3, seed, 0.3, 4.0) for seed in range(3)]), to_device(spd(3, 9, 1.0, 50.0))

    @jax.jit
    def both(A):
        P, S = recurring_stiffness(A, G)
        long = jnp.tile(A, (60, 1, 1))
        return (P, S), (past_stiffness(long, G, 180)[-3:], future_stiffness(long, G, 180)[:3])

    for short, long in zip(*both(A), strict=True):
        np.testing.assert_allclose(short, long, rtol=1e-11, atol=1e-12)
        assert np.abs(short[0] - short[2]).max() > 0.1
    other, _ = both(A[::-1])
    assert np.abs(other[0][::-1] - both(A)[0][0]).max() > 0.1


def test_reproduced_on_a_line_is_what_doubling_finds():
    a, b = jnp.array([0.3, 2.0]), jnp.array([5.0, 0.1])
    both = riccati_fixed_point(jnp.diag(a), jnp.diag(b))
    lines = [float(riccati_fixed_point(a[i, None, None], b[i, None, None])[0, 0]) for i in range(2)]
    np.testing.assert_allclose(jnp.diagonal(both), lines, rtol=1e-13)


def test_competitive_control_of_a_boeing_747():
    """The longitudinal dynamics in level flight, discretised to one second, that Goel and Hassibi use."""
    F = [[0.99, 0.03, -0.02, -0.32], [0.01, 0.47, 4.7, 0.0], [0.02, -0.06, 0.40, 0.0], [0.01, -0.04, 0.72, 0.99]]
    B = [[0.01, 0.99], [-3.44, 1.66], [-0.83, 0.44], [-0.47, 0.25]]
    for before_context, expected in ((False, 1.771970), (True, 28.383874)):
        ratio = competitive_control_ratio(F, B, np.eye(4), np.eye(2), before_context=before_context)
        np.testing.assert_allclose(ratio, expected, atol=1e-6)
    np.testing.assert_allclose(
        competitive_control_ratio(1.0, 1.0, 1.0, 10.0), smallest_feasible_ratio(10.0), rtol=1e-12
    )


def test_refusals():
    for bad in ({"movement": -1.0}, {"movement": 1.0, "horizon": 0}, {"movement": 1.0, "weights": (2.0, 1.0)}):
        with pytest.raises(ValueError, match="must be"):
            smallest_feasible_ratio(**bad)
