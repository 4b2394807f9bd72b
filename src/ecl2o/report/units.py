"""What the numbers of a study are called on an axis."""

import dataclasses

import numpy as np
import pandas as pd

from ecl2o.studies.results import Study


@dataclasses.dataclass(frozen=True)
class Units:
    """Labels of contexts and actions, and the factor from the study's own numbers to the labels' unit."""

    context: str
    action: str
    factor: float = 1.0

    @property
    def common(self) -> bool:
        """Whether contexts and actions are the same quantity and share an axis."""
        return self.action == self.context


def units_of(study: Study) -> Units:
    """Power for demand response, requests and racks for right-sizing, plain numbers for anything else."""
    if study.contexts.base_shortage is not None:
        in_watts = 1 / study.contexts.scale
        largest = float(np.max(study.contexts.values)) * in_watts
        unit, watts = ("MW", 1e6) if largest >= 1e6 else ("kW", 1e3)
        label = f"power ({unit})"
        return Units(label, label, in_watts / watts)
    if study.study == "right-sizing":
        return Units("requests (thousands/s)", "racks on, all kinds")
    return Units("value", "value") if study.contexts.dim == 1 else Units("contexts", "actions, total")


def clock(time: pd.DatetimeIndex) -> pd.DatetimeIndex:
    """What the clock on the wall showed; drawn otherwise, times with a zone would be moved to UTC.

    >>> clock(pd.DatetimeIndex(["2015-01-01 00:00-05:00"]))[0]
    Timestamp('2015-01-01 00:00:00')
    """
    return time.tz_localize(None)


def calendar_days(time: pd.DatetimeIndex) -> int:
    """How many days lie between the first and the last of these times.

    >>> calendar_days(pd.date_range("2015-01-01", periods=49, freq="h"))
    2
    """
    return int((time.to_numpy()[-1] - time.to_numpy()[0]) // np.timedelta64(1, "D"))


def totals(values: np.ndarray) -> np.ndarray:
    """(..., T, d) -> (..., T): the sum over coordinates, the value itself where there is one."""
    return np.asarray(values).sum(axis=-1)
