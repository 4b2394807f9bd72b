"""How fast the oracle is beside LAPACK, cvxpy, SuperLU and OSQP, in one process, as ratios.

Run `.venv/bin/python benchmarks/oracle.py` (about half a minute). Everything is in double precision and on one core: the
process is pinned, because XLA ignores thread limits and would use every core it sees, which LAPACK cannot here.
Times are CPU times of the process, which other programs disturb little; repetitions of the competitors are interleaved;
the figure is the minimum, with the median beside it. docs/benchmarks.md says what was measured and where.
"""

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import platform
import time
from collections.abc import Callable
from pathlib import Path

import cvxpy as cp
import jax
import numpy as np
import osqp
import scipy
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg
import threadpoolctl
from timing import interleaved, pin_to_one_core, row

import ecl2o as ec

ALPHA = 10.0
DAYS, HOURS = 1416, 24
SAMPLE = 30  # instances on which cvxpy is timed


def main() -> None:
    """All three tables."""
    pin_to_one_core()
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # we wait for each result anyway
    describe_machine()
    many_short_instances()
    one_long_instance()
    many_dimensions(horizon=24, count=64)
    many_dimensions(horizon=200, count=64)


def heading(text: str) -> None:
    """The title of a table."""
    print(f"\n{text}\n  {'':<58} {'minimum, ms':>11} {'median, ms':>11} {'ratio':>10}")


def describe_machine() -> None:
    """What the figures depend on."""
    model = "unknown processor"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        named = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = named[0] if named else model
    print(f"machine: {model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}, {platform.platform()}")
    if hasattr(os, "sched_getaffinity"):
        print(f"pinned to core {sorted(os.sched_getaffinity(0))}")
    print(
        f"python {platform.python_version()}, jax {jax.__version__}, numpy {np.__version__}, scipy {scipy.__version__}"
    )
    print(f"cvxpy {cp.__version__}, osqp {osqp.__version__}")
    for pool in threadpoolctl.threadpool_info():
        print(f"{pool['internal_api']} {pool['version']} ({pool['prefix']}): {pool['num_threads']} thread(s)")


# --- (a) 1,416 days of 24 hours, d = 1 --------------------------------------------------------------------------------


def case_study_problem() -> ec.Problem:
    """The paper's case study: f = 1/2 |x - y|^2 and c = 5 |x - z|^2."""
    return ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=ALPHA, dim=1))


def batched_oracle() -> Callable:
    """One jitted call for a whole set of instances; the problem is an argument, so that its factor is not folded."""
    return jax.jit(jax.vmap(ec.oracle, in_axes=(None, 0)))


def many_short_instances() -> None:
    """All days at once against LAPACK's banded Cholesky, and one by one against cvxpy."""
    heading(f"(a) {DAYS:,} instances of {HOURS} steps, d = 1")
    draw = np.random.default_rng(0)
    x0, contexts = draw.uniform(size=(DAYS, 1)), draw.uniform(size=(DAYS, HOURS, 1))
    problem, instances, solve = case_study_problem(), ec.Instance(x0, contexts), batched_oracle()
    actions = jax.jit(jax.vmap(lambda p, s: ec.oracle(p, s).actions, in_axes=(None, 0)))
    bands, right = banded_system(x0[:, 0], contexts[:, :, 0])
    seconds = interleaved(
        {
            "ecl2o": lambda: solve(problem, instances),
            "ecl2o, actions": lambda: actions(problem, instances),
            "lapack": lambda: scipy.linalg.solveh_banded(bands, right),
            "lapack, unchecked": lambda: scipy.linalg.solveh_banded(bands, right, check_finite=False),
        },
        rounds=300,
    )
    reference = scipy.linalg.solveh_banded(bands, right).T
    error = np.abs(np.asarray(solve(problem, instances).actions[:, :, 0]) - reference).max()

    ours = seconds["ecl2o"]
    row("ecl2o.oracle, one jitted call: actions and their costs", ours, ours)
    row("ecl2o.oracle, the actions alone", seconds["ecl2o, actions"], ours)
    row("scipy.linalg.solveh_banded, all at once: actions", seconds["lapack"], ours, "wanted: at least 1")
    row("  without its check for NaN", seconds["lapack, unchecked"], ours, "wanted: at least 1")
    for name, one_by_one in (("fresh problem", fresh_cvxpy), ("one problem with parameters", reused_cvxpy())):
        one_by_one(x0[0, 0], contexts[0, :, 0])  # compiles the reused problem
        each, worst = [], 0.0
        for i in range(SAMPLE):
            start = time.process_time()
            path = one_by_one(x0[i, 0], contexts[i, :, 0])
            each.append(DAYS * (time.process_time() - start))
            worst = max(worst, float(np.abs(path - reference[i]).max()))
        note = f"wanted: 20,000; {DAYS:,} times one, from {SAMPLE}; off by {worst:.0e}"
        row(f"cvxpy one by one, {name}", each, ours, note)
    print(f"  largest difference from LAPACK: {error:.1e}")


