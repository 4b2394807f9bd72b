"""What promises relative to a baseline, and several at once, cost on a year of weather (docs/guarantees.md).

    python benchmarks/promises.py nsrdb_riverside_2015.csv

`OnlineRidge` behind each guard, one run over the test days; cost over the advice's own, and the worst day over its optimum.
"""

import argparse

import jax
import numpy as np

import ecl2o as ec

DAY, WEEK = 24, 168


def guards(learner: ec.AbstractAgent) -> dict[str, ec.AbstractAgent]:
    """The guards to compare, by name; R-OBD is the baseline."""
    found = {}
    for name, period in (("week", WEEK), ("day", DAY)):
        for slack in (0.05, 0.2, 0.5):
            found[f"baseline, {slack:g} per {name}"] = ec.Guarded(learner, slack=slack, period=period)
    run, day, window = ec.Promise(1.75), ec.Promise(2.5, period=DAY), ec.Promise(4.0, period=48, rolling=True)
    week = ec.Promise(1.8, ec.Reference.EXPERT, "ROBD", period=WEEK)
    found["1.75 for the run"] = ec.Promises(learner, [run])
    found["2.5 per day, 1.75 for the run"] = ec.Promises(learner, [day, run])
    found["and 1.8 times the baseline per week"] = ec.Promises(learner, [day, run, week], ec.ROBD())
    found["4 in every 48 hours"] = ec.Promises(learner, [window])
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weather", nargs="?", help="a weather file; without it the built-in year")
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    x0, days, past = ec.data.weather_contexts(given.weather).test_days(history_steps=60 * DAY)
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    instance = ec.Instance(x0, days.reshape(-1, 1), past)
    optima = jax.jit(jax.vmap(lambda start, day: ec.oracle(problem, ec.Instance(start, day)).cost))

    def score(agent: ec.AbstractAgent) -> tuple[float, float]:
        run = jax.jit(lambda given: ec.rollout(agent, problem, given))(instance)
        assert run.converged.all()  # the promise is kept at every step
        starts = np.concatenate([x0[None], run.actions])[:-1:DAY]
        cost = np.asarray(run.hitting + run.switching).reshape(-1, DAY).sum(axis=1)
        best = np.asarray(optima(starts, days))
        return float(run.cost), float((cost / best)[best > 1e-9].max())

    learner = ec.advisors.OnlineRidge(DAY)
    own, worst = score(learner)
    print(f"{'no promise':38} 1.0000  worst day {worst:.2f}")
    for name, guard in guards(learner).items():
        cost, worst = score(guard)
        print(f"{name:38} {cost / own:.4f}  worst day {worst:.2f}", flush=True)


if __name__ == "__main__":
    main()
