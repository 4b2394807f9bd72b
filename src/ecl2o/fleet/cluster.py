"""Sites of one shape, cut into chunks that fit into memory; the last one is filled up, so that all run one program.

Who does the work: this process, a cluster of this machine's cores, or a Dask cluster that is there already.
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
from ecl2o.policy.executable_cache import use_cache_folder

if TYPE_CHECKING:
    from distributed import Client, Future


MOST_SITES = 32  # in a chunk: more gain little, and a chunk is what a lost worker must do again
DEFAULT_MEMORY = 4 * 2**30
PROCESS_BYTES = (
    900 * 2**20
)  # of a process that has imported JAX and compiled what a fit needs, measured (docs/scale.md)

Item = TypeVar("Item")


@dataclasses.dataclass(frozen=True)
class Chunk(Generic[Item]):
    """Sites that run as one program, the first `count` of them wanted: the others are the last one again."""

    items: tuple[Item, ...]
    count: int

    @property
    def wanted(self) -> tuple[Item, ...]:
        """Those that are no filling."""
        return self.items[: self.count]


def make_chunks(
    items: Sequence[Item],
    shape: Callable[[Item], Hashable],
    item_bytes: Callable[[Item], int],
    memory: int = DEFAULT_MEMORY,
) -> list[Chunk[Item]]:
    """Chunks of items of one shape, of nearly the same size, such that one of them stays within `memory` bytes.

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
            raise ValueError(
                f"one site alone needs about {needed:.0f} MB; allow more memory than {memory / 2**20:.0f} MB."
            )
        count = -(-len(group) // most)
        size = -(-len(group) // count)
        for start in range(0, len(group), size):
            part = group[start : start + size]
            chunks.append(Chunk((*part, *[part[-1]] * (size - len(part))), len(part)))
    return chunks


ANSWER_SECONDS = 3.0  # to connect, to greet, and to let us in
_AHEAD = (
    2  # chunks per thread of the cluster that are handed out: nobody waits, and the scheduler does not hold everything
)


@contextlib.contextmanager
def cluster(scheduler: str | None = None, workers: int | None = None) -> "Iterator[Client | None]":
    """A client of the scheduler at an address, or of a new cluster of so many processes here; None where neither is given.

    A scheduler that does not answer is refused within ten seconds. The new cluster listens on this machine only.
    """
    if scheduler is None and workers is None:
        yield None
        return
    if scheduler is not None:
        _refuse_silence(scheduler)
    try:
        import dask.config
        from distributed import Client, LocalCluster
    except ModuleNotFoundError as error:
        raise ValueError(f"a cluster needs {error.name}; install it with: pip install 'ecl2o[fleet]'") from None
    if scheduler is not None:
        try:
            client = Client(scheduler, timeout=ANSWER_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise _nobody(scheduler, error) from None
        with client:
            yield client
        return
    here = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "silence_logs": logging.ERROR}
    # A worker computes in one thread: NPROC is what XLA makes as many threads as.
    one = {"threads_per_worker": 1, "processes": True, "env": os.environ | {"NPROC": "1"}}
    # Dask's profiler looks at a worker a hundred times a second, which takes a sixth of its time while JAX traces; and the event
    # loop of every process looks fifty times a second whether it is on time.
    settings: dict[str, Any] = {"distributed.worker.profile.enabled": False, "distributed.admin.tick.interval": "1s"}
    if "forkserver" in multiprocessing.get_all_start_methods():
        settings |= {"distributed.worker.multiprocessing-method": "forkserver"}
    # Dask does not see what XLA allocates, and would end workers by a limit that is not theirs: `memory` is kept by the chunks.
    with (
        dask.config.set(settings),
        LocalCluster(n_workers=workers, memory_limit=0, **one, **here) as local,
        Client(local, set_as_default=False) as client,
    ):
        _import_at_workers(client)
        yield client


def _import_at_workers(client: "Client") -> None:
    """Let every worker import what it will need while the driver still reads."""
    from distributed import fire_and_forget

    for worker in client.scheduler_info()["workers"]:
        fire_and_forget(client.submit(importlib.import_module, "ecl2o.fleet", workers=[worker], pure=False))


def _refuse_silence(scheduler: str) -> None:
    """Refuse an address at which nobody listens, or says nothing: Dask would try again and again, or wait for ever.

    Schedulers greet who connects; behind TLS nobody does.
    """
    try:
        parts = urllib.parse.urlsplit(scheduler if "://" in scheduler else f"tcp://{scheduler}")
        if parts.scheme in ("tcp", "tls"):
            place = (str(parts.hostname), parts.port or 8786)
            with socket.create_connection(place, timeout=ANSWER_SECONDS) as connection:
                if parts.scheme == "tcp" and not connection.recv(1):
                    raise ConnectionError("it hangs up")
    except (OSError, ValueError) as error:
        raise _nobody(scheduler, error) from None


def _nobody(scheduler: str, error: Exception) -> ValueError:
    told = getattr(error, "strerror", None) or type(error).__name__
    return ValueError(
        f"no Dask scheduler answers at {scheduler} ({told}). Start one with 'dask scheduler', or leave --scheduler out."
    )


def dashboard(client: "Client | None") -> str | None:
    """The address of Dask's page, if there is one."""
    if client is None or not client.scheduler_info().get("services", {}).get("dashboard"):
        return None
    return client.dashboard_link


def threads(client: "Client | None") -> int:
    """How many chunks are done at once."""
    if client is None:
        return 1
    counted: Any = client.nthreads()
    return max(sum(counted.values()), 1)


def run_pieces(
    work: Callable[..., Any], pieces: Sequence[tuple[Any, ...]], client: "Client | None" = None
) -> Iterator[tuple[int, Any]]:
    """`work(*piece)` for every piece: its place and what came of it, as they are done.

    A piece whose worker is lost is done again by another; one that fails, or has ended four workers, gives a `ChunkFailedError`.
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
        error = future.exception()
        found = ChunkFailedError(f"{type(error).__name__}: {error}") if error is not None else None
        yield places.pop(future.key), _unpacked(future.result()) if found is None else found


def submit_to_cluster(
    work: Callable[..., Any], piece: tuple[Any, ...], client: "Client", worker: str | None = None
) -> "Future":
    """`work(*piece)`, handed to the cluster; it is done as long as somebody holds what this returns.

    By this worker, if one is named and not lost.
    """
    # As bytes: Dask would unpack arrays in the worker's precision, which need not be ours.
    payload = pickle.dumps((jax.config.jax_enable_x64, work, piece))  # pyright: ignore[reportAttributeAccessIssue]
    return client.submit(_at_worker, payload, pure=False, workers=worker, allow_other_workers=worker is not None)


def _unpacked(result: bytes) -> Any:
    with jax.enable_x64(True):  # what is in 32 bits stays so
        return pickle.loads(result)


def _at_worker(payload: bytes) -> bytes:
    """In the worker: the driver's precision, and compiled programs shared with the other workers of the machine."""
    use_cache_folder()
    double, work, piece = _loaded(payload)
    with jax.enable_x64(double):
        return pickle.dumps(work(*piece))


def _loaded(payload: bytes) -> tuple[bool, Callable[..., Any], tuple[Any, ...]]:
    with jax.enable_x64(True):
        return pickle.loads(payload)
