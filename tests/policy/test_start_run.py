"""Every way to run a policy starts from the same action and the same history."""

import numpy as np
import pytest

import ecl2o as ec
from ecl2o.act import ActSession, ParsedLine
from ecl2o.exceptions import MemoryLimitError, PolicyFileError
from ecl2o.policy import Contract
from ecl2o.policy.start_run import check_memory, find_start

SWITCHING = ec.Mahalanobis.isotropic(alpha=10.0, dim=1)
PAST = np.array([[1.0], [2.0], [7.0]])


def bounded(**given):
    return ec.Policy(ec.ROBD(), ec.Problem(ec.SquaredTracking(), SWITCHING, ec.Box(0.0, 5.0)), **given)


def service_start(policy, x0=None, history=None):
    """As `Service.create_stream` starts a stream: from lists."""
    return find_start(policy, x0, None if history is None else np.asarray(history).tolist())


@pytest.mark.parametrize(("x0", "expected"), [(None, 5.0), ([3.0], 3.0)])
@pytest.mark.parametrize("given", [True, False])
def test_act_runner_batch_and_service_start_equally(x0, expected, given):
    """The last context, 7, is outside the action set: the cheapest action is 5."""
    policy = bounded(history=None if given else PAST)
    history = PAST if given else None
    runner = ec.Runner(policy, x0, history)
    batch = (
        ec.Runner.many(policy, None if x0 is None else [x0, x0], None if history is None else np.stack([history] * 2))
        if given or x0 is not None
        else None
    )
    first, past = service_start(policy, x0, history)
    assert runner.action.tolist() == first.tolist() == [expected]
    np.testing.assert_array_equal(past, PAST)
    answers = []
    ActSession(policy, x0=x0, history=history).answer(ParsedLine([4.0]), answers.append)
    assert answers[0].action == runner.step([4.0]).tolist()
    if batch is not None:
        np.testing.assert_array_equal(batch.step([[4.0], [4.0]]), [runner.action] * 2)


def test_the_first_action_follows_a_column_of_weights():
    problem = ec.Problem(ec.CurvedTracking(), SWITCHING)
    assert find_start(ec.Policy(ec.ROBD(), problem), history=[[3.0, 2.0]]).x0.tolist() == [3.0]
    assert service_start(ec.Policy(ec.ROBD(), problem), None, [[3.0, 2.0]])[0].tolist() == [3.0]


@pytest.mark.parametrize(("steps", "own", "kept"), [(None, None, 3), (2, None, 2), (0, None, 0), (1, PAST[:2], 2)])
def test_a_history_is_cut_to_what_the_policy_uses(steps, own, kept):
    policy = bounded(contract=Contract(context_dim=1, history_steps=steps), history=own)
    for start in (find_start(policy, None, PAST), service_start(policy, None, PAST.tolist())):
        assert start[0].tolist() == [5.0]
        np.testing.assert_array_equal(start[1], PAST[3 - kept :])


def test_streams_start_from_their_own_policies():
    problem = ec.Problem(ec.SquaredTracking(), SWITCHING)
    sites = [ec.Policy(ec.ROBD(), problem, history=PAST + shift) for shift in (0.0, 1.0)]
    np.testing.assert_array_equal(ec.Runner.many(sites).action, [[7.0], [8.0]])
    sites[1] = ec.Policy(ec.ROBD(), problem, history=PAST[1:])
    with pytest.raises(ValueError, match="history"):
        ec.Runner.many(sites)


@pytest.mark.parametrize(
    ("x0", "history"),
    [(None, None), (None, np.zeros((0, 1))), ([6.0], None), ([1.0], [[1.0, 2.0]])],
)
def test_a_start_that_does_not_fit_is_rejected_everywhere(x0, history):
    for start in (find_start, service_start, ec.Runner):
        with pytest.raises(ValueError, match=r"x0|history|contexts|numbers"):
            start(bounded(contract=Contract(context_dim=1)), x0, history)


@pytest.mark.parametrize("history", [[1.0], [[1.0], []], "abc"])
def test_a_history_of_another_shape_is_rejected(history):
    with pytest.raises(ValueError, match="history"):
        ec.Runner(bounded(), None, history)


# --- memory ---------------------------------------------------------------------------------------------------------

PROBLEM = ec.Problem(ec.SquaredTracking(), SWITCHING)
MANY = 1_000_000  # each of these numbers is allowed by itself
TOO_LARGE = {
    "profile": ec.Policy(ec.RHC(3, truncate=False), PROBLEM, ec.forecasters.RollingProfile(days=MANY, period=MANY)),
    "naive": ec.Policy(ec.RHC(3, truncate=False), PROBLEM, ec.forecasters.FromFunction(lambda y, w: y[:w], 10**12)),
    "copies": ec.Policy(ec.AFHC(MANY, truncate=False), PROBLEM, ec.forecasters.Persistence()),
    "advisor": ec.Policy(ec.advisors.SeasonalLinear(1, 1, period=MANY, days=MANY, ahead=1), PROBLEM),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_policy_that_takes_too_much_memory_is_rejected(name):
    policy = TOO_LARGE[name]
    with pytest.raises(PolicyFileError, match=r"x\.ecl2o .* \d+ GiB .* 1 GiB"):
        check_memory(policy, "x.ecl2o")
    with pytest.raises(MemoryLimitError, match="GiB"):
        ec.Runner(policy, [0.0])


def test_the_memory_of_a_step_counts():
    """The state of a planner is small, however far it looks."""
    policy = ec.Policy(ec.RHC(10 * MANY, truncate=False), PROBLEM, ec.forecasters.Persistence())
    check_memory(policy, "x.ecl2o")
    with pytest.raises(PolicyFileError, match=r"153 MiB .* 64 MiB"):
        check_memory(policy, "x.ecl2o", limit=1 << 26)


def test_other_reasons_are_left_to_the_runner():
    curved = ec.Problem(ec.CurvedTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    check_memory(ec.Policy(ec.LAI(), curved), "x.ecl2o")


@pytest.mark.parametrize("settings", [{"harmonics": 10**6}, {"lags": 10**6}, {"period": 10**7}])
def test_a_regression_with_endless_tables_is_rejected(settings):
    with pytest.raises(ValueError, match="at most"):
        ec.advisors.OnlineRidge(**settings)
