"""Write the tables and the first figure of docs/reproduction.md from the results beside this script.

A table stands on the page between `<!-- table NAME -->` and `<!-- end -->`. `claims.toml` has what the paper claims, as
inequalities of these results, our verdicts, and the command of each results file. Tests compare figures and verdicts with the
results.

    .venv/bin/python docs/results/tables.py                 # write the page and its figure
    .venv/bin/python docs/results/tables.py store FOLDER    # keep what the page needs of a sweep, as FOLDER's name .json
"""

import json
import math
import operator
import re
import sys
import tomllib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ecl2o.cli.sweep import ROWS
from ecl2o.paper.pareto import paired_difference
from ecl2o.paper.results import AUTHORS_ROWS

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "reproduction.md"
FIGURE = HERE.parent / "figures" / "reproduction" / "shortage.png"
PLACE = re.compile(r"(?P<begin><!-- table (?P<name>[\w-]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)
PRESETS = {"authors-code": ("headline-authors-code",), "paper": ("headline-paper-mlp", "headline-paper-lstm")}
HEADLINES = tuple(run for runs in PRESETS.values() for run in runs)  # the main comparison
STUDIES = ("authors-code-lstm", "paper-mlp")  # of `ecl2o reproduce`
GRIDS = ("sweep-lstm", "sweep-mlp")  # of thresholds and units too
SITES = {"bakersfield": "Bakersfield 2012", "golden": "Golden 2012", "built-in": "Greensboro, built in"}
OTHERS = {"equal-training": "authors' loss and schedule", "augmented": "augmented, 20 kW"} | SITES
CHOSEN = "ec-l2o-tuned"
SHIFTED = {"r-obd": "R-OBD", "pure-ml": "PureML-0", "mla-robd": "MLA-ROBD", "ec-l2o": "EC-L2O", CHOSEN: "tuned"}
FRONT_COSTS = (1.2, 1.3, 1.4, 1.5, 1.6)  # fronts are compared by the least ratio at these costs or below
WINDY_DAYS = {"12-26": "26 December", "05-07": "7 May"}
ALONE = {"network": "lstm", "protocol": "daily", "healthy": True}  # of a run with one reading
Reading = dict[str, Any]


@cache
def results(name: str) -> dict[str, Any]:
    """Return a stored results file."""
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))


@cache
def claims() -> dict[str, Any]:
    """Return claims.toml."""
    return tomllib.loads((HERE / "claims.toml").read_text(encoding="utf-8"))


def store(folder: Path) -> None:
    """Keep what the page needs of a sweep: the main comparison and the mean of every setting, or a grid's fronts."""
    import pandas as pd

    found = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    kept = ("format", "study", "source", "problem", "grid", "training_steps", "protocols", "augment", "seconds")
    stored = {name: found[name] for name in kept if name in found}
    if folder.name in GRIDS:
        fronts = [front for front in found["fronts"] if front["family"] == "ec-l2o"]
        (pure,) = (point for point in found["points"] if point["setting"].get("kappa") == 0)
        stored |= {"below_pure_ml": found["below_pure_ml"], "pure_ml": pure, "fronts": fronts}
    else:
        stored |= {"headline": found["headline"], "points": _mean_points(pd.read_parquet(folder / "sweep.parquet"))}
    text = json.dumps(json.loads(json.dumps(stored), parse_float=lambda digits: round(float(digits), 6)))
    (HERE / f"{folder.name}.json").write_text(text + "\n", encoding="utf-8")


def _mean_points(records: Any) -> list[dict[str, Any]]:
    """Return the means over seeds of each setting of a sweep's table, and the cost with each seed."""
    axes = ["family", "network", "trust", "mu", "kappa", "gamma", "ratio", "base_shortage", "protocol"]
    figures = ["test_cost", "test_ratio", "test_third_worst", "test_p99.5"]
    points = []
    for setting, group in records.groupby(axes, dropna=False, sort=False):
        named = {name: value for name, value in zip(axes, setting, strict=True) if value is not None and value == value}
        by_seed = group.sort_values("seed")["test_cost"].round(6).tolist()
        points.append(named | group[figures].mean().round(6).to_dict() | {"costs": by_seed})
    return points


