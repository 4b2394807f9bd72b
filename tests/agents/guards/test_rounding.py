"""Promises in floating point, judged in exact arithmetic: kept where they are said to be, and not ended without need.

The referee adds up costs and solves for the optimum with 120 digits, from the binary values of matrices, contexts and actions.
"""

import decimal
import functools
from decimal import Decimal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec

EXACT = decimal.Context(prec=120, Emin=-(10**6), Emax=10**6)
TOLERANCE = {np.float64: 2e-9, np.float32: 2e-4}  # of cost or reference: twice that of their sum, which the guard uses
T, RUNS = 24, 5


@pytest.fixture(autouse=True)
def exactly():
    with decimal.localcontext(EXACT):
        yield


def exact(array) -> np.ndarray:
    return np.vectorize(lambda number: Decimal(float(number)), otypes=[object])(array)


def solve(matrix, right):
    """Gaussian elimination, for positive definite matrices."""
    matrix, right = matrix.copy(), right.copy()
    for i in range(len(right)):
        for j in range(i + 1, len(right)):
            factor = matrix[j, i] / matrix[i, i]
            matrix[j], right[j] = matrix[j] - factor * matrix[i], right[j] - factor * right[i]
    for i in reversed(range(len(right))):
        for j in range(i + 1, len(right)):
            right[i] = right[i] - matrix[i, j] * right[j]
        right[i] = right[i] / matrix[i, i]
    return right


def costs(A, G, contexts, actions):
    """The cost of every prefix, from 0."""
    before, total, found = np.zeros_like(actions[0]), Decimal(0), []
    for y, x in zip(contexts, actions, strict=True):
        total += ((x - y) @ A @ (x - y) + (x - before) @ G @ (x - before)) / 2
        before = x
        found.append(total)
    return found


def optima(A, G, contexts):
    """The optimum of every prefix, from 0, by elimination in the block-tridiagonal normal equations."""
    constant, spent, found = Decimal(0), Decimal(0), []
    block = right = None
    for y in contexts:
        constant += y @ A @ y / 2
        diagonal, pull = A + 2 * G, A @ y
        if block is not None:
            diagonal, pull = diagonal - G @ solve(block, G), pull + G @ solve(block, right)
        block, right = diagonal, pull
        found.append(constant - spent - right @ solve(block - G, right) / 2)  # the last action is not moved from
        spent += right @ solve(block, right) / 2
    return found


def excess(cost, reference, ratio):
    """By which share of the promise the cost exceeds it."""
    promised = Decimal(float(ratio)) * reference
    if promised == 0:
        return 0.0 if cost == 0 else np.inf
    return float((cost - promised) / promised)


@functools.cache
def program(kind: str):
    def play(A, Q, x0, contexts, advice, ratio):
        problem = ec.Problem(ec.Quadratic(A), ec.Mahalanobis(Q))
        inner, instance = ec.advisors.Fixed(advice), ec.Instance(x0, contexts)
        guard = {
            "Competitive": lambda: ec.Competitive(inner, ratio, horizon=T),
            "in a box": lambda: ec.Competitive(inner, ratio, horizon=T, contexts=(contexts.min(0), contexts.max(0))),
            "Guarded": lambda: ec.Guarded(inner, slack=ratio - 1),
            "with a period": lambda: ec.Competitive(ec.Guarded(inner), ratio, period=T),
        }[kind]()
        run = ec.rollout(guard, problem, instance)
        expert = ec.rollout(ec.ROBD(), problem, instance).actions
        return run.actions, run.info.details["kept"][:, 0], run.converged, expert

    return jax.jit(jax.vmap(play, in_axes=(None, None, 0, 0, 0, 0)))


