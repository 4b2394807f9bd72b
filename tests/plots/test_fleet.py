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