@cache
def readings(run: str) -> list[Reading]:
    """Return the rows and figures of each P_s, network and protocol of a run.

    A network without memory has one reading for both protocols. `healthy`: PureML-0 costs less than R-OBD with every seed. A
    study's trade-off is of its first seed.
    """
    if run in STUDIES:
        points = [point for point in results(run)["trade_off"] if point["family"] == "pure-ml"]
        rows = {
            p["setting"].replace(" ", "-"): {"test_cost": p["average_cost"], "test_ratio": p["competitive_ratio"]}
            for p in points
        }
        return [{"base_shortage": results(run)["weather"]["base_shortage"], "rows": rows} | ALONE]
    if run in GRIDS:
        fronts = [front for front in results(run)["fronts"] if front["family"] == "ec-l2o"]
        rows = {f"trust-{front['trust']:g}": _least_ratios(front["points"]) for front in fronts}
        return [{"base_shortage": results(run)["source"]["base_shortage"], "rows": rows} | ALONE]
    points = results(run)["points"]
    found = []
    for group in results(run)["headline"]:
        if (group["network"], group["protocol"]) == ("mlp", "streamed"):
            continue
        place = (group["base_shortage"], group["protocol"])
        own = [
            point
            for point in points
            if (point["base_shortage"], point["protocol"]) == place
            and point.get("network", group["network"]) == group["network"]
        ]
        rows = group["rows"] | {
            "switch": _point(own, "switch", gamma=1.5),
            "mla-robd-0.2": _point(own, "mla-robd", trust=0.2),
            "mla-robd-5": _point(own, "mla-robd", trust=5.0),
            "ec-l2o-mu-0": _point(own, "ec-l2o", trust=0.5, mu=0.0),
            "front": _front(own),
        }
        baseline = group["rows"]["r-obd"]["test_cost"]
        healthy = all(cost < baseline for cost in _point(own, "pure-ml", kappa=0.0)["costs"])
        found.append({**group, "rows": rows, "points": own, "healthy": healthy})
    return found


def _least_ratios(points: list[dict[str, Any]]) -> dict[str, float]:
    least = ((cost, [p["test_ratio"] for p in points if p["test_cost"] <= cost]) for cost in FRONT_COSTS)
    return {f"test_ratio_up_to_{cost:g}": min(found, default=math.inf) for cost, found in least}


def _point(points: list[dict[str, Any]], family: str, **values: float) -> dict[str, Any]:
    (found,) = (p for p in points if p["family"] == family and values.items() <= p.items())
    return found


def _front(points: list[dict[str, Any]]) -> dict[str, float]:
    """Compare EC-L2O's settings with all settings of PureML, MLA-ROBD and Switch."""
    ours = [p for p in points if p["family"] == "ec-l2o"]
    theirs = [p for p in points if p["family"] in ("pure-ml", "mla-robd", "switch")]

    def is_beaten(point: dict[str, Any]) -> bool:
        return any(all(p[figure] <= point[figure] for figure in ("test_cost", "test_ratio")) for p in ours)

    def area(family: str) -> float:
        sides = ([p[figure] for p in points if p["family"] == family] for figure in ("test_cost", "test_ratio"))
        (costs, ratios) = sides
        return (max(costs) - min(costs)) * (max(ratios) - min(ratios))

    beaten = sum(map(is_beaten, theirs))
    share = beaten / len(theirs)
    return {
        "beaten": beaten,
        "others": len(theirs),
        "share": share,
        "area": area("ec-l2o"),
        "two_stage": area("mla-robd"),
    }


COMPARED = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
INEQUALITY = re.compile(r"(?P<left>\S+) (?P<sign><=?|>=?) (?:(?P<factor>-?[\d.]+) \* )?(?P<right>\S+)")


def holds(inequality: str, reading: Reading) -> bool:
    """Return whether an inequality such as "ec-l2o.test_ratio <= 1.5 * r-obd.test_ratio" holds in a reading.

    An operand is a number, ROW.FIGURE, or minus.ROW.FIGURE for the paired difference from PureML-0.
    """
    parts = INEQUALITY.fullmatch(inequality)
    if parts is None:
        raise ValueError(f"expected 'FIGURE < [NUMBER *] FIGURE', got {inequality!r}")
    right = float(parts["factor"] or 1) * figure(parts["right"], reading)
    return COMPARED[parts["sign"]](figure(parts["left"], reading), right)


