"""One decision, and one for each of many streams, beside solvers of quadratic programs and the law written in NumPy.

Run `.venv/bin/python benchmarks/decisions.py` (three minutes; `--parts single batch profile`). Three cases, in double precision:

- *law*: R-OBD in one dimension without bounds, a linear law;
- *box*: R-OBD in 8 dimensions with a full Q and bounds that bind, a quadratic program of 8 variables;
- *plan*: RHC over 24 steps with bounds and a persistent forecast, a quadratic program of 24 variables.

`Runner` validates the context, decides, counts both costs and keeps the state. The NumPy law decides and counts costs. The
solvers decide, no more: they are set up once, outside the timing; a decision updates the linear term and solves, warm-started
where a solver can. OSQP and PIQP stop at 1e-6, DAQP is exact. All actions are compared with `Runner`'s.

Rows take turns in rounds on one core, by the wall clock, which is what a control loop waits for. A round's figure is the median
of its calls; the least of the rounds is printed beside their median. Ratios are to `Runner` in the same run.
"""

import argparse
import datetime
import importlib.metadata
import os
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import daqp
import jax
import numpy as np
import osqp
import piqp
import scipy.sparse as sp
from timing import pin_to_one_core

import ecl2o as ec
from ecl2o.theory import optimal_lambda2

ALPHA, WINDOW, TOLERANCE = 10.0, 24, 1e-6
SAMPLE = 200  # streams on which a solver is timed; every stream is the same work
Decide = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (previous, context) -> action


class Case(NamedTuple):
    """A policy, and the quadratic program 1/2 z'Hz + g'z, lower <= z <= upper, whose first d numbers are its action."""

    policy: ec.Policy
    dim: int
    hessian: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    linear: Decide  # (previous, context) -> g


