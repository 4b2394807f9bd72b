"""What the cases share: `ecl2o fit` and its policy on a stretch of days, stored results, the table of a page, its figure."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import ecl2o as ec

HERE = Path(__file__).resolve().parent
HOURS = 24
Columns = Mapping[str, Callable[[Mapping[str, Any]], str]]  # heading: the text of a row's cell
_PLACE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end -->)", re.DOTALL)


class Split(NamedTuple):
    """Days for training, days for validation; the rest of a series is for the test."""

    training: int
    validation: int

    def cut(self, series: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the hours before the test, and those of the test."""
        start = sum(self) * HOURS
        return series[:start], series[start:]

    def trial(self, series: np.ndarray) -> tuple["Split", np.ndarray]:
        """Return a split of the hours before the test, whose own test is on the validation days. Settings are chosen on it."""
        return Split(self.training - self.validation, self.validation), self.cut(series)[0]


def fit_policy(
    series: np.ndarray, columns: Sequence[str], first_hour: str, split: Split, options: Sequence, out: Path
) -> tuple[ec.Policy, str]:
    """Run `ecl2o fit` on hours (n, q) of these columns; return its policy, and its sentence about the worst case."""
    times = pd.date_range(first_hour, periods=len(series), freq="h")
    table = out.with_suffix(".csv")
    pd.DataFrame(series, times, list(columns)).rename_axis("time").to_csv(table)
    days = ["--training-days", split.training, "--validation-days", split.validation]
    command = [sys.executable, "-c", "from ecl2o.cli import main; main()", "fit", table, "--out", out, *days, *options]
    said = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True).stdout
    (about,) = [line for line in said.splitlines() if line.startswith(("promise:", "worst case:"))]
    return ec.load(out), about


def run_policy(
    policy: ec.Policy, before: np.ndarray, contexts: np.ndarray, first: float
) -> tuple[np.ndarray, pd.DataFrame]:
    """Return the actions of a policy that has seen the hours before, and the runner's figures after each hour."""
    runner = ec.Runner(policy, x0=[first], history=before)
    actions, figures = [], []
    for context in contexts:
        actions.append(float(runner.step(context)[0]))
        figures.append({name: float(value[0]) for name, value in runner.figures.items() if np.shape(value) == (1,)})
    return np.array(actions), pd.DataFrame(figures)


def draw_days(
    path: Path, unit: str, followed: tuple[str, np.ndarray], peer: tuple, ours: tuple, mid: bool = False
) -> None:
    """Draw what is followed as an area, and the actions of a peer and of ours as lines: (label, values by hour) each."""
    from ecl2o.plots.style import BLUE, GREY, VERMILLION, apply_style, new_figure

    with apply_style():
        figure = new_figure(2.6)
        axes = figure.subplots()
        hours, where = np.arange(len(followed[1])), "steps-mid" if mid else "default"
        shape = {"step": "mid"} if mid else {}
        axes.fill_between(hours, followed[1], color=GREY, alpha=0.3, linewidth=0, label=followed[0], **shape)
        axes.plot(hours, peer[1], color=VERMILLION, linewidth=1, label=peer[0], drawstyle=where)
        axes.plot(hours, ours[1], color=BLUE, label=ours[0].replace("`", ""), drawstyle=where)
        axes.set(xlabel="hour", ylabel=unit, xticks=range(0, len(hours) + 1, 12), ylim=(0, None))
        axes.legend(ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
        figure.savefig(path, dpi=200)


def format_table(first: str, columns: Columns, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a Markdown table with one line per row; `first` heads the column of their names."""
    lines: Sequence[Sequence[str]] = [
        [first, *columns],
        ["---"] * (1 + len(columns)),
        *([name, *(cell(figures) for cell in columns.values())] for name, figures in rows.items()),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def store(case: str, found: Mapping[str, Any], table: str) -> None:
    """Write the results of a case to CASE.json, and its table into CASE.md."""
    (HERE / f"{case}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    page = HERE / f"{case}.md"
    page.write_text(_PLACE.sub(lambda _: table, page.read_text(encoding="utf-8")), encoding="utf-8")


def load(case: str) -> dict[str, Any]:
    """Return the stored results of a case."""
    return json.loads((HERE / f"{case}.json").read_text(encoding="utf-8"))
