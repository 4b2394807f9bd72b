"""One plan with a ramp limit and bounds, beside solvers of quadratic programs: accuracy and time in one run.

Run `.venv/bin/python benchmarks/ramped_plans.py` (a minute; the extra `bench`). A plan of 24, 96 or 336 steps of
1/2 |x - y|^2 + alpha/2 |x_t - x_{t-1}|^2, alpha = 10, with 0.25 <= x_t <= 0.75 and |x_t - x_{t-1}| <= 0.03, from x_0 = 0.5 and
random contexts: ramps and bounds bind. Ours is `find_optimal_path`, compiled, for one plan and for a batch under `vmap`. DAQP
(dense, active set) is set up once and gets the linear term; so are PIQP (sparse) and OSQP, to 1e-9. Rows take turns;
a figure is the median CPU time of a plan. The gap is that of a plan's cost to the least one found, relative; and the largest
violation of a constraint is beside it.
"""

import argparse
import datetime
import importlib.metadata
import os
from collections.abc import Callable

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import daqp
import jax
import numpy as np
import osqp
import piqp
import scipy.sparse as sp
from timing import interleaved, pin_to_one_core

import ecl2o as ec
from ecl2o.planning.optimal_path import find_optimal_path

ALPHA, RAMP, LOW, HIGH, FIRST, TOLERANCE = 10.0, 0.03, 0.25, 0.75, 0.5, 1e-9
Plan = Callable[[np.ndarray], np.ndarray]


def main() -> None:
    """Print a table for each length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=[24, 96, 336])
    parser.add_argument("--plans", type=int, default=20)
    given = parser.parse_args()
    pin_to_one_core()
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("jax", "daqp", "piqp", "osqp")]
    print(f"{datetime.date.today()}, {', '.join(versions)}, load {os.getloadavg()[0]:.1f}")
    for steps in given.steps:
        compare(steps, np.random.default_rng(0).uniform(size=(given.plans, steps)))


def compare(steps: int, contexts: np.ndarray) -> None:
    """One table."""
    actions = ec.Limited(ec.Box(LOW, HIGH), ramp=RAMP)
    problem, x0 = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(ALPHA, 1), actions), np.full(1, FIRST)
    one = jax.jit(lambda y: find_optimal_path(problem, x0, y[:, None]).actions[:, 0])
    many = jax.jit(jax.vmap(one))
    plans: dict[str, Plan] = {"ours, one plan": lambda y: np.asarray(one(y)), **solvers(steps)}
    found = {name: np.array([plan(y) for y in contexts]) for name, plan in plans.items()}
    calls = {name: lambda plan=plan: [plan(y) for y in contexts] for name, plan in plans.items()}
    found["ours, a batch"], calls["ours, a batch"] = np.asarray(many(contexts)), lambda: many(contexts)
    costs = {name: cost(contexts, x) for name, x in found.items()}
    allowed = [costs[name] for name, x in found.items() if violation(x).max() < 1e-7]
    least = np.min(allowed, axis=0)
    taken = {name: 1e6 * np.median(seconds) / len(contexts) for name, seconds in interleaved(calls, 7).items()}
    bound = np.mean(np.abs(np.diff(found["ours, one plan"], axis=1)) > RAMP * (1 - 1e-6))
    print(f"\n{steps} steps, ramps bind in {bound:.0%} of them: us a plan, ratio, gap in cost, violation")
    for name, x in found.items():
        gap = np.max(costs[name] / least - 1)
        ratio = taken[name] / taken["ours, one plan"]
        print(f"  {name:16s}{taken[name]:10.1f}{ratio:8.2f}{gap:11.1e}{violation(x).max():11.1e}")


def cost(contexts: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the cost of each plan."""
    return ((x - contexts) ** 2).sum(axis=1) / 2 + ALPHA / 2 * (np.diff(x, axis=1, prepend=FIRST) ** 2).sum(axis=1)


def violation(x: np.ndarray) -> np.ndarray:
    """Return by how much each plan exceeds a constraint."""
    ramp = np.abs(np.diff(x, axis=1, prepend=FIRST)).max(axis=1) - RAMP
    return np.maximum(np.maximum(ramp, np.maximum(LOW - x.min(axis=1), x.max(axis=1) - HIGH)), 0.0)


def solvers(steps: int) -> dict[str, Plan]:
    """Each solver, set up, as a function of the contexts."""
    move = sp.eye(steps, format="csc") - sp.eye(steps, k=-1, format="csc")
    hessian = sp.csc_matrix(sp.eye(steps) + ALPHA * move.T @ move)
    first = np.eye(steps)[0] * FIRST
    low, high, down, up = np.full(steps, LOW), np.full(steps, HIGH), first - RAMP, first + RAMP

    def linear(y: np.ndarray) -> np.ndarray:
        return -(y + ALPHA * first)

    dense, both = hessian.toarray(), (np.concatenate([high, up]), np.concatenate([low, down]))
    active = daqp.Model()
    active.setup(dense, linear(low), move.toarray(), *both, np.zeros(2 * steps, np.int32))

    def by_daqp(y: np.ndarray) -> np.ndarray:
        active.update(f=linear(y))
        return active.solve()[0].copy()

    interior = piqp.SparseSolver()
    interior.settings.eps_abs = interior.settings.eps_rel = TOLERANCE
    interior.setup(hessian, linear(low), G=move, h_l=down, h_u=up, x_l=low, x_u=high)

    def by_piqp(y: np.ndarray) -> np.ndarray:
        interior.update(c=linear(y))
        interior.solve()
        return interior.result.x.copy()

    splitting, rows = osqp.OSQP(), sp.vstack([sp.eye(steps), move], format="csc")
    ends = np.concatenate([low, down]), np.concatenate([high, up])
    tolerances = {"eps_abs": TOLERANCE, "eps_rel": TOLERANCE, "max_iter": 100_000}
    splitting.setup(sp.triu(hessian, format="csc"), linear(low), rows, *ends, verbose=False, **tolerances)

    def by_osqp(y: np.ndarray) -> np.ndarray:
        splitting.update(q=linear(y))
        return splitting.solve().x.copy()

    return {"DAQP": by_daqp, "PIQP": by_piqp, "OSQP": by_osqp}


if __name__ == "__main__":
    main()
