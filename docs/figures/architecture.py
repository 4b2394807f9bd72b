"""Draw docs/figures/architecture.svg: the packages in the order of their imports, and three journeys through them.

The order is read from the linter's contract in pyproject.toml, so the picture shows what is enforced.

    .venv/bin/python docs/figures/architecture.py
"""

import itertools
import tomllib
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[2]

# What each package holds, in a few words.
HOLDS = {
    "cli": "parsing and printing",
    "paper": "the paper's studies, figures and report",
    "plots": "figures of one's own series and fleets",
    "fleet": "many sites and settings, here or on Dask",
    "fitting": "from a series to a policy, stage by stage",
    "act": "a policy in a pipe",
    "service": "many streams over HTTP",
    "gym": "a gymnasium.Env",
    "policy": "Policy, contract, file, start of a run, Runner",
    "learning": "losses, gradients, fit",
    "evaluation": "metrics, comparison, certificates",
    "running": "the one loop: Stepper, rollout",
    "offline": "hindsight",
    "forecasters": "future contexts",
    "agents": "who decides; guards",
    "planning": "optimal paths, plans, work functions",
    "theory": "the theorems as functions",
    "problem": "costs, action sets, instances",
    "solvers": "numerics without a domain",
    "data": "series and weather files to contexts",
}

# The packages that each journey visits, in order.
JOURNEYS = {
    "(a) fit: from a series to a policy": (
        "#0072b2",
        ["cli", "data", "fitting", "learning", "evaluation", "policy"],
    ),
    "(b) act: one context, one action": ("#d55e00", ["cli", "act", "policy", "running", "agents", "problem"]),
    "(c) a training step": ("#009e73", ["learning", "running", "agents", "problem", "learning"]),
}
MODULES = {"exceptions", "json_text"}  # single files, which every package may import
WIDTH, HEIGHT, GAP = 10.0, 0.8, 0.32


def layers() -> list[list[str]]:
    """Return the packages from the top down, those of one layer beside each other; data beside fitting, its first user."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    order = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    packages = [[name.strip().removeprefix("ecl2o.") for name in layer.split("|")] for layer in order]
    shown = [layer for layer in packages if not set(layer) & MODULES and layer != ["data"]]
    return [["data", *layer] if layer == ["fitting"] else layer for layer in shown]


def places(packages: list[list[str]]) -> dict[str, tuple[float, float, float]]:
    """Return left, bottom and width of each package."""
    found = {}
    for row, layer in enumerate(reversed(packages)):
        width = (WIDTH - GAP * (len(layer) - 1)) / len(layer)
        for column, name in enumerate(layer):
            found[name] = (column * (width + GAP), row * (HEIGHT + GAP), width)
    return found


def main() -> None:
    """Draw the figure."""
    where = places(layers())
    missing = set(where) - set(HOLDS)
    if missing:
        raise SystemExit(f"say in HOLDS what {', '.join(sorted(missing))} holds.")
    plt.rcParams |= {"svg.hashsalt": "ecl2o", "font.family": "DejaVu Sans"}
    figure, axes = plt.subplots(figsize=(11, 12))
    for name, (left, bottom, width) in where.items():
        axes.add_patch(plt.Rectangle((left, bottom), width, HEIGHT, facecolor="#f4f4f2", edgecolor="#777777"))
        axes.text(left + 0.12, bottom + 0.44, f"{name}/", fontsize=11, weight="bold", va="bottom")
        axes.text(left + 0.12, bottom + 0.18, HOLDS[name], fontsize=8, va="bottom")
    for number, (label, (colour, packages)) in enumerate(JOURNEYS.items()):
        points, visits = [], {}
        for package in packages:
            left, bottom, width = where[package]
            visits[package] = visits.get(package, 0) + 1
            points.append(
                (
                    left + width - 0.95 + 0.3 * number + 0.1 * (visits[package] - 1),
                    bottom + 0.62 - 0.36 * (visits[package] - 1),
                )
            )
        for (x, y), (to_x, to_y) in itertools.pairwise(points):
            arrow = {"arrowstyle": "-|>", "color": colour, "lw": 1.4, "shrinkA": 7, "shrinkB": 7, "alpha": 0.85}
            axes.annotate("", (to_x, to_y), (x, y), arrowprops=arrow | {"connectionstyle": "arc3,rad=-0.12"})
        for step, (x, y) in enumerate(points, start=1):
            axes.text(
                x, y, str(step), color="white", fontsize=7.5, weight="bold", ha="center", va="center", zorder=4,
                bbox={"boxstyle": "circle,pad=0.25", "facecolor": colour, "edgecolor": "white"},
            )  # fmt: skip
        axes.plot([], [], color=colour, lw=2, label=label)
    axes.annotate(
        "imports", (-0.45, 0.1), (-0.45, len(layers()) * (HEIGHT + GAP) - GAP), rotation=90, va="top", ha="center",
        arrowprops={"arrowstyle": "-|>", "color": "#777777"}, color="#555555", fontsize=9,
    )  # fmt: skip
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.005), ncols=3, frameon=False, fontsize=9)
    axes.set_xlim(-0.8, WIDTH + 0.1)
    axes.set_ylim(-0.15, len(layers()) * (HEIGHT + GAP))
    axes.axis("off")
    figure.savefig(ROOT / "docs" / "figures" / "architecture.svg", bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
