"""Run work on this process, on a cluster of this machine's cores, or on an existing Dask cluster.

Sites of one shape are divided into chunks that fit into memory. The last chunk is filled up, so that all run the same program.
"""

import contextlib
import dataclasses
import importlib
import itertools
import logging
import multiprocessing
import os
import pickle
import socket
import urllib.parse
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import jax

from ecl2o.exceptions import ChunkFailedError
from ecl2o.fleet.sites import SiteResult
from ecl2o.policy.executable_cache import use_cache_folder

if TYPE_CHECKING:
    from distributed import Client, Future

MOST_SITES = 32  # in a chunk: more gain little, and a lost worker's chunk is repeated
DEFAULT_MEMORY = 4 * 2**30
PROCESS_BYTES = 900 * 2**20  # of a process that has compiled the programs of a fit, measured (docs/scale.md)
ANSWER_SECONDS = 3.0  # allowed to a scheduler for each of connecting, greeting and accepting
_AHEAD = 2  # chunks per thread that are submitted at once, so that workers always have one waiting

Item = TypeVar("Item")


@dataclasses.dataclass(frozen=True)
class Chunk(Generic[Item]):
    """Sites that run as one program. Only the first `count` are wanted; the others repeat the last one."""

    items: tuple[Item, ...]
    count: int

    @property
    def wanted(self) -> tuple[Item, ...]:
        """The sites without the filling."""
        return self.items[: self.count]


