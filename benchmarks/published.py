"""Published schedules and published ratios beside what this library computes. Nothing is timed.

Run `.venv/bin/python benchmarks/published.py` (about a minute).

*Schedules* are those in the tests of soco (crates.io soco 1.0.1, repository jonhue/soco), written down below. The crate itself
is not run: Rust packages are not part of this project's installation. soco charges increases alone, beta (x_t - x_{t-1})^+.
As (a)^+ = (|a| + a) / 2 and the moves telescope, that is `LinearSwitching(beta / 2)` plus beta x_T / 2 at the last step, which
the second number of the context switches on. soco rounds most schedules up before it compares them; so does this script.

*Ratios* are upper bounds from papers; beside them is the ratio that `certify` forces, exact for linear agents.
"""

import datetime
import importlib.metadata
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

import ecl2o as ec
from ecl2o.theory import (
    competitive_control_ratio,
    exact_robd_ratio,
    greedy_ratio,
    guarded_ratio,
    hitting_minimizer_ratio,
    robd_ratio,
    smallest_feasible_ratio,
)

ALPHA, STEPS = 10.0, 24


def main() -> None:
    """Print both tables."""
    jax.config.update("jax_enable_x64", True)
    print(f"{datetime.date.today()}, ecl2o {ec.__version__}, jax {importlib.metadata.version('jax')}")
    print(f"\n{'soco, in its tests':44s}{'published':38s}{'here':52s}same")
    for name, published, found in schedules():
        rounded = found if any(x % 1 for x in published) else np.ceil(np.round(found, 9))
        same = np.allclose(rounded, published, atol=1e-6)
        print(f"{name:44s}{_numbers(published):38s}{_numbers(found):52s}{'yes' if same else 'no'}")
    print(f"\n{'ratio':64s}{'published':>10s}{'here':>10s}  how")
    for name, published, here, how in ratios():
        print(f"{name:64s}{published:10.4f}{here:10.4f}  {how}")


def _numbers(values) -> str:
    return " ".join(f"{float(value):.4g}" for value in values)


def parabola(action, context):
    """(x - y)^2, and half of x where the second number of the context is 1."""
    return jnp.sum((action - context[0]) ** 2 + context[1] * action / 2)


def exponential(action, context):
    """y exp(-x), and half of x where the second number of the context is 1."""
    return jnp.sum(context[0] * jnp.exp(-action) + context[1] * action / 2)


def schedules() -> Iterator[tuple[str, list[float], np.ndarray]]:
    """Name, published schedule, schedule found here."""
    times = np.arange(1.0, 11.0)
    moving = np.stack([times % 5, times == 10], axis=1)
    problem = ec.Problem(ec.ConvexCost(parabola, 2.0), ec.LinearSwitching(0.5), ec.Box([0.0], [10.0]))
    published = [1.0, 2.0, 3.0, 3.5, 0.5, 1.0, 2.0, 3.0, 3.5, 0.0]
    yield "brcp 2 (and co): offline optimum", published, _optimum(problem, [0.0], moving)

    problem = _growing(0.5, 2.0)
    yield "brcp 1: offline optimum", [2.0, 2.0], _optimum(problem, [0.0], [[1.0, 0.0], [2.0, 1.0]])
    first_steps = ec.Instance([0.0], [[1.0, 0.0], [2.0, 0.0]])
    lazy = np.asarray(ec.rollout(ec.LCP(), problem, first_steps).actions)[:, 0]
    yield "fractional lcp 1: LCP", [0.0], lazy[:1]
    yield "fractional lcp 2: LCP", [0.0, 2.0], lazy

    # The plans of this test end at the present step, and prices only rise: one-step optima with movement in full.
    for number, (beta, upper, published) in enumerate(((1.5, 2.0, [0, 1, 1, 1, 2]), (1.0, 1.0, [0, 1, 1, 1, 1])), 1):
        problem, action, played = _growing(beta, upper), [0.0], []
        for time in range(1, 6):
            action = _optimum(problem, action, [[float(time), 0.0]])
            played.append(action[0])
        yield f"rhc 1, coordinate {number}: one-step plans", list(map(float, published)), np.array(played)

    for number, upper in enumerate((2.0, 1.0), 1):  # movement has no part in OGD
        cost = ec.ConvexCost(exponential, float(np.exp(-upper)))
        problem = ec.Problem(cost, ec.Mahalanobis.isotropic(alpha=1.0, dim=1), ec.Box([0.0], [upper]))
        day = ec.Instance([0.0], [[float(time), 0.0] for time in range(1, 6)])
        descent = ec.rollout(ec.OGD(steps="sqrt", eta=1.0), problem, day).actions
        yield f"ogd 1, coordinate {number}: OGD", [upper] * 5, np.asarray(descent)[:, 0]


