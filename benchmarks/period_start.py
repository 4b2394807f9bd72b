"""Measure how the hour at which a promise restarts matters: cost by hour on the validation days, and on the test days.

A guard begins every period with nothing saved. Where the first hours of a period ask for a large movement, that is when it must
follow the context most closely. The hour is chosen on the validation days; the test column shows what the choice was worth. The
regression behind its guard, no correction, in units of the daily oracle.

    .venv/bin/python benchmarks/period_start.py weather.csv [--base-shortage auto] [--ratio 2]
"""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import ecl2o as ec
from ecl2o.agents.advisors.discounted_forecast import DiscountedForecast, Replayed
from ecl2o.data import Contexts, weather_contexts
from ecl2o.fitting.guarded_training import competitive_ridge
from ecl2o.fitting.settings import Per, PromiseSpec
from ecl2o.learning.guarded_loss import record_forecasts

HOURS = 24
PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))


def costs_by_hour(
    values: Float[Array, "n 1"], outlook: DiscountedForecast, terms: PromiseSpec, first: int
) -> Float[np.ndarray, " 24"]:
    """Return the cost from step `first` to a day before the end, by the hour at which the promise restarts.

    A run begins at its hour, at most a period before `first`, and is not counted until then: all runs have one length.
    """
    period = terms.steps(HOURS)
    assert period is not None
    length = len(values) - first + period - HOURS

    def one(hour: Array) -> Float[Array, ""]:
        begin = first - period + hour
        contexts, seen = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, begin, length), (values, outlook))
        guard = eqx.tree_at(lambda g: g.agent.advisor, competitive_ridge(terms), Replayed(seen))
        before = jax.lax.dynamic_index_in_dim(values, begin - 1, keepdims=False)
        run = ec.rollout(guard.every(period), PROBLEM, ec.Instance(before, contexts))
        step = jnp.arange(length) + begin
        return jnp.sum(jnp.where((step >= first) & (step < len(values) - HOURS), run.hitting + run.switching, 0.0))

    return np.asarray(jax.jit(jax.vmap(one))(jnp.arange(HOURS)))


def in_units_of_the_oracle(
    contexts: Contexts, outlook: DiscountedForecast, terms: PromiseSpec, days: range
) -> Float[np.ndarray, " 24"]:
    """Return the costs on all days but the last, by the hour at which the promise restarts."""
    values = jnp.asarray(contexts.values[: days.stop * HOURS])
    known = jax.tree.map(lambda leaf: jnp.asarray(leaf[: days.stop * HOURS]), outlook)
    counted = values[days.start * HOURS : -HOURS].reshape(-1, HOURS, 1)
    x0 = values[days.start * HOURS - 1]
    best, _ = ec.oracle_days(PROBLEM, x0, counted)
    return costs_by_hour(values, known, terms, days.start * HOURS) / float(best.cost.sum())


def show(contexts: Contexts, ratio: float) -> None:
    """Print a line for each hour, by the day and by the week."""
    split, whole_days = contexts.split, len(contexts.values) // HOURS
    tested = split.training_days + split.validation_days
    outlook = record_forecasts(ec.advisors.OnlineRidge(HOURS), PROBLEM, jnp.asarray(contexts.values))
    periods: tuple[Per, ...] = ("day", "week")
    for per in periods:
        terms = PromiseSpec(ratio, per)
        validation = in_units_of_the_oracle(contexts, outlook, terms, range(split.training_days, tested))
        test = in_units_of_the_oracle(contexts, outlook, terms, range(tested, whole_days))
        chosen = int(np.argmin(validation))
        print(f"a promise of {ratio:g} for each {per}, begun at")
        for hour in range(HOURS):
            mark = "  <- chosen on the validation days" if hour == chosen else ""
            print(f"  {hour:02d}:00  validation {validation[hour]:.4f}  test {test[hour]:.4f}{mark}", flush=True)


def main() -> None:
    """Read the arguments, then the weather."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weather")
    parser.add_argument("--base-shortage", default=None, help="a number, or auto")
    parser.add_argument("--ratio", type=float, default=2.0)
    asked = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    base = {} if asked.base_shortage is None else {"base_shortage": asked.base_shortage}
    show(weather_contexts(asked.weather, preset="authors-code", **base), asked.ratio)


if __name__ == "__main__":
    main()
