"""Contracts of policies: completed from agent and problem, and restored from the file."""

import numpy as np
import pydantic
import pytest

import ecl2o as ec
from ecl2o.agents.promise import Promise, Reference
from ecl2o.policy import Contract, describe
from ecl2o.policy.contract import Source

TRACKING = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))


def test_promise_and_bounds_are_those_of_agent_and_problem():
    guard = ec.Competitive(ec.ROBD(), 2.5, period=24)
    said = Contract(period_name="shift", promise=None, action_bounds=[(0.0, 1.0)])
    contract = ec.Policy(guard, TRACKING, contract=said).contract
    assert contract.promise == Promise(2.5, period=24)
    assert contract.period_name == "shift"
    assert contract.action_bounds is None
    boxed = ec.Problem(TRACKING.hitting, TRACKING.switching, ec.Box(-1.0, [np.inf]))
    assert ec.Policy(ec.ROBD(), boxed).contract.action_bounds == [(-1.0, np.inf)]
    assert ec.Policy(ec.ROBD(), boxed).contract.promise is None


def test_a_contract_is_restored_from_its_file(tmp_path):
    contract = Contract(
        columns=["demand"],
        units=["kW"],
        step_minutes=15.0,
        steps_per_day=96,
        history_steps=0,
        history_until="2024-01-01 00:00:00",
        seen_until="2023-12-31 00:00:00",
        source=Source(file="demand.csv", sha256="0" * 64),
        plausible=[(0.0, np.inf)],
    )
    history = np.array([[1.0], [0.1]])
    policy = ec.Policy(ec.Guarded(ec.ROBD(), slack=0.5), TRACKING, contract=contract, history=history)
    ec.save(tmp_path / "policy", policy)
    loaded = ec.load(tmp_path / "policy")
    assert loaded.contract == policy.contract
    assert loaded.contract.promise == Promise(1.5, Reference.EXPERT, "ROBD")
    assert loaded.history.tobytes() == history.tobytes()
    assert describe(loaded)["contract"]["columns"] == ["demand"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"columns": ["a", "b"], "context_dim": 1}, "columns.* 1 "),
        ({"columns": ["a"], "units": ["kW", "kW"]}, "units"),
        ({"units": ["kW"]}, "units"),
        ({"columns": ["a"], "plausible": [(1.0, 0.0)]}, "plausible"),
        ({"columns": ["a"], "plausible": [(np.nan, 0.0)]}, "plausible"),
        ({"steps_per_day": 0}, "steps_per_day"),
        ({"step_minutes": -5.0}, "step_minutes"),
        ({"history_steps": -1}, "history_steps"),
    ],
)
def test_an_invalid_contract_is_rejected(given, message):
    with pytest.raises(pydantic.ValidationError, match=message):
        Contract(**given)


@pytest.mark.parametrize(
    ("history", "message"),
    [([[1.0, 2.0]], r"\(H, 1\)"), ([1.0], r"\(H, 1\)"), ([[np.nan]], "history"), ([["x"]], "x")],
)
def test_a_history_of_another_shape_is_rejected(history, message):
    with pytest.raises(ValueError, match=message):
        ec.Policy(ec.ROBD(), TRACKING, contract=Contract(columns=["demand"]), history=np.array(history))
