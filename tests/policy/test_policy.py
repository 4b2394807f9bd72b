"""Saved policies come back bit for bit; invalid files are rejected, and run nothing."""

import errno
import functools
import hashlib
import json
import operator
import os
import struct
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from conformance.registry import CASES
from ecl2o.exceptions import PolicyFileError
from ecl2o.policy import describe, policy_file
from ecl2o.policy.policy import with_action_limits
from ecl2o.problem.arrays import as_float
from toy_agent import StatelessAgent

FRAME = struct.Struct("<8sIQQ")


def tracking(dim=1, actions=None):
    actions = ec.Everywhere() if actions is None else actions
    return ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=dim), actions)


def small_policy():
    return ec.Policy(ec.ROBD(lambda1=0.9), tracking(actions=ec.Box(0.0, [np.inf])), None, {"created": "then"})


def learned_policy():
    network = ec.advisors.LSTM(2, 2, width=4, key=jax.random.key(3))
    agent = ec.PureML(ec.MLAROBD(network, trust=0.25, form="paper"))
    return ec.Policy(agent, tracking(2), ec.forecasters.Persistence(), {"figures": (np.float32(0.5), np.inf)})


def reload(policy, tmp_path, **given):
    ec.save(tmp_path / "policy", policy)
    return ec.load(tmp_path / "policy", **given)


def parts(policy):
    return policy.agent, policy.problem, policy.forecaster


def same(one, other) -> bool:
    """Equal in structure, in the types of leaves and in every bit; looked at on the host, where nothing is compiled for it."""
    types = [[type(leaf) for leaf in jax.tree.leaves(tree)] for tree in (one, other)]
    return types[0] == types[1] and bool(eqx.tree_equal(*jax.device_get((one, other)), typematch=True))


def forge(data: bytes, change) -> bytes:
    """The file with a changed header and a checksum that fits again: what an attacker would write."""
    magic, number, header_bytes, _ = FRAME.unpack_from(data)
    header = json.loads(data[FRAME.size : FRAME.size + header_bytes])
    arrays = data[FRAME.size + header_bytes : -32]
    changed = change(header)
    text = changed if isinstance(changed, bytes) else json.dumps(header).encode()
    body = FRAME.pack(magic, number, len(text), len(arrays)) + text + arrays
    return body + hashlib.sha256(body).digest()


def refused(tmp_path, data: bytes, message: str):
    path = tmp_path / "bad"
    path.write_bytes(data)
    with pytest.raises(PolicyFileError, match=message):
        ec.load(path)


@pytest.fixture
def saved(tmp_path) -> bytes:
    ec.save(tmp_path / "good", small_policy())
    return (tmp_path / "good").read_bytes()


# --- what was saved comes back --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [small_policy, learned_policy])
def test_a_policy_comes_back_bit_for_bit(make, tmp_path):
    policy = make()
    loaded = reload(policy, tmp_path)
    assert same(parts(policy), parts(loaded))
    assert jax.tree.structure(parts(policy)) == jax.tree.structure(parts(loaded))
    assert loaded.metadata == policy.metadata
    assert loaded.fingerprint == policy.fingerprint


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_agent_of_the_library_can_be_saved(case, tmp_path):
    dim = case.dims[-1]
    policy = ec.Policy(case.make(dim), tracking(dim))
    loaded = reload(policy, tmp_path)
    assert same(parts(policy), parts(loaded))


def test_every_concrete_class_has_its_own_name():
    known = policy_file.library_classes()
    assert {"agents.MLAROBD", "agents.LSTM", "problem.Box", "forecasters.Exact"} <= set(known)
    assert not [name for name in known if ".Abstract" in name or "._" in name]


def test_the_same_policy_gives_the_same_bytes(tmp_path, saved):
    ec.save(tmp_path / "again", small_policy())
    assert (tmp_path / "again").read_bytes() == saved


def test_the_fingerprint_is_of_the_numbers_not_of_the_metadata():
    policy = small_policy()
    relabelled = ec.Policy(*parts(policy), {"site": "elsewhere"})
    nudged = ec.Policy(ec.ROBD(lambda1=np.nextafter(0.9, 1.0)), policy.problem)
    assert policy.fingerprint == relabelled.fingerprint != nudged.fingerprint