def _growing(rate: float, upper: float) -> ec.Problem:
    cost = ec.ConvexCost(exponential, float(np.exp(-upper)))
    return ec.Problem(cost, ec.LinearSwitching(rate), ec.Box([0.0], [upper]))


def _optimum(problem: ec.Problem, start, contexts) -> np.ndarray:
    return np.asarray(ec.oracle(problem, ec.Instance(start, contexts)).actions)[:, 0]


def ratios() -> Iterator[tuple[str, float, float, str]]:
    """Name, published ratio, ratio found here, and how."""
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=ALPHA, dim=1))
    experts = (
        ("R-OBD (Goel, Lin, Sun, Wierman 2019)", ec.ROBD(), robd_ratio(1.0, ALPHA, ALPHA)),
        ("greedy: 1 + beta/m", ec.Greedy(), greedy_ratio(1.0, ALPHA)),
        ("hitting minimiser: 1 + 4 beta/m", ec.HittingMinimizer(), hitting_minimizer_ratio(1.0, ALPHA)),
    )
    for name, agent, published in experts:
        found = ec.certify(agent, problem, STEPS)
        yield (
            f"{name}, m = 1, beta = {ALPHA:g}",
            float(published),
            found.ratio,
            f"{'exact' if found.exact else 'at least'}, {STEPS} steps",
        )
    limit = float(exact_robd_ratio(1.0, ALPHA))
    yield "R-OBD, constant curvature, runs of any length", float(robd_ratio(1.0, ALPHA, ALPHA)), limit, "1 + r, exact"
    for m in (1.0, 0.1, 0.01):
        published = (1 + (1 + 4 / m) ** 0.5) / 2
        least = float(smallest_feasible_ratio(1.0 / m, weights=(1.0, 1e9)))
        yield (
            f"least of any online algorithm, m = {m:g}, beta = 1",
            published,
            least,
            "curvature m to 1e9 m, unknown in advance",
        )
        constant = float(smallest_feasible_ratio(1.0 / m))
        yield f"the same, curvature known to be m = {m:g}", published, constant, "smallest_feasible_ratio"

    hostile = ec.advisors.Fixed(np.full((STEPS, 1), 3.0))
    rcl = ec.certify(ec.Guarded(hostile, slack=0.5), problem, STEPS)
    published = float(guarded_ratio(1.0, ALPHA, ALPHA, slack=0.5))
    yield "RCL: (1 + lambda) times R-OBD's, lambda = 0.5", published, rcl.ratio, "at least, advice 3"
    kept = ec.certify(ec.Competitive(hostile, 2.0, horizon=STEPS), problem, STEPS)
    yield "Competitive, promise 2 (no paper: ours)", 2.0, kept.ratio, "at least, advice 3"

    F = [[0.99, 0.03, -0.02, -0.32], [0.01, 0.47, 4.7, 0.0], [0.02, -0.06, 0.40, 0.0], [0.01, -0.04, 0.72, 0.99]]
    B = [[0.01, 0.99], [-3.44, 1.66], [-0.83, 0.44], [-0.47, 0.25]]
    boeing = competitive_control_ratio(F, B, np.eye(4), np.eye(2))
    yield "competitive control of a Boeing 747 (Goel, Hassibi)", 1.77, boeing, "competitive_control_ratio"

    linear = ec.Problem(ec.SquaredTracking(), ec.LinearSwitching(1.0))
    lazy = ec.certify(ec.LCP(), linear, 8)
    yield "LCP (Lin, Wierman, Andrew, Thereska 2011)", 3.0, lazy.ratio, "at least, 8 steps"


if __name__ == "__main__":
    main()
