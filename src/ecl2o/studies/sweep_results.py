"""What a sweep finds, as the content of results.json."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ecl2o import theory
from ecl2o.data import Contexts
from ecl2o.studies.frontier import source_of
from ecl2o.studies.fronts import Record, over_seeds, summary
from ecl2o.studies.sweep_grid import Grid

FORMAT = 1


def sweep_results(
    records: Sequence[Record], grid: Grid, contexts: Contexts, alpha: float, steps: int
) -> dict[str, Any]:
    """Where the contexts come from, what was tried, the fronts, and what the validation days choose."""
    return {
        "format": FORMAT,
        "study": "sweep",
        "source": source_of(contexts),
        "problem": {"m": 1.0, "alpha": alpha, "beta": alpha},
        "grid": dataclasses.asdict(grid),
        "training_steps": steps,
        **summary(over_seeds(records), grid.networks, float(theory.robd_ratio(1.0, alpha, alpha))),
    }