def judge(kind, A, Q, x0, contexts, advice, ratio, dtype):
    """The largest excess while the promise is said to be kept, and the share of the runs that end it."""
    given = [np.asarray(value, dtype) for value in (A, Q, x0, contexts, advice, ratio)]
    actions, kept, converged, experts = jax.device_get(program(kind)(*given))
    assert not (converged & ~kept).any()  # a promise that ends is said
    A, Q, x0, contexts = map(exact, given[:4])
    A, G, worst = (A + A.T) / 2, Q + Q.T, -1.0
    for i in range(len(x0)):
        if not np.isfinite(actions[i]).all():
            assert not kept[i].all()
            continue
        y = contexts[i] - x0[i]
        paid = costs(A, G, y, exact(actions[i]) - x0[i])
        reference = costs(A, G, y, exact(experts[i]) - x0[i]) if kind == "Guarded" else optima(A, G, y)
        promised = 1 + (given[5][i] - dtype(1)) if kind == "Guarded" else given[5][i]
        said = zip(paid, reference, kept[i], strict=True)
        worst = max([worst, *(excess(cost, best, promised) for cost, best, is_kept in said if is_kept)])
    return worst, 1 - kept.all(axis=1).mean()


def hostile(dim, seed, direction=None):
    """Contexts of size 1 that wander, jump or alternate, and advice that is far away or the opposite of them."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(RUNS, T, dim))
    if direction is not None:
        noise = noise[..., :1] * direction
    shapes = [noise, np.cumsum(noise, axis=1) / 3, noise[:, :1] * (-1.0) ** np.arange(T)[:, None]]
    contexts = np.stack([shapes[i % 3][i] for i in range(RUNS)])
    far = 1e3 * rng.normal(size=noise.shape)
    advice = np.stack([far[i] if i % 2 else -3 * contexts[i] for i in range(RUNS)])
    return contexts[:, 0] + 0.1 * noise[:, 0], contexts, advice


def diagonal(dim):
    return np.diag(np.linspace(1.0, 3.0, dim)), np.diag(np.linspace(5.0, 1.0, dim))


def graded(dim, condition, seed):
    basis, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, dim)))
    matrix = basis @ np.diag(np.geomspace(1.0, condition, dim)) @ basis.T
    return (matrix + matrix.T) / 2


@pytest.mark.parametrize(
    ("kind", "dim", "seed"),
    [("Competitive", 1, 1), ("Competitive", 2, 2), ("in a box", 1, 1), ("Guarded", 1, 1), ("with a period", 1, 2)],
)
def test_the_level_of_contexts_does_not_break_a_promise(kind, dim, seed):
    """Up to 1e15 times the variation in 64 bits, 1e6 in 32: a moving origin keeps the promise, and nothing ends it.

    At 1e15 an action is one of a few numbers, an eighth apart, which end one run in fifty.
    """
    for dtype, levels in ((np.float64, (0.0, 1e6, 1e9, 1e12, 1e15)), (np.float32, (0.0, 1e3, 1e6))):
        for level in levels:
            x0, contexts, advice = (level + part for part in hostile(dim, seed))
            if kind == "in a box":
                x0 = np.clip(x0, contexts.min(axis=1), contexts.max(axis=1))
            worst, ended = judge(kind, *diagonal(dim), x0, contexts, advice, np.full(RUNS, 2.5), dtype)
            assert worst <= TOLERANCE[dtype], (dtype, level)
            assert ended == 0, (dtype, level)


@pytest.mark.parametrize("kind", ["Competitive", "Guarded"])
def test_ill_conditioned_matrices_end_a_promise_that_rounding_could_break(kind):
    """In the weak direction of the matrices every digit counts; elsewhere a promise lasts longer."""
    for dtype, conditions, safe in (
        (np.float32, (1.0, 1e2, 1e4, 1e5, 1e6, 1e7), 1e2),
        (np.float64, (1e6, 1e8, 1e11), 1e6),
    ):
        for condition in conditions:
            for other in (condition, 10.0):
                A, Q = (np.asarray(graded(3, c, seed), dtype) for c, seed in ((condition, 11), (other, 12)))
                x0, contexts, advice = hostile(3, seed=5, direction=np.linalg.eigh(Q.astype(float))[1][:, 0])
                smallest = ec.theory.smallest_feasible_ratio(2 * Q.astype(float), T, curvature=A.astype(float))
                ratio = 1.1 * float(smallest)
                worst, ended = judge(kind, A, Q, x0, contexts, advice, np.full(RUNS, ratio), dtype)
                assert worst <= TOLERANCE[dtype], (dtype, condition, other)
                assert ended == 0 or condition > safe, (dtype, condition, other)


def test_matrices_that_the_precision_cannot_resolve_end_a_promise():
    """Near a condition of 1 / eps the solution of a system has no digits: the optimum would be overestimated."""
    lasted = 0
    for seed in range(40):
        weak_A, size_Q = 10.0 ** np.random.default_rng(seed).uniform((-8.0, -3.0), (-5.0, 0.0))
        A, Q = graded(2, 1 / weak_A, seed).astype(np.float32), (size_Q * graded(2, 10.0, 90 + seed)).astype(np.float32)
        if np.linalg.eigvalsh(A.astype(float))[0] <= 0:
            continue
        smallest = ec.theory.smallest_feasible_ratio(2 * Q.astype(float), T, curvature=A.astype(float))
        runs = hostile(2, seed, None if seed % 2 else np.linalg.eigh(Q.astype(float))[1][:, 0])
        worst, ended = judge("Competitive", A, Q, *runs, np.full(RUNS, 1.1 * float(smallest)), np.float32)
        assert worst <= TOLERANCE[np.float32], (seed, weak_A)
        lasted += ended < 1
    assert lasted > 3


@pytest.mark.parametrize(("condition", "is_kept"), [(1e2, True), (1e4, True), (3e7, False), (1e9, False)])
def test_a_promise_on_unresolved_matrices_ends_before_any_cost(condition, is_kept):
    """Contexts, advice and actions are zero, so that only the matrices can end it."""
    A, Q = (graded(2, c, seed).astype(np.float32) for c, seed in ((condition, 3), (10.0, 93)))
    given = np.zeros((RUNS, 2)), np.zeros((RUNS, T, 2)), np.zeros((RUNS, T, 2)), np.full(RUNS, 1e6)
    _, kept, _, _ = program("Competitive")(A, 1e-4 * Q, *(np.asarray(each, np.float32) for each in given))
    assert np.all(kept) == is_kept
    assert np.any(kept) == is_kept


@pytest.mark.parametrize("kind", ["Competitive", "Guarded"])
def test_squares_that_underflow_end_a_promise(kind):
    for dtype, scales, safe in (
        (np.float64, (1e-170, 1e-156, 1e-154, 1e-150, 1e-140, 1.0, 1e150), 1e-140),
        (np.float32, (1e-25, 1e-19, 1e-17, 1e-15, 1e15), 1e-15),
    ):
        for scale in scales:
            x0, contexts, advice = (scale * part for part in hostile(1, seed=1))
            worst, ended = judge(kind, *diagonal(1), x0, contexts, advice, np.full(RUNS, 2.5), dtype)
            assert worst <= TOLERANCE[dtype], (dtype, scale)
            assert ended == 0 or scale < safe, (dtype, scale)


def test_a_run_in_which_nothing_happens_ends_no_promise():
    for kind, where in (("Competitive", 1e-200), ("Competitive", 0.3), ("Guarded", 0.3)):
        still = np.full((RUNS, T, 1), where)
        worst, ended = judge(kind, *diagonal(1), still[:, 0], still, still, np.full(RUNS, 2.5), np.float64)
        assert worst <= 0.0
        assert ended == 0


@pytest.mark.optimised
def test_sums_and_forms_keep_more_digits_than_their_precision():
    """Also as users compile it: nothing is reordered."""
    from ecl2o.problem.arrays import add_exactly
    from ecl2o.solvers.small_dense import accurate_half_form

    rng = np.random.default_rng(0)
    for dtype in (np.float64, np.float32):
        a, b = rng.normal(size=100).astype(dtype), (1e-9 * rng.normal(size=100)).astype(dtype)
        total, rest = jax.device_get(jax.jit(add_exactly)(a, b))
        assert (exact(total) + exact(rest) == exact(a) + exact(b)).all()
        for condition in (1e3, 1.0 / np.finfo(dtype).eps ** 0.7):
            matrix = graded(4, condition, seed=2).astype(dtype)
            vector = np.linalg.eigh(matrix.astype(float))[1][:, 0].astype(dtype)
            value, bound = jax.device_get(jax.jit(accurate_half_form)(jnp.asarray(matrix), jnp.asarray(vector)))
            truth = exact(vector) @ exact(matrix) @ exact(vector) / 2
            error = abs(float(Decimal(float(value)) - truth))
            assert error <= bound <= TOLERANCE[dtype] * float(truth)
