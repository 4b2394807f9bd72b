"""Two studies of problems with a state: a battery that follows net load, and an aircraft in gusts.

Run: python benchmarks/control_study.py battery [FILE] [--column net_load_mw], and the same with `aircraft`. FILE is a CSV of
hourly net load for a year; without one, the built-in weather stands for it. Results go to docs/results/control/ and
docs/figures/battery.png, or to the folder of --out.
"""

import argparse
import csv
import json
from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import ecl2o as ec
from ecl2o.theory import competitive_control_ratio, smallest_control_ratio

DOCS = Path(__file__).resolve().parents[1] / "docs"
BATTERY = ec.battery(alpha=10.0, charge=0.05)
DAY, TRAINING = 24, 240
RATIO = 1.5
LIMIT = 3.0  # of charge, in units of the demand's standard deviation times hours


class WithinCharge(ec.AbstractAgent):
    """An agent of a battery whose power is clipped so that the charge stays within +-limit."""

    agent: ec.AbstractAgent
    limit: jax.Array = eqx.field(converter=jnp.asarray)

    def init(self, problem, start):
        return self.agent.init(problem, start)

    def step(self, problem, state, observation):
        state, action, info = self.agent.step(problem, state, observation)
        charge = observation.previous_action[1]
        return state, jnp.clip(action, charge - self.limit, charge + self.limit), info