def figure(path: str, reading: Reading) -> float:
    """Return what an operand of an inequality stands for."""
    try:
        return float(path)
    except ValueError:
        pass
    if path.startswith("minus."):
        row, name = path.removeprefix("minus.").rsplit(".", 1)
        return reading["minus_pure_ml"][row][name]
    row, _, name = path.partition(".test_")
    if name:
        return reading["rows"][row][f"test_{name}"]
    row, name = path.rsplit(".", 1)
    return reading["rows"][row][name]


def holding(claim: dict[str, Any]) -> dict[float, dict[tuple[str, str], bool]]:
    """Return, for each P_s (W) at which a claim was tried, in which run, network and protocol it holds; healthy readings only."""
    found: dict[float, dict[tuple[str, str], bool]] = {}
    for run in claim.get("runs", HEADLINES):
        for reading in (reading for reading in readings(run) if reading["healthy"]):
            is_true = all(holds(text, reading) for text in claim["if"])
            found.setdefault(reading["base_shortage"], {})[run, which(reading)] = is_true
    return found


def verdict(claim: dict[str, Any]) -> str:
    """Return the verdict that the results give over all healthy readings that were tried."""
    found = [pair for each in holding(claim).values() for pair in each.items()]
    if len(outcomes := {is_true for _, is_true in found}) == 1:
        return "holds" if outcomes.pop() else "does not hold"
    return "depends on the network" if len(set(found)) == len(dict(found)) else "depends on P_s"


def number(value: float) -> str:
    """Three decimals below 10, one above."""
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def spread(figure: dict[str, Any]) -> str:
    """Mean and standard deviation over seeds, where there are several."""
    return number(figure["mean"]) + (f" ± {number(figure['std'])}" if len(figure["per_seed"]) > 1 else "")


def over_seeds(point: dict[str, Any], name: str) -> str:
    """The same for a row of a sweep."""
    return number(point[name]) + (f" ± {number(point[name + '_std'])}" if point["seeds"] > 1 else "")


def signed(figure: dict[str, Any]) -> str:
    """A difference, with its sign and its spread."""
    return ("+" if figure["mean"] >= 0 else "") + spread(figure)


def paired(more: dict[str, Any] | None) -> str:
    """A paired difference, its standard error, and the seeds that were cheaper."""
    if more is None:
        return ""
    return f"{more['mean']:+.3f} ± {more['standard_error']:.3f} ({more['cheaper']}/{more['seeds']})"


def watts(value: float) -> str:
    """P_s in kW or MW."""
    return f"{value / 1e3:.3g} kW" if value < 1e6 else f"{value / 1e6:.3g} MW"


def which(reading: Reading) -> str:
    """Network and protocol."""
    return "MLP" if reading["network"] == "mlp" else f"LSTM, {reading['protocol']}"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown."""
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def costs(runs: dict[str, str]) -> str:
    """Average costs of every reading, and the paired differences from PureML-0's."""
    head = ("P_s", "network", *ROWS.values(), "stated less PureML", "chosen less PureML")
    lines = []
    for run, label in runs.items():
        for reading in readings(run):
            rows, more = reading["rows"], reading["minus_pure_ml"]
            shown = [over_seeds(rows[name], "test_cost") if name in rows else "" for name in ROWS]
            place = f"{label} {watts(reading['base_shortage'])}".strip()
            lines.append([place, which(reading), *shown, paired(more.get("ec-l2o")), paired(more.get(CHOSEN))])
    return table(head, lines)


def ratios(runs: dict[str, str]) -> str:
    """Competitive ratios of every reading: the worst day, and the third-worst."""
    lines = []
    for run, label in runs.items():
        for reading in readings(run):
            shown = (
                f"{over_seeds(row, 'test_ratio')}; {over_seeds(row, 'test_third_worst')}"
                for row in (reading["rows"].get(name) for name in ROWS)
                if row is not None
            )
            lines.append([f"{label} {watts(reading['base_shortage'])}".strip(), which(reading), *shown])
    return table(("P_s", "network", *ROWS.values()), lines)


