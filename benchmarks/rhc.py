"""How fast RHC is beside OSQP: 1,416 independent days of 24 hours, plans of up to 24 hours, cut at the end of the day.

Run `.venv/bin/python benchmarks/rhc.py` (about ten seconds). Everything is in double precision and on one core, in one
process; times are CPU times, repetitions are interleaved, the figure is the minimum with the median beside it.

OSQP is used as well as its Python interface allows: one solver for each length of a plan, set up (and so factored) once,
outside the timing; a step updates the linear term and solves, warm-started, at OSQP's default tolerance of 1e-3 and at 1e-6.
It runs on a sample of the days, and its time is multiplied by days / sample: an extrapolation, but every day is the same work.
"""

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import platform

import jax
import numpy as np
import osqp
import scipy.sparse as sp
from timing import interleaved, pin_to_one_core, row

import ecl2o as ec

ALPHA = 10.0
DAYS, HOURS = 1416, 24
SAMPLE = 30  # days on which OSQP is timed
WANTED = 300


def main() -> None:
    """One table."""
    pin_to_one_core()
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # we wait for each result anyway
    print(f"jax {jax.__version__}, OSQP {osqp.__version__}, Python {platform.python_version()}, {platform.machine()}")
    x0, contexts = days_like_the_case_study()
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=ALPHA, dim=1))
    instances, agent = ec.Instance(x0, contexts), ec.RHC(HOURS - 1)
    ours = jax.jit(jax.vmap(lambda instance: ec.rollout(agent, problem, instance).actions))
    coarse, fine = (factored_solvers(tolerance) for tolerance in (1e-3, 1e-6))
    seconds = interleaved(
        {
            "ours": lambda: ours(instances),
            "coarse": lambda: rhc_by_osqp(coarse, x0[:SAMPLE], contexts[:SAMPLE]),
            "fine": lambda: rhc_by_osqp(fine, x0[:SAMPLE], contexts[:SAMPLE]),
        },
        rounds=15,
    )
    print(
        f"\nRHC({HOURS - 1}) on {DAYS} days of {HOURS} hours\n  {'':<58} {'minimum, ms':>11} {'median, ms':>11} {'ratio':>10}"
    )
    row("ecl2o.rollout, one jitted vmapped call", seconds["ours"], seconds["ours"])
    for name, tolerance in (("coarse", "1e-3 (default)"), ("fine", "1e-6")):
        scaled = [DAYS / SAMPLE * s for s in seconds[name]]
        title = f"OSQP, factored once per length, tolerance {tolerance}"
        row(title, scaled, seconds["ours"], f"wanted: at least {WANTED}; from {SAMPLE} days, times {DAYS / SAMPLE:.1f}")
    found = np.asarray(ours(instances))[:SAMPLE]
    for name, solvers in (("1e-3", coarse), ("1e-6", fine)):
        gap = np.abs(found - rhc_by_osqp(solvers, x0[:SAMPLE], contexts[:SAMPLE])).max()
        print(f"  largest difference of an action from OSQP's at {name}: {gap:.1e}")


def days_like_the_case_study() -> tuple[np.ndarray, np.ndarray]:
    """x0 (n, 1) and contexts (n, 24, 1): a daily wave with noise, between 0 and 0.8."""
    draw = np.random.default_rng(0)
    wave = 0.4 + 0.3 * np.sin(2 * np.pi * np.arange(HOURS) / HOURS)
    contexts = np.clip(wave + 0.2 * draw.normal(size=(DAYS, HOURS)), 0.0, 0.8)[:, :, None]
    return draw.uniform(0, 0.8, size=(DAYS, 1)), contexts


def factored_solvers(tolerance: float) -> dict[int, osqp.OSQP]:
    """A solver for each length of a plan; OSQP wants constraints, so it gets one row that does not bind."""
    solvers = {}
    for length in range(1, HOURS + 1):
        movement = sp.diags([-1.0, np.r_[np.full(length - 1, 2.0), 1.0], -1.0], [-1, 0, 1], shape=(length, length))
        hessian = sp.triu(sp.eye(length) + ALPHA * movement, format="csc")
        solvers[length] = osqp.OSQP()
        solvers[length].setup(
            hessian,
            np.zeros(length),
            sp.csc_matrix((1, length)),
            np.array([-1.0]),
            np.array([1.0]),
            verbose=False,
            eps_abs=tolerance,
            eps_rel=tolerance,
        )
    return solvers


def rhc_by_osqp(solvers: dict[int, osqp.OSQP], x0: np.ndarray, contexts: np.ndarray) -> np.ndarray:
    """The actions of RHC, one window at a time."""
    actions = np.zeros_like(contexts)
    for day in range(len(contexts)):
        previous = x0[day, 0]
        for hour in range(HOURS):
            linear = -contexts[day, hour:, 0]
            linear[0] -= ALPHA * previous
            solver = solvers[HOURS - hour]
            solver.update(q=linear)
            previous = actions[day, hour, 0] = solver.solve().x[0]
    return actions


if __name__ == "__main__":
    main()
