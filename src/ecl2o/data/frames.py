"""pandas objects as series: the index is the time, the columns are what is to be followed."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from ecl2o.data.series import SeriesMetadata, count_steps_per_day
from ecl2o.data.tables import Fault, Table, check_fill, join_names, quote
from ecl2o.data.timeline import regularize
from ecl2o.exceptions import DataError

_NAME = Path("the frame")


def frame_series(
    series: pd.DataFrame | pd.Series, columns: Sequence[str] | None = None, fill: str | None = None
) -> tuple[pd.DataFrame, SeriesMetadata]:
    """A frame of floats on a regular clock, checked and repaired as `read_series` does it with a file.

    Args:
        series: its index holds the times (a `DatetimeIndex`), its columns numbers; columns without a single number are left out.
        columns: which columns to use; all that hold numbers unless given.
        fill: how to repair missing values and gaps: "interpolate" or "previous"; None refuses them.

    >>> hours = pd.date_range("2025-01-01", periods=48, freq="h")
    >>> frame, metadata = frame_series(pd.Series(range(48), hours, name="demand"))
    >>> metadata.columns, metadata.steps_per_day
    (('demand',), 24)
    """
    check_fill(fill)
    frame = (
        series.to_frame("value" if series.name is None else series.name) if isinstance(series, pd.Series) else series
    )
    if not isinstance(frame, pd.DataFrame):
        raise DataError(f"a pandas DataFrame or Series is expected, got {type(series).__name__}.")
    if not isinstance(frame.index, pd.DatetimeIndex):
        raise DataError(
            f"the index of the frame must hold the times (a DatetimeIndex), got {type(frame.index).__name__}; for example "
            "frame.set_index(pd.to_datetime(frame.pop('time')))."
        )
    if frame.empty:
        raise DataError("the frame has no rows of data.")
    time_column = "time" if frame.index.name is None else str(frame.index.name)
    table = Table(_NAME, tuple(map(str, frame.columns)), [], np.arange(1, len(frame) + 1), unit="row")
    numbers = {str(name): _to_floats(frame, name) for name in _select_columns(frame, columns)}
    ignored = [] if columns is not None else [name for name, values in numbers.items() if not np.isfinite(values).any()]
    kept = {name: values for name, values in numbers.items() if name not in ignored}
    if not kept:
        raise DataError(f"no column of the frame holds numbers; it has {join_names(table.columns)}.")
    faults = [
        Fault(int(table.rows[place]), name, f"{quote(str(frame[name].iloc[place]))} is not a finite number")
        for name, values in kept.items()
        for place in np.flatnonzero(~np.isfinite(values))
    ]
    faults += [Fault(int(table.rows[i]), time_column, "there is no time") for i in np.flatnonzero(frame.index.isna())]
    values = pd.DataFrame(kept, index=frame.index)
    whole = regularize(table, time_column, values.where(np.isfinite(values)), faults, fill)
    return whole.frame, SeriesMetadata(
        file=str(_NAME),
        sha256=_digest(whole.frame),
        time_column=time_column,
        time_format="DatetimeIndex",
        columns=tuple(kept),
        ignored_columns=tuple(ignored),
        step_minutes=whole.step.total_seconds() / 60,
        steps_per_day=count_steps_per_day(_NAME, whole.step),
        leap_day_dropped=whole.leap_day_dropped,
        repairs=whole.repairs,
    )


def _select_columns(frame: pd.DataFrame, columns: Sequence[str] | None) -> list:
    """The names of the columns to be read, each once."""
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise DataError(
            f"the column {quote(str(twice))} appears more than once in the frame. Rename or drop one of them."
        )
    if columns is None:
        return list(frame.columns)
    missing = [name for name in columns if name not in frame.columns]
    if missing or not len(columns):
        raise DataError(
            f"columns must name columns of the frame ({join_names(tuple(map(str, frame.columns)))}), got {columns}."
        )
    return list(columns)


def _to_floats(frame: pd.DataFrame, name) -> np.ndarray:
    """A column as floats, NaN where a cell is no number."""
    return np.asarray(pd.to_numeric(frame[name], errors="coerce").astype(float))  # pyright: ignore[reportAttributeAccessIssue]


def _digest(frame: pd.DataFrame) -> str:
    """A hash of times and numbers, in the place of a file's."""
    times = pd.DatetimeIndex(frame.index).asi8.tobytes()
    return hashlib.sha256(times + np.ascontiguousarray(frame.to_numpy(np.float64)).tobytes()).hexdigest()
