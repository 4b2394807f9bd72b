"""Generators with a ramp limit that follow net load, beside MPC with a QP solver; the figures of docs/cases/generator.md.

    .venv/bin/python docs/cases/generator.py Texas=net_load_ercot.csv Midwest=net_load_miso.csv             # print the table
    .venv/bin/python docs/cases/generator.py Texas=net_load_ercot.csv Midwest=net_load_miso.csv --write     # store it too

Every hour the net load of a grid is known, and the power of its conventional generators is set. It may change by at most a
share of the largest net load in an hour. Wind and sun are seen, not followed. The peer is what people use: model-predictive
control on a rolling forecast, solved by OSQP with the ramp inside the plan.

Settings are chosen on the validation days alone, on policies fitted to the days before them:

- *alpha*: the first of its values at which the best power in hindsight moves at most half as much as the net load, in every grid;
- *ramp*: the least share at which the guarded policy costs at most what MPC costs, in every grid;
- *days* and *decay* of MPC's forecast: the least cost, for each grid.

The promise was 3 from the start. `--alpha` and `--ramp` set other values, for the page's table of tighter ramps.
"""

import argparse
import itertools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import osqp
import pandas as pd
from page import HERE, HOURS, Columns, Split, draw_days, fit_policy, format_table, run_policy, store
from scipy import sparse

import ecl2o as ec

WINDOW, PROMISE = 24, 3.0  # hours that MPC plans; what the guard is asked for
SPLIT = Split(training=243, validation=61)
ALPHAS, MOST_MOVED = (1.0, 2.0, 5.0, 10.0, 20.0), 0.5
RAMPS = (0.025, 0.05, 0.1, 0.2)  # of the largest net load of the training days, in an hour
FORECASTS = tuple(itertools.product([7, 14], [0.8, 0.9, 0.95]))  # days of the profile, decay of the error
COLUMNS: Columns = {
    "cost per day": lambda row: f"{row['cost']:.0f}",
    "x optimum": lambda row: f"{row['over_optimum']:.2f}",
    "worst day": lambda row: f"{row['worst_day']:.0f}",
    "moved per day": lambda row: f"{row['moved']:.0f}",
    "miss": lambda row: f"{row['miss']:.1f}",
    "promise, largest ratio": lambda row: (
        f"{row['promise']:.4g}, {row['largest_ratio']:.2f}" if "promise" in row else "none"
    ),
}
FOLLOW, MPC, LEARNED, GUARDED = "follow the load", "MPC", "`fit --ramp`", f"`fit --ramp --promise {PROMISE:g}`"

Decide = Callable[[float, float], float]  # (net load now, power of the hour before) -> power, all in GW


class PlanWithRamp:
    """Model-predictive control: plan WINDOW hours on a forecast, with the ramp limit inside, and play the first hour.

    The forecast is the mean profile of the last days plus the present error, which decays from hour to hour.
    """

    def __init__(self, alpha: float, ramp: float, before: np.ndarray, days: int, decay: float):
        self.alpha, self.ramp, self.days, self.decay, self.seen = (
            alpha,
            ramp,
            days,
            decay,
            list(before[-days * HOURS :]),
        )
        changes = sparse.diags_array([1.0, -1.0], offsets=[0, -1], shape=(WINDOW, WINDOW), format="csc")
        curvature = sparse.eye_array(WINDOW) + alpha * changes.T @ changes
        limits = np.full(WINDOW, ramp)
        self.solver = osqp.OSQP()
        self.solver.setup(
            sparse.csc_matrix(curvature), np.zeros(WINDOW), sparse.csc_matrix(changes), -limits, limits,
            verbose=False, eps_abs=1e-6, eps_rel=1e-6, max_iter=20_000,
        )  # fmt: skip

    def __call__(self, load: float, current: float) -> float:
        profile = np.reshape(self.seen[-self.days * HOURS :], (self.days, HOURS)).mean(axis=0)
        expected = profile + (load - profile[0]) * self.decay ** np.arange(WINDOW)
        self.seen.append(load)
        linear, low, high = -expected, np.full(WINDOW, -self.ramp), np.full(WINDOW, self.ramp)
        linear[0] -= self.alpha * current
        low[0], high[0] = low[0] + current, high[0] + current  # the first change is from the power now
        self.solver.update(q=linear, l=low, u=high)
        return float(np.clip(self.solver.solve(raise_error=True).x[0], current - self.ramp, current + self.ramp))


def follow_load(ramp: float) -> Decide:
    """Return the rule that goes to the net load as fast as the ramp allows."""
    return lambda load, current: float(np.clip(load, current - ramp, current + ramp))


def play(decide: Decide, loads: np.ndarray, first: float) -> np.ndarray:
    """Return the power of each hour when a rule decides."""
    powers = [first]
    for load in loads:
        powers.append(decide(float(load), powers[-1]))
    return np.array(powers[1:])


