"""The report of a fleet marks unreliable figures."""

import pandas as pd

from ecl2o.plots.fleet import describe_marks, fleet_page, mark_name, sort_worst_first, summarize_fleet

GOOD = {
    "name": "good",
    "status": "fitted",
    "average_cost": 1.9,
    "competitive_ratio": 2.0,
    "p99": 1.8,
    "live_ratio": 1.9,
    "r_obd_cost": 1.5,
    "r_obd_ratio": 1.7,
    "advisor": "ridge",
    "promise_kept": True,
    "unconverged": 0,
}
LOST = GOOD | {"name": "lost", "average_cost": 1.1, "promise_kept": False, "unconverged": 3}
FAILED_SOLVE = GOOD | {"name": "solver", "average_cost": 1.0, "promise_kept": None, "unconverged": 17}
NOT_DONE = {"name": "broken", "status": "failed", "reason": "empty file"}


def test_sites_with_unreliable_figures_are_marked_and_come_first():
    table = pd.DataFrame.from_records([GOOD, FAILED_SOLVE, NOT_DONE, LOST])
    assert [mark_name(row) for row in sort_worst_first(table)] == ["lost †", "solver †", "good"]
    found = summarize_fleet(table)
    assert (found["unreliable"], found["promised"], found["kept"], found["failed"]) == (2, 2, 1, 1)
    assert describe_marks(found).startswith("† 2 sites: ")
    page = fleet_page(table, {}, 1.0)
    for cell in ("lost †</th>", "solver †</th>", "good</th>", describe_marks(found)):
        assert cell in page


def test_a_fleet_of_results_has_no_mark():
    table = pd.DataFrame.from_records([GOOD, GOOD | {"name": "other", "promise_kept": None}])
    assert describe_marks(summarize_fleet(table)) == ""
    assert "†" not in fleet_page(table, {}, 1.0)


def test_sites_whose_optimum_is_zero_are_told_and_left_out_of_the_distribution():
    free = GOOD | {"name": "free", "average_cost": float("inf"), "competitive_ratio": float("inf"), "r_obd_cost": 1.0}
    table = pd.DataFrame.from_records([free, GOOD])
    assert [row["name"] for row in sort_worst_first(table)] == ["good", "free"]
    assert summarize_fleet(table)["average_cost"] == dict.fromkeys(("smallest", "median", "p90", "largest"), 1.9)
    page = fleet_page(table, {}, 1.0)
    assert "optimum is 0" in page
    assert not any(word in page for word in (">inf<", ">nan<", " nan"))
    assert "optimum is 0" in fleet_page(pd.DataFrame.from_records([free]), {}, 1.0)
