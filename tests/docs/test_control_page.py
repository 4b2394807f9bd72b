"""The figures in the tables of docs/control.md are those of the stored results."""

import json
import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
CELL = re.compile(r"\d+\.\d+")


def test_every_figure_of_a_table_is_that_of_the_results():
    battery, aircraft = (
        json.loads((DOCS / "results" / "control" / f"{name}.json").read_text()) for name in ("battery", "aircraft")
    )
    expected = {}
    for name, row in battery["rows"].items():
        cells = row["average"], row["worst_day"], row["largest_charge"]
        expected.setdefault(name, []).append([f"{cells[0]:.3f}", f"{cells[1]:.3f}", f"{cells[2]:.2f}"])
    for gust in ("white noise", "a step"):
        for name, row in aircraft["gusts"][gust].items():
            pairs = zip(row["mean_ratio"], row["worst_ratio"], strict=True)
            expected.setdefault(name, []).append([f"{figure:.2f}" for pair in pairs for figure in pair])
    for name, row in aircraft["gusts"]["white noise"].items():
        expected[name].append([f"{figure:.1f}" for figure in row["mean_regret"]])
    found = {}
    for line in (DOCS / "control.md").read_text().splitlines():
        if line.startswith("| ") and not line.startswith("| controller"):
            name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            found.setdefault(name, []).append(CELL.findall(" ".join(cells)))
    assert found == expected
    promised = [row["worst_day"] for name, row in battery["rows"].items() if name.startswith("guard")]
    assert max(promised) <= 1.5 * (1 + 1e-9)