def make_chunks(
    items: Sequence[Item],
    shape: Callable[[Item], Hashable],
    item_bytes: Callable[[Item], int],
    memory: int = DEFAULT_MEMORY,
) -> list[Chunk[Item]]:
    """Divide items into chunks of one shape, of nearly equal size, each of which needs at most `memory` bytes.

    >>> [chunk.items for chunk in make_chunks([1, 2, 3, 40, 5], lambda n: n > 9, lambda n: 1, PROCESS_BYTES + 2)]
    [(1, 2), (3, 5), (40,)]
    """
    groups: dict[Any, list[Item]] = {}
    for item in items:
        groups.setdefault(shape(item), []).append(item)
    chunks = []
    for group in groups.values():
        most = min(MOST_SITES, (memory - PROCESS_BYTES) // item_bytes(group[0]))
        if most < 1:
            needed = (PROCESS_BYTES + item_bytes(group[0])) / 2**20
            raise ValueError(f"one site needs about {needed:.0f} MB; `memory` allows {memory / 2**20:.0f} MB.")
        size = -(-len(group) // -(-len(group) // most))
        for start in range(0, len(group), size):
            part = group[start : start + size]
            chunks.append(Chunk((*part, *[part[-1]] * (size - len(part))), len(part)))
    return chunks


def run_chunks(
    together: Callable[[Sequence[Any]], list[SiteResult]], chunks: Sequence[Chunk[Any]], client: "Client | None" = None
) -> Iterator[tuple[Chunk[Any], list[SiteResult]]]:
    """Yield each chunk with the results of its sites, as they finish; `together` runs sites as one program."""
    for place, found in run_pieces(run_chunk, [(together, chunk) for chunk in chunks], client):
        chunk = chunks[place]
        if isinstance(found, ChunkFailedError):
            error = ChunkFailedError(f"the cluster failed: {found}")
            found = [SiteResult.failed(site.name, error) for site in chunk.wanted]
        yield chunk, found


def run_chunk(together: Callable[[Sequence[Any]], list[SiteResult]], chunk: Chunk[Any]) -> list[SiteResult]:
    """Run the sites of a chunk as one program; if that fails, one by one, to find the failing site."""
    with jax.enable_x64(True):
        try:
            return together(chunk.items)[: chunk.count]
        except Exception as error:
            if len(chunk.items) == 1:
                return [SiteResult.failed(chunk.items[0].name, error)]
            return [run_chunk(together, Chunk((site,), 1))[0] for site in chunk.wanted]


@contextlib.contextmanager
def cluster(scheduler: str | None = None, workers: int | None = None) -> "Iterator[Client | None]":
    """Connect to the scheduler at an address, or start so many processes; yield the client, None if neither is given.

    A scheduler that does not answer is an error within ten seconds. A new cluster listens on this machine only.
    """
    if scheduler is None and workers is None:
        yield None
        return
    if scheduler is not None:
        _check_scheduler_answers(scheduler)
    try:
        import dask.config
        from distributed import Client, LocalCluster, fire_and_forget
    except ModuleNotFoundError as error:
        raise ValueError(f"a cluster needs {error.name}; install it with: pip install 'ecl2o[fleet]'") from None
    if scheduler is not None:
        try:
            client = Client(scheduler, timeout=ANSWER_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise _no_answer(scheduler, error) from None
        with client:
            yield client
        return
    local: dict[str, Any] = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    # XLA starts NPROC threads; a worker computes in one. Dask does not see XLA's memory, so its limit is off: chunks limit it.
    local |= {"silence_logs": logging.ERROR, "threads_per_worker": 1, "processes": True, "memory_limit": 0}
    local["env"] = os.environ | {"NPROC": "1"}
    # Dask's profiler takes a sixth of a worker's time while JAX traces, and its event loops check their delay 50 times a second.
    settings: dict[str, Any] = {"distributed.worker.profile.enabled": False, "distributed.admin.tick.interval": "1s"}
    if "forkserver" in multiprocessing.get_all_start_methods():
        settings |= {"distributed.worker.multiprocessing-method": "forkserver"}
    with (
        dask.config.set(settings),
        LocalCluster(n_workers=workers, **local) as processes,
        Client(processes, set_as_default=False) as client,
    ):
        for worker in client.scheduler_info()["workers"]:  # they import the package while the driver still reads
            fire_and_forget(client.submit(importlib.import_module, "ecl2o.fleet", workers=[worker], pure=False))
        yield client


def _check_scheduler_answers(scheduler: str) -> None:
    """Raise if nothing listens at the address or greets a connection; Dask would retry, or wait forever.

    Schedulers greet on TCP; behind TLS only the connection is checked.
    """
    try:
        parts = urllib.parse.urlsplit(scheduler if "://" in scheduler else f"tcp://{scheduler}")
        if parts.scheme in ("tcp", "tls"):
            address = (str(parts.hostname), parts.port or 8786)
            with socket.create_connection(address, timeout=ANSWER_SECONDS) as connection:
                if parts.scheme == "tcp" and not connection.recv(1):
                    raise ConnectionError("connection closed")
    except (OSError, ValueError) as error:
        raise _no_answer(scheduler, error) from None


def _no_answer(scheduler: str, error: Exception) -> ValueError:
    reason = getattr(error, "strerror", None) or type(error).__name__
    return ValueError(
        f"no Dask scheduler answers at {scheduler} ({reason}). Start one with 'dask scheduler', or leave `scheduler` out."
    )


def dashboard(client: "Client | None") -> str | None:
    """Return the address of Dask's dashboard, if there is one."""
    if client is None or not client.scheduler_info().get("services", {}).get("dashboard"):
        return None
    return client.dashboard_link


def threads(client: "Client | None") -> int:
    """Return how many chunks run at once."""
    if client is None:
        return 1
    counted: Any = client.nthreads()
    return max(sum(counted.values()), 1)


def run_pieces(
    work: Callable[..., Any], pieces: Sequence[tuple[Any, ...]], client: "Client | None" = None
) -> Iterator[tuple[int, Any]]:
    """Yield the number of each piece and `work(*piece)`, as they finish.

    Pieces of a lost worker run again on another. A piece that raises, or has ended four workers, yields a `ChunkFailedError`.
    """
    if client is None:
        for place, piece in enumerate(pieces):
            yield place, work(*piece)
        return
    from distributed import as_completed

    waiting = iter(enumerate(pieces))
    places: dict[Any, int] = {}
    running = as_completed(loop=client.loop)

    def submit(count: int) -> None:
        for place, piece in itertools.islice(waiting, count):
            future = submit_to_cluster(work, piece, client)
            places[future.key] = place
            running.add(future)

    submit(_AHEAD * threads(client))
    for future in running:
        submit(1)
        error, place = future.exception(), places.pop(future.key)
        if error is None:
            yield place, _unpickle(future.result())
        else:
            yield place, ChunkFailedError(f"{type(error).__name__}: {error}")


def submit_to_cluster(
    work: Callable[..., Any], piece: tuple[Any, ...], client: "Client", worker: str | None = None
) -> "Future":
    """Submit `work(*piece)`, to this worker if it is named and alive; dropping the future cancels it."""
    # As bytes, because Dask would unpickle arrays in the precision of the worker.
    payload = pickle.dumps((jax.config.jax_enable_x64, work, piece))  # pyright: ignore[reportAttributeAccessIssue]
    return client.submit(_run_at_worker, payload, pure=False, workers=worker, allow_other_workers=worker is not None)


def _unpickle(data: bytes) -> Any:
    with jax.enable_x64(True):  # arrays of 32 bits stay so
        return pickle.loads(data)


def _run_at_worker(payload: bytes) -> bytes:
    """Run in the driver's precision, with the cache of compiled programs that the workers share."""
    use_cache_folder()
    double, work, piece = _unpickle(payload)
    with jax.enable_x64(double):
        return pickle.dumps(work(*piece))
