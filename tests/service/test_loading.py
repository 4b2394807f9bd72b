"""Compiled programs of the service: kept between restarts, limited in size, and compiled where they block nobody."""

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import ecl2o as ec
from ecl2o.policy import executable_cache
from ecl2o.service.batched_stepper import BatchedStepper

PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=3.0, dim=1))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder of compiled programs, as of a service's user."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "programs"))
    (tmp_path / "programs").mkdir(mode=0o700)
    compilation_cache.reset_cache()
    monkeypatch.setattr(executable_cache, "_programs", {})
    yield tmp_path / "programs"
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()


def play(stepper: BatchedStepper) -> list[bytes]:
    """Return the states of a stream over some steps."""
    states = [stepper.start(np.zeros(1), np.zeros((0, 1)))]
    for context in (1.0, -2.0, 0.3):
        states.append(stepper.step(states[-1:], [[context]])[0].state)
    return states


def forget_programs() -> None:
    """Leave what a new process would find: the files."""
    executable_cache._programs.clear()


def fail_on_trace(*_):
    raise AssertionError("a program was traced")


@pytest.mark.parametrize("with_expert", [True, False])
def test_kept_programs_give_the_same_bits_without_a_trace(folder, monkeypatch, with_expert):
    switching = ec.Mahalanobis.isotropic(alpha=3.0, dim=1) if with_expert else ec.LinearSwitching(3.0)
    policy = ec.Policy(ec.HittingMinimizer(), ec.Problem(ec.SquaredTracking(), switching))
    compiled = play(BatchedStepper(policy, 1, 1, 0))
    forget_programs()
    with monkeypatch.context() as patch:
        patch.setattr(executable_cache, "compile_stepper", fail_on_trace)
        assert play(BatchedStepper(policy, 1, 1, 0)) == compiled
    forget_programs()
    damaged = [path for path in folder.iterdir() if "ecl2o-run" in path.name]
    assert len(damaged) == 3
    for path in damaged:
        path.write_bytes(path.read_bytes()[:-1])
    assert play(BatchedStepper(policy, 1, 1, 0)) == compiled
    forget_programs()
    monkeypatch.setattr(executable_cache, "compile_stepper", fail_on_trace)  # the damaged files were made again
    assert play(BatchedStepper(policy, 1, 1, 0)) == compiled


def test_policies_of_one_structure_share_a_program(folder):
    for ratio in (1.6, 2.5):
        BatchedStepper(ec.Policy(ec.Competitive(ec.HittingMinimizer(), ratio=ratio), PROBLEM), 1, 1, 0)
    assert len([path for path in folder.iterdir() if path.name.startswith("ecl2o-run")]) == 3
