"""Programs that are kept on disk: the same numbers, nothing traced again, and never a program that is not this one's."""

import dataclasses
import os

import equinox as eqx
import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import ecl2o as ec
from ecl2o.policy import executable_cache
from ecl2o.running import Stepper
from ecl2o.running.compiled_step import RunShape, compile_stepper

PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=3.0, dim=1))
POLICY = ec.Policy(ec.Competitive(ec.HittingMinimizer(), ratio=1.6), PROBLEM)
CONTEXTS = np.random.default_rng(0).normal(size=(6, 1))


class Doubled(ec.SquaredTracking):
    """A cost of the user's: what its code says may change without its name."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """JAX keeps compiled programs in an empty folder."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    compilation_cache.reset_cache()
    monkeypatch.setattr(executable_cache, "_programs", {})
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()


def kept_in(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("ecl2o-run"))


def played(policy=POLICY, x0=(0.5,)) -> np.ndarray:
    """Actions, costs and live ratios of a new process, as far as programs go."""
    executable_cache._programs.clear()
    runner = ec.Runner(policy, list(x0))
    return np.array([[*runner.step(context), runner.cost, runner.live_ratio] for context in CONTEXTS])


def fail_on_trace(*arguments):
    raise AssertionError("something was traced")


def test_a_kept_run_is_the_run_that_was_traced(folder, monkeypatch, tmp_path_factory):
    monkeypatch.setattr("ecl2o.policy.runner.compile_cached", compile_stepper)
    expected = played()
    monkeypatch.setattr("ecl2o.policy.runner.compile_cached", executable_cache.compile_cached)
    made = played()
    assert [name.rpartition("-")[2] for name in kept_in(folder)][1:] == ["advance", "begin", "figures"]
    state = tmp_path_factory.mktemp("state") / "state"
    runner = ec.Runner(POLICY, [0.5])
    for context in CONTEXTS[:3]:
        runner.step(context)
    runner.save_state(state)
    ec.Runner.resume(POLICY, state)  # keeps one program more

    monkeypatch.setattr(executable_cache, "compile_stepper", fail_on_trace)
    executable_cache._programs.clear()
    resumed = ec.Runner.resume(POLICY, state)
    np.testing.assert_array_equal(made, expected)
    np.testing.assert_array_equal(played(), expected)
    np.testing.assert_array_equal([resumed.step(context) for context in CONTEXTS[3:]], expected[3:, :1])


def test_other_numbers_use_the_same_programs_and_stay_themselves(folder, monkeypatch):
    played()
    names = kept_in(folder)
    other = ec.Policy(ec.Competitive(ec.HittingMinimizer(), ratio=2.5), PROBLEM)
    monkeypatch.setattr("ecl2o.policy.runner.compile_cached", compile_stepper)
    expected = played(other)
    monkeypatch.setattr("ecl2o.policy.runner.compile_cached", executable_cache.compile_cached)
    np.testing.assert_array_equal(played(other), expected)
    assert kept_in(folder) == names
    assert not np.array_equal(expected, played())


@pytest.mark.parametrize(
    "damage",
    [lambda content: content[:-7], lambda content: b"", lambda content: content[:99] + b"\x01" + content[100:]],
    ids=["cut", "empty", "flipped"],
)
def test_a_damaged_file_is_made_again(folder, damage):
    expected = played()
    for name in kept_in(folder):
        path = folder / name
        sound = path.read_bytes()
        path.write_bytes(damage(sound))
        assert path.read_bytes() != sound
    np.testing.assert_array_equal(played(), expected)
    assert all(executable_cache._read(folder / name) is not None for name in kept_in(folder))


def test_a_program_that_cannot_be_loaded_is_made_again(folder):
    expected = played()
    for name in kept_in(folder):
        contents = executable_cache._read(folder / name)
        assert contents is not None
        if "results" in contents.header:  # a program, not the sizes of what is carried
            executable_cache._write(folder / name, contents.header, b"not a program")
    np.testing.assert_array_equal(played(), expected)
    assert all(b"not a program" not in (folder / name).read_bytes() for name in kept_in(folder))


def test_a_folder_that_takes_no_file_costs_nothing_but_time(folder, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    expected = played()
    for name in kept_in(folder):
        (folder / name).unlink()
    monkeypatch.setattr(executable_cache, "_write", full)
    np.testing.assert_array_equal(played(), expected)
    assert kept_in(folder) == []


def test_unused_files_are_removed_after_a_month(folder):
    """A file of JAX's own cache is not ours to remove."""
    played()
    used = kept_in(folder)
    names = ("ecl2o-run-stale", ".ecl2o-run-stale-advance.0a1b2c3d.unfinished", "jit_advance-cache")
    strangers = [folder / name for name in names]
    for path in strangers:
        path.write_bytes(b"of an earlier version")
    for path in [*strangers, *(folder / name for name in used)]:
        os.utime(path, (0, 0))
    played()  # reads what it needs, and writes nothing
    assert set(kept_in(folder)) > set(used)
    executable_cache._write(folder / "ecl2o-run-new", {"results": 0}, b"a new one")
    assert kept_in(folder) == sorted([*used, "ecl2o-run-new"])
    assert [path.exists() for path in strangers] == [False, False, True]


def test_code_of_the_users_is_never_kept(folder):
    own = eqx.tree_at(lambda problem: problem.hitting, PROBLEM, Doubled())
    ec.Runner(ec.Policy(ec.Greedy(), own), [0.5]).step([1.0])
    by_function = ec.Problem(ec.ConvexCost(lambda x, y: ((x - y) ** 2).sum(), strong_convexity=2.0), PROBLEM.switching)
    ec.Runner(ec.Policy(ec.Greedy(), by_function), [0.5], np.zeros((0, 1))).step([1.0])
    assert kept_in(folder) == []


def test_what_decides_a_program_is_in_its_name(folder, monkeypatch):
    stepper = Stepper(ec.Greedy(), PROBLEM)
    sizes, dtype = RunShape(1, 1, 0, None), np.dtype(float)
    arrays = jax.tree.leaves(stepper)
    named = executable_cache._find_path(stepper, arrays, sizes, dtype)
    others = [
        executable_cache._find_path(Stepper(ec.ROBD(), PROBLEM), arrays, sizes, dtype),
        executable_cache._find_path(stepper, arrays, dataclasses.replace(sizes, seen=3), dtype),
        executable_cache._find_path(stepper, arrays, dataclasses.replace(sizes, horizon=5), dtype),
        executable_cache._find_path(stepper, arrays, sizes, np.dtype(np.float32)),
    ]
    monkeypatch.setattr(executable_cache, "_environment", lambda: ("another version",))
    others.append(executable_cache._find_path(stepper, arrays, sizes, dtype))
    assert len({named, *others}) == len(others) + 1