def read_demand(path: str | None, column: str) -> np.ndarray:
    """Return net load less its mean of the last seven days, in standard deviations: what a battery can serve, (n, 1)."""
    if path is None:
        load = np.asarray(ec.data.weather_contexts().values)[:, 0]
    else:
        with open(path) as file:
            load = np.array([float(row[column]) for row in csv.DictReader(file)])
    week = 7 * DAY
    totals = np.concatenate([[0.0], np.cumsum(load)])
    demand = load[week:] - (totals[week:-1] - totals[: -week - 1]) / week
    demand = demand[: len(demand) // DAY * DAY]
    return (demand / demand[: TRAINING * DAY].std())[:, None]


def train_network(demand: np.ndarray) -> ec.AbstractAgent:
    """Return an LSTM, trained through the guard on runs of three days that start from random states."""
    rng = np.random.default_rng(0)
    length = 3 * DAY
    starts = rng.integers(0, TRAINING - 3, size=400) * DAY
    states = rng.normal(size=(400, 2)) * [0.5, 3.0]
    runs = ec.Instance(states, np.stack([demand[first : first + length] for first in starts]))
    guarded = promised(ec.advisors.LSTM(1, 1, width=16, depth=1, key=jax.random.key(0), state_dim=2))
    fitted = ec.fit(guarded, BATTERY, runs, loss=ec.StandaloneLoss(), key=jax.random.key(1), steps=3000, batch=32)
    return fitted.agent.agent.agent


def promised(agent: ec.AbstractAgent, ratio: float = RATIO) -> ec.AbstractAgent:
    """Return the agent behind a promise for the end of each day."""
    return ec.Periodic(ec.CompetitiveControl(agent, ratio, DAY), DAY)


def run_battery(path: str | None, column: str, out: Path) -> None:
    """Run all controllers over the test days, and write table and figure."""
    demand = read_demand(path, column)
    past, test = demand[: TRAINING * DAY], demand[TRAINING * DAY :]
    days = len(test) // DAY
    whole = ec.Instance([0.0, 0.0], test, past[-28 * DAY :])
    best = ec.oracle(BATTERY, whole)
    network, mpc = train_network(demand), ec.RHC(DAY - 1, truncate=False)
    smallest = smallest_control_ratio(BATTERY, DAY)
    nothing = ec.advisors.Fixed(np.full((len(test), 1), np.nan))
    agents = {
        "LQR": ec.LQR(),
        "MPC on a rolling profile": mpc,
        "LSTM alone": ec.PureML(network),
        f"competitive controller, {1.001 * smallest:.3f} each day": promised(nothing, 1.001 * smallest),
        f"guard around MPC, {RATIO} each day": promised(mpc),
        f"guard around the LSTM, {RATIO} each day": promised(network),
        f"MPC, charge clipped at {LIMIT:g}": WithinCharge(mpc, LIMIT),
    }
    rows, paths = {}, {}
    for name, agent in agents.items():
        run = ec.rollout(agent, BATTERY, whole, ec.forecasters.RollingProfile())
        states = np.asarray(BATTERY.states(whole.x0, run.actions, whole.contexts))
        each = ec.Instance(states[:-1:DAY], test.reshape(days, DAY, 1))
        optimum = np.asarray(jax.vmap(lambda day: ec.oracle(BATTERY, day).cost)(each))
        daily = np.asarray(run.hitting).reshape(days, DAY).sum(1) / optimum
        rows[name] = {
            "average": float(run.cost / best.cost),
            "worst_day": float(daily.max()),
            "largest_charge": float(np.abs(states[:, 1]).max()),
        }
        paths[name] = states, np.asarray(run.actions)[:, 0], run
        print(
            f"{name:45} {rows[name]['average']:.4f}  {rows[name]['worst_day']:.4f}  {rows[name]['largest_charge']:.2f}"
        )
    source = "built-in weather" if path is None else Path(path).stem
    result = {"source": source, "test_days": days, "smallest_ratio": smallest, "rows": rows}
    (out / "results" / "control" / "battery.json").write_text(json.dumps(result, indent=1) + "\n")
    draw_battery(test[:, 0], paths[f"guard around MPC, {RATIO} each day"], out / "figures" / "battery.png")


def draw_battery(demand: np.ndarray, path, target: Path) -> None:
    """Draw power, charge and the promise over the five days on which the guard acts most."""
    states, power, run = path
    active = np.asarray(run.details["active"]).reshape(-1, DAY).sum(1)
    first = int(np.convolve(active, np.ones(5), "valid").argmax()) * DAY
    hours = np.arange(5 * DAY)
    window = slice(first, first + 5 * DAY)
    figure, (top, middle, bottom) = plt.subplots(3, 1, figsize=(8, 6.4), sharex=True, layout="constrained")
    top.plot(hours, demand[window], color="#767676", label="net load less its weekly mean")
    top.step(hours, power[window], where="post", color="#0072B2", label="power")
    changed = np.flatnonzero(np.asarray(run.details["active"])[window])
    top.plot(changed, power[window][changed], "o", color="#D55E00", markersize=4, label="changed by the guard")
    middle.plot(hours, states[1:, 1][window], color="#009E73")
    middle.axhline(0, color="#d9d9d9", zorder=0)
    cost, bound = (np.asarray(run.details[name])[window] for name in ("cost", "optimum"))
    for day in range(5):
        part = slice(day * DAY, (day + 1) * DAY)
        label = {"label": "promise"} if day == 0 else {}
        bottom.plot(hours[part], RATIO * bound[part], color="#000000", linestyle="--", **label)
        bottom.plot(hours[part], cost[part], color="#0072B2", **({"label": "cost"} if day == 0 else {}))
    top.set(ylabel="power", title=f"MPC behind a promise of {RATIO} for each day")
    middle.set(ylabel="charge")
    bottom.set(ylabel="cost of the day so far", xlabel="hour", xticks=np.arange(0, 5 * DAY + 1, DAY))
    for axes in (top, bottom):  # room for the legend
        axes.set_ylim(top=axes.get_ylim()[0] + 1.25 * np.ptp(axes.get_ylim()))
        axes.legend(frameon=False, loc="upper left", ncols=3, fontsize=8)
    figure.savefig(target, dpi=150)
    plt.close(figure)


# The longitudinal dynamics of a Boeing 747 in level flight, one-second steps (Goel and Hassibi).
AIRCRAFT = (
    [[0.99, 0.03, -0.02, -0.32], [0.01, 0.47, 4.7, 0.0], [0.02, -0.06, 0.40, 0.0], [0.01, -0.04, 0.72, 0.99]],
    [[0.01, 0.99], [-3.44, 1.66], [-0.83, 0.44], [-0.47, 0.25]],
)


class LambdaConfident(ec.AbstractAgent):
    """Lambda-confident control: u = -K x - trust * (the rest of the optimal law), which is linear in predicted disturbances.

    With trust 0 it is LQR, with 1 certainty-equivalent MPC. Follow the leader chooses the trust: what would have been best on the
    disturbances and predictions of the past. The correction that predictions make to the action is eta; the one that the true
    disturbances would have made is eta*. Both are known after the fact, and trust = sum eta'H eta* / sum eta'H eta, clipped.
    """

    window: int = eqx.field(static=True)
    trust: float | None = eqx.field(static=True, default=None)  # None: learned

    @property
    def lookahead(self) -> int:
        return self.window

    def init(self, problem, start):
        # The contexts and predictions of all steps so far, as the corrections need later disturbances.
        zero = jnp.zeros((start.horizon, start.history.shape[-1]), start.x0.dtype)
        guesses = jnp.zeros((start.horizon, self.window, start.history.shape[-1]), start.x0.dtype)
        return ec.LQR().init(problem, ec.Start(start.x0, start.history)), zero, guesses

    def step(self, problem, state, observation):
        S, seen, guesses = state
        step = observation.step
        forecast = jnp.where(jnp.arange(self.window)[:, None] < observation.remaining, observation.forecast, 0.0)
        seen, guesses = seen.at[step].set(observation.context), guesses.at[step].set(forecast)

        def correction(contexts):  # what later contexts add to the action, from the state 0 and the present context 0
            return self._first(problem, S[0], contexts)

        eta = correction(forecast)
        trust = self.trust
        if trust is None:
            ahead = jnp.arange(len(seen))[:, None] + 1 + jnp.arange(self.window)[None, :]
            known = (ahead <= step)[..., None] & (ahead < len(seen))[..., None]
            truth = jnp.where(known, seen[jnp.minimum(ahead, len(seen) - 1)], 0.0)
            told = jnp.where(known, guesses, 0.0)
            past = (jnp.arange(len(seen)) < step)[:, None]
            real, guessed = (jnp.where(past, jax.vmap(correction)(each), 0.0) for each in (truth, told))
            weight = problem.M[4:6, 4:6] + problem.B.T @ S[0] @ problem.B
            overlap, size = (jnp.einsum("ti,ij,tj->", guessed, weight, each) for each in (real, guessed))
            trust = jnp.where(size > 0, jnp.clip(overlap / jnp.where(size > 0, size, 1.0), 0.0, 1.0), 1.0)
        _, action, info = ec.LQR().step(problem, S, observation)
        return (S, seen, guesses), action + trust * eta, info

    def _first(self, problem, S, contexts):
        """Return what contexts of later steps add to the first action: the first-order term of the cost to go."""
        n, k = problem.state_dim, problem.action_dim
        joint = jnp.concatenate([problem.F, problem.B, problem.E], axis=1)
        N = problem.M + joint.T @ S @ joint
        gain = jnp.linalg.solve(N[n : n + k, n : n + k], N[n : n + k, :n])
        closed = N[:n, n + k :] - gain.T @ N[n : n + k, n + k :]  # the effect of d on the slope one step earlier

        def back(slope, context):
            return (problem.F - problem.B @ gain).T @ slope + closed @ context, None

        slope, _ = jax.lax.scan(back, jnp.zeros(n), contexts, reverse=True)
        return -jnp.linalg.solve(N[n : n + k, n : n + k], problem.B.T @ slope)


class Mistaken(ec.forecasters.AbstractClairvoyantForecaster):
    """Forecasts of the true contexts plus fixed errors, (T, q)."""

    errors: jax.Array

    def prepare(self, contexts, window, key):
        return ec.forecasters.Exact().prepare(contexts + self.errors, window, None)


def run_aircraft(out: Path) -> None:
    """Run the controllers in gusts of three kinds, with predictions of growing error, and write the table."""
    F, B = map(np.asarray, AIRCRAFT)
    problem, T, window = ec.ControlProblem.regulator(F, B, np.eye(4), np.eye(2)), 60, 20
    smallest = competitive_control_ratio(F, B, np.eye(4), np.eye(2))
    rng = np.random.default_rng(0)
    draws = 20
    noise = rng.normal(size=(draws, T, 4))
    smooth = np.stack([np.convolve(w, np.ones(6) / 6, "same") for w in noise.transpose(0, 2, 1).reshape(-1, T)])
    gusts = {
        "white noise": noise,
        "smooth": smooth.reshape(draws, 4, T).transpose(0, 2, 1) * 2,
        "a step": np.ones((draws, T, 4)) * rng.normal(size=(draws, 1, 4)),
    }
    errors = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
    nothing = ec.advisors.Fixed(np.full((T, 2), np.nan))
    mpc = ec.RHC(window)
    agents = {
        "LQR": ec.LQR(),
        "H-infinity": ec.HInfinity(level=_smallest_level(problem, T)),
        "competitive control": ec.CompetitiveControl(nothing, 1.001 * smallest, T),
        "MPC on predictions": mpc,
        "lambda-confident, learned": LambdaConfident(window),
        "guard around MPC, 2": ec.CompetitiveControl(mpc, 2.0, T),
        "guard around MPC, 3": ec.CompetitiveControl(mpc, 3.0, T),
        "guard around lambda-confident, 2": ec.CompetitiveControl(LambdaConfident(window), 2.0, T),
    }
    result = {"smallest_ratio": smallest, "draws": draws, "steps": T, "gusts": {}}
    for gust, contexts in gusts.items():
        size = np.sqrt((contexts**2).mean())
        mistakes = rng.normal(size=contexts.shape)
        best = jax.vmap(lambda d: ec.oracle(problem, ec.Instance(jnp.zeros(4), d)).cost)(jnp.asarray(contexts))
        rows = {}
        for name, agent in agents.items():

            @jax.jit
            def run(contexts, errors, agent=agent):
                alone = partial(_alone, agent, problem)
                return jax.vmap(alone)(contexts, errors)

            ratios = [np.asarray(run(contexts, e * size * mistakes) / best) for e in errors]
            rows[name] = {
                "error": list(errors),
                "mean_ratio": [float(each.mean()) for each in ratios],
                "worst_ratio": [float(each.max()) for each in ratios],
                "mean_regret": [float(((each - 1) * np.asarray(best)).mean()) for each in ratios],
            }
            print(f"{gust:12} {name:34}", *(f"{each.mean():7.3f} ({each.max():.3f})" for each in ratios))
        result["gusts"][gust] = rows
    (out / "results" / "control" / "aircraft.json").write_text(json.dumps(result, indent=1) + "\n")


def _alone(agent, problem, contexts, errors):
    return ec.rollout(agent, problem, ec.Instance(jnp.zeros(4), contexts), Mistaken(errors)).cost


def _smallest_level(problem: ec.ControlProblem, steps: int) -> float:
    """Return a level 1 % above the smallest that H-infinity control has, by bisection."""
    day = ec.Instance(np.zeros(problem.state_dim), np.ones((steps, problem.context_dim)))
    low, high = 0.1, 100.0
    for _ in range(30):
        middle = (low * high) ** 0.5
        reached = bool(ec.rollout(ec.HInfinity(middle), problem, day).converged.all())
        low, high = (low, middle) if reached else (middle, high)
    return 1.01 * high


def main() -> None:
    """Read the command line and run one study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", choices=["battery", "aircraft"])
    parser.add_argument("file", nargs="?")
    parser.add_argument("--column", default="net_load_mw")
    parser.add_argument("--out", type=Path, default=DOCS)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for folder in ("results/control", "figures"):
        (options.out / folder).mkdir(parents=True, exist_ok=True)
    if options.study == "battery":
        run_battery(options.file, options.column, options.out)
    else:
        run_aircraft(options.out)


if __name__ == "__main__":
    main()