def test_single_precision_stays_single(tmp_path):
    agent = ec.MLAROBD(ec.advisors.Fixed(jnp.ones((2, 1), jnp.float32)), trust=jnp.float32(0.5))
    loaded = reload(ec.Policy(agent, tracking()), tmp_path)
    assert loaded.agent.advisor.actions.dtype == np.float32
    assert loaded.problem.Q.dtype == np.float64


def test_doubles_are_rounded_with_a_warning_in_32_bits(tmp_path):
    ec.save(tmp_path / "policy", small_policy())
    with jax.enable_x64(False), pytest.warns(UserWarning, match="float64"):
        loaded = ec.load(tmp_path / "policy")
    assert loaded.agent.lambda1.dtype == np.float32


def test_a_field_that_a_class_got_later_takes_its_default(tmp_path, saved):
    def without_form(header):
        del header["agent"]["fields"]["form"]

    (tmp_path / "old").write_bytes(forge(saved, without_form))
    assert ec.load(tmp_path / "old").agent.form == "tight"


def test_describe_is_plain_and_true():
    about = describe(learned_policy())
    assert json.loads(json.dumps(about)) == about
    assert about["agent"] == "PureML(MLAROBD(LSTM))"
    assert about["weights"] == (8 + 1) * 16 + 2 * (8 + 1) * 16 + (4 + 1) * 2
    assert about["problem"]["alpha"] == pytest.approx(10.0)


# --- functions and classes of the user ------------------------------------------------------------------------------


def cosh_problem(dim=1):
    cost = ec.ConvexCost(lambda x, y: jnp.sum(jnp.cosh(x - y) - 1), strong_convexity=1.0)
    return ec.Problem(cost, ec.Mahalanobis.isotropic(alpha=10.0, dim=dim))


def test_a_function_is_not_in_the_file_and_must_be_given(tmp_path):
    problem = cosh_problem()
    ec.save(tmp_path / "policy", ec.Policy(ec.ROBD(), problem))
    with pytest.raises(PolicyFileError, match=r"problem\.hitting\.fn .*problem="):
        ec.load(tmp_path / "policy")
    assert ec.load(tmp_path / "policy", problem=problem).problem is problem
    with pytest.raises(PolicyFileError, match=" 1 "):
        ec.load(tmp_path / "policy", problem=cosh_problem(dim=2))


class Stubborn(StatelessAgent):
    target: jax.Array = eqx.field(converter=as_float)
    label: tuple = eqx.field(static=True, default=())

    def act(self, observation):
        return self.target


def test_a_class_of_the_user_is_loaded_only_when_it_is_given(tmp_path):
    policy = ec.Policy(ec.MLAROBD(Stubborn([0.3], label=("a", 1, None))), tracking())
    loaded = reload(policy, tmp_path, classes=(Stubborn,))
    assert same(policy.agent, loaded.agent)
    with pytest.raises(PolicyFileError, match=r"agent\.advisor .*'user\.Stubborn'.*classes=\(Stubborn,\)"):
        ec.load(tmp_path / "policy")


def test_what_cannot_be_saved_is_refused_and_leaves_nothing(tmp_path):
    hopeless = [
        (Stubborn([0.3], label=(len,)), TypeError, r"agent\.label\[0\]"),
        (Stubborn([0.3], label=({1},)), TypeError, r"agent\.label\[0\].*set"),
        (Stubborn([np.nan]), ValueError, r"agent\.target.*NaN"),
        (eqx.tree_at(lambda a: a.target, Stubborn([0.3]), jax.random.key(0)), TypeError, r"agent\.target.*key"),
    ]
    for agent, error, message in hopeless:
        with pytest.raises(error, match=message):
            ec.save(tmp_path / "policy", ec.Policy(agent, tracking()))
    with pytest.raises(TypeError, match=r"metadata\['when'\]"):
        ec.Policy(ec.ROBD(), tracking(), metadata={"when": object()})
    with pytest.raises(TypeError, match="agent"):
        ec.Policy(tracking(), tracking())  # pyright: ignore[reportArgumentType]
    assert list(tmp_path.iterdir()) == []


