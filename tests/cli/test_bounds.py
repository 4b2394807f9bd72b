"""`ecl2o bounds`: the theorems' numbers, in both forms."""

import json

import pytest
from typer.testing import CliRunner

from ecl2o import theory
from ecl2o.cli.commands import app

runner = CliRunner()


def _bounds(*arguments):
    result = runner.invoke(app, ["bounds", "--json", *arguments])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    return found, {row["name"]: row for row in found["bounds"]}


def test_golden_values_of_the_case_study():
    _, rows = _bounds("--m", "1", "--alpha", "10", "--beta", "10", "--trust", ".3", "--rho", ".5")
    assert rows["R-OBD"]["tight"] == pytest.approx(3.70156, abs=1e-5)
    assert rows["MLA-ROBD, trust 0.3, at rho 0.5"]["tight"] == pytest.approx(2.74166 + 1.5 * 0.5, abs=1e-5)
    assert rows["lambda2 for trust 0.3"]["tight"] == pytest.approx(0.174166, abs=1e-6)
    assert rows["largest useful rho"]["tight"] == pytest.approx(0.8438, abs=1e-4)
    assert rows["R-OBD, constant curvature"]["tight"] == pytest.approx(1.729844, abs=1e-6)
    assert rows["PureML at rho 0.5"]["paper"] == pytest.approx(1 + 21 * 0.5 / 2)


def test_both_forms_differ_where_alpha_is_below_beta():
    found, rows = _bounds("--m", "2", "--alpha", "5", "--beta", "20", "--trust", ".1", "--trust", "1", "--rho", "0.1")
    assert (found["m"], found["alpha"], found["beta"], found["trust"]) == (2.0, 5.0, 20.0, [0.1, 1.0])
    for trust in (0.1, 1.0):
        row = rows[f"MLA-ROBD, trust {trust:g}, at rho 0.1"]
        assert row["tight"] == pytest.approx(float(theory.mla_robd_bound(2.0, 5.0, 20.0, trust, 0.1)))
        assert row["paper"] == pytest.approx(float(theory.mla_robd_bound(2.0, 5.0, 20.0, trust, 0.1, "paper")))
        assert row["tight"] < row["paper"]
    best = rows["MLA-ROBD, best trust, at rho 0.1"]["tight"]
    assert all(best <= rows[f"MLA-ROBD, trust {trust:g}, at rho 0.1"]["tight"] for trust in (0.1, 1.0))
    assert "R-OBD, constant curvature" not in rows


def test_perfect_advice_deserves_infinite_trust():
    _, rows = _bounds("--rho", "0")
    assert rows["best trust at rho 0"]["tight"] == "inf"


def test_the_table_fits_a_page():
    result = runner.invoke(app, ["bounds"])
    assert result.exit_code == 0
    assert "3.7016" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_the_figure_is_drawn(tmp_path):
    path = tmp_path / "bounds.svg"
    result = runner.invoke(app, ["bounds", "--figure", str(path), "--trust", ".1", "--trust", ".5"])
    assert result.exit_code == 0, result.output
    assert "<svg" in path.read_text()
    assert [entry.name for entry in tmp_path.iterdir()] == ["bounds.svg"]
    refused = runner.invoke(app, ["bounds", "--figure", str(tmp_path / "bounds.docx")])
    assert refused.exit_code == 1
    assert "must end in" in refused.stderr
    assert refused.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--m", "0"], ["--alpha", "-1"], ["--alpha", "nan"], ["--beta", "5"], ["--beta", "inf"]),
        *(["--trust", "-0.1"], ["--rho", "-1"], ["--rho", "x"]),
    ],
)
def test_impossible_constants_end_with_2(arguments):
    result = runner.invoke(app, ["bounds", *arguments])
    assert result.exit_code == 2
    assert arguments[0] in result.stderr
