"""Latency of the streaming runner: microseconds a step, one stream at a time, and streams a second, 10,000 at a time.

The yardstick is the same step (the paper's MLP, 3 layers of 10, behind the calibrator, with its bill) written by hand in
NumPy. All are interleaved in rounds in one process, in wall-clock time, which is what a control loop waits for; the median
of a round is disturbed by other programs, so the quietest round is printed beside the median of all steps.

    .venv/bin/python benchmarks/runner.py
    .venv/bin/python benchmarks/runner.py --async-dispatch     # as JAX comes

JAX on a CPU hands every program of more than 1,000 floating-point operations to another thread, and for a step of an LSTM the
hand-over takes longer than the step. So a process that serves one stream should run programs in the thread that asks, with
`jax.config.update("jax_cpu_enable_async_dispatch", False)` before JAX is first used; that is what is measured here by default.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable

import jax
import numpy as np

import ecl2o as ec
from ecl2o.agents.advisors.correction import Corrected
from ecl2o.theory import optimal_lambda2

ALPHA, TRUST, STREAMS = 10.0, 0.5, 10_000


def by_hand(network: ec.advisors.MLP) -> Callable[[np.ndarray], np.ndarray]:
    """MLP, calibrator and bill for d = 1, m = 1, in NumPy."""
    layers = [(np.asarray(layer.weight), np.asarray(layer.bias)) for layer in network.layers]
    lambda2 = float(optimal_lambda2(1.0, ALPHA, ALPHA, TRUST))
    curvature = 1.0 + ALPHA * (1.0 + lambda2 + TRUST)
    previous, bill = np.array([0.5]), [0.0, 0.0]

    def step(context: np.ndarray) -> np.ndarray:
        nonlocal previous
        hidden = np.concatenate([context, previous])
        for weight, bias in layers[:-1]:
            hidden = np.maximum(weight @ hidden + bias, 0.0)
        advice = layers[-1][0] @ hidden + layers[-1][1]
        action = (context + ALPHA * (previous + lambda2 * context + TRUST * advice)) / curvature
        bill[0] += 0.5 * float((action - context) @ (action - context))
        bill[1] += 0.5 * ALPHA * float((action - previous) @ (action - previous))
        previous = action
        return action

    return step


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--async-dispatch", action="store_true", help="leave JAX's dispatch as it comes")
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_cpu_enable_async_dispatch", given.async_dispatch)

    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=ALPHA, dim=1))
    mlp, lstm = (make(1, 1, key=jax.random.key(0)) for make in (ec.advisors.MLP, ec.advisors.LSTM))
    agents = {"ROBD": ec.ROBD(), "MLAROBD(MLP)": ec.MLAROBD(mlp, TRUST), "MLAROBD(LSTM)": ec.MLAROBD(lstm, TRUST)}
    for period in (24, 96, 288):  # what `ecl2o fit` chooses with a promise
        guard = ec.Competitive(Corrected(ec.advisors.OnlineRidge(period), period), 2.5, horizon=period)
        agents[f"guarded regression {period}"] = ec.Periodic(guard, period)
    policies = {name: ec.Policy(agent, problem) for name, agent in agents.items()}
    runners = {name: ec.Runner(policy, [0.5]) for name, policy in policies.items()}
    steps: dict[str, Callable[[np.ndarray], np.ndarray]] = {name: runner.step for name, runner in runners.items()}
    steps["MLAROBD(MLP), NumPy"] = by_hand(mlp)

    contexts = np.random.default_rng(0).uniform(size=(given.steps, 1))
    mine = np.array([steps["MLAROBD(MLP)"](context) for context in contexts])
    theirs = np.array([steps["MLAROBD(MLP), NumPy"](context) for context in contexts])
    np.testing.assert_allclose(mine, theirs, rtol=1e-10)

    taken: dict[str, list[np.ndarray]] = {name: [] for name in steps}
    for _ in range(given.rounds):
        for name, step in steps.items():
            taken[name].append(_timed(step, contexts))

    print(
        f"jax {jax.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    yardstick = np.median(np.concatenate(taken["MLAROBD(MLP), NumPy"]))
    print(
        f"\n{'microseconds a step':24s}{'mean':>9s}{'median':>9s}{'p99':>9s}{'quietest round':>16s}{'x NumPy':>9s}{'kB':>7s}"
    )
    for name, rounds in taken.items():
        all_steps, quietest = np.concatenate(rounds), min(np.median(one) for one in rounds)
        median, p99 = np.median(all_steps), np.percentile(all_steps, 99)
        state = sum(part.nbytes for part in runners[name].state_dict()["carried"]) / 1e3 if name in runners else 0.0
        mean = all_steps.mean()
        print(f"{name:24s}{mean:9.1f}{median:9.1f}{p99:9.1f}{quietest:16.1f}{median / yardstick:9.2f}{state:7.1f}")

    print(f"\n{STREAMS} streams in one call{'ms':>9s}{'streams a second':>19s}")
    many = np.random.default_rng(1).uniform(size=(20, STREAMS, 1))
    for name, policy in policies.items():
        runner = ec.Runner.many(policy, np.full((STREAMS, 1), 0.5))
        runner.step(many[0])
        median = np.median(_timed(runner.step, many)) / 1e3
        print(f"{name:24s}{median:12.2f}{STREAMS / median * 1e3:19,.0f}")


def _timed(step: Callable[[np.ndarray], np.ndarray], contexts: np.ndarray) -> np.ndarray:
    """Microseconds of each step."""
    taken = np.empty(len(contexts))
    for i, context in enumerate(contexts):
        begun = time.perf_counter_ns()
        step(context)
        taken[i] = (time.perf_counter_ns() - begun) / 1e3
    return taken


if __name__ == "__main__":
    main()