def test_a_number_that_no_file_may_hold_is_not_saved(tmp_path):
    policy = ec.Policy(ec.RHC(10**9, truncate=False), tracking(), ec.forecasters.Persistence())
    with pytest.raises(ValueError, match=r"agent\.window .* 1000000000"):
        ec.save(tmp_path / "policy", policy)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path, monkeypatch, saved):
    def full_disk(*_):
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(OSError, match=r"no space left on device: .*good"):
        ec.save(tmp_path / "good", learned_policy())
    assert [file.name for file in tmp_path.iterdir()] == ["good"]
    assert (tmp_path / "good").read_bytes() == saved


# --- what is not sound is refused -----------------------------------------------------------------------------------


def test_a_flipped_bit_anywhere_is_noticed(saved):
    for position in range(len(saved)):
        for bit in (1, 128):
            damaged = bytearray(saved)
            damaged[position] ^= bit
            with pytest.raises(PolicyFileError, match="file"):
                policy_file.unpack(bytes(damaged), "policy", "file")


def test_a_file_cut_anywhere_is_noticed(saved):
    with pytest.raises(PolicyFileError, match="file"):
        policy_file.unpack(b"", "policy", "file")
    for length in range(1, len(saved)):
        with pytest.raises(PolicyFileError, match=rf" {length} bytes" if length >= 8 + 20 + 32 else "file"):
            policy_file.unpack(saved[:length], "policy", "file")
    with pytest.raises(PolicyFileError, match=" 3 bytes"):
        policy_file.unpack(saved + b"abc", "policy", "file")


def test_a_newer_format_and_foreign_files_are_named(tmp_path, saved):
    body = saved[:8] + struct.pack("<I", policy_file.FORMAT + 1) + saved[12:-32]
    refused(tmp_path, body + hashlib.sha256(body).digest(), "format 2.*format 1")
    refused(tmp_path, saved[:8] + struct.pack("<I", 7) + b"another frame altogether", "format 7.*format 1")
    body = saved[:8] + struct.pack("<I", 0) + saved[12:-32]
    refused(tmp_path, body + hashlib.sha256(body).digest(), "format 0")
    refused(tmp_path, b"PK\x03\x04" + b"0" * 500, "ecl2o")
    refused(tmp_path, b"\x80\x04\x95cposix\nsystem\n(S'true'\ntR.", "ecl2o")
    with pytest.raises(FileNotFoundError):
        ec.load(tmp_path / "nowhere")


def test_the_state_of_a_runner_is_not_a_policy(tmp_path):
    ec.Runner(small_policy(), [0.5]).save_state(tmp_path / "state")
    refused(tmp_path, (tmp_path / "state").read_bytes(), "policy")


def _set(path, value):
    def change(header):
        *inner, last = path
        for key in inner:
            header = header[key]
        header[last] = value

    return change


def _module(name, **fields):
    return {"module": name, "fields": fields}


