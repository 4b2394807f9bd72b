"""`--covariate` and `--forecast`: columns that are seen and not followed, from fit to act and the service."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import ecl2o as ec
from ecl2o.data import frame_series, parse_covariates, read_series
from ecl2o.exceptions import DataError
from ecl2o.running import Screen
from ecl2o.service import Service, Store
from ecl2o.service.models import StepRequest

from .conftest import SPLIT
from .operator_files import STEPS, write_series

FOLLOWED = ("--column", "demand", "--alpha", "5", *SPLIT, "--json")
EXTRA = ("--covariate", "wind", "--forecast", "ahead@6")
GAPS = [3, 4, 40, 41, 42, 90]  # rows without wind


@pytest.fixture(scope="module")
def windy(tmp_path_factory):
    """The operators' series with wind, which has gaps, and a forecast of the demand six hours ahead."""
    path = write_series(tmp_path_factory.mktemp("windy") / "windy.csv")
    frame = pd.read_csv(path)
    rng = np.random.default_rng(2)
    frame.insert(1, "wind", 50 + 10 * np.sin(np.arange(len(frame)) * np.pi / 2) + rng.normal(0, 3, len(frame)))
    frame["ahead"] = frame["demand"].shift(-1) + rng.normal(0, 0.1, len(frame))
    frame.loc[GAPS, "wind"] = np.nan
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def made(windy, tmp_path_factory):
    """A promised policy by `ecl2o fit`, its report and what was said on standard error."""
    from typer.testing import CliRunner

    from ecl2o.cli.commands import app

    out = tmp_path_factory.mktemp("made") / "windy.ecl2o"
    terms = ("--promise", "2.2", "--per", "day", "--advisor", "ridge", "--steps", "2")
    result = CliRunner().invoke(app, list(map(str, ["fit", windy, "--out", out, *FOLLOWED, *EXTRA, *terms])))
    assert result.exit_code == 0, result.stderr
    return out, json.loads(result.stdout), result.stderr


def test_names_leads_and_families_are_parsed():
    assert parse_covariates(["a"], ["b@0.5", "p10_9..p10_11"]) == {
        "a": None,
        "b": 0.5,
        "p10_9": 9.0,
        "p10_10": 10.0,
        "p10_11": 11.0,
    }
    for bad in (["b"], ["b@"], ["b@-1"], ["f3..f1"], ["f1..g3"], ["a@1", "a@2"]):
        with pytest.raises(DataError):
            parse_covariates([], bad)


def test_a_series_keeps_the_gaps_of_covariates_only(windy):
    roles = {"wind": None, "ahead": 6.0}
    frame, metadata = read_series(windy, None, ["demand"], covariates=roles)
    assert metadata.columns == ("demand", "wind", "ahead")
    assert (metadata.followed, metadata.covariates) == (("demand",), roles)
    assert np.flatnonzero(frame["wind"].isna()).tolist() == GAPS
    table = pd.read_csv(windy, index_col=0, parse_dates=True)
    same, _ = frame_series(table, ["demand"], covariates=roles)
    pd.testing.assert_frame_equal(same, frame, check_names=False, check_freq=False)
    with pytest.raises(DataError):
        read_series(windy, None, ["wind"])  # what is followed must be there
    with pytest.raises(DataError, match="360"):
        read_series(windy, None, ["demand"], covariates={"ahead": 5.0})
    with pytest.raises(DataError, match="note"):
        read_series(windy, None, ["demand"], covariates={"note": None})


def impute(readings, low, high, period):
    """The rule of docs/operators.md for one covariate, in plain Python."""
    means, counts, used = [0.0] * period, [0] * period, []
    last = next(value for value in readings if math.isfinite(value))
    keep = 0.5 ** (1 / 7)
    for step, value in enumerate(readings):
        hour, before = step % period, (step - 1) % period
        if math.isfinite(value):
            counts[hour] += 1
            means[hour] += max(1 / counts[hour], 1 - keep) * (value - means[hour])
            last = value
        else:
            usual = means[hour] if counts[hour] else last
            was_usual = means[before] if counts[before] else last
            last = min(max(usual + 0.9 ** (24 / period) * (last - was_usual), low), high)
        used.append(last)
    return used


def test_missing_covariates_are_imputed_by_their_profile_and_nothing_else_changes():
    rng = np.random.default_rng(0)
    readings = rng.normal(0, 1, (300, 3)) + 5 * np.sin(np.arange(300)[:, None] * np.pi / 12)
    readings[rng.random((300, 3)) < 0.2] = np.nan
    low, high = [-30.0] * 3, [30.0] * 3
    with jax.enable_x64(True):
        used, replaced = map(np.asarray, Screen(low, high, 24, covariates=2, period=24).apply(readings))
        alone, _ = map(np.asarray, Screen(low[:1], high[:1], 24).apply(readings[:, :1]))
    np.testing.assert_array_equal(used[:, :1], alone)
    np.testing.assert_array_equal(replaced, np.isnan(readings))
    for place in (1, 2):
        np.testing.assert_allclose(used[:, place], impute(readings[:, place], -30, 30, 24), rtol=1e-12, atol=1e-12)


def test_a_covariate_always_has_a_value():
    screen = Screen([0.0, 2.0], [1.0, 5.0], 24, covariates=1)
    _, used, replaced, _ = screen.step(screen.init(float), jnp.array([0.5, np.nan]))
    assert used.tolist() == [0.5, 2.0]
    assert replaced.tolist() == [False, True]


