"""Latency of the streaming runner: microseconds a step, one stream at a time, and streams a second, 10,000 at a time.

Beside it, how long the first action takes in a new process, with and without JAX's persistent compilation cache.

The yardstick is the same step (the paper's MLP, 3 layers of 10, behind the calibrator, with its cost) written by hand in
NumPy. All are interleaved in rounds in one process, in wall-clock time, which is what a control loop waits for; the median
of a round is disturbed by other programs, so the quietest round is printed beside the median of all steps, and p99 is the
median over rounds. The regression behind the guard of a daily promise is compared with the LSTM, once with screened
readings; and so is the default of `ecl2o fit --promise 2.5 --per day`: its mixture of regressions and a Fourier regression.

    .venv/bin/python benchmarks/runner.py
    .venv/bin/python benchmarks/runner.py --cpu                # CPU time, on a busy machine
    .venv/bin/python benchmarks/runner.py --async-dispatch     # as JAX comes

JAX on a CPU hands every program of more than 1,000 floating-point operations to another thread, and for a step of an LSTM the
hand-over takes longer than the step. So a process that serves one stream should run programs in the thread that asks, with
`jax.config.update("jax_cpu_enable_async_dispatch", False)` before JAX is first used; that is what is measured here by default.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pandas as pd

import ecl2o as ec
from ecl2o.agents.advisors.fourier_regression import FourierRegression
from ecl2o.agents.advisors.guard_aware_correction import GuardAwareCorrection
from ecl2o.data import Split, frame_series, series_contexts
from ecl2o.fitting.fourier import solve_regression
from ecl2o.policy.contract import Contract
from ecl2o.theory import decay_root, optimal_lambda2

ALPHA, TRUST, STREAMS = 10.0, 0.5, 10_000
DEFAULT, HISTORY_DAYS, FITTED_DAYS = "default mixture", 10, 60


def by_hand(network: ec.advisors.MLP) -> Callable[[np.ndarray], np.ndarray]:
    """MLP, calibrator and cost for d = 1, m = 1, in NumPy."""
    layers = [(np.asarray(layer.weight), np.asarray(layer.bias)) for layer in network.layers]
    lambda2 = float(optimal_lambda2(1.0, ALPHA, ALPHA, TRUST))
    curvature = 1.0 + ALPHA * (1.0 + lambda2 + TRUST)
    previous, cost = np.array([0.5]), [0.0, 0.0]

    def step(context: np.ndarray) -> np.ndarray:
        nonlocal previous
        hidden = np.concatenate([context, previous])
        for weight, bias in layers[:-1]:
            hidden = np.maximum(weight @ hidden + bias, 0.0)
        advice = layers[-1][0] @ hidden + layers[-1][1]
        action = (context + ALPHA * (previous + lambda2 * context + TRUST * advice)) / curvature
        cost[0] += 0.5 * float((action - context) @ (action - context))
        cost[1] += 0.5 * ALPHA * float((action - previous) @ (action - previous))
        previous = action
        return action

    return step


def guard(advisor: ec.AbstractAgent, period: int) -> ec.AbstractAgent:
    """Put an advisor behind a promise for each day."""
    return ec.Competitive(advisor, 2.5, period=period)


def guarded_regression(period: int) -> ec.AbstractAgent:
    """Return the regression with its correction behind a promise."""
    return guard(GuardAwareCorrection(ec.advisors.OnlineRidge(period), period), period)


def default_mixture(period: int) -> ec.AbstractAgent:
    """Return what `ecl2o fit` tries first on a column, behind a promise, solved on a made-up series."""
    steps, draw = np.arange(FITTED_DAYS * period), np.random.default_rng(2)
    load = 0.5 + 0.2 * np.sin(2 * np.pi * steps / period) + 0.05 * draw.normal(size=len(steps))
    frame = pd.DataFrame({"load": load}, pd.date_range("2024-01-01", periods=len(steps), freq=f"{1440 // period}min"))
    contexts = series_contexts(*frame_series(frame, ["load"]), Split(FITTED_DAYS - 10, 5))
    solved: FourierRegression = solve_regression(contexts, float(decay_root(1.0, ALPHA)), FITTED_DAYS - 10)
    regressions = ec.advisors.Mixture.of_regressions(period)
    return guard(ec.advisors.Mixture([regressions, solved], period, combines=True, scores_history=False), period)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--calls", type=int, default=20, help="of all streams at once")
    parser.add_argument("--cpu", action="store_true", help="measure CPU time, on a busy machine")
    parser.add_argument("--async-dispatch", action="store_true", help="leave JAX's dispatch as it comes")
    given = parser.parse_args()
    clock = time.process_time_ns if given.cpu else time.perf_counter_ns
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_cpu_enable_async_dispatch", given.async_dispatch)

    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=ALPHA, dim=1))
    mlp, lstm = (make(1, 1, key=jax.random.key(0)) for make in (ec.advisors.MLP, ec.advisors.LSTM))
    agents = {"ROBD": ec.ROBD(), "MLAROBD(MLP)": ec.MLAROBD(mlp, TRUST), "MLAROBD(LSTM)": ec.MLAROBD(lstm, TRUST)}
    for period in (24, 96, 288):
        agents[f"guarded regression {period}"] = guarded_regression(period)
    agents |= {"mixture of regressions 24": guard(ec.advisors.Mixture.of_regressions(), 24)}
    for period in (24, 288):
        agents[f"{DEFAULT} {period}"] = default_mixture(period)
    policies = {name: ec.Policy(agent, problem) for name, agent in agents.items()}
    regression = policies["guarded regression 24"]
    contract = Contract(context_dim=1, plausible=[(-1.0, 2.0)], stuck_after=[5.0])
    policies["screened regression 24"] = ec.Policy(regression.agent, problem, contract=contract)
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
            taken[name].append(_timed(step, contexts, clock))

    print(
        f"jax {jax.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    figures = {name: _figures(rounds) for name, rounds in taken.items()}
    lstm_figures = figures["MLAROBD(LSTM)"]
    heads = ("mean", "median", "p99", "quietest round", "its mean")
    print(f"\n{'microseconds (x LSTM)':27s}{''.join(f'{head:>17s}' for head in heads)}{'kB':>7s}")
    for name, found in figures.items():
        state = sum(part.nbytes for part in runners[name].state_dict()["carried"]) / 1e3 if name in runners else 0.0
        cells = [f"{figure:10.1f} ({figure / beside:.2f})" for figure, beside in zip(found, lstm_figures, strict=True)]
        print(f"{name:27s}{''.join(f'{cell:>17s}' for cell in cells)}{state:7.1f}")

    many = np.random.default_rng(1).uniform(size=(given.calls, STREAMS, 1))
    kept = {name: policy for name, policy in policies.items() if name != f"{DEFAULT} 288"}  # 10,000 take many GB
    together = {name: ec.Runner.many(policy, np.full((STREAMS, 1), 0.5)) for name, policy in kept.items()}
    calls: dict[str, list[float]] = {name: [] for name in together}
    for contexts in many:
        for name, streams in together.items():
            calls[name].append(float(_timed(streams.step, contexts[None], clock)[0]) / 1e3)
    print(
        f"\n{f'{STREAMS} streams, ms':27s}{'median (x LSTM)':>20s}{'quietest (x LSTM)':>20s}{'streams a second':>19s}"
    )
    beside = calls["MLAROBD(LSTM)"][2:]
    for name, each in calls.items():
        median, least = np.median(each[2:]), min(each[2:])
        cells = f"{median:12.1f} ({median / np.median(beside):5.1f}){least:12.1f} ({least / min(beside):5.1f})"
        print(f"{name:27s}{cells}{STREAMS / median * 1e3:19,.0f}")

    print(f"\nfirst action in a new process after {HISTORY_DAYS} days of history: seconds after loading (CPU seconds)")
    for name in ("guarded regression 24", f"{DEFAULT} 24"):
        with tempfile.TemporaryDirectory() as folder:
            past = np.random.default_rng(3).uniform(size=(HISTORY_DAYS * 24, 1))
            ec.save(path := Path(folder) / "policy.ecl2o", ec.Policy(agents[name], problem, history=past))
            for words, cache in (("no cache", None), ("cache, empty", folder), ("cache, filled", folder)):
                print(f"{name:27s}{words:16s}{_first_action(path, cache)}", flush=True)


def _figures(rounds: list[np.ndarray]) -> list[float]:
    """Mean and median of all steps, the median of the rounds' 99th percentiles, the least median and mean of a round."""
    steps, p99 = np.concatenate(rounds), np.median([np.percentile(one, 99) for one in rounds])
    return [
        steps.mean(),
        np.median(steps),
        p99,
        min(np.median(one) for one in rounds),
        min(one.mean() for one in rounds),
    ]


_FIRST = """
import sys
import time
import jax
import ecl2o as ec
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_cpu_enable_async_dispatch", False)
policy = ec.load(sys.argv[1])
started, used = time.perf_counter(), time.process_time()
ec.Runner(policy).step([0.4])
print(f"{time.perf_counter() - started:8.1f} ({time.process_time() - used:.1f})")
"""


def _first_action(path: Path, cache: str | None) -> str:
    """How long it takes in a process of its own."""
    settings = {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"} if cache else {}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    run = subprocess.run(
        [sys.executable, "-c", _FIRST, str(path)], env=inherited | settings, capture_output=True, text=True, check=True
    )
    return run.stdout.rstrip()


def _timed(step: Callable[[np.ndarray], np.ndarray], contexts: np.ndarray, clock: Callable[[], int]) -> np.ndarray:
    """Microseconds of each step."""
    taken = np.empty(len(contexts))
    for i, context in enumerate(contexts):
        started = clock()
        step(context)
        taken[i] = (clock() - started) / 1e3
    return taken


if __name__ == "__main__":
    main()