def main() -> None:
    """Print a table for each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["single", "batch", "profile"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=400)
    given = parser.parse_args()
    pin_to_one_core()
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("jax", "numpy", "daqp", "piqp", "osqp")]
    print(f"{datetime.date.today()}, {', '.join(versions)}, load {os.getloadavg()[0]:.1f}")
    cases = {"law": linear_law(), "box": bounded_law(), "plan": bounded_plan()}
    if "single" in given.parts:
        for name, case in cases.items():
            compare_single(name, case, given.rounds, given.steps)
    if "batch" in given.parts:
        for count in (1_000, 10_000):
            for name, case in cases.items():
                compare_batch(name, case, count, given.rounds)
    if "profile" in given.parts:
        profile(cases["law"], given.rounds, given.steps)


def linear_law() -> Case:
    """R-OBD, d = 1. Solvers want bounds: these do not bind."""
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=ALPHA, dim=1))
    wide = np.full(1, 10.0)
    return _robd_case(problem, np.array([[ALPHA / 2]]), ALPHA, -wide, wide)


def bounded_law() -> Case:
    """R-OBD, d = 8, with contexts outside the bounds half of the time."""
    root = np.random.default_rng(0).normal(size=(8, 8))
    Q = root @ root.T / 8 + np.eye(8)
    lower, upper = np.full(8, 0.25), np.full(8, 0.75)
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis(Q), ec.Box(lower, upper))
    return _robd_case(problem, Q, 2 * float(np.linalg.eigvalsh(Q)[-1]), lower, upper)


def _robd_case(problem: ec.Problem, Q: np.ndarray, beta: float, lower: np.ndarray, upper: np.ndarray) -> Case:
    dim, lambda2 = len(Q), float(ec.ROBD().weights(problem).minimizer)
    assert np.isclose(lambda2, float(optimal_lambda2(1.0, beta, beta, 0.0)))

    def linear(previous: np.ndarray, context: np.ndarray) -> np.ndarray:
        nearest = np.minimum(np.maximum(context, lower), upper)
        return -(context + 2 * Q @ (previous + lambda2 * nearest))

    hessian = np.eye(dim) + 2 * (1 + lambda2) * Q
    return Case(ec.Policy(ec.ROBD(), problem), dim, hessian, lower, upper, linear)


def bounded_plan() -> Case:
    """RHC over 24 steps, d = 1, with contexts outside the bounds half of the time."""
    movement = 2 * np.eye(WINDOW) - np.eye(WINDOW, k=1) - np.eye(WINDOW, k=-1)
    movement[-1, -1] = 1.0
    lower, upper = np.full(WINDOW, 0.25), np.full(WINDOW, 0.75)
    problem = ec.Problem(
        ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=ALPHA, dim=1), ec.Box(lower[:1], upper[:1])
    )
    first = np.eye(WINDOW)[0]

    def linear(previous: np.ndarray, context: np.ndarray) -> np.ndarray:
        return -(np.full(WINDOW, context[0]) + ALPHA * previous[0] * first)

    policy = ec.Policy(ec.RHC(WINDOW - 1, truncate=False), problem, forecaster=ec.forecasters.Persistence())
    return Case(policy, 1, np.eye(WINDOW) + ALPHA * movement, lower, upper, linear)


def solvers(case: Case) -> Iterator[tuple[str, Decide]]:
    """Each solver, set up, as a function of the previous action and the context."""
    size, zero = len(case.hessian), np.zeros(len(case.hessian))
    active = daqp.Model()
    active.setup(case.hessian, zero, np.zeros((0, size)), case.upper, case.lower, np.zeros(size, np.int32))

    def by_daqp(previous: np.ndarray, context: np.ndarray) -> np.ndarray:
        active.update(f=case.linear(previous, context))
        return active.solve()[0][: case.dim]

    interior = piqp.DenseSolver()
    interior.settings.eps_abs = interior.settings.eps_rel = TOLERANCE
    interior.setup(np.asfortranarray(case.hessian), zero, x_l=case.lower, x_u=case.upper)

    def by_piqp(previous: np.ndarray, context: np.ndarray) -> np.ndarray:
        interior.update(c=case.linear(previous, context))
        interior.solve()
        return interior.result.x[: case.dim].copy()

    splitting = osqp.OSQP()
    triangle, rows = sp.triu(case.hessian, format="csc"), sp.eye(size, format="csc")
    tolerances = {"eps_abs": TOLERANCE, "eps_rel": TOLERANCE, "max_iter": 100_000}
    splitting.setup(triangle, zero, rows, case.lower, case.upper, verbose=False, **tolerances)

    def by_osqp(previous: np.ndarray, context: np.ndarray) -> np.ndarray:
        splitting.update(q=case.linear(previous, context))
        return splitting.solve().x[: case.dim]

    yield from {"DAQP": by_daqp, "PIQP": by_piqp, "OSQP": by_osqp}.items()


def stream(decide: Decide, start: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Step through contexts, each from the action before."""
    previous = start

    def step(context: np.ndarray) -> np.ndarray:
        nonlocal previous
        previous = decide(previous, context)
        return previous

    return step


def numpy_law(case: Case) -> tuple[Decide, Callable[[np.ndarray], np.ndarray]]:
    """R-OBD for d = 1: the action, of one stream or of many; and a step that counts both costs too."""
    curvature = float(case.hessian[0, 0])
    own, pull = 1.0 - ALPHA / curvature, ALPHA / curvature  # weights of the context and of the previous action
    previous, hitting, switching = np.full(1, 0.5), 0.0, 0.0

    def decide(previous: np.ndarray, context: np.ndarray) -> np.ndarray:
        return own * context + pull * previous

    def step(context: np.ndarray) -> np.ndarray:
        nonlocal previous, hitting, switching
        action = decide(previous, context)
        miss, move = action - context, action - previous
        hitting += 0.5 * float(miss @ miss)
        switching += 0.5 * ALPHA * float(move @ move)
        previous = action
        return action

    return decide, step