HOSTILE = [
    # names of things to import, call or reach by attribute
    (_set(["agent", "module"], "os.system"), "os.system"),
    (_set(["agent", "module"], "agents.__class__"), "agents.__class__"),
    (_set(["agent", "module"], "equinox.Module"), "equinox.Module"),
    (_set(["agent"], {"function": "os.system"}), "agent of"),
    (_set(["agent"], _module("problem.ConvexCost", fn="os.system", m=1.0, minimizer=None)), "ConvexCost"),
    (_set(["agent", "fields", "__class__"], 1), "'__class__'"),
    (_set(["agent", "fields", "step"], 1), "'step'"),
    (_set(["agent"], {"__reduce__": ["os.system", "true"]}), "agent of"),
    # the wrong kind of thing at a place
    (_set(["agent"], None), "AbstractAgent"),
    (_set(["agent"], _module("problem.Everywhere")), "AbstractAgent"),
    (_set(["problem", "fields", "hitting"], _module("agents.Greedy")), "AbstractHittingCost"),
    (_set(["agent", "fields", "lambda1"], "0.5"), "lambda1"),
    (_set(["agent", "fields", "lambda1"], {"tuple": []}), "lambda1"),
    (_set(["agent", "fields", "lambda1"], {"array": 99}), "lambda1 of"),
    (_set(["agent", "fields", "lambda1"], {"array": -1}), "lambda1 of"),
    (_set(["agent", "fields", "lambda1"], {"array": True}), "lambda1 of"),
    (_set(["agent", "fields", "lambda1"], {"array": 2}), "lambda1"),  # Q, a matrix
    (_set(["agent", "fields", "form"], "loose"), "form"),
    (_set(["agent", "fields"], []), "agent of"),
    (_set(["agent", "module"], ["agents.ROBD"]), "agent of"),
    (_set(["metadata"], [1]), "metadata"),
    (_set(["kind"], "runner"), "policy"),
    # numbers that no policy has
    *(
        (
            _set(["agent"], _module("agents.RHC", window=many, truncate=False)),
            f"agent.window of .* {said}.* 10000000",
        )
        for many, said in ((10**9, 10**9), (-(10**12), -(10**12)), (10**30, "a number of 31 digits"))
    ),
    (_set(["contract", "steps_per_day"], 10**12), "steps_per_day: .* 10000000"),
    (_set(["contract", "context_dim"], 10**30), "context_dim"),
    # contracts that are none
    (_set(["contract"], None), "contract"),
    (_set(["contract", "version"], 2), "version"),
    (_set(["contract", "steps_per_day"], "24"), "steps_per_day"),
    (_set(["contract", "steps_per_day"], True), "steps_per_day"),
    (_set(["contract", "columns"], ["a", 1]), "columns.1"),
    (_set(["contract", "plausible"], [[0.0, 1.0]]), "plausible"),
    (_set(["history"], True), "problem|agent|forecaster"),
    # impossible tables of arrays
    (_set(["arrays"], {}), "bad"),
    (_set(["arrays"], []), r" \d+ bytes"),
    (_set(["arrays", 0, "dtype"], "object"), "array 0 .*'object'"),
    (_set(["arrays", 0, "dtype"], "O"), "array 0 .*'O'"),
    (_set(["arrays", 0, "dtype"], ["float64"]), "array 0 .*float64"),
    (_set(["arrays", 0, "shape"], [-1]), r"array 0 .*\[-1\]"),
    (_set(["arrays", 0, "shape"], [1 << 60]), f"array 0 .*{1 << 60}"),
    (_set(["arrays", 0, "shape"], [1 << 39, 1 << 39]), f"array 0 .*{1 << 81}"),
    (_set(["arrays", 0, "shape"], [1.0]), r"array 0 .*1\.0"),
    (_set(["arrays", 0, "shape"], [1] * 99), "array 0 "),
    (_set(["arrays", 0, "offset"], 8), "array 0 .* 8,"),
    (_set(["arrays", 1, "offset"], 0), "array 1 .* 0,"),
    (_set(["arrays", 0, "offset"], -8), "array 0 .*-8"),
    (_set(["arrays", 0], 7), "array 0 "),
    # headers that are no headers
    (lambda header: b"[]", "JSON"),
    (lambda header: b"\xff\xfe", "JSON"),
    (lambda header: b"[" * 100_000, "JSON"),
    (lambda header: b"9" * 100_000, "JSON"),
    (lambda header: b" " * ((1 << 24) + 1), "16777217"),
]


@pytest.mark.parametrize(("change", "message"), HOSTILE)
def test_a_hostile_header_is_refused(change, message, tmp_path, saved):
    refused(tmp_path, forge(saved, change), message)


def test_deep_nesting_is_refused(tmp_path, saved):
    nest = 0
    for _ in range(300):
        nest = {"list": [nest]}
    refused(tmp_path, forge(saved, _set(["agent", "fields", "form"], nest)), "form")