def banded_system(x0: np.ndarray, contexts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The tridiagonal matrix in LAPACK's upper form, and one right-hand side per instance, ready for the solver."""
    bands = np.zeros((2, HOURS))
    bands[0, 1:] = -ALPHA
    bands[1] = 1 + 2 * ALPHA
    bands[1, -1] = 1 + ALPHA
    right = contexts.T.copy()
    right[0] += ALPHA * x0
    return bands, right


def cvxpy_problem(x0, contexts) -> tuple[cp.Problem, cp.Variable]:
    """The oracle's problem as a modeller would write it."""
    path = cp.Variable(HOURS)
    cost = 0.5 * cp.sum_squares(path - contexts)
    cost += ALPHA / 2 * (cp.square(path[0] - x0) + cp.sum_squares(cp.diff(path)))
    return cp.Problem(cp.Minimize(cost)), path


def reused_cvxpy() -> Callable:
    """Built and canonicalised once, with the instance as parameters."""
    x0, contexts = cp.Parameter(), cp.Parameter(HOURS)
    model, path = cvxpy_problem(x0, contexts)

    def solve(start, series):
        x0.value, contexts.value = start, series
        model.solve()
        return path.value

    return solve


def fresh_cvxpy(start, series):
    """Build the problem again for each instance."""
    model, path = cvxpy_problem(start, series)
    model.solve()
    return path.value


# --- (b) one long instance, d = 1 -------------------------------------------------------------------------------------


def one_long_instance() -> None:
    """Time per step should not depend on the number of steps."""
    print("\n(b) one instance, d = 1, time against horizon")
    problem, solve = case_study_problem(), jax.jit(ec.oracle)
    draw = np.random.default_rng(1)
    for horizon in (10**3, 10**4, 10**5, 10**6):
        instance = ec.Instance(np.zeros(1), draw.uniform(size=(horizon, 1)))
        seconds = min(interleaved({"ecl2o": lambda s=instance: solve(problem, s)}, rounds=15)["ecl2o"])
        print(f"  T = {horizon:>9,}: {1e3 * seconds:>10.3f} ms, {1e9 * seconds / horizon:>7.1f} ns per step")


# --- (c) eight dimensions ---------------------------------------------------------------------------------------------


def many_dimensions(horizon: int, count: int, dim: int = 8) -> None:
    """A set of instances with full A and Q against a sparse factor and OSQP, instance by instance."""
    heading(f"(c) {count} instances of {horizon} steps, d = {dim}, full A and Q")
    draw = np.random.default_rng(2)
    x0, contexts = draw.normal(size=(count, dim)), draw.normal(size=(count, horizon, dim))
    As, Qs = (np.stack([random_spd(draw, dim) for _ in range(count)]) for _ in range(2))
    instances = ec.Instance(x0, contexts)
    same = ec.Problem(ec.Quadratic(As[0]), ec.Mahalanobis(Qs[0]))
    own = jax.vmap(lambda A, Q: ec.Problem(ec.Quadratic(A), ec.Mahalanobis(Q)))(As, Qs)
    solve_same, solve_own = batched_oracle(), jax.jit(jax.vmap(ec.oracle))
    systems = [sparse_system(As[i], Qs[i], x0[i], contexts[i]) for i in range(count)]
    same_right = np.stack([sparse_system(As[0], Qs[0], x0[i], contexts[i])[1] for i in range(count)], axis=1)

    seconds = interleaved(
        {
            "own": lambda: solve_own(own, instances),
            "splu": lambda: [sparse_solve(matrix, right) for matrix, right in systems],
            "osqp": lambda: [osqp_solve(matrix, right) for matrix, right in systems],
            "same": lambda: solve_same(same, instances),
            "splu once": lambda: scipy.sparse.linalg.splu(systems[0][0], **SYMMETRIC).solve(same_right),
        },
        rounds=10,
    )
    same_ours, own_ours = seconds["same"], seconds["own"]
    row("ecl2o.oracle, one problem for all, one call", same_ours, same_ours)
    row("SuperLU, factor and solve per instance", seconds["splu"], same_ours, "wanted: at least 10")
    row("OSQP, set up and solve per instance", seconds["osqp"], same_ours, "wanted: at least 10; tolerance 1e-6")
    row("SuperLU, one factor, all right-hand sides at once", seconds["splu once"], same_ours)
    row("ecl2o.oracle, own A and Q per instance, one call", own_ours, own_ours)
    row("SuperLU, factor and solve per instance", seconds["splu"], own_ours, "wanted: at least 10")
    row("OSQP, set up and solve per instance", seconds["osqp"], own_ours, "wanted: at least 10")
    exact = np.stack([sparse_solve(*system) for system in systems]).reshape(count, horizon, dim)
    print(
        f"  largest difference from SuperLU: {np.abs(np.asarray(solve_own(own, instances).actions) - exact).max():.1e}"
    )


def random_spd(draw: np.random.Generator, dim: int) -> np.ndarray:
    """A well-conditioned symmetric positive definite matrix."""
    factor = draw.normal(size=(dim, dim))
    return factor @ factor.T / dim + np.eye(dim)


def sparse_system(A, Q, x0, contexts) -> tuple[sp.csc_matrix, np.ndarray]:
    """The block-tridiagonal Hessian and the right-hand side."""
    horizon = contexts.shape[0]
    movement = sp.diags([-1.0, np.r_[np.full(horizon - 1, 2.0), 1.0], -1.0], [-1, 0, 1], shape=(horizon, horizon))
    matrix = sp.kron(sp.eye(horizon), A) + sp.kron(movement, 2 * Q)
    right = contexts @ A
    right[0] += 2 * Q @ x0
    return sp.csc_matrix(matrix), right.ravel()


# SuperLU for a symmetric positive definite band: no pivoting, and the natural order, which fills in nothing outside the band.
SYMMETRIC = {"permc_spec": "NATURAL", "diag_pivot_thresh": 0.0, "options": {"SymmetricMode": True}}


def sparse_solve(matrix: sp.csc_matrix, right: np.ndarray) -> np.ndarray:
    """Factor and solve one instance."""
    return scipy.sparse.linalg.splu(matrix, **SYMMETRIC).solve(right)


def osqp_solve(matrix: sp.csc_matrix, right: np.ndarray) -> np.ndarray:
    """Set up and solve one instance; OSQP wants constraints, so it gets one row that does not bind."""
    size = right.shape[0]
    solver = osqp.OSQP()
    row_of_zeros = sp.csc_matrix((1, size))
    free = (np.array([-1.0]), np.array([1.0]))
    solver.setup(sp.triu(matrix, format="csc"), -right, row_of_zeros, *free, verbose=False, eps_abs=1e-6, eps_rel=1e-6)
    return solver.solve().x


if __name__ == "__main__":
    main()