def verdicts() -> str:
    """Every claim: in how many readings of each P_s it holds, and the verdict."""
    shortages = sorted({shortage for claim in claims()["claim"] for shortage in holding(claim)})

    def cell(found: dict[tuple[str, str], bool] | None) -> str:
        return "" if found is None else f"{sum(found.values())}/{len(found)}"

    return table(
        ("the paper's claim", *map(watts, shortages), "verdict"),
        (
            (
                f"{claim['figure']}: {claim['paper']}",
                *(cell(holding(claim).get(p)) for p in shortages),
                claim["verdict"],
            )
            for claim in claims()["claim"]
        ),
    )


def verdicts_elsewhere() -> str:
    """The claims about EC-L2O beside PureML in the other runs."""
    found = [claim for claim in claims()["claim"] if "elsewhere" in claim]
    runs = {run: label for run, label in OTHERS.items() if run in found[0]["elsewhere"]}

    def cell(claim: dict[str, Any], run: str) -> str:
        outcomes = [is_true for each in holding(claim | {"runs": [run]}).values() for is_true in each.values()]
        return f"{claim['elsewhere'][run]}, {sum(outcomes)}/{len(outcomes)}"

    lines = ([f"{claim['figure']}: {claim['paper']}", *(cell(claim, run) for run in runs)] for claim in found)
    return table(("the paper's claim", *runs.values()), lines)


def fronts() -> str:
    """Figure 5c: how many settings of other learned families some setting of EC-L2O beats in cost and ratio."""
    groups: dict[tuple[str, str], dict[str, str]] = {}
    for preset, runs in PRESETS.items():
        for reading in (reading for run in runs for reading in readings(run)):
            front = reading["rows"]["front"]
            line = groups.setdefault((preset, watts(reading["base_shortage"])), {})
            line[which(reading)] = f"{front['beaten']} of {front['others']}"
    columns = list(next(iter(groups.values())))
    lines = ([*place, *(line.get(name, "") for name in columns)] for place, line in groups.items())
    return table(("preset", "P_s", *columns), lines)


def by_trust() -> str:
    """EC-L2O with μ = 0 and each trust at the P_s of the rule: its cost less PureML-0's, and its ratio."""
    lines, trusts = [], (0.1, 0.3, 0.5)
    for preset, runs in PRESETS.items():
        for run in runs:
            rule = results(run)["headline"][-1]["base_shortage"]  # the last of the sweep
            for reading in (reading for reading in readings(run) if reading["base_shortage"] == rule):
                pure = np.array(_point(reading["points"], "pure-ml", kappa=0.0)["costs"])
                cells = []
                for trust in trusts:
                    ours = _point(reading["points"], "ec-l2o", trust=trust, mu=0.0)
                    more = paired(paired_difference(np.array(ours["costs"]), pure))
                    cells.append(f"{more}; {number(ours['test_ratio'])}")
                lines.append([f"`{preset}`, {watts(rule)}", which(reading), *cells])
    return table(("P_s", "network", *(f"θ = {trust:g}" for trust in trusts)), lines)


def windy_days() -> str:
    """The ratios of the two windy days at the authors' P_s, without and with augmentation."""
    lines = []
    for run, label in {"headline-authors-code": "as it is", "augmented": "augmented"}.items():
        for reading in readings(run):
            if reading["base_shortage"] == 20_000:
                cells = (
                    "; ".join(over_seeds(reading["rows"][row], f"test_ratio_{day}") for day in WINDY_DAYS)
                    for row in ("pure-ml", "mla-robd", "ec-l2o", CHOSEN)
                )
                lines.append([label, which(reading), *cells])
    head = ("training data", "network", *(ROWS[row] for row in ("pure-ml", "mla-robd", "ec-l2o", CHOSEN)))
    return table(head, lines)


def commands() -> str:
    """The command of each results file."""
    lines = "".join(f"$ {command} --out {name}\n" for name, command in claims()["command"].items())
    return f"```console\n{lines}```\n"


