"""A study's sweep, its pieces done by whoever is asked."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ecl2o.fleet.cluster import Lost, each_done
from ecl2o.recipes.progress import Progress, silent
from ecl2o.studies.fronts import Record
from ecl2o.studies.sweep import Execute, Piece, SweepData, in_threads
from ecl2o.studies.sweep import sweep as sweep_study
from ecl2o.studies.sweep_grid import Grid

if TYPE_CHECKING:
    from distributed import Client


def sweep(
    study: SweepData, grid: Grid = Grid(), client: "Client | None" = None, progress: Progress = silent
) -> list[Record]:
    """One record for each setting and seed of the grid, the same to the last bit whoever trains them.

    Args:
        study: the days of a study, `SweepData.of(contexts)`.
        grid: what is tried.
        client: of a Dask cluster; None: two threads of this process.
        progress: told how far it is.
    """
    return sweep_study(study, grid, progress, in_threads if client is None else on_cluster(client))


def on_cluster(client: "Client") -> Execute:
    """Let a Dask cluster execute the pieces of a sweep."""

    def execute(pieces: Sequence[Piece], progress: Progress) -> list[Any]:
        found: list[Any] = [None] * len(pieces)
        for done, (place, result) in enumerate(each_done(_run, [(piece,) for piece in pieces], client), start=1):
            if isinstance(result, Lost):
                raise ValueError(f"{pieces[place].name} could not be done by the cluster: {result}")
            found[place] = result
            progress("pieces of the sweep", done, len(pieces))
        return found

    return execute


def _run(piece: Piece) -> Any:
    return piece()
