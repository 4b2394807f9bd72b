"""Programs that are kept on disk: the same numbers, nothing traced again, and never a program that is not this one's."""

import contextlib
import dataclasses
import grp
import os
import pickle
import pwd
import stat
import subprocess
import sys
import warnings

import equinox as eqx
import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import ecl2o as ec
from ecl2o.cli.jax_setup import use_cached_programs
from ecl2o.policy import executable_cache
from ecl2o.policy.executable_cache import run_stored
from ecl2o.running import Stepper, stored_jit
from ecl2o.running.compiled_step import RunShape, compile_stepper
from ecl2o.running.stored_jit import store_executables

PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=3.0, dim=1))
POLICY = ec.Policy(ec.Competitive(ec.HittingMinimizer(), ratio=1.6), PROBLEM)
GREEDY = ec.Policy(ec.Greedy(), PROBLEM)
CONTEXTS = np.random.default_rng(0).normal(size=(6, 1))


NEEDS_ROOT = pytest.mark.skipif(
    getattr(os, "geteuid", lambda: 1)() != 0, reason="only root can give files to another user"
)
STRANGER = 54321


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
    return np.array([[*runner.step(context), runner.cost, runner.live_ratio or 0.0] for context in CONTEXTS])


class Command:
    """What runs a command when it is unpickled."""

    def __init__(self, function, *arguments):
        self.made_by = function, arguments

    def __reduce__(self):
        return self.made_by


def forge_all(folder, program: bytes) -> None:
    """Replace each cached program by a forged one with a valid header and checksum."""
    for name in kept_in(folder):
        contents = executable_cache._read(folder / name)
        if contents is not None and "results" in contents.header:
            executable_cache._write(folder / name, contents.header, program)


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


def stream_agent(agent, days=3) -> np.ndarray:
    """Actions of a new process, as far as programs go, on days with a history of their own."""
    executable_cache._programs.clear()
    contexts = np.random.default_rng(days).normal(size=(5 + days, 4, 1))
    return np.asarray(ec.stream_days(agent, PROBLEM, np.zeros(1), contexts[5:], contexts[:5].reshape(20, 1))[0].actions)


def test_a_stored_run_through_days_is_the_run_that_was_traced(folder, monkeypatch):
    agent = ec.Competitive(ec.advisors.OnlineRidge(4), ratio=1.8)
    monkeypatch.setattr(stored_jit, "_run_stored", None)
    expected = [stream_agent(agent, days) for days in (3, 7)]
    assert kept_in(folder) == []
    store_executables(run_stored)
    np.testing.assert_array_equal(stream_agent(agent), expected[0])
    monkeypatch.setattr(executable_cache._CachedExecutable, "_make", fail_on_trace)
    for days, actions in zip((3, 7), expected, strict=True):  # other lengths share the program
        np.testing.assert_array_equal(stream_agent(agent, days), actions)


def test_an_agent_of_the_user_runs_through_days_without_a_stored_program(folder, monkeypatch):
    monkeypatch.setattr(stored_jit, "_run_stored", run_stored)
    problem = ec.Problem(Doubled(), ec.Mahalanobis.isotropic(alpha=3.0, dim=1))
    runs = [
        ec.stream_days(ec.Greedy(), each, np.zeros(1), CONTEXTS.reshape(3, 2, 1))[0].actions
        for each in (PROBLEM, problem)
    ]
    np.testing.assert_array_equal(*runs)
    assert len(kept_in(folder)) == 1


def test_a_new_process_calls_a_stored_program_that_needs_lapack(folder):
    calls = subprocess_code(folder)
    first, second = (subprocess.run([sys.executable, "-c", calls], capture_output=True, text=True) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0)
    assert first.stdout == second.stdout


def subprocess_code(folder) -> str:
    return f"""
import jax, numpy as np
import ecl2o as ec
from ecl2o.policy.executable_cache import use_cache_folder
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_compilation_cache_dir", {str(folder)!r})
use_cache_folder()
from ecl2o.evaluation import TestDays
problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis(0.1 + np.eye(6)))
print(TestDays.with_whole_span_optimum(problem, np.zeros(6), np.arange(48.0).reshape(2, 4, 6)).unit.tolist())
"""


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


def test_a_forged_program_runs_no_command(folder, tmp_path_factory):
    """In a folder of the user's own only JAX's records are unpickled; one that everybody can write to is not read."""
    marker = tmp_path_factory.mktemp("elsewhere") / "a command ran"
    expected = played(GREEDY)
    for mode, expectation in ((0o755, contextlib.nullcontext()), (0o777, pytest.warns(UserWarning, match="777"))):
        forge_all(folder, pickle.dumps(Command(os.mkdir, str(marker))))
        folder.chmod(mode)
        with expectation:
            np.testing.assert_array_equal(played(GREEDY), expected)
        assert not marker.exists()


@pytest.mark.parametrize(
    "forged",
    [
        pickle.dumps(Command(eval, "1")),
        pickle.dumps(Command(getattr, "1", "upper")),
        b"\x80\x04\x8c\x0djax._src.core\x8c\x0doperator.not_\x93.",
        b"cjax._src.interpreters.pxla\nos\n.",
        b"cjax\njit\n.",
    ],
    ids=["builtin", "getattr", "through a module's attribute", "module", "other function of JAX"],
)
def test_only_records_of_programs_are_unpickled(forged):
    with pytest.raises(pickle.UnpicklingError):
        executable_cache._deserialize(forged, None, None)