def by_quarter(name: str) -> str:
    """How far the test days are from the training days, and how much more each row costs there."""
    shift = results(name)["shift"]
    rows = [["training days", f"{shift['distances']['within']:.3f}"]]
    rows[0] += [spread(shift["gaps"][row]["training"]) for row in SHIFTED]
    for quarter, distance in shift["distances"]["quarters"].items():
        rows.append([quarter, number(distance), *(signed(shift["gaps"][row]["gap"][quarter]) for row in SHIFTED)])
    return table(("", "W1", *SHIFTED.values()), rows)


def saved(name: str) -> str:
    """What calibration saves per unit of distance."""
    return table(
        ("row", "saved on the days as they are", "saved furthest away", "slope per unit of W1"),
        (
            (SHIFTED[row], signed(found["at_home"]), signed(found["furthest"]), signed(found["slope"]))
            for row, found in results(name)["shift"]["saved"].items()
        ),
    )


def theorems(name: str) -> str:
    """Theorems 5.1 and 5.2, term by term."""
    cases = results(name)["theorems"]

    def line(label: str, read: Callable[[dict], float]) -> list[str]:
        return [label, *(number(read(case)) if readable(read, case) else "" for case in cases)]

    return table(
        ("", *(f"trust {case['trust']:g}, μ {case['mu']:g}" for case in cases)),
        [
            line("D(P, P'), Wasserstein between (x_0, y) of training and test days", lambda c: c["distance"]),
            line("training error of W against W*", lambda c: c["training_error"]),
            line("effect of the shift, slopes along the optimal plan", lambda c: c["shift_effect"]),
            line("cost of W* on the test days", lambda c: c["reference_cost"]),
            line("Theorem 5.1: bound on the average cost", lambda c: c["average_cost_bound"]),
            line("measured average cost", lambda c: c["average_cost"]),
            line("Theorem 5.2, repaired: bound on the 99 % ratio", lambda c: c["tail"]["tight"]["ratio"]),
            line("the same as printed", lambda c: c["tail"]["paper"]["ratio"]),
            line("measured 99 % ratio", lambda c: c["tail_measured"]["ratio"]),
        ],
    )


def readable(read: Callable[[dict], float], case: dict) -> bool:
    """Whether a case has that figure: Theorem 5.2 divides by mu and by the least optimum."""
    try:
        return read(case) is not None
    except KeyError:
        return False


def study(name: str) -> str:
    """The rows of a run of `ecl2o reproduce` that have one protocol and schedule."""
    return table(
        ("row", "average cost", "competitive ratio", "99 % of days", "99.5 %", "settings"),
        (
            (
                row["label"],
                spread(row["average_cost"]),
                spread(row["competitive_ratio"]),
                spread(row["tail_ratio"]["p99"]),
                spread(row["tail_ratio"]["p99.5"]),
                settings(row["parameters"]),
            )
            for key, row in results(name)["algorithms"].items()
            if key != "guarded" and not key.endswith(AUTHORS_ROWS)
        ),
    )


def settings(parameters: dict[str, Any]) -> str:
    """What a row was played with, without the network, which the table names."""
    shown = {
        name: value for name, value in parameters.items() if name not in ("advisor", "truncate", "family", "network")
    }
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items())


def swept() -> str:
    """Of the grid with thresholds and units: what costs less than PureML-0 of the same seeds, and the safest of it."""
    lines = []
    for name, network in zip(GRIDS, ("lstm", "mlp"), strict=True):
        found, pure = results(name)["below_pure_ml"][network], results(name)["pure_ml"]
        best = found["safest"]
        words = ["none", ""] if best is None else [settings(best["setting"]), cost_and_ratio(best)]
        lines.append([network.upper(), cost_and_ratio(pure), str(found["settings"]), str(found["below"]), *words])
    return table(("network", "PureML-0", "settings", "cheaper", "the safest of these", "cost (ratio)"), lines)


def cost_and_ratio(point: dict[str, Any]) -> str:
    """Cost and ratio of a point of a sweep, with their spread."""
    return f"{over_seeds(point, 'test_cost')} ({over_seeds(point, 'test_ratio')})"


