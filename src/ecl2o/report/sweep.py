"""The folder of a sweep: every setting and seed as a table, its fronts as figures, and results.json."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ecl2o.report.folder import TABLE, write_results
from ecl2o.report.fronts import draw_fronts
from ecl2o.studies.fronts import Record, over_seeds


def write_sweep(records: Sequence[Record], results: dict[str, Any], networks: Sequence[str], folder: Path) -> None:
    """Everything that a sweep leaves behind, into an empty folder."""
    pd.DataFrame.from_records([record.as_row() for record in records]).to_parquet(folder / TABLE, index=False)
    points = over_seeds(records)
    write_results(folder, results, {f"fronts-{network}": draw_fronts(points, network) for network in networks})