class Grid(NamedTuple):
    """A year of a grid in GW: columns net_load, wind and sun, (n, 3); the price of movement; the ramp limit, GW in an hour."""

    contexts: np.ndarray
    alpha: float
    ramp: float

    @classmethod
    def read(cls, path: Path) -> "Grid":
        """Read a file with hourly columns net_load_mw, wind_mw and solar_mw; without a ramp and a price."""
        contexts = pd.read_csv(path)[["net_load_mw", "wind_mw", "solar_mw"]].to_numpy(float) / 1000
        return cls(contexts, np.nan, np.inf)

    def limit(self, alpha: float, share: float) -> "Grid":
        """Return the grid with a price and a ramp, a share of the largest net load of the training days."""
        return self._replace(alpha=alpha, ramp=round(share * self.contexts[: SPLIT.training * HOURS, 0].max(), 1))

    def cut(self, split: Split) -> "Days":
        """Return the test days of a split."""
        return Days(self, *split.cut(self.contexts))

    def trial(self) -> tuple[Split, "Grid"]:
        """Return a split of the days before the test, and the grid on these days."""
        split, known = SPLIT.trial(self.contexts)
        return split, self._replace(contexts=known)

    @property
    def problem(self) -> ec.Problem:
        """The problem with the ramp limit, for the optimum in hindsight."""
        actions = ec.Limited(ec.Everywhere(), ramp=self.ramp) if np.isfinite(self.ramp) else ec.Everywhere()
        return ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=self.alpha, dim=1), actions)

    def load_range(self, split: Split = SPLIT) -> str:
        """LOW:HIGH of net loads, as an operator would declare it: that of the training days, a tenth wider on both sides."""
        loads = self.contexts[: split.training * HOURS, 0]
        margin = 0.1 * (loads.max() - loads.min())
        return f"{np.floor(loads.min() - margin):g}:{np.ceil(loads.max() + margin):g}"

    def fit(
        self, out: Path, promise: float | None = None, split: Split = SPLIT, advisor: str = "ridge"
    ) -> tuple[ec.Policy, str]:
        """Run `ecl2o fit`, and return its policy and its sentence about the worst case."""
        options = ["--column", "net_load", "--covariate", "wind", "--covariate", "sun", "--alpha", self.alpha]
        options += ["--ramp", self.ramp, "--advisor", advisor]
        if promise is not None:
            options += ["--promise", promise, "--contexts", self.load_range(split)]
        return fit_policy(self.contexts, ["net_load", "wind", "sun"], "2022-01-01", split, options, out)


class Days(NamedTuple):
    """A stretch of a grid's hours: contexts before it and in it."""

    grid: Grid
    before: np.ndarray
    contexts: np.ndarray

    @property
    def loads(self) -> np.ndarray:
        """The net loads of these days."""
        return self.contexts[:, 0]

    @property
    def first(self) -> float:
        """The power before the first hour: the last net load."""
        return float(self.before[-1, 0])

    def cost_by_hour(self, powers: np.ndarray) -> np.ndarray:
        """Return what each hour costs, written out."""
        changes = np.diff(powers, prepend=self.first)
        return 0.5 * (powers - self.loads) ** 2 + 0.5 * self.grid.alpha * changes**2

    def plan(self, days: int, decay: float) -> np.ndarray:
        """Return the powers of model-predictive control."""
        rule = PlanWithRamp(self.grid.alpha, self.grid.ramp, self.before[:, 0], days, decay)
        return play(rule, self.loads, self.first)

    def choose_forecast(self) -> tuple[int, float]:
        """Return days and decay of the forecast with which MPC costs least."""
        return min(FORECASTS, key=lambda each: self.cost_by_hour(self.plan(*each)).sum())

    def run(self, policy: ec.Policy) -> tuple[np.ndarray, pd.DataFrame]:
        """Return the powers of a policy that has seen the hours before, and its figures after each hour."""
        return run_policy(policy, self.before, self.contexts, self.first)

    def find_optimum(self) -> ec.Trajectory:
        """Return the best powers in hindsight under the ramp."""
        return ec.oracle(self.grid.problem, ec.Instance([self.first], self.loads[:, None]))

    def score(self, powers: np.ndarray) -> dict[str, float]:
        """Return the figures of a row."""
        moves, days = np.diff(powers, prepend=self.first), self.cost_by_hour(powers).reshape(-1, HOURS).sum(axis=1)
        return {
            "cost": float(days.mean()),
            "over_optimum": float(days.sum() / float(self.find_optimum().cost)),
            "worst_day": float(days.max()),
            "moved": float(np.abs(moves).sum() / len(days)),
            "at_limit": float(np.mean(np.abs(moves) > 0.999 * self.grid.ramp)),
            "largest_move": float(np.abs(moves).max() / self.grid.ramp),
            "miss": float(np.sqrt(np.mean((powers - self.loads) ** 2))),
        }


