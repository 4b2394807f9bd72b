"""Which settings the defaults rest on: every candidate's cost on the validation month, and nothing later.

The year is cut after the validation days before anything is computed, so that no test figure can be in sight. The settings
of the first design (features, ridge, half-life, the correction's form) are among the candidates, not taken for granted. What is
printed here is the table of docs/choices.md; the library's defaults are its first lines, unless that page says why not.

    .venv/bin/python benchmarks/choices.py weather.csv [ridge] [correction] [periods] [seasonal] [networks]
"""

import argparse
import dataclasses
import itertools
from collections.abc import Callable, Iterable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy.interpolate import PchipInterpolator
from scipy.signal import lfilter

import ecl2o as ec
from ecl2o.data import Contexts, weather_contexts
from ecl2o.evaluation import TestDays
from ecl2o.fitting.guarded_training import competitive_ridge, train_guards
from ecl2o.fitting.settings import Per, PromiseSpec
from ecl2o.learning.guarded_loss import record_forecasts
from ecl2o.paper.networks import CalibratedTraining, NetworkTraining, StandaloneTraining, untrained_key
from ecl2o.running import rollout_days, stream_days

HOURS = 24
PROMISES = (2.0, 2.5, 3.0)
SEEDS = (0, 1, 2)
PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))

Table = dict[str, float]  # validation cost by setting


def without_test_days(contexts: Contexts) -> Contexts:
    """The training and validation days; the one test day that a series must have is zeros."""
    known = (contexts.split.training_days + contexts.split.validation_days) * contexts.steps_per_day
    values = np.concatenate([contexts.values[:known], np.zeros((contexts.steps_per_day, contexts.dim))])
    return dataclasses.replace(contexts, values=values, time=contexts.time[: len(values)])


def finer(contexts: Contexts, times: int, seed: int = 0) -> Contexts:
    """The series at so many times its steps: monotone cubics through its points, and noise.

    The noise is autoregressive, with a memory of half an hour of a 24-hour day and 3 % of the series' standard deviation; what
    was never negative stays so.
    """
    n, q = contexts.values.shape
    when = np.minimum(np.arange(n * times) / times, n - 1)
    smooth = PchipInterpolator(np.arange(n), contexts.values)(when)
    memory = np.exp(-48 / (contexts.steps_per_day * times))
    drawn = np.random.default_rng(seed).normal(size=(n * times, q)) * np.sqrt(1 - memory**2)
    noise = lfilter([1.0], [1.0, -memory], drawn, axis=0)
    values = smooth + 0.03 * contexts.training.std(axis=0) * noise
    values = np.where(contexts.values.min(axis=0) >= 0, np.maximum(values, 0.0), values)
    time = pd.date_range(contexts.time[0], periods=n * times, freq=(contexts.time[1] - contexts.time[0]) / times)
    return dataclasses.replace(contexts, values=values, time=time, steps_per_day=contexts.steps_per_day * times)


def problem_of(contexts: Contexts) -> ec.Problem:
    """The same price of moving by so much in an hour, whatever a step is: alpha is 10 for hours, and 40 for half of them."""
    return ec.Problem(
        ec.SquaredTracking(), ec.Mahalanobis.isotropic(10.0 * (contexts.steps_per_day / HOURS) ** 2, dim=1)
    )


def make_validation_days(contexts: Contexts, history: int) -> TestDays:
    """The validation days with the daily oracle that runs through them."""
    return TestDays.of(problem_of(contexts), *contexts.validation_days(history))


def ridge(contexts: Contexts) -> Table:
    """`OnlineRidge`: how many lags and harmonics; half-life and penalty of each at once."""
    test_days, problem = (
        make_validation_days(contexts, contexts.split.training_days * contexts.steps_per_day),
        problem_of(contexts),
    )
    half_lives, penalties = (5.0, 7.0, 10.0, 14.0), (0.001, 0.01, 0.1, 1.0)
    numbers = list(itertools.product(half_lives, penalties))

    @eqx.filter_jit
    def costs(advisor: ec.advisors.OnlineRidge, half_life, penalty):
        def cost(numbers):
            with_numbers = eqx.tree_at(lambda a: (a.features.seasons[0].half_life, a.ridge), advisor, tuple(numbers))
            return jnp.mean(stream_days(with_numbers, problem, test_days.x0, test_days.days, test_days.history)[0].cost)

        return jax.lax.map(cost, jnp.stack([half_life, penalty], axis=1)) / jnp.mean(test_days.oracle_cost)

    table = {}
    for lags, harmonics in itertools.product((8, 16, 24), (2, 3, 5)):
        advisor = ec.advisors.OnlineRidge(contexts.steps_per_day, lags=lags, harmonics=harmonics)
        for (half_life, penalty), cost in zip(numbers, costs(advisor, *jnp.array(numbers).T), strict=True):
            table[f"lags {lags}, harmonics {harmonics}, half-life {half_life:g}, ridge {penalty:g}"] = float(cost)
    return table


def correction(contexts: Contexts) -> Table:
    """The correction of `OnlineRidge` inside `Competitive`, a promise renewed daily: how it is trained; the mean over three."""
    costs = _trained_costs(
        contexts, PROMISES, "day", itertools.product((100, 200, 400), (0.005, 0.01, 0.02, 0.05), (1, 3, 5))
    )
    return {setting: float(np.mean(each)) for setting, each in costs.items()}


def periods(contexts: Contexts) -> Table:
    """The same for a promise of 2 by the week, the month and the run, beside no correction at all (0 steps)."""
    table = {}
    for per, days in (("week", (7, 14, 21)), ("month", (15, 30)), ("run", (15, 30))):
        settings = list(itertools.product((100, 200), (0.005, 0.02, 0.05), days))
        for setting, (cost,) in _trained_costs(contexts, (2.0,), per, settings).items():
            table[f"{per}: {setting}"] = cost
    return table


