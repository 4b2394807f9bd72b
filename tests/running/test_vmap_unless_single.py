"""A map over sites or runs that leaves out an axis of one gives what `jax.vmap` gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ecl2o.running.rollout import vmap_unless_single


def _paths(start, steps):
    last, path = jax.lax.scan(lambda x, step: (0.5 * x + step, x), start["x"], steps)
    return {"path": path, "last": last}


@pytest.mark.parametrize("sites", [1, 3])
@pytest.mark.parametrize("axes", [(0, 0), (0, None)])
def test_an_axis_of_one_is_left_out_and_nothing_else_changes(sites, axes):
    rng = np.random.default_rng(0)
    start = {"x": jnp.asarray(rng.normal(size=(sites, 2)))}
    steps = jnp.asarray(rng.normal(size=(5, 2) if axes[1] is None else (sites, 5, 2)))
    found, wanted = vmap_unless_single(_paths, axes)(start, steps), jax.vmap(_paths, axes)(start, steps)
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-15)
        assert found[name].shape == wanted[name].shape
    batched = "5,3,2" in str(jax.make_jaxpr(vmap_unless_single(_paths, axes))(start, steps)).replace(" ", "")
    assert batched == (sites == 3)