def compare_single(name: str, case: Case, rounds: int, steps: int) -> None:
    """Microseconds of one decision."""
    start, contexts = np.full(case.dim, 0.5), np.random.default_rng(1).uniform(size=(steps, case.dim))
    rows = {"Runner": ec.Runner(case.policy, start).step}
    if name == "law":
        decide, step = numpy_law(case)
        rows |= {"NumPy law with costs": step, "NumPy law, action alone": stream(decide, start)}
    rows |= {solver: stream(decide, start) for solver, decide in solvers(case)}
    actions = {row: np.array([step(context) for context in contexts]) for row, step in rows.items()}
    taken: dict[str, list[float]] = {row: [] for row in rows}
    for _ in range(rounds):
        for row, step in rows.items():
            taken[row].append(float(np.median(timed(step, contexts))))
    gaps = {row: np.abs(found - actions["Runner"]).max() for row, found in actions.items()}
    print_rows(f"one decision, {name}, us", taken, gaps)
    if name == "law":
        limits = [2 * law + 10 for law in taken["NumPy law with costs"]]
        print(f"  2 x NumPy law with costs + 10 us: median {np.median(limits):.1f}, least {min(limits):.1f}")


def compare_batch(name: str, case: Case, count: int, rounds: int) -> None:
    """Milliseconds of one decision for each of `count` streams; solvers are timed on a sample."""
    previous = np.full((count, case.dim), 0.5)
    contexts = np.random.default_rng(2).uniform(size=(rounds + 2, count, case.dim))
    rows: dict[str, tuple[Callable[[np.ndarray], object], int]] = {
        "Runner.many": (ec.Runner.many(case.policy, previous).step, count)
    }
    if name == "law":
        rows["NumPy law, one expression"] = (stream(numpy_law(case)[0], previous), count)
    for solver, decide in solvers(case):
        own = previous[:SAMPLE].copy()

        def one_by_one(context: np.ndarray, decide=decide, own=own) -> None:
            for i in range(SAMPLE):
                own[i] = decide(own[i], context[i])

        rows[solver] = (one_by_one, SAMPLE)
    taken: dict[str, list[float]] = {row: [] for row in rows}
    for context in contexts:
        for row, (step, sample) in rows.items():
            taken[row].append(float(timed(step, context[None])[0]) * count / sample / 1e3)
    print_rows(f"{count:,} streams, {name}, ms", {row: each[2:] for row, each in taken.items()})


def profile(case: Case, rounds: int, steps: int) -> None:
    """What the time of `Runner.step` consists of, for the linear law: each part called by itself."""
    runner, contexts = ec.Runner(case.policy, [0.5]), np.random.default_rng(1).uniform(size=(steps, 1))
    call, shared, carried = runner._compiled.advance, runner._shared, runner._carried
    device, smallest = jax.device_put(contexts[0]), jax.jit(lambda x: x + 1.0)
    parts = {
        "Runner.step": runner.step,
        "the compiled call and its result as NumPy": lambda context: np.asarray(call(shared, carried, context)[0]),
        "the compiled call": lambda context: call(shared, carried, context),
        "the compiled call, context on the device": lambda _: call(shared, carried, device),
        "jax.jit(lambda x: x + 1), on the device": lambda _: smallest(device),
        "an empty call": lambda _: None,
    }
    taken: dict[str, list[float]] = {part: [] for part in parts}
    for _ in range(rounds):
        for part, step in parts.items():
            taken[part].append(float(np.median(timed(step, contexts))))
    print_rows("profile of one decision, law, us", taken)


def timed(step: Callable[[np.ndarray], object], contexts: np.ndarray) -> np.ndarray:
    """Microseconds of each call, in wall-clock time."""
    taken = np.empty(len(contexts))
    for i, context in enumerate(contexts):
        started = time.perf_counter_ns()
        step(context)
        taken[i] = (time.perf_counter_ns() - started) / 1e3
    return taken


def print_rows(title: str, taken: dict[str, list[float]], gaps: dict[str, float] | None = None) -> None:
    """The first row is the one that ratios refer to."""
    ours = next(iter(taken.values()))
    last = "largest gap to Runner" if gaps else ""
    print(f"\n{title:44s}{'median':>10s}{'ratio':>9s}{'least':>10s}{'ratio':>9s}   {last}")
    for row, each in taken.items():
        median, least = float(np.median(each)), min(each)
        cells = f"{median:10.2f}{median / np.median(ours):9.3f}{least:10.2f}{least / min(ours):9.3f}"
        print(f"  {row:42s}{cells}   {f'{gaps[row]:.0e}' if gaps else ''}")


if __name__ == "__main__":
    main()