def test_values_that_a_class_refuses_are_refused_in_a_file_too(tmp_path, saved):
    contents = policy_file.unpack(saved, "policy", "file")
    for value, message in ((1.5, r"lambda1 .*\(0, 1\]"), (np.nan, "agent.lambda1 .*NaN")):
        arrays = [np.array(value), *contents.arrays[1:]]
        forged = policy_file.pack(policy_file.Contents("policy", contents.header, arrays))
        refused(tmp_path, forged, message)


def test_loading_calls_no_init_and_imports_nothing(tmp_path, monkeypatch, saved):
    def never(*_, **__):
        raise AssertionError("loading must not do this")

    load = ec.load
    monkeypatch.setattr(ec.ROBD, "__init__", never)
    monkeypatch.setattr("importlib.import_module", never)
    (tmp_path / "policy").write_bytes(saved)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert float(load(tmp_path / "policy").agent.lambda1) == 0.9


# --- limits on actions ----------------------------------------------------------------------------------------------


def test_every_promise_counts_on_contexts_within_the_limits():
    inner = ec.Competitive(ec.ROBD(), ratio=2.5, contexts=(-1.0, 9.0))
    policy = ec.Policy(ec.Guarded(ec.Competitive(inner, ratio=2.0, period=24), slack=1.0), tracking())
    limited = with_action_limits(policy, 0.0, 5.0)
    outer = limited.agent.agent
    for guard in (outer, outer.agent):
        np.testing.assert_array_equal(guard.references[0].tracking.contexts, (0.0, 5.0))
    assert (float(outer.ratio), outer.promises[0].period, float(outer.agent.ratio)) == (2.0, 24, 2.5)
    assert limited.contract.action_bounds == [(0.0, 5.0)]


def test_limits_only_become_narrower():
    narrow = with_action_limits(
        with_action_limits(ec.Policy(ec.Competitive(ec.ROBD(), ratio=2.0), tracking()), 0.0, 5.0), -1.0, 3.0
    )
    assert narrow.contract.action_bounds == list(narrow.contract.promise.contexts) == [(0.0, 3.0)]
    with pytest.raises(ValueError, match=r"4:6.* 0:3"):
        with_action_limits(narrow, 4.0, 6.0)


@pytest.mark.parametrize(
    ("absent", "place", "loads"),
    [
        (("also", "rolling", "at_end"), ["contract", "promise"], True),
        (("period", "rolling", "reference"), ["agent", "fields", "promises", "tuple", 0, "fields"], True),
        (("promises",), ["agent", "fields"], False),
    ],
)
def test_files_from_before_a_field_are_read_or_refused(tmp_path, absent, place, loads):
    """A file without fields that have defaults means the same; without another one it is refused by that name."""
    path, problem = tmp_path / "policy.ecl2o", ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(10.0, dim=1))
    agent = ec.Promises(ec.ROBD(), [ec.Promise(2.5)])
    ec.save(path, ec.Policy(agent, problem))

    def change(header):
        part = functools.reduce(operator.getitem, place, header)
        for name in absent:
            del part[name]

    older = forge(path.read_bytes(), change)
    if not loads:
        refused(tmp_path, older, absent[0])
        return
    path.write_bytes(older)
    assert ec.load(path).contract.promise == agent.promise(problem)


@pytest.mark.parametrize(
    "change",
    [
        _set(["agent", "module"], "agents.Renamed"),
        _set(["agent", "fields", "renamed"], 1.0),
        lambda header: header.pop("metadata"),
        _set(["contract", "version"], 2),
        lambda header: header["problem"]["fields"].pop("switching"),
    ],
)
def test_who_has_a_file_of_another_version_is_told_what_to_do(change, tmp_path, saved):
    (tmp_path / "old").write_bytes(forge(saved, change))
    with pytest.raises(PolicyFileError) as error:
        ec.load(tmp_path / "old")
    assert str(error.value).endswith(f" {policy_file.MAKE_AGAIN}")
    body = saved[:8] + struct.pack("<I", 0) + saved[12:-32]
    (tmp_path / "old").write_bytes(body + hashlib.sha256(body).digest())
    with pytest.raises(PolicyFileError) as error:
        ec.load(tmp_path / "old")
    assert str(error.value).endswith(f" {policy_file.MAKE_AGAIN}")
