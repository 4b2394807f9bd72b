"""What the commands that can run on a cluster share: their options, and who does the work."""

import contextlib
import importlib.util
import multiprocessing
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from ecl2o.cli import output

if TYPE_CHECKING:
    from distributed import Client

Scheduler = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Run on the Dask cluster of this scheduler, as in tcp://10.0.0.5:8786."),
]
Workers = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Run in so many processes of this machine. (default: this one)")
]


def refuse_without_parquet() -> None:
    """Before the work, not after it."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ValueError("the table is a Parquet file, which needs pyarrow: pip install 'ecl2o[parquet]'.")


def set_up(workers: int | None = None) -> None:
    """64 bits, and compiled programs that are kept from run to run.

    Workers of this machine are forked from a process that imports what they need while this one does.
    """
    if workers is not None and "forkserver" in multiprocessing.get_all_start_methods():
        from multiprocessing import forkserver

        forkserver.set_forkserver_preload(["distributed", "ecl2o.fleet"])
        forkserver.ensure_running()
    from ecl2o.cli.numerics import use_double_precision

    use_double_precision()
    from ecl2o.fleet.cluster import keep_programs

    keep_programs()


@contextlib.contextmanager
def client(scheduler: str | None, workers: int | None) -> "Iterator[Client | None]":
    """Who does the work, None for this process; Dask's page is told on standard error."""
    if scheduler is not None and workers is not None:
        raise typer.BadParameter("--scheduler and --workers do not go together.", param_hint="--workers")
    from ecl2o.fleet.cluster import cluster, dashboard

    with cluster(scheduler, workers) as found:
        page = dashboard(found)
        if page is not None:
            output.messages().print(f"Dask's page: {page}", soft_wrap=True)
        yield found