TABLES: dict[str, Callable[[], str]] = {
    "commands": commands,
    "verdicts": verdicts,
    "verdicts-elsewhere": verdicts_elsewhere,
    **{f"costs-{preset}": (lambda runs=runs: costs(dict.fromkeys(runs, ""))) for preset, runs in PRESETS.items()},
    **{f"ratios-{preset}": (lambda runs=runs: ratios(dict.fromkeys(runs, ""))) for preset, runs in PRESETS.items()},
    "fronts": fronts,
    "by-trust": by_trust,
    "costs-equal": lambda: costs({"equal-training": ""}),
    "ratios-equal": lambda: ratios({"equal-training": ""}),
    "costs-augmented": lambda: costs({"augmented": ""}),
    "windy-days": windy_days,
    "costs-sites": lambda: costs(SITES),
    "ratios-sites": lambda: ratios(SITES),
    **{name: (lambda name=name: study(name)) for name in STUDIES},
    "swept": swept,
    "quarters": lambda: by_quarter(STUDIES[0]),
    "saved": lambda: saved(STUDIES[0]),
    "theorems": lambda: theorems(STUDIES[0]),
}


def write_tables(page: str) -> str:
    """Return the page with every table as the results have it."""
    return PLACE.sub(lambda place: place["begin"] + TABLES[place["name"]]() + place["end"], page)


def draw_shortages() -> None:
    """Draw EC-L2O's cost less PureML-0's, and the worst ratios, against P_s; healthy readings only."""
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    from ecl2o.plots.style import BLUE, GREEN, VERMILLION

    looks = {"LSTM, daily": (BLUE, "o"), "LSTM, streamed": (GREEN, "s"), "MLP": (VERMILLION, "^")}
    figure, panels = plt.subplots(2, 2, figsize=(9, 6.4), layout="constrained", sharex="col", sharey="row")
    for (preset, runs), (upper, lower) in zip(PRESETS.items(), panels.T, strict=True):
        found = sorted((r for run in runs for r in readings(run)), key=lambda reading: reading["base_shortage"])
        for name, (color, marker) in looks.items():
            own = [reading for reading in found if which(reading) == name and reading["healthy"]]
            kilowatts = [reading["base_shortage"] / 1e3 for reading in own]
            more = [reading["minus_pure_ml"][CHOSEN] for reading in own]
            means, errors = [each["mean"] for each in more], [2 * each["standard_error"] for each in more]
            upper.errorbar(kilowatts, means, errors, color=color, marker=marker, capsize=3, label=name)
            for row, dash, face in (("pure-ml", ":", "white"), (CHOSEN, "-", color)):
                worst = [reading["rows"][row]["test_ratio"] for reading in own]
                lower.plot(kilowatts, worst, dash, color=color, marker=marker, markerfacecolor=face)
        upper.axhline(0, color="black", linewidth=0.8)
        lower.axhline(found[0]["rows"]["r-obd"]["test_ratio"], color="black", linewidth=0.8, linestyle="--")
        upper.set(title=f"preset {preset}", xscale="log")
        lower.set(xlabel="P_s, kW", yscale="log")
        ticks = [found[0]["base_shortage"] / 1e3 * factor for factor in (1, 1.5, 2.5, 5, 10)]
        lower.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        lower.set_yticks([2, 3, 5, 10, 20], ["2", "3", "5", "10", "20"])
        lower.minorticks_off()
    panels[0, 0].set_ylabel("average cost:\nEC-L2O, chosen, less PureML-0")
    panels[1, 0].set_ylabel("ratio of the worst day")
    panels[0, 0].legend(frameon=False)
    lines = [Line2D([], [], color="black", linestyle=dash) for dash in ("-", ":", "--")]
    panels[1, 0].legend(lines, ["EC-L2O, chosen", "PureML-0", "R-OBD"], frameon=False)
    figure.savefig(FIGURE, dpi=150)


if __name__ == "__main__":
    if sys.argv[1:2] == ["store"]:
        for name in sys.argv[2:]:
            store(Path(name))
    else:
        PAGE.write_text(write_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        draw_shortages()
