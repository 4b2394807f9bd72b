"""Two studies of problems with a state: a battery that follows net load, and an aircraft in gusts.

Run: python benchmarks/control_study.py battery [FILE] [--column net_load_mw] [--input wind_mw --input solar_mw], and with
`aircraft`. FILE is a CSV of hourly net load for a year; without one, the built-in weather replaces it. Results go to
docs/results/control/ and docs/figures/battery.png, or to the folder of --out.
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
DAY, TRAINING, VALIDATION = 24, 240, 60  # the last 60 of the first 240 days choose the settings
RATIO = 1.5
WINDOWS, PENALTIES = (11, 23, 47), (1.0, 10.0, 100.0, 1000.0)


class Forecasts(ec.forecasters.AbstractClairvoyantForecaster):
    """Forecasts of every step, (T, window, 1), made beforehand from what was known then."""

    values: jax.Array = eqx.field(converter=jnp.asarray)

    def prepare(self, contexts, window, key):
        return PreparedForecasts(self.values[:, :window])


class PreparedForecasts(ec.forecasters.AbstractPreparedForecast):
    """The same for one run."""

    values: jax.Array

    def at(self, step):
        return self.values[step]


def regress(demand: np.ndarray, inputs: np.ndarray, days: int, penalty: float, window: int) -> np.ndarray:
    """Return forecasts of each hour's next hours, (n, window, 1), by ridge regressions on the first days, one for each lead.

    The features are known at the hour: the demand of the last three hours, of the same hour of the last two days and of the last
    week, the hour of the day, and the inputs of this hour, the hour before and the same hour of the last day.
    """
    n, hours = len(demand), np.arange(len(demand))

    def back(values, steps):  # before the first row, the first row
        return values[np.maximum(hours - steps, 0)]

    forecasts = np.zeros((n, window, 1))
    for lead in range(1, window + 1):
        whole_days = DAY * -(-lead // DAY)
        phase = 2 * np.pi * (hours + lead) / DAY
        parts = [back(demand, steps) for steps in (0, 1, 2, whole_days - lead, whole_days + DAY - lead, 7 * DAY - lead)]
        parts += [back(inputs, steps) for steps in (0, 1, whole_days - lead)]
        parts += [np.stack([np.sin(k * phase), np.cos(k * phase)], axis=1) for k in (1, 2, 3)]
        features = np.concatenate(parts, axis=1)
        seen = np.arange(7 * DAY, days * DAY - lead)
        centre, scale = features[seen].mean(0), features[seen].std(0) + 1e-9
        features = np.concatenate([(features - centre) / scale, np.ones((n, 1))], axis=1)
        size = np.diag([penalty] * (features.shape[1] - 1) + [0.0])
        known = features[seen]
        weights = np.linalg.solve(known.T @ known + size, known.T @ demand[seen + lead])
        forecasts[:, lead - 1] = features @ weights
    return forecasts


def read_demand(path: str | None, column: str, inputs: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return net load and inputs less their means of the last seven days, in standard deviations, (n, 1) and (n, q)."""
    if path is None:
        table = np.asarray(ec.data.weather_contexts().values)[:, :1]
    else:
        with open(path) as file:
            table = np.array([[float(row[name]) for name in (column, *inputs)] for row in csv.DictReader(file)])
    week = 7 * DAY
    totals = np.concatenate([np.zeros((1, table.shape[1])), np.cumsum(table, axis=0)])
    less = table[week:] - (totals[week:-1] - totals[: -week - 1]) / week
    less = less[: len(less) // DAY * DAY]
    less /= less[: TRAINING * DAY].std(axis=0)
    return less[:, :1], less[:, 1:]


def train_network(demand: np.ndarray) -> ec.AbstractAgent:
    """Return an LSTM, trained through the guard on runs of three days that start from random states."""
    rng = np.random.default_rng(0)
    length = 3 * DAY
    starts = rng.integers(0, TRAINING - 3, size=400) * DAY
    states = rng.normal(size=(400, 2)) * [0.5, 3.0]
    runs = ec.Instance(states, np.stack([demand[first : first + length] for first in starts]))
    guarded = promised(ec.advisors.LSTM(1, 1, width=16, depth=1, key=jax.random.key(0), state_dim=2))
    fitted = ec.fit(guarded, BATTERY, runs, loss=ec.StandaloneLoss(), key=jax.random.key(1), steps=3000, batch=32)
    return fitted.agent.agent


def promised(agent: ec.AbstractAgent, ratio: float = RATIO) -> ec.AbstractAgent:
    """Return the agent behind a promise for the end of each day."""
    return ec.CompetitiveControl(agent, ratio, period=DAY)


def run_part(demand: np.ndarray, first: int, last: int) -> ec.Instance:
    """Return the days from first to last as one run from an idle battery, with four weeks of history."""
    return ec.Instance([0.0, 0.0], demand[first * DAY : last * DAY], demand[(first - 28) * DAY : first * DAY])


def choose_settings(demand: np.ndarray, inputs: np.ndarray) -> dict:
    """Return the settings that cost least on the validation days. Nothing here reads a later day.

    MPC on the rolling profile chooses the window; with it, each regression its penalty; behind the promise, MPC on the profile
    whether plans stop at the end of the day. The limit of charge is the largest of 95 % of the hours of MPC on the profile.
    """
    start = TRAINING - VALIDATION
    part = run_part(demand[: TRAINING * DAY], start, TRAINING)

    def cost(agent, forecaster):
        return float(ec.rollout(agent, BATTERY, part, forecaster).cost)

    profile = ec.forecasters.RollingProfile()
    window = min(WINDOWS, key=lambda each: cost(ec.RHC(each, truncate=False), profile))
    found = {"window": window}
    for name, known in (("demand", inputs[:, :0]), ("demand, wind and sun", inputs)):
        costs = {}
        for penalty in PENALTIES:
            values = regress(demand[: TRAINING * DAY], known[: TRAINING * DAY], start, penalty, window)[start * DAY :]
            costs[penalty] = cost(ec.RHC(window, truncate=False), Forecasts(values))
        found[f"penalty on {name}"] = min(costs, key=costs.__getitem__)
        found[f"validation cost on {name}"] = min(costs.values())
    ends = {end: cost(promised(ec.RHC(window, truncate=end)), profile) for end in (True, False)}
    found["plans stop at the end of the day"] = min(ends, key=ends.__getitem__)
    run = ec.rollout(ec.RHC(window, truncate=False), BATTERY, part, profile)
    charge = np.abs(np.asarray(BATTERY.states(part.x0, run.actions, part.contexts))[:, 1])
    return found | {"limit": round(float(np.quantile(charge, 0.95)), 2)}


def run_battery(path: str | None, column: str, inputs: list[str], out: Path) -> None:
    """Choose settings, run all controllers over the test days, and write table and figure."""
    demand, others = read_demand(path, column, inputs)
    chosen = choose_settings(demand, others)
    print(chosen)
    whole = run_part(demand, TRAINING, len(demand) // DAY)
    test, days = np.asarray(whole.contexts), len(whole.contexts) // DAY
    best = ec.oracle(BATTERY, whole)
    window, limit = chosen["window"], chosen["limit"]
    limited = ec.battery(alpha=10.0, charge=0.05, charge_within=(-limit, limit))
    network, mpc = train_network(demand), ec.RHC(window, truncate=False)
    behind = ec.RHC(window, truncate=chosen["plans stop at the end of the day"])
    smallest = smallest_control_ratio(BATTERY, DAY)
    nothing = ec.advisors.Fixed(np.full((len(test), 1), np.nan))
    profile = ec.forecasters.RollingProfile()
    regressions = [
        Forecasts(regress(demand, known, TRAINING, chosen[f"penalty on {name}"], window)[TRAINING * DAY :])
        for name, known in (("demand", others[:, :0]), ("demand, wind and sun", others))
    ]
    agents = {
        "LQR": (ec.LQR(), profile),
        "MPC on a rolling profile": (mpc, profile),
        "MPC on a regression": (mpc, regressions[0]),
        "MPC on a regression with wind and sun": (mpc, regressions[1]),
        "LSTM alone": (ec.PureML(network), profile),
        f"competitive controller, {1.001 * smallest:.3f} each day": (promised(nothing, 1.001 * smallest), profile),
        f"guard around MPC on a profile, {RATIO} each day": (promised(behind), profile),
        f"guard around MPC with wind and sun, {RATIO} each day": (promised(behind), regressions[1]),
        f"guard around the LSTM, {RATIO} each day": (promised(network), profile),
        f"MPC on a profile, clipped at {limit:g}": (ec.agents.WithinLimits(Unlimited(mpc)), profile),
        f"MPC on a profile, planned within {limit:g}": (mpc, profile),
    }
    rows, paths = {}, {}
    for name, (agent, forecaster) in agents.items():
        problem = limited if name.startswith("MPC on a profile") else BATTERY
        run = ec.rollout(agent, problem, whole, forecaster)
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
            f"{name:55} {rows[name]['average']:.4f}  {rows[name]['worst_day']:.4f}  {rows[name]['largest_charge']:.2f}",
            flush=True,
        )
    source = "built-in weather" if path is None else Path(path).stem
    optimum = {"optimum_within_limit": float(ec.oracle(limited, whole).cost / best.cost)}
    result = {"source": source, "test_days": days, "smallest_ratio": smallest, "chosen": chosen, "rows": rows} | optimum
    print(optimum)
    (out / "results" / "control" / "battery.json").write_text(json.dumps(result, indent=1) + "\n")
    drawn = paths[f"guard around MPC on a profile, {RATIO} each day"]
    draw_battery(test[:, 0], drawn, out / "figures" / "battery.png")


class Unlimited(ec.AbstractAgent):
    """An agent that plans as if the battery had no limits."""

    agent: ec.AbstractAgent

    def init(self, problem, start):
        return self.agent.init(BATTERY, start)

    def step(self, problem, state, observation):
        return self.agent.step(BATTERY, state, observation)


def draw_battery(demand: np.ndarray, path, target: Path) -> None:
    """Draw power, charge and the promise over the five days on which the guard acts most."""
    states, power, run = path
    active = np.asarray(run.details["active"])[:, 0].reshape(-1, DAY).sum(1)
    first = int(np.convolve(active, np.ones(5), "valid").argmax()) * DAY
    hours = np.arange(5 * DAY)
    window = slice(first, first + 5 * DAY)
    figure, (top, middle, bottom) = plt.subplots(3, 1, figsize=(8, 6.4), sharex=True, layout="constrained")
    top.plot(hours, demand[window], color="#767676", label="net load less its weekly mean")
    top.step(hours, power[window], where="post", color="#0072B2", label="power")
    changed = np.flatnonzero(np.asarray(run.details["active"])[:, 0][window])
    top.plot(changed, power[window][changed], "o", color="#D55E00", markersize=4, label="changed by the guard")
    middle.plot(hours, states[1:, 1][window], color="#009E73")
    middle.axhline(0, color="#d9d9d9", zorder=0)
    cost, bound = (np.asarray(run.details[name])[window, 0] for name in ("cost", "reference"))
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
            n, k = problem.B.shape
            weight = problem.M[n : n + k, n : n + k] + problem.B.T @ S[0] @ problem.B
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
    parser.add_argument(
        "--input", action="append", default=[], help="a column that forecasts may use; repeat for several"
    )
    parser.add_argument("--out", type=Path, default=DOCS)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for folder in ("results/control", "figures"):
        (options.out / folder).mkdir(parents=True, exist_ok=True)
    if options.study == "battery":
        run_battery(options.file, options.column, options.input, options.out)
    else:
        run_aircraft(options.out)


if __name__ == "__main__":
    main()
