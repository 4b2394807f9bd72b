"""The worked cases run on real data and keep the promises that their pages state; tables are the stored results."""

import os
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).resolve().parents[2] / "docs" / "cases"
pytestmark = pytest.mark.skipif(not os.environ.get("ECL2O_DOCS"), reason="make docs runs the cases")


@pytest.fixture
def cases(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(CASES), *sys.path])


def test_the_page_has_the_stored_table(cases):
    import battery_plan
    import page

    table = page.format_table("policy", battery_plan.COLUMNS, page.load("battery-plan")["rows"])
    assert table in (CASES / "battery-plan.md").read_text(encoding="utf-8")


def test_a_battery_plan_keeps_its_promises(cases, shared):
    import battery_plan
    import pandas as pd

    net_load = pd.read_csv(shared / "data" / "net_load_nyiso_2022_hourly.csv")["net_load_mw"].to_numpy(float)
    prices = battery_plan.make_prices(net_load)
    bounds = {"2 x optimum": ("over_optimum", 2.0), "1.05 x holding still": ("over_holding", 1.05)}
    bounds["1.05 x the plan"] = ("over_plan", 1.05)
    for name, decide in battery_plan.make_policies().items():
        figures = battery_plan.simulate(decide, prices, days=1).figures()
        promised = [bound for text, bound in bounds.items() if name.endswith(text)]
        for figure, bound in promised:
            assert figures[figure] <= bound * (1 + 1e-9), name
        assert len(promised) == ("guarded" in name), name
