"""What a daily promise costs if contexts are known to lie in a band around a forecast (docs/guarantees.md).

    python benchmarks/bands.py nsrdb_riverside_2015.csv

The forecast of a day is the mean of the same hour of the 14 days before, moved so that the band contains the truth.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

import ecl2o as ec
from ecl2o.forecasters.forecasters import AbstractClairvoyantForecaster, Slices

DAYS, HOURS, PROFILE_DAYS, RATIO = 30, 24, 14, 2.0


class GivenForecast(AbstractClairvoyantForecaster):
    """A forecast of every hour, made beforehand."""

    values: jax.Array

    def prepare(self, contexts, window, key):
        """Return windows of the forecast."""
        return Slices(jnp.concatenate([self.values, jnp.zeros((window, 1))]), window)


def main() -> None:
    """Print the cost behind the promise over the advice's own, and the worst day."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weather", nargs="?", help="a weather file; without it the built-in year")
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    x0, days, past = ec.data.weather_contexts(given.weather).test_days(history_steps=60 * HOURS)
    days = days[:DAYS]
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    learner = ec.advisors.OnlineRidge(HOURS)

    def score(agent, **options) -> tuple[float, float]:
        runs, starts = ec.stream_days(agent, problem, x0, days, past, **options)
        best = jax.vmap(lambda day: ec.oracle(problem, day).cost)(ec.Instance(starts, days))
        ratios = np.asarray(runs.cost)[best > 1e-9] / best[best > 1e-9]
        return float(np.sum(runs.cost)), float(ratios.max())

    own, worst = score(learner)
    print(f"{'no promise':22} 1.000  worst day {worst:.3f}")
    seen = np.concatenate([np.asarray(past), np.asarray(days).reshape(-1, 1)])
    before = len(past) + np.arange(DAYS * HOURS)[:, None] - HOURS * np.arange(1, PROFILE_DAYS + 1)
    truth, profile = seen[len(past) :], seen[before].mean(axis=1)
    rows = {"any contexts": (ec.Competitive(learner, RATIO, HOURS), {})}
    known = (0.0, max(0.8, float(days.max())))
    rows[f"contexts in 0 to {known[1]:g}"] = (ec.Competitive(learner, RATIO, HOURS, contexts=known), {})
    for width in (0.4, 0.3, 0.2):
        forecast = GivenForecast(jnp.asarray(np.clip(profile, truth - width, truth + width)))
        rows[f"band of half-width {width}"] = (
            ec.CompetitiveBand(learner, width, RATIO, HOURS),
            {"forecaster": forecast},
        )
    for name, (guard, options) in rows.items():
        cost, worst = score(guard.every(HOURS), **options)
        print(f"{name:22} {cost / own:.3f}  worst day {worst:.3f}")


if __name__ == "__main__":
    main()
