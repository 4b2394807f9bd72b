"""Limits that are set when a policy runs reach every guard in it."""

import numpy as np
import pytest

import ecl2o as ec
from ecl2o.policy.policy import with_action_limits

PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))


def test_every_promise_counts_on_contexts_within_the_limits():
    inner = ec.Competitive(ec.ROBD(), ratio=2.5, contexts=(-1.0, 9.0))
    policy = ec.Policy(ec.Guarded(ec.Periodic(ec.Competitive(inner, ratio=2.0, horizon=24), 24), slack=1.0), PROBLEM)
    limited = with_action_limits(policy, 0.0, 5.0)
    outer = limited.agent.agent.agent
    np.testing.assert_array_equal(outer.contexts, (0.0, 5.0))
    np.testing.assert_array_equal(outer.agent.contexts, (0.0, 5.0))
    assert (float(outer.ratio), outer.horizon, float(outer.agent.ratio)) == (2.0, 24, 2.5)
    assert limited.contract.action_bounds == [(0.0, 5.0)]


def test_limits_only_become_narrower():
    narrow = with_action_limits(
        with_action_limits(ec.Policy(ec.Competitive(ec.ROBD(), ratio=2.0), PROBLEM), 0.0, 5.0), -1.0, 3.0
    )
    assert narrow.contract.action_bounds == narrow.contract.promise.contexts == [(0.0, 3.0)]
    with pytest.raises(ValueError, match="there is no action"):
        with_action_limits(narrow, 4.0, 6.0)
