"""`ecl2o fleet` tells by its exit code whether every site is done."""

import pytest

from ecl2o.fleet import folder
from ecl2o.plots import fleet

FIGURES = {"average_cost": 1.1, "competitive_ratio": 1.2, "r_obd_cost": 1.3, "r_obd_ratio": 1.4, "unconverged": 0}
GOOD = {"name": "good", "status": "tested", "reason": None, "live_ratio": 1.1, "policy": "0", **FIGURES}
KEPT, BROKEN = GOOD | {"promise_kept": True}, GOOD | {"name": "broken", "promise_kept": False}
FAILED = {"name": "bad", "status": "failed", "reason": "bad.csv does not exist."}


@pytest.mark.parametrize(
    ("rows", "fitted", "tested"),
    [
        ([KEPT], 0, 0),
        ([KEPT, FAILED, FAILED], 3, 3),
        ([FAILED, FAILED], 1, 1),
        ([KEPT, BROKEN, FAILED], 3, 1),  # a broken promise is the worse news
    ],
)
def test_exit_codes_tell_success_from_some_and_from_all_sites_failed(
    ecl2o, tmp_path, monkeypatch, rows, fitted, tested
):
    (tmp_path / "sites.csv").write_text("name,file\n" + "".join(f"{row['name']},any.csv\n" for row in rows))
    monkeypatch.setattr(fleet, "fleet_page", lambda *_: "")  # whose figures take seconds
    monkeypatch.setattr(folder, "fit_into", lambda *_: rows)
    monkeypatch.setattr(folder, "evaluate_into", lambda *_: rows)
    for command, code in (("fit", fitted), ("evaluate", tested)):
        more = ("--policies", tmp_path) if command == "evaluate" else ()
        (tmp_path / command).mkdir()
        result = ecl2o("fleet", command, tmp_path / "sites.csv", "--out", tmp_path / command, *more)
        assert result.exit_code == code, result.stderr
        assert ("sites failed" in result.stdout) == (FAILED in rows)


def test_columns_of_a_manifest_are_not_called_options(ecl2o, tmp_path):
    (tmp_path / "series.csv").write_text("time,demand\n2024-01-01T00:00,1\n")
    result = ecl2o("fleet", "fit", tmp_path / "series.csv", "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "time_column" in result.stderr
    assert "--" not in result.stderr
    assert not (tmp_path / "out").exists()
