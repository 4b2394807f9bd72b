"""Every way to run a policy starts from the same action and the same history."""

import numpy as np
import pytest

import ecl2o as ec
from ecl2o.act import ActSession, ParsedLine
from ecl2o.exceptions import InvalidRequestError, MemoryLimitError, PolicyFileError
from ecl2o.policy import Contract
from ecl2o.policy.start_run import check_memory, find_start

SWITCHING = ec.Mahalanobis.isotropic(alpha=10.0, dim=1)
PAST = np.array([[1.0], [2.0], [7.0]])


def bounded(**given):
    return ec.Policy(ec.ROBD(), ec.Problem(ec.SquaredTracking(), SWITCHING, ec.Box(0.0, 5.0)), **given)


@pytest.fixture
def start_stream(tmp_path):
    """Return a function that starts a stream of a policy in a service, and one that steps it."""
    pytest.importorskip("sqlalchemy")
    from ecl2o.service import Service, Store
    from ecl2o.service.models import StepRequest

    service = Service(Store(f"sqlite:///{tmp_path / 'streams.db'}"))

    def start(policy, x0=None, history=None):
        ec.save(tmp_path / "site.ecl2o", policy)
        service.add_policies({"site": (tmp_path / "site.ecl2o").read_bytes()})
        return service.create_stream("stream", "site", x0, None if history is None else np.asarray(history).tolist())[0]

    def step(context):
        return service.submit_steps([StepRequest("stream", context)]).result()[0].record.action

    yield start, step
    service.close()


@pytest.mark.parametrize(("x0", "expected"), [(None, 5.0), ([3.0], 3.0)])
@pytest.mark.parametrize("given", [True, False])
def test_act_runner_batch_and_service_start_equally(x0, expected, given, start_stream):
    """The last context, 7, is outside the action set: the cheapest action is 5."""
    policy = bounded(history=None if given else PAST)
    history = PAST if given else None
    runner = ec.Runner(policy, x0, history)
    batch = (
        ec.Runner.many(policy, None if x0 is None else [x0, x0], None if history is None else np.stack([history] * 2))
        if given or x0 is not None
        else None
    )
    start, step = start_stream
    stream = start(policy, x0, history)
    assert runner.action.tolist() == stream.x0 == [expected]
    assert stream.history == len(PAST)
    answer = ActSession(policy, x0=x0, history=history).answer(ParsedLine([4.0]), lambda answer: None)
    assert answer.action == runner.step([4.0]).tolist()
    np.testing.assert_allclose(step([4.0]), answer.action, rtol=1e-12)
    if batch is not None:
        np.testing.assert_array_equal(batch.step([[4.0], [4.0]]), [runner.action] * 2)


def test_the_first_action_follows_a_column_of_weights(start_stream):
    policy = ec.Policy(ec.ROBD(), ec.Problem(ec.CurvedTracking(), SWITCHING))
    assert find_start(policy, history=[[3.0, 2.0]]).x0.tolist() == [3.0]
    assert start_stream[0](policy, None, [[3.0, 2.0]]).x0 == [3.0]


@pytest.mark.parametrize(("steps", "own", "kept"), [(None, None, 3), (2, None, 2), (0, None, 0), (1, PAST[:2], 2)])
def test_a_history_is_cut_to_what_the_policy_uses(steps, own, kept, start_stream):
    policy = bounded(contract=Contract(context_dim=1, history_steps=steps), history=own)
    start, stream = find_start(policy, None, PAST), start_stream[0](policy, None, PAST)
    assert start.x0.tolist() == stream.x0 == [5.0]
    np.testing.assert_array_equal(start.history, PAST[3 - kept :])
    assert stream.history == kept


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
def test_a_start_that_does_not_fit_is_rejected_everywhere(x0, history, start_stream):
    for start in (find_start, ec.Runner):
        with pytest.raises(ValueError, match=r"x0|history| 1 "):
            start(bounded(contract=Contract(context_dim=1)), x0, history)
    with pytest.raises(InvalidRequestError):
        start_stream[0](bounded(contract=Contract(context_dim=1)), x0, history)


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
