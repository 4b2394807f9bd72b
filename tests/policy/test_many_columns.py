"""Many streams of many columns step without waiting for one another: batched LAPACK calls could block XLA's two threads."""

import subprocess
import sys

PROGRAM = """
import jax, numpy as np
jax.config.update("jax_enable_x64", True)
import ecl2o as ec
policy = ec.guard_policy(promise=2.0, columns=[f"c{i}" for i in range(16)])
runner = ec.Runner.many(policy, x0=np.zeros((64, 16)))
rng = np.random.default_rng(0)
for _ in range(20):
    actions = runner.step(rng.normal(size=(64, runner.context_dim)))
assert np.isfinite(actions).all() and (runner.promises_left >= 0).all()
"""


def test_streams_of_sixteen_columns_do_not_block_each_other():
    """In a process of its own, as one that hangs cannot be interrupted; the limit is far beyond its few seconds."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=300)