def choose_alpha(grids: Sequence[Grid]) -> float:
    """Return the price of movement, by the rule above."""

    def moves_little(alpha: float) -> bool:
        for grid in grids:
            split, known = grid.limit(alpha, np.inf).trial()
            days = known.cut(split)
            best = np.asarray(days.find_optimum().actions)[:, 0]
            if np.abs(np.diff(best)).sum() > MOST_MOVED * np.abs(np.diff(days.loads)).sum():
                return False
        return True

    return next((alpha for alpha in ALPHAS if moves_little(alpha)), ALPHAS[-1])


def choose_ramp(grids: Sequence[Grid], alpha: float, folder: Path) -> float:
    """Return the ramp's share, by the rule above."""

    def is_worth_it(share: float) -> bool:
        for grid in grids:
            split, known = grid.limit(alpha, share).trial()
            days = known.cut(split)
            powers, _ = days.run(known.fit(folder / "trial.ecl2o", PROMISE, split)[0])
            costs = [float(days.cost_by_hour(each).sum()) for each in (powers, days.plan(*days.choose_forecast()))]
            print(f"validation: ramp {known.ramp:g}, guarded {costs[0]:.0f}, MPC {costs[1]:.0f}", flush=True)
            if costs[0] > costs[1]:
                return False
        return True

    return next((share for share in RAMPS if is_worth_it(share)), RAMPS[-1])


def compare(grid: Grid, folder: Path) -> tuple[dict[str, dict], dict[str, np.ndarray], str]:
    """Return the rows of a grid, the powers by row on the test days, and what `fit` says about its promise."""
    split, known = grid.trial()
    days, decay = known.cut(split).choose_forecast()
    test = grid.cut(SPLIT)
    learned, _ = grid.fit(folder / "learned.ecl2o")
    guarded, said = grid.fit(folder / "guarded.ecl2o", PROMISE)
    powers = {
        FOLLOW: play(follow_load(grid.ramp), test.loads, test.first),
        f"{MPC}, {days} days, decay {decay:g}": test.plan(days, decay),
        LEARNED: test.run(learned)[0],
    }
    powers[GUARDED], figures = test.run(guarded)
    rows = {name: test.score(played) for name, played in powers.items()}
    rows[GUARDED] |= {"promise": read_promise(said), "largest_ratio": float(figures["ratio"].max())}
    return rows, powers | {"net load": test.loads}, said


def read_promise(said: str) -> float:
    """Return the multiple of the optimum that `fit` promises, from its sentence."""
    return float(said.split("the cost is at most ")[1].split(" times")[0])


def draw(powers: dict[str, np.ndarray]) -> None:
    """Draw three days around the hour in which MPC misses most."""
    (planned,) = [name for name in powers if name.startswith(MPC)]
    worst = int(np.argmax(np.abs(powers[planned] - powers["net load"]))) // HOURS * HOURS
    part = slice(max(worst - HOURS, 0), max(worst - HOURS, 0) + 3 * HOURS)
    draw_days(HERE / "generator.png", "GW", *((name, powers[name][part]) for name in ("net load", planned, GUARDED)))


def make_table(found: dict) -> str:
    """Return the table of the stored results, and below it what `fit` says about its promises."""
    rows = {f"{name}: {row}": figures for name, grid in found["grids"].items() for row, figures in grid["rows"].items()}
    said = "".join(
        f"\n> {name}, ramp {grid['ramp']:g} GW an hour: {grid['said']}\n" for name, grid in found["grids"].items()
    )
    return format_table("grid: policy", COLUMNS, rows) + said


def main() -> None:
    """Print the tables, and store them with the figure if asked to."""
    parser = argparse.ArgumentParser(description="Generators with a ramp limit, beside model-predictive control.")
    parser.add_argument("grids", nargs="+", metavar="NAME=CSV", help="columns net_load_mw, wind_mw, solar_mw by hour")
    parser.add_argument("--alpha", type=float, help="price of movement (default: chosen)")
    parser.add_argument("--ramp", type=float, help="share of the largest net load (default: chosen)")
    parser.add_argument("--write", action="store_true", help="store the results and the figure of the page")
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    grids = {name: Grid.read(Path(path)) for name, path in (text.split("=", 1) for text in given.grids)}
    alpha = given.alpha or choose_alpha(list(grids.values()))
    found, drawn = {}, None
    with tempfile.TemporaryDirectory() as folder:
        share = given.ramp or choose_ramp(list(grids.values()), alpha, Path(folder))
        print(f"alpha {alpha:g}, ramp {share:g} of the largest net load")
        for name, free in grids.items():
            grid = free.limit(alpha, share)
            rows, powers, said = compare(grid, Path(folder))
            found[name] = {"ramp": grid.ramp, "contexts": grid.load_range(), "said": said, "rows": rows}
            print(f"{name}\n{pd.DataFrame(rows).T.round(3).to_string()}\n{said}", flush=True)
            drawn = drawn or powers
    if given.write:
        stored = {"alpha": alpha, "share": share, "grids": found}
        store("generator", stored, make_table(stored))
        draw(drawn or {})


if __name__ == "__main__":
    main()
