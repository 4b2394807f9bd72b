"""The figures and verdicts of docs/reproduction.md are those of the stored results; its sentences are free."""

import copy
import re

import pytest

from pages import reproduction_tables

tables = reproduction_tables()
CLAIMS = tables.claims()["claim"]
FIGURE = re.compile(r"\d+(?:\.\d+)?")
SWEEPS = sorted(path.stem for path in tables.HERE.glob("*.json") if "headline" in tables.results(path.stem))


def figures(page: str) -> dict[str, list[str]]:
    return {place["name"]: FIGURE.findall(place[0]) for place in tables.PLACE.finditer(page)}


def test_every_figure_of_a_table_is_that_of_the_results():
    page = tables.PAGE.read_text(encoding="utf-8")
    assert set(figures(page)) == set(tables.TABLES)
    assert figures(page) == figures(tables.write_tables(page))


def test_a_changed_result_changes_the_page(monkeypatch):
    other = copy.deepcopy(tables.results("authors-code-lstm"))
    other["algorithms"]["pure-ml"]["average_cost"]["mean"] += 0.001
    before = tables.results
    monkeypatch.setattr(tables, "results", lambda name: other if name == "authors-code-lstm" else before(name))
    page = tables.PAGE.read_text(encoding="utf-8")
    assert figures(page) != figures(tables.write_tables(page))


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim["paper"])
def test_a_verdict_is_what_the_results_give(claim):
    assert claim["verdict"] == tables.verdict(claim)
    for run, recorded in claim.get("elsewhere", {}).items():
        assert recorded == tables.verdict(claim | {"runs": [run]}), run


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim["paper"])
def test_an_inequality_is_false_turned_round(claim):
    """No figure is missing, equal to itself, or NaN."""
    turned = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
    for text in claim["if"]:
        left, sign, right = text.split(" ", 2)
        for run in claim.get("runs", tables.HEADLINES):
            for reading in tables.readings(run):
                assert tables.holds(text, reading) != tables.holds(f"{left} {turned[sign]} {right}", reading)


def test_other_results_give_another_verdict(monkeypatch):
    headline = CLAIMS[0]
    for mean, worst, expected in ((-1.0, 1.0, "holds"), (1.0, 1.0, "does not hold"), (-1.0, 99.0, "does not hold")):
        other = {run: copy.deepcopy(tables.readings(run)) for run in tables.HEADLINES}
        for reading in (reading for found in other.values() for reading in found):
            reading["minus_pure_ml"][tables.CHOSEN] |= {"mean": mean, "standard_error": 0.1}
            reading["rows"][tables.CHOSEN]["test_ratio"] = worst
        with monkeypatch.context() as patch:
            patch.setattr(tables, "readings", other.__getitem__)
            assert tables.verdict(headline) == expected


@pytest.mark.parametrize(("text", "error"), [("r-obd.test_ratio = 1", ValueError), ("oracle.test_cost < 2", KeyError)])
def test_bad_inequalities_are_rejected(text, error):
    with pytest.raises(error):
        tables.holds(text, tables.readings("headline-authors-code")[0])


def test_every_results_file_has_its_command():
    assert {path.stem for path in tables.HERE.glob("*.json")} == set(tables.claims()["command"])


@pytest.mark.parametrize("run", SWEEPS)
def test_a_network_without_memory_is_the_same_in_both_protocols(run):
    """Which is why the page shows it once."""
    groups = {(g["base_shortage"], g["protocol"]): g for g in tables.results(run)["headline"] if g["network"] == "mlp"}
    for (shortage, protocol), group in groups.items():
        for row in ("pure-ml", "mla-robd", "ec-l2o"):
            other = groups[shortage, "daily"]["rows"][row]
            assert group["rows"][row]["test_cost"] == pytest.approx(other["test_cost"], rel=1e-4), protocol


@pytest.mark.parametrize("run", SWEEPS)
def test_points_rows_and_differences_agree(run):
    points = tables.results(run)["points"]
    for reading in tables.readings(run):
        rows = reading["rows"]
        place = {name: reading[name] for name in ("network", "base_shortage", "protocol")}
        (pure,) = (point for point in points if (place | {"family": "pure-ml", "kappa": 0.0}).items() <= point.items())
        assert pure["test_cost"] == pytest.approx(rows["pure-ml"]["test_cost"], abs=3e-6)
        for name, more in reading["minus_pure_ml"].items():
            difference = rows[name]["test_cost"] - rows["pure-ml"]["test_cost"]
            assert more["mean"] == pytest.approx(difference, abs=3e-6)
