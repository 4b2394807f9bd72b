"""The runner plays what `rollout` plays, survives restarts bit for bit, and rejects invalid contexts."""

import functools
import os
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from conformance.registry import CASES
from ecl2o.agents import AbstractAgent, Info
from ecl2o.exceptions import PolicyFileError
from ecl2o.forecasters import AbstractCausalForecaster
from ecl2o.policy import policy_file
from ecl2o.running import compiled_step
from toy_agent import StatelessAgent

STEPS = 7


def problem_of(dim=1, box=False):
    Q = np.diag(np.linspace(2.0, 5.0, dim))
    actions = ec.Box(-0.4, 0.7) if box else ec.Everywhere()
    return ec.Problem(ec.SquaredTracking(), ec.Mahalanobis(Q), actions)


class Echo(AbstractAgent):
    """Plays the mean of its forecast and context, counts steps, keeps the history's mean, and something `init` made once."""

    window: int = eqx.field(static=True, default=2)

    @property
    def lookahead(self):
        return self.window

    def init(self, problem, start):
        return {"past": start.history.mean(0), "once": problem.Q @ start.x0 * 0 + 1, "odd": jnp.zeros((2,), bool)}

    def step(self, problem, state, observation):
        mean = jnp.concatenate([observation.forecast, observation.context[None]]).mean(0)
        action = (mean + 0.1 * observation.step * state["past"]) * state["once"]
        said = {"step": observation.step, "odd": state["odd"]}
        return {**state, "odd": ~state["odd"]}, action, Info(jnp.ones((), bool), details=said)


class Trend(AbstractCausalForecaster):
    """Goes on as the last two contexts did."""

    def init(self, history, window):
        return history[-1]

    def step(self, state, context, window):
        ahead = jnp.arange(1, window + 1, dtype=context.dtype)[:, None]
        return context, context + ahead * (context - state)


class Broken(StatelessAgent):
    """Has no finite answer to negative contexts."""

    def act(self, observation):
        return jnp.sqrt(observation.context)


def streams(count, dim, seen=3, steps=STEPS, seed=0):
    rng = np.random.default_rng(seed)
    x0 = rng.uniform(-0.4, 0.7, size=(count, dim))
    return x0, rng.normal(size=(count, seen, dim)), rng.normal(size=(count, steps, dim))


def calibrated_lstm():
    return ec.MLAROBD(ec.advisors.LSTM(2, 2, width=3, depth=1, key=jax.random.key(1)), trust=0.4)


def calibrated_mlp(seed=0):
    return ec.MLAROBD(ec.advisors.MLP(1, 1, key=jax.random.key(seed)), trust=0.1 + 0.1 * seed)


def calibrated_ramp():
    return ec.MLAROBD(ec.advisors.Fixed(np.linspace(0, 1, 2 * STEPS).reshape(STEPS, 2)))


# (policy, dimension, horizon) of quite different kinds
EXAMPLES = {
    "ROBD": lambda: (ec.Policy(ec.ROBD(), problem_of(1)), 1, None),
    "MLP, box": lambda: (ec.Policy(calibrated_mlp(), problem_of(1, box=True)), 1, None),
    "LSTM": lambda: (ec.Policy(calibrated_lstm(), problem_of(2)), 2, None),
    "wrapped": lambda: (ec.Policy(ec.FollowPrediction(ec.Independent(calibrated_lstm())), problem_of(2)), 2, None),
    "forecasts": lambda: (ec.Policy(ec.MLAROBD(Echo()), problem_of(2), Trend()), 2, None),
    "horizon": lambda: (ec.Policy(calibrated_ramp(), problem_of(2)), 2, STEPS),
}
NAMES = list(EXAMPLES)


@functools.cache
def example(name):
    return EXAMPLES[name]()


