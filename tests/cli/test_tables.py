"""Tables at any width: words give way, numbers are never cut."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

import ecl2o as ec
from ecl2o.cli import comparison_table, output
from ecl2o.cli.tables import NumberFormat, print_table
from ecl2o.evaluation.comparison import ComparisonRow

PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
_WORDS = ["RHC, rolling profile", "ridge, promised, corrected", "not trained"]


def _printed(table, width, terminal=True):
    file = io.StringIO()
    print_table(table, Console(file=file, width=width, force_terminal=terminal, color_system=None))
    return file.getvalue()


def _table(cells, headings=("average cost", "worst day", "mean cost, millions", "µs per step")):
    table = Table(title="What was found", title_justify="left")
    table.add_column("")
    for heading in headings:
        table.add_column(heading, justify="right")
    for label, row in zip(_WORDS, cells, strict=False):
        table.add_row(label, *row)
    return table


@given(
    st.lists(st.lists(st.integers(1, 14), min_size=4, max_size=4), min_size=1, max_size=3),
    st.integers(20, 140),
    st.booleans(),
)
@settings(max_examples=60)
def test_no_number_is_cut_or_broken_at_any_width(lengths, width, terminal):
    cells = [["1" * (length - 1) + "7" for length in row] for row in lengths]
    printed = _printed(_table(cells), width, terminal)
    assert "…" not in printed
    words = printed.split()
    for cell in (cell for row in cells for cell in row):
        assert cell in words


@pytest.mark.parametrize("width", [80, 100, 160])
def test_a_table_that_can_be_made_to_fit_fits(width):
    cells = [["1.273", "1.960", "149.2", "12.1"], ["1234567.1", "612.000", "3.45e-07", "1234.1"]]
    assert max(map(len, _printed(_table(cells), width).splitlines())) <= width


def test_without_a_terminal_nothing_wraps():
    cells = [["1" * 30] * 4]
    line = next(line for line in _printed(_table(cells), 100, terminal=False).splitlines() if _WORDS[0] in line)
    assert line.split().count("1" * 30) == 4


@pytest.mark.parametrize("cost", [3.0e-300, 2.5e-9, 0.123, 51.2, 12345.6, 1.4925e8, 8.8e15, 1.7e308])
@pytest.mark.parametrize("unit_cost", [None, 0.4])
def test_entries_of_any_magnitude_at_80_columns(monkeypatch, cost, unit_cost):
    file = io.StringIO()
    monkeypatch.setattr(
        output, "results", lambda: Console(file=file, width=80, force_terminal=True, color_system=None, highlight=False)
    )
    tails = {"p99": 1.9}
    rows = [
        ComparisonRow("policy", 1.0872, 2.5, tails, 0, 12.0, mean_cost=cost, highest_cost=cost),
        ComparisonRow("r-obd", 1e9, 612.4, tails, 0, 99.0, mean_cost=cost / 7e5, highest_cost=cost / 3),
    ]
    extra = {"": ["trained", "not trained"], "validation": ["1.087 ± 0.060", "12.500 ± 1.123"]}
    comparison_table.print_comparison(rows, "title", PROBLEM, unit_cost, before=extra)
    comparison_table.print_comparison(rows, "title", PROBLEM, unit_cost, after=comparison_table.live_columns(rows))
    table = file.getvalue()
    assert "…" not in table
    assert max(map(len, table.splitlines())) <= 80
    for figure in ("1.087", "12.500 ± 1.123", "612.400", "1e+09", "12.0", "99.0"):
        assert re.search(rf"(?<!\S){re.escape(figure)}(?!\S)", table)


@given(st.floats(1e-280, 1e280), st.floats(1e-8, 1.0))
def test_a_figure_and_its_heading_give_the_number_back(largest, share):
    value = largest * share
    column = NumberFormat.of([largest, value])
    for number in (largest, value):
        read = float(column.text(number).replace(",", "")) * 10.0**column.exponent
        assert np.isclose(read, number, rtol=6e-3, atol=0)
    assert len(column.text(largest)) <= 6
    assert float(column.text(-value).replace(",", "")) == -float(column.text(value).replace(",", ""))


@pytest.mark.parametrize(
    ("largest", "unit"),
    [
        (2.5e5, "thousands"),
        (2.5e8, "millions"),
        (999.96e6, "billions"),
        (2.5e15, "10^15"),
        (2.5e-3, "10^-3"),
        (9e4, ""),
    ],
)
def test_headings_say_the_power_that_was_taken_out(largest, unit):
    assert NumberFormat.of([largest, 0.0, float("nan")]).unit == unit


def test_every_command_prints_its_tables_by_the_one_function():
    files = Path(output.__file__).parent.glob("*.py")
    assert [file.name for file in files if "Table(" in file.read_text(encoding="utf-8")] == ["tables.py"]
