"""Promises as values: checked, printed, and restored from JSON."""

import json

import numpy as np
import pydantic
import pytest

import ecl2o as ec

PROMISES = [
    ec.Promise(2.0, period=24),
    ec.Promise(1.5, ec.Reference.EXPERT, "ROBD", allowance=0.5),
    ec.Promise(2.5, contexts=((0.0, 0.8), (-1.0, 2.0))),
]


@pytest.mark.parametrize("promise", PROMISES, ids=str)
def test_restored_from_json(promise):
    assert ec.Promise.from_json(json.loads(json.dumps(promise.to_json()))) == promise


@pytest.mark.parametrize("promise", PROMISES, ids=str)
def test_is_a_field_of_a_pydantic_model(promise):
    class Model(pydantic.BaseModel):
        promise: ec.Promise | None

    assert Model.model_validate_json(Model(promise=promise).model_dump_json()).promise == promise
    assert Model(promise=promise).model_dump(mode="json")["promise"] == promise.to_json()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"ratio": 0.0}, "ratio"),
        ({"ratio": float("nan")}, "ratio"),
        ({"ratio": 2.0, "allowance": -1.0}, "allowance"),
        ({"ratio": 2.0, "period": 0}, "period"),
        ({"ratio": 2.0, "reference": ec.Reference.EXPERT}, "reference_name"),
        ({"ratio": 2.0, "reference_name": "ROBD"}, "reference_name"),
        ({"ratio": 2.0, "contexts": ((1.0, 0.0),)}, "contexts"),
    ],
)
def test_values_out_of_range_are_rejected(fields, named):
    with pytest.raises(ValueError, match=named):
        ec.Promise(**fields)


def test_guards_state_their_conditions():
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=2))
    guard = ec.Competitive(ec.Greedy(), contexts=(0.0, np.array([1.0, 2.0])))
    assert guard.promise(problem) == ec.Promise(2.5, contexts=((0.0, 1.0), (0.0, 2.0)))
    assert ec.Guarded(ec.Greedy()).promise(problem) == ec.Promise(1.5, ec.Reference.EXPERT, "ROBD")