def test_a_file_that_is_a_link_or_open_to_others_is_made_again(folder, tmp_path_factory):
    expected = played(GREEDY)
    names, elsewhere = kept_in(folder), tmp_path_factory.mktemp("elsewhere")
    (folder / names[0]).rename(elsewhere / names[0])
    (folder / names[0]).symlink_to(elsewhere / names[0])
    (folder / names[1]).chmod(0o666)
    assert [executable_cache._read(folder / name) for name in names[:2]] == [None, None]
    np.testing.assert_array_equal(played(GREEDY), expected)
    assert {stat.filemode((folder / name).lstat().st_mode) for name in names} == {"-rw-------"}
    assert all(executable_cache._read(folder / name) is not None for name in names)


@NEEDS_ROOT
@pytest.mark.integration
def test_a_file_of_another_user_is_not_read(folder):
    executable_cache._write(folder / "ecl2o-run-x", {"results": 0}, b"a program")
    assert executable_cache._read(folder / "ecl2o-run-x") is not None
    os.chown(folder / "ecl2o-run-x", STRANGER, -1)
    assert executable_cache._read(folder / "ecl2o-run-x") is None


def is_used(path, monkeypatch) -> bool:
    """Whether JAX and runners use a folder that JAX_COMPILATION_CACHE_DIR names."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(path))
    jax.config.update("jax_compilation_cache_dir", str(path))
    named = path.resolve()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runners = executable_cache._find_folder()
        executable_cache.use_cache_folder()
    used = jax.config.jax_compilation_cache_dir
    assert used == (None if runners is None else str(named))
    assert runners in (None, named)
    assert [str(path.parent.parent) in str(warning.message) for warning in caught] == (
        [True] * 2 if used is None else []
    )
    return used is not None


@pytest.mark.parametrize(
    ("mode_of_parent", "mode", "used"),
    [
        (0o755, 0o755, True),
        (0o1777, 0o700, True),  # as in /tmp
        (0o755, 0o777, False),
        (0o755, 0o775, False),
        (0o755, 0o1777, False),
        (0o777, 0o700, False),
    ],
)
def test_a_folder_that_others_can_write_to_or_replace_is_not_used(folder, monkeypatch, mode_of_parent, mode, used):
    path = folder / "parent" / "programs"
    path.mkdir(parents=True)
    path.chmod(mode)
    path.parent.chmod(mode_of_parent)
    assert is_used(path, monkeypatch) == used
    jax.jit(lambda x: x + mode + mode_of_parent)(1.0)
    assert any(path.iterdir()) == used


def test_commands_let_jax_use_no_folder_that_others_can_write_to(folder, monkeypatch):
    """Also those that store no programs themselves: JAX reads them from where JAX_COMPILATION_CACHE_DIR says."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder))
    use_cached_programs()
    assert jax.config.jax_compilation_cache_dir == str(folder)
    folder.chmod(0o777)
    with pytest.warns(UserWarning, match="777"):
        use_cached_programs()
    assert jax.config.jax_compilation_cache_dir is None


def test_a_parent_that_a_group_can_write_is_safe_if_the_group_is_the_users_own(folder, monkeypatch):
    path = folder / "parent" / "programs"
    path.mkdir(parents=True, mode=0o700)
    path.parent.chmod(0o775)
    for private in (True, False):
        monkeypatch.setattr(executable_cache, "_is_private", lambda group, private=private: private)
        assert is_used(path, monkeypatch) == private


def test_a_group_is_the_users_own_if_it_has_the_users_name_and_no_other_member(monkeypatch):
    user = pwd.getpwuid(os.geteuid()).pw_name
    for name, members, private in ((user, [], True), (user, [user, "eve"], False), ("staff", [], False)):
        group = grp.struct_group((name, "x", STRANGER, members))
        monkeypatch.setattr(grp, "getgrgid", lambda number, group=group: group)
        assert executable_cache._is_private(STRANGER) == private
    monkeypatch.undo()
    assert not executable_cache._is_private(STRANGER)  # which has no name


@NEEDS_ROOT
@pytest.mark.integration
@pytest.mark.parametrize(
    ("owner_of_parent", "owner", "user", "used"),
    [
        (0, STRANGER, STRANGER, True),  # as systemd makes /var/cache/private/ecl2o
        (0, STRANGER, 0, False),
        (0, STRANGER, STRANGER + 1, False),
        (STRANGER, 0, 0, False),
        (STRANGER, STRANGER, STRANGER, True),
    ],
)
def test_a_folder_of_another_user_is_not_used(folder, monkeypatch, owner_of_parent, owner, user, used):
    path = folder / "private" / "programs"
    path.mkdir(parents=True, mode=0o755)
    os.chown(path, owner, -1)
    os.chown(path.parent, owner_of_parent, -1)
    link = folder / "link"
    link.symlink_to(path)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert is_used(path, monkeypatch) == used
    jax.config.update("jax_compilation_cache_dir", str(link))
    with contextlib.nullcontext() if used else pytest.warns(UserWarning, match=str(STRANGER)):
        assert executable_cache._find_folder() == (path if used else None)


def test_a_missing_folder_is_made_for_the_user_only(folder, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    jax.config.update("jax_compilation_cache_dir", None)
    before = os.umask(0)
    try:
        executable_cache.use_cache_folder()
    finally:
        os.umask(before)
    assert jax.config.jax_compilation_cache_dir == str(folder / "ecl2o" / "programs")
    for made in (folder / "ecl2o", folder / "ecl2o" / "programs"):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