def _trained_costs(
    contexts: Contexts, ratios: tuple[float, ...], per: Per, settings: Iterable[tuple[int, float, int]]
) -> dict[str, list[float]]:
    """The least validation cost on the way, for each ratio, by (steps, rate, days of a window); without training first."""
    known = contexts.values[: (contexts.split.training_days + contexts.split.validation_days) * HOURS]
    outlook = record_forecasts(ec.advisors.OnlineRidge(), PROBLEM, known)
    guards = [competitive_ridge(PromiseSpec(ratio, per)) for ratio in ratios]
    period, table = PromiseSpec(2.0, per).steps(HOURS), {}
    for steps, rate, days in settings:
        options = {"steps": steps, "learning_rate": rate, "window_days": days, "forecasts": outlook}
        logs = [log for _, log in train_guards(guards, PROBLEM, contexts, period=period, **options)]
        table.setdefault("steps 0", [float(log.validation_cost[0]) for log in logs])
        clear = "" if all(log.best_step for log in logs) else ", not clear"
        table[f"steps {steps}, rate {rate:g}, windows of {days} days{clear}"] = [
            float(log.validation_cost.min()) for log in logs
        ]
    return table


def seasonal(contexts: Contexts) -> Table:
    """`SeasonalLinear` trained through the calibrator: windows, learning rate, trust, steps; the mean over seeds."""
    history = 14 * HOURS
    test_days = make_validation_days(contexts, history)
    table = {}
    for window, steps in itertools.product((48, 96), (600, 1200)):
        grid = list(itertools.product((3e-3, 1e-2, 3e-2), (1.0, 3.0, 10.0), SEEDS))
        fitted = ec.fit_many(
            [ec.MLAROBD(ec.advisors.SeasonalLinear(1, 1), trust) for _, trust, _ in grid],
            PROBLEM,
            contexts.training_windows(window, history),
            losses=ec.CalibratedLoss(mu=0.0),
            keys=[jax.random.key(seed) for *_, seed in grid],
            steps=steps,
            learning_rates=[rate for rate, *_ in grid],
        )
        costs = [_average_cost(result.agent, test_days) for result in fitted]
        for (rate, trust, _), cost in _means(grid, costs):
            table[f"windows of {window} hours, {steps} steps, rate {rate:g}, trust {trust:g}"] = cost
    return table


def networks(contexts: Contexts) -> Table:
    """Learning rates of the networks, for PureML-0 and for EC-L2O (mu 0, trust 0.3); the mean over seeds."""
    test_days = make_validation_days(contexts, 0)
    table = {}
    for kind, rate in itertools.product((ec.advisors.LSTM, ec.advisors.MLP), (1e-3, 3e-3, 1e-2, 2e-2)):

        def network(seed: int, kind=kind):
            return kind(dim=1, context_dim=1, key=untrained_key(seed))

        training = NetworkTraining(network, PROBLEM, contexts.training_windows(), 4000, rate)
        alone = training.train_alone([StandaloneTraining(0.0, seed) for seed in SEEDS], _silent)
        through = training.train_calibrated([CalibratedTraining(0.3, 0.0, seed) for seed in SEEDS], _silent)
        for name, agents in (("PureML-0", alone), ("EC-L2O", through)):
            costs = [_average_cost(agent, test_days) for agent in agents.values()]
            table[f"{kind.__name__} {name}, rate {rate:g}"] = float(np.mean(costs))
    return table


def _average_cost(agent: ec.AbstractAgent, test_days: TestDays) -> float:
    runs, _ = rollout_days(agent, PROBLEM, test_days.x0, test_days.days, test_days.history)
    return float(jnp.mean(runs.cost) / jnp.mean(test_days.oracle_cost))


def _means(grid: list[tuple], costs: list[float]) -> Iterable[tuple[tuple, float]]:
    """The mean of costs over the last part of the settings, the seed."""
    for start in range(0, len(grid), len(SEEDS)):
        yield grid[start], float(np.mean(costs[start : start + len(SEEDS)]))


def _silent(step: int, steps: int, loss: float) -> None:
    """No progress is shown."""


CHOICES: dict[str, Callable[[Contexts], Table]] = {
    "ridge": ridge,
    "correction": correction,
    "periods": periods,
    "seasonal": seasonal,
    "networks": networks,
}


def main() -> None:
    """Try and print, the best first."""
    jax.config.update("jax_enable_x64", True)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weather", help="a file that `ecl2o reproduce --weather` takes")
    parser.add_argument("what", nargs="*", help=f"some of {', '.join(CHOICES)}; all of them unless given")
    parser.add_argument("--base-shortage", default=None, help="watts, or auto")
    parser.add_argument("--finer", type=int, default=1, help="make the series this many times finer first (ridge only)")
    parser.add_argument("--lines", type=int, default=12, help="how many settings to print")
    arguments = parser.parse_args()
    contexts = without_test_days(weather_contexts(arguments.weather, "authors-code", arguments.base_shortage))
    if arguments.finer > 1:
        contexts = finer(contexts, arguments.finer)
    for name in arguments.what or CHOICES:
        table = CHOICES[name](contexts)
        print(f"\n{name}: {len(table)} settings, cost on the validation days over the oracle's")
        for setting, cost in sorted(table.items(), key=lambda item: item[1])[: arguments.lines]:
            print(f"  {cost:.5f}  {setting}")


if __name__ == "__main__":
    main()