def test_the_cost_looks_at_what_is_followed(windy, made, ecl2o, tmp_path):
    """Agents that do not use covariates cost what they cost without them."""
    _, report, said = made
    assert f"{len(GAPS)} of wind, 1 of ahead" in said
    plain = ecl2o("fit", windy, "--out", tmp_path / "p.ecl2o", *FOLLOWED, "--advisor", "r-obd")
    assert plain.exit_code == 0, plain.stderr
    rows = json.loads(plain.stdout)["test"]
    common = rows.keys() & report["test"].keys()
    assert {"oracle", "greedy", "rhc"} <= common
    for name in common:
        np.testing.assert_allclose(report["test"][name]["mean_cost"], rows[name]["mean_cost"], rtol=1e-12)


def test_every_advisor_runs_on_contexts_with_covariates(windy, ecl2o, tmp_path):
    for advisor in ("mlp", "lstm"):
        told = (*FOLLOWED, "--advisor", advisor, "--steps", "2")
        costs = []
        for extra in ((), EXTRA):
            found = ecl2o("fit", windy, "--out", tmp_path / "p.ecl2o", *told, *extra)
            assert found.exit_code == 0, found.stderr
            made = json.loads(found.stdout)
            costs.append(made["test"][made["yours"]]["mean_cost"])
        np.testing.assert_allclose(*costs, rtol=1e-6)


def test_the_contract_names_the_role_of_each_column(made, windy, ecl2o):
    out, report, _ = made
    policy = ec.load(out)
    assert policy.contract.columns == ["demand", "wind", "ahead"]
    assert policy.contract.covariates == {"wind": None, "ahead": 6.0}
    assert (policy.dim, policy.problem.covariates, policy.history.shape[1]) == (1, 2, 3)
    assert np.isfinite(policy.history).all()
    days = report["split"]["test_days"]
    tested = ecl2o("evaluate", out, windy, "--days", days, "--json")  # reads the policy's columns
    assert tested.exit_code == 0, tested.stderr
    rows, name = json.loads(tested.stdout)["rows"], report["yours"]
    np.testing.assert_allclose(rows[name]["mean_cost"], report["test"][name]["mean_cost"], rtol=1e-9)
    compared = ecl2o("compare", windy, "--agents", out, "--alpha", "5", "--days", days, "--json")
    assert compared.exit_code == 0, compared.stderr
    assert not json.loads(compared.stdout)["not_applicable"]


LINES = [(3.0, 55.0, 2.5), (2.5, None, 3.0), (4.0, None, None), (3.5, 52.0, 3.0)]


@pytest.fixture(scope="module")
def expected(made):
    with jax.enable_x64(True):
        runner = ec.Runner(ec.load(made[0]))
        return [(runner.step(list(line)).tolist(), runner.context.tolist()) for line in LINES]


def test_act_imputes_missing_covariates_and_says_so(made, expected, ecl2o):
    """JSON by names, and CSV with a header that lacks a covariate."""
    lines = [dict(zip(("demand", "wind", "ahead"), line, strict=True)) for line in LINES]
    del lines[1]["wind"]  # absent is missing
    text = "".join(json.dumps(line) + "\n" for line in lines)
    done = ecl2o("act", made[0], stdin=text)
    assert done.exit_code == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["action"] for answer in answers] == [action for action, _ in expected]
    assert [answer.get("imputed") for answer in answers] == [None, ["wind"], ["wind", "ahead"], None]
    assert answers[2]["context_used"] == expected[2][1]
    assert all(answer["live_ratio"] <= 2.2 * (1 + 1e-9) and "unconverged" not in answer for answer in answers)
    assert done.stderr.count("wind") == 2

    plain = "ahead,demand\n" + "".join(f"{'' if line[2] is None else line[2]},{line[0]}\n" for line in LINES)
    done = ecl2o("act", made[0], stdin=plain)
    assert done.exit_code == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(LINES)
    assert done.stderr.count("wind") == len(LINES)


def test_the_service_takes_covariates_as_numbers_of_the_context(made, expected, tmp_path, monkeypatch):
    monkeypatch.setattr("ecl2o.service.policy_registry._WAIT_SECONDS", 60.0)  # the machine may be busy
    service = Service(Store(f"sqlite:///{tmp_path}/s.db"))
    try:
        service.add_policies({"windy": made[0].read_bytes()})
        assert service.get_policy("windy").describe()["contract"]["covariates"] == {"wind": None, "ahead": 6.0}
        service.create_stream("s", "windy")
        for line, (action, used) in zip(LINES, expected, strict=True):
            (result,) = service.submit_steps([StepRequest("s", list(line))]).result()
            answer = json.loads(result.json)
            assert answer["screened"] == (None in line)
            np.testing.assert_allclose(answer["action"], action, rtol=1e-12)
            np.testing.assert_allclose(answer["context_used"], used, rtol=1e-12)
    finally:
        service.close()


def test_a_fleet_and_pandas_take_covariates(windy, tmp_path, ecl2o):
    sites = tmp_path / "sites.csv"
    sites.write_text(f"name,file,column,covariate,forecast\nnorth,{windy},demand,wind,ahead@6\n")
    fleet = tmp_path / "fleet"
    found = ecl2o("fleet", "fit", sites, "--out", fleet, "--alpha", "5", *SPLIT)
    assert found.exit_code == 0, found.stderr
    contract = ec.load(fleet / "policies" / "north.ecl2o").contract
    assert contract.covariates == {"wind": None, "ahead": 6.0}

    table = pd.read_csv(windy, index_col=0, parse_dates=True)
    told = {"columns": ["demand"], "covariates": ["wind"], "forecasts": ["ahead@6"], "advisor": "r-obd"}
    fitted = ec.fit_series(table, 5.0, training_days=14, validation_days=4, **told)
    assert fitted.policy_.contract.covariates == contract.covariates
    assert fitted.step([3.0, np.nan, 2.5]).shape == (1,)
    assert fitted.predict(table[-STEPS:]).columns.tolist() == ["demand"]