@pytest.mark.parametrize("name", NAMES)
def test_a_runner_plays_what_rollout_plays(name):
    policy, dim, horizon = example(name)
    (x0,), (history,), (contexts,) = streams(1, dim)
    runner = ec.Runner(policy, x0, history, horizon)
    actions = np.stack([runner.step(context) for context in contexts])
    instance = ec.Instance(x0, contexts, history)
    expected = jax.device_get(ec.rollout(policy.agent, policy.problem, instance, policy.forecaster))
    np.testing.assert_allclose(actions, expected.actions, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(runner.hitting, expected.hitting.sum(), rtol=1e-12)
    np.testing.assert_allclose(runner.switching, expected.switching.sum(), rtol=1e-12)
    np.testing.assert_allclose(runner.cost, expected.cost, rtol=1e-12)
    np.testing.assert_array_equal(runner.action, actions[-1])
    assert (runner.steps, runner.unconverged) == (STEPS, 0)
    last = jax.tree.map(lambda leaf: leaf[-1], expected.info)
    assert jax.tree.structure(runner.info) == jax.tree.structure(last)
    for found, wanted in zip(jax.tree.leaves(runner.info), jax.tree.leaves(last), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-13)
    assert type(actions) is np.ndarray
    assert actions.dtype == np.float64


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_agent_of_the_library_can_be_streamed(case):
    dim = case.dims[0]
    agent, forecaster = case.make(dim), None if case.forecaster is None else case.forecaster()
    policy = ec.Policy(agent, problem_of(dim), forecaster)
    steps = 6
    (x0,), (history,), (contexts,) = streams(1, dim, case.history, steps)
    clairvoyant = agent.lookahead > 0 and not isinstance(forecaster, AbstractCausalForecaster)
    if clairvoyant:
        with pytest.raises(ValueError, match="forecaster"):
            ec.Runner(policy, x0, history, steps)
        return
    runner = ec.Runner(policy, x0, history, steps)
    actions = np.stack([runner.step(context) for context in contexts])
    instance = ec.Instance(x0, contexts, history if case.history else None)
    expected = ec.rollout(agent, policy.problem, instance, forecaster)
    np.testing.assert_allclose(actions, expected.actions, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_many_streams_are_so_many_runners(name):
    policy, dim, horizon = example(name)
    x0, history, contexts = streams(5, dim)
    together = ec.Runner.many(policy, x0, history, horizon)
    alone = [ec.Runner(policy, *start, horizon) for start in zip(x0, history, strict=True)]
    for step in range(STEPS):
        actions = together.step(contexts[:, step])
        one_by_one = np.stack([runner.step(stream[step]) for runner, stream in zip(alone, contexts, strict=True)])
        np.testing.assert_allclose(actions, one_by_one, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(together.cost, [float(runner.cost) for runner in alone], rtol=1e-12)


# --- going on where one left off ------------------------------------------------------------------------------------


def bits(state):
    return [state["steps"], state["totals"].tobytes(), *(v.tobytes() for v in state["carried"])]


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_runner_goes_on_bit_for_bit(name, tmp_path):
    policy, dim, horizon = example(name)
    (x0,), (history,), (contexts,) = streams(1, dim)
    runner = ec.Runner(policy, x0, history, horizon)
    for context in contexts[:3]:
        runner.step(context)
    runner.save_state(tmp_path / "state")
    ec.save(tmp_path / "policy", policy)
    loaded = ec.load(tmp_path / "policy", classes=(Echo, Trend))
    compiled_step._program.cache_clear()  # as in a new process
    resumed = ec.Runner.resume(loaded, tmp_path / "state")
    rewound = ec.Runner(policy, x0, history, horizon)
    rewound.step(contexts[0])
    rewound.load_state(tmp_path / "state")
    assert rewound.info is None  # of no step that belongs to this state
    for context in contexts[3:]:
        expected = runner.step(context)
        assert resumed.step(context).tobytes() == expected.tobytes() == rewound.step(context).tobytes()
    assert bits(resumed.state_dict()) == bits(runner.state_dict()) == bits(rewound.state_dict())
    assert float(resumed.cost) == float(runner.cost)


def test_many_streams_resume_too(tmp_path):
    policy, dim, _ = example("LSTM")
    x0, history, contexts = streams(5, dim)
    together = ec.Runner.many(policy, x0, history)
    together.step(contexts[:, 0])
    together.save_state(tmp_path / "state")
    resumed = type(together).resume(policy, tmp_path / "state")
    assert resumed.step(contexts[:, 1]).tobytes() == together.step(contexts[:, 1]).tobytes()
    with pytest.raises(ValueError, match="5 streams"):
        ec.Runner.resume(policy, tmp_path / "state")


def test_a_state_belongs_to_its_policy_and_sizes(tmp_path):
    policy, _, _ = example("ROBD")
    runner = ec.Runner(policy, [0.5])
    runner.step([1.0])
    runner.save_state(tmp_path / "state")
    other = ec.Policy(ec.ROBD(lambda1=0.9), policy.problem)
    with pytest.raises(PolicyFileError, match="state"):
        ec.Runner.resume(other, tmp_path / "state")
    with pytest.raises(PolicyFileError, match="state"):
        ec.Runner(policy, [0.5], horizon=3).load_state(tmp_path / "state")
    ec.save(tmp_path / "policy", policy)
    with pytest.raises(PolicyFileError, match="runner"):
        ec.Runner.resume(policy, tmp_path / "policy")
    with pytest.raises(ValueError, match="runner"):
        runner.load_state_dict({**runner.state_dict(), "carried": []})


def test_damaged_and_forged_states_are_rejected(tmp_path):
    policy, _, _ = example("ROBD")
    ec.Runner(policy, [0.5]).save_state(tmp_path / "state")
    data = (tmp_path / "state").read_bytes()
    for position in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[position] ^= 16
        with pytest.raises(PolicyFileError):
            policy_file.unpack(bytes(damaged), "runner", "file")
    contents = policy_file.unpack(data, "runner", "file")
    absurd = [
        ("dim", 0),
        ("dim", 10**12),
        ("dim", 2),
        ("context_dim", "1"),
        ("seen", 10**8),
        ("streams", 0),
        ("steps", -1),
    ]
    for name, value in absurd:
        forged = policy_file.Contents("runner", {**contents.header, name: value}, contents.arrays)
        policy_file.write(tmp_path / "forged", forged)
        with pytest.raises(PolicyFileError):
            ec.Runner.resume(policy, tmp_path / "forged")
    policy_file.write(tmp_path / "forged", policy_file.Contents("runner", contents.header, []))
    with pytest.raises(PolicyFileError):
        ec.Runner.resume(policy, tmp_path / "forged")


# --- refusals -------------------------------------------------------------------------------------------------------

BAD_CONTEXTS = [
    ([np.nan, 1.0], r"context\[0\] .*nan"),
    ([1.0, np.inf], r"context\[1\] .*inf"),
    (np.array([1.0, -np.inf]), r"context\[1\] .*-inf"),
    ([1.0], r"\(2,\).*\(1,\)"),
    ([[1.0, 2.0]], r"\(2,\).*\(1, 2\)"),
    (1.0, r"\(2,\).*\(\)"),
    (["1.0", "2.0"], "context"),
    ("ab", "context"),
    (None, "context"),
    ([None, 1.0], "context"),
    ([True, False], "context"),
    ([1.0, 2j], "context"),
    ([[1.0], [1.0, 2.0]], "context"),
    (np.ma.masked_array([1.0, 2.0], [False, True]), "context"),
]


def test_a_rejected_context_changes_nothing():
    policy, dim, _ = example("LSTM")
    (x0,), (history,), (contexts,) = streams(1, dim)
    runner, undisturbed = ec.Runner(policy, x0, history), ec.Runner(policy, x0, history)
    for context in contexts[:3]:
        runner.step(context), undisturbed.step(context)
    before = bits(runner.state_dict())
    for bad, message in BAD_CONTEXTS:
        with pytest.raises(ValueError, match=message):
            runner.step(bad)
        assert bits(runner.state_dict()) == before
    for context in contexts[3:]:
        assert runner.step(context).tobytes() == undisturbed.step(context).tobytes()


def test_whole_numbers_and_single_precision_are_numbers():
    policy, _, _ = example("ROBD")
    for context in ([1], np.array([1], np.uint8), np.float32([1.0]), (1.0,)):
        expected = ec.Runner(policy, [0.0]).step([1.0])
        np.testing.assert_array_equal(ec.Runner(policy, [0.0]).step(context), expected)


def test_a_step_without_an_action_changes_nothing():
    runner = ec.Runner(ec.Policy(Broken(), problem_of(1)), [0.5])
    runner.step([4.0])
    before = bits(runner.state_dict())
    for context in (-1.0, 1e200):  # the first has no action, and the cost of the second overflows
        with pytest.raises(FloatingPointError, match=r"\(-1\)|\(1e\+200\)"):
            runner.step([context])
        assert bits(runner.state_dict()) == before


class Unsure(StatelessAgent):
    """Plays contexts, and does not converge on negative ones."""

    def act(self, observation):
        return observation.context

    def converges(self, observation):
        return observation.context[0] >= 0


def test_a_step_that_did_not_converge_is_reported_and_counted():
    runner = ec.Runner(ec.Policy(Unsure(), problem_of(1)), [0.5])
    reported = []
    for context in (1.0, -1.0, 2.0):
        runner.step([context])
        reported.append(runner.is_unconverged)
    assert reported == [False, True, False]
    assert runner.unconverged == 1


def test_the_given_and_the_returned_arrays_belong_to_the_caller():
    policy, _, _ = example("ROBD")
    runner, context = ec.Runner(policy, [0.5]), np.array([1.0])
    action = runner.step(context)
    kept = action.copy()
    context[0], action[0] = 99.0, 99.0
    np.testing.assert_array_equal(runner.action, kept)
    twin = ec.Runner(policy, [0.5])
    twin.step([1.0])
    np.testing.assert_array_equal(runner.step([2.0]), twin.step([2.0]))


def test_starts_that_do_not_fit_are_rejected():
    policy, boxed = ec.Policy(ec.ROBD(), problem_of(1)), ec.Policy(ec.ROBD(), problem_of(1, box=True))
    refusals = [
        (lambda: ec.Runner(policy, [0.1, 0.2]), "Q"),
        (lambda: ec.Runner(policy, [[0.1]]), "Runner.many"),
        (lambda: ec.Runner.many(policy, [0.1]), "Runner"),
        (lambda: ec.Runner(policy, 0.1), "x0"),
        (lambda: ec.Runner(policy, [np.nan]), "x0"),
        (lambda: ec.Runner(boxed, [3.0]), r"x0|3\.0|\[-?3"),
        (lambda: ec.Runner.many(boxed, [[0.0], [3.0]]), r"x0|3\.0|\[-?3"),
        (lambda: ec.Runner.many(boxed, [[0.0], [-3.0]]), r"x0|3\.0|\[-?3"),
        (lambda: ec.Runner(policy, [0.1], [[np.inf]]), "history"),
        (lambda: ec.Runner(policy, [0.1], np.zeros((3, 2))), "2"),
        (lambda: ec.Runner(policy, [0.1], horizon=0), "horizon"),
    ]
    for make, message in refusals:
        with pytest.raises(ValueError, match=message):
            make()


def test_an_impossible_promise_is_rejected():
    """At the start, where the numbers are known; the steps are compiled with the ratio as an argument."""
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    asked = ec.Competitive(ec.Greedy(), ratio=1.7)
    for agent in (asked, ec.MLAROBD(asked), ec.Competitive(asked, ratio=2.0), ec.Periodic(asked, 4)):
        for make in (lambda a: ec.Runner(a, [0.0]), lambda a: ec.Runner.many(a, [[0.0], [1.0]])):
            with pytest.raises(ValueError, match=r"1\.7 .* 1\.7298"):
                make(ec.Policy(agent, problem))
    with pytest.raises(ValueError, match="Guarded"):
        ec.Runner(ec.Policy(ec.Competitive(ec.Greedy()), problem_of(1, box=True)), [0.0])
    runner = ec.Runner(ec.Policy(ec.Competitive(ec.Greedy(), ratio=1.74), problem), [0.0])
    for context in (1.0, -1.0):
        runner.step([context])
    assert 1.0 < runner.live_ratio <= 1.74 * (1 + 1e-12)


def test_a_live_ratio_is_of_what_is_played():
    """A guard inside an agent that plays something else keeps an account of its own, which is not the run's cost."""
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    contexts = np.random.default_rng(0).normal(size=(9, 1))
    guard = ec.Competitive(ec.HittingMinimizer(), ratio=2.5)
    best = float(ec.oracle(problem, ec.Instance([0.0], contexts)).cost)
    for agent, known in ((guard, True), (ec.Periodic(guard, 24), True), (ec.MLAROBD(guard), False)):
        runner = ec.Runner(ec.Policy(agent, problem), [0.0])
        for context in contexts:
            runner.step(context)
        if known:
            np.testing.assert_allclose(runner.live_ratio, runner.cost / best, rtol=1e-9)
        else:
            assert runner.live_ratio is None


def test_the_horizon_ends_the_run():
    policy, dim, horizon = example("horizon")
    (x0,), (history,), (contexts,) = streams(1, dim)
    runner = ec.Runner(policy, x0, history, horizon)
    for context in contexts:
        runner.step(context)
    with pytest.raises(ValueError, match=" 7 "):
        runner.step(contexts[0])


def test_forecasts_must_not_come_from_the_future():
    for forecaster in (None, ec.forecasters.Exact()):
        with pytest.raises(ValueError, match="forecaster"):
            ec.Runner(ec.Policy(Echo(), problem_of(1), forecaster), [0.0], np.zeros((2, 1)))


def test_a_cost_of_the_user_needs_the_width_of_contexts():
    cost = ec.ConvexCost(lambda x, y: jnp.sum((x - y[:1] * y[1:]) ** 2), strong_convexity=2.0)
    policy = ec.Policy(ec.HittingMinimizer(), ec.Problem(cost, ec.Mahalanobis.isotropic(alpha=1.0, dim=1)))
    with pytest.raises(ValueError, match="context_dim"):
        ec.Runner(policy, [0.0])
    runner = ec.Runner(policy, [0.0], np.zeros((0, 2)))
    np.testing.assert_allclose(runner.step([2.0, 3.0]), [6.0], rtol=1e-9)


def test_curvature_in_the_context_is_understood():
    problem = ec.Problem(ec.CurvedTracking(), ec.Mahalanobis.isotropic(alpha=2.0, dim=1))
    runner = ec.Runner(ec.Policy(ec.Greedy(), problem), [0.0])
    np.testing.assert_allclose(runner.step([3.0, 4.0]), [2.0], rtol=1e-12)  # 4 (x - 3) + 2 x = 0


def test_single_precision_where_jax_runs_in_it():
    policy, _, _ = example("ROBD")
    double = ec.Runner(policy, [0.5])
    expected = double.step([1.0])
    with jax.enable_x64(False):
        runner = ec.Runner(policy, [0.5])
        action = runner.step(np.array([1.0]))
        with pytest.raises(ValueError, match=r"context\[0\]"):
            runner.step([1e300])
    assert action.dtype == runner.dtype == np.float32
    assert expected.dtype == double.dtype == np.float64
    np.testing.assert_allclose(action, expected, rtol=1e-6)


# --- what is packed how ---------------------------------------------------------------------------------------------


def test_what_no_step_changes_is_not_carried():
    policy, _, _ = example("ROBD")
    carried = ec.Runner(policy, [0.5]).state_dict()["carried"]
    assert [v.shape for v in carried] == [(1 + 3,)]  # the action and its costs; neither gains nor a count


def test_what_the_start_decides_is_carried_by_each_stream():
    policy, dim, _ = example("forecasts")
    x0, history, _ = streams(4, dim)
    carried = ec.Runner.many(policy, x0, history).state_dict()["carried"]
    kinds = {v.dtype.name: v.shape for v in carried}
    assert kinds == {"float64": (4, dim + 3 + 3 * dim + 2), "int64": (4, 1)}  # two flags are numbers among the others


@pytest.mark.parametrize("is_kept", [False, True])
def test_programs_are_shared_by_policies_of_one_structure(is_kept, monkeypatch):
    if not is_kept:
        monkeypatch.setattr("ecl2o.policy.runner.compile_cached", compiled_step.compile_stepper)
    runners = [ec.Runner(ec.Policy(calibrated_mlp(seed), problem_of(1)), [0.5]) for seed in (1, 2)]
    assert runners[0]._compiled.advance is runners[1]._compiled.advance
    assert runners[0].step([1.0])[0] != runners[1].step([1.0])[0]
    assert is_kept or runners[0]._compiled.advance._cache_size() <= 2


def test_large_arrays_travel_alone():
    arrays = [np.arange(3.0), np.ones((200, 100)), np.array(True), np.array(2.0)]
    packing = compiled_step.VectorLayout(tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays))
    vectors = packing.pack(arrays)
    assert [v.shape for v in vectors] == [(5,), (20000,)]
    for found, wanted in zip(packing.unpack(vectors), arrays, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_importing_the_library_leaves_the_dispatch_of_jax_to_the_caller():
    # JAX refuses this setting once a backend has been made
    settings = "jax.config.update('jax_num_cpu_devices', 2); assert jax.device_count() == 2"
    asked = f"import ecl2o.policy, jax; {settings}"
    subprocess.run([sys.executable, "-c", asked], check=True, env={**os.environ, "XLA_FLAGS": ""})


def test_many_streams_step_in_the_memory_of_the_step_before_last():
    """Two states take turns, and neither what was returned nor what the last step says is overwritten."""
    policy, dim, _ = example("LSTM")
    x0, history, contexts = streams(5, dim)
    together = ec.Runner.many(policy, x0, history)
    kept, copies, places = [], [], []
    for step in range(4):
        kept.append(together.step(contexts[:, step]))
        copies.append(kept[-1].copy())
        places.append(together._carried[0].unsafe_buffer_pointer())
    assert len(set(places[1:])) == 2
    np.testing.assert_array_equal(kept, copies)
