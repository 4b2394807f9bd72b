"""Who does the work: a scheduler that is not there, a sweep on a cluster."""

import socket
import time

import dask
import jax
import numpy as np
import pandas as pd
import pytest

from ecl2o.data import Contexts, Split
from ecl2o.fleet.cluster import cluster, dashboard, run_pieces
from ecl2o.paper.sweep import SweepData, run_sweep
from ecl2o.paper.sweep_grid import Grid


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "127.0.0.1:9", "nowhere.invalid:8786", "tcp://:x"])
def test_a_scheduler_that_is_not_there_is_an_error_within_ten_seconds(address):
    started = time.monotonic()
    with pytest.raises(ValueError, match=f"no Dask scheduler answers at {address}"), cluster(address):
        pass
    assert time.monotonic() - started < 10


def test_what_listens_but_is_no_scheduler_is_refused(monkeypatch):
    """A port that takes connections and says nothing."""
    monkeypatch.setattr("ecl2o.fleet.cluster.ANSWER_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ValueError, match="no Dask scheduler answers"), cluster(address):
            pass


def test_no_cluster_is_this_process():
    with cluster() as client:
        assert client is None
        assert dashboard(client) is None


def test_the_page_of_the_cluster_is_on_this_machine_only(client):
    page = dashboard(client)
    assert page is not None
    assert page.startswith("http://127.0.0.1:")


def test_nobody_watches_the_workers(client):
    watched = client.run(dask.config.get, "distributed.worker.profile.enabled")
    assert list(watched.values()) == [False, False]


def test_workers_compute_in_the_precision_of_the_driver(client):
    (found,) = run_pieces(jax.numpy.zeros, [((),)], client)
    assert found[1].dtype == np.float64
    with jax.enable_x64(False):
        (found,) = run_pieces(jax.numpy.zeros, [((),)], client)
    assert found[1].dtype == np.float32


def test_a_sweep_on_a_cluster_gives_the_same_bits(client):
    rng = np.random.default_rng(0)
    values = np.maximum(0.4 + 0.3 * np.sin(np.arange(4 * 20)[:, None] * np.pi / 2) + 0.1 * rng.normal(size=(80, 1)), 0)
    time_of = pd.date_range("2015-01-01", periods=80, freq="6h")
    data = SweepData.of(Contexts(values, time_of, steps_per_day=4, split=Split(10, 5)), steps=2)
    grid = Grid(
        ("mlp",),
        trusts=(0.3,),
        mus=(0.0,),
        kappas=(0.0,),
        two_stage_trusts=(0.3,),
        gammas=(1.5,),
        ratios=(3.0,),
        periods=(1,),
    )
    assert run_sweep(data, grid) == run_sweep(data, grid, client)
