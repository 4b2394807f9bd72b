"""Series from CSV and Parquet files and from pandas: a time column and one or more numeric columns."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ecl2o.data.tables import (
    Fault,
    SourceFile,
    Table,
    check_fill,
    decode_text,
    join_names,
    parse_numbers,
    quote,
    read_source,
    read_table,
    to_floats,
)
from ecl2o.data.timeline import DAY, Repairs, regularize
from ecl2o.data.timestamps import find_time_column, parse_times
from ecl2o.exceptions import DataError


@dataclass(frozen=True)
class SeriesMetadata:
    """Where a series comes from.

    Args:
        file: its name.
        sha256: of its bytes.
        time_column: the column with the time.
        time_format: how that was read.
        columns: those that were read.
        ignored_columns: those that were left out because they hold no numbers.
        step_minutes: between rows.
        steps_per_day: 1 for daily and slower series.
        leap_day_dropped: whether a leap year lacks 29 February.
        repairs: what `fill` did.
        day_start_minutes: when days begin, in minutes past midnight. Default: 0.
        weight_column: the last of the columns, where it is what a miss costs, and not followed. Default: there is none.
    """

    file: str
    sha256: str
    time_column: str
    time_format: str
    columns: tuple[str, ...]
    ignored_columns: tuple[str, ...]
    step_minutes: float
    steps_per_day: int
    leap_day_dropped: bool
    repairs: Repairs
    day_start_minutes: int = 0
    weight_column: str | None = None

    @property
    def followed(self) -> tuple[str, ...]:
        """The columns that actions follow: all but a weight."""
        return self.columns if self.weight_column is None else self.columns[:-1]

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers and strings, for JSON."""
        return asdict(self) | {"columns": list(self.columns), "ignored_columns": list(self.ignored_columns)}


def read_series(
    path: str | Path,
    time_column: str | None = None,
    columns: Sequence[str] | None = None,
    fill: str | None = None,
) -> tuple[pd.DataFrame, SeriesMetadata]:
    """Read a CSV or Parquet file into a frame of floats on a regular clock.

    The time column is found by its name or its cells unless given; `columns` are all that hold numbers unless given.
    Anything wrong is a `DataError` that says where; `fill="interpolate"` or `"previous"` repairs cells that are missing or
    no numbers, gaps, repeated rows (the first is kept) and rows out of order, and counts that in `metadata.repairs`.

    Args:
        path: the file; CSV may be compressed by gzip.
        time_column: the column with the time. Default: found by its name or its cells.
        columns: those to read, in this order. Default: all that hold numbers.
        fill: "interpolate" or "previous". Default: raise an error.

    Returns:
        The frame, and where it comes from.
    """
    check_fill(fill)
    source = read_source(path)
    table = _read_parquet(source) if _is_parquet(source) else read_table(source, decode_text(source))
    _check_header(table)
    time_column = find_time_column(table) if time_column is None else _check_column(table, time_column)
    found, ignored = _read_numeric_columns(table, time_column, columns)
    parsed, cells = parse_times(table, time_column), table.column(time_column)
    faults = [
        Fault(int(table.rows[i]), time_column, f"{quote(str(cells[i]))} {parsed.fault(str(cells[i]))}")
        for i in np.flatnonzero(parsed.times.isna())
    ]
    faults += [fault for _, wrong in found.values() for fault in wrong]
    frame = pd.DataFrame({name: values for name, (values, _) in found.items()}, index=parsed.times)
    whole = regularize(table, time_column, frame, faults, fill)
    return whole.frame, SeriesMetadata(
        file=source.path.name,
        sha256=source.sha256,
        time_column=time_column,
        time_format=parsed.how,
        columns=tuple(found),
        ignored_columns=tuple(ignored),
        step_minutes=whole.step.total_seconds() / 60,
        steps_per_day=count_steps_per_day(source.path, whole.step),
        leap_day_dropped=whole.leap_day_dropped,
        repairs=whole.repairs,
    )


def add_weight_column(columns: Sequence[str] | None, weight_column: str | None) -> list[str] | None:
    """The columns by name, the weight among them; None for all.

    >>> add_weight_column(["demand"], "price")
    ['demand', 'price']
    """
    if not columns:
        return None
    return [*columns] if weight_column is None or weight_column in columns else [*columns, weight_column]


def move_weight_last(
    frame: pd.DataFrame, metadata: SeriesMetadata, weight_column: str | None
) -> tuple[pd.DataFrame, SeriesMetadata]:
    """A series whose last column is what a miss costs; as it is where no column is named."""
    if weight_column is None:
        return frame, metadata
    if weight_column not in metadata.columns:
        raise DataError(
            f"{metadata.file}: the weight column {quote(weight_column)} is not among its columns of numbers, "
            f"{join_names(metadata.columns)}."
        )
    followed = [name for name in metadata.columns if name != weight_column]
    if not followed:
        raise DataError(f"{metadata.file}: besides the weight {quote(weight_column)} a column is needed to follow.")
    columns = (*followed, weight_column)
    return frame.reindex(columns=list(columns)), replace(metadata, columns=columns, weight_column=weight_column)


def _is_parquet(source: SourceFile) -> bool:
    return source.content[:4] == b"PAR1" or source.path.suffix.lower() in (".parquet", ".pq")


def _read_parquet(source: SourceFile) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DataError(
            f"{source.path} is a Parquet file, and reading those needs pyarrow: pip install 'ecl2o[parquet]', or save it as CSV."
        ) from None
    try:
        frame = pyarrow.parquet.read_table(pyarrow.BufferReader(source.content)).to_pandas()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{source.path} is not a readable Parquet file: {error}. Write it again, or as CSV.") from error
    if not isinstance(frame.index, pd.RangeIndex):
        frame = frame.reset_index()
    if frame.empty:
        raise DataError(f"{source.path} has no rows of data.")
    text = [_to_text(frame[name]) for name in frame.columns]
    return Table(source.path, tuple(map(str, frame.columns)), text, np.arange(1, len(frame) + 1), unit="row")


def _to_text(column: pd.Series) -> list[str]:
    return ["" if missing else str(cell) for cell, missing in zip(column.tolist(), column.isna(), strict=True)]


def _check_header(table: Table) -> None:
    if table.unit == "line" and np.isfinite(to_floats(pd.Series(table.columns))).all():
        raise DataError(
            f"{table.path}, line 1: {', '.join(table.columns)[:60]} are numbers, but the first line must name the columns. "
            "Add a line such as 'time,demand' on top."
        )


def _check_column(table: Table, name: str) -> str:
    if name not in table.columns:
        raise DataError(f"{table.path}: the column {quote(name)} is missing; the file has {join_names(table.columns)}.")
    return name


def _read_numeric_columns(
    table: Table, time_column: str, columns: Sequence[str] | None
) -> tuple[dict[str, tuple[np.ndarray, list[Fault]]], list[str]]:
    """Return the columns to use with their numbers, and the names of those without a single number."""
    if columns is not None:
        wanted = [_check_column(table, name) for name in columns]
        if not wanted or time_column in wanted:
            raise DataError(
                f"{table.path}: columns must name one or more columns other than the time, got {list(columns)}."
            )
        return {name: parse_numbers(table, name) for name in wanted}, []
    found = {name: parse_numbers(table, name) for name in dict.fromkeys(table.columns) if name and name != time_column}
    ignored = [
        name
        for name, (values, _) in found.items()
        if not (np.isfinite(values).any() or _has_large_numbers(table, name))
    ]
    if len(ignored) == len(found):
        raise DataError(
            f"{table.path}: no column holds numbers besides the time column {quote(time_column)}; "
            f"the file has {join_names(table.columns)}."
        )
    return {name: each for name, each in found.items() if name not in ignored}, ignored


def _has_large_numbers(table: Table, name: str) -> bool:
    """Return whether a column without a usable number has numbers that are too large."""
    return bool(np.isfinite(to_floats(table.column(name))).any())


def count_steps_per_day(path: Path, step: pd.Timedelta) -> int:
    """How many steps make a day, 1 where they are as long; refuses those that do not divide it."""
    if step >= DAY:
        return 1
    steps = DAY / step
    if steps != int(steps):
        raise DataError(f"{path}: one row every {step} does not divide a day. Resample the series.")
    return int(steps)


_FRAME = Path("the frame")


def frame_series(
    series: pd.DataFrame | pd.Series, columns: Sequence[str] | None = None, fill: str | None = None
) -> tuple[pd.DataFrame, SeriesMetadata]:
    """Return a frame of floats on a regular clock, checked and repaired as `read_series` does for a file.

    Args:
        series: its index holds the times (a `DatetimeIndex`), its columns numbers; columns without a single number are left out.
        columns: which columns to use; all that hold numbers unless given.
        fill: how to repair missing values and gaps, "interpolate" or "previous". Default: raise an error.

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
    table = Table(_FRAME, tuple(map(str, frame.columns)), [], np.arange(1, len(frame) + 1), unit="row")
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
        file=str(_FRAME),
        sha256=_digest(whole.frame),
        time_column=time_column,
        time_format="DatetimeIndex",
        columns=tuple(kept),
        ignored_columns=tuple(ignored),
        step_minutes=whole.step.total_seconds() / 60,
        steps_per_day=count_steps_per_day(_FRAME, whole.step),
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
    """Return a hash of times and numbers."""
    times = pd.DatetimeIndex(frame.index).asi8.tobytes()
    return hashlib.sha256(times + np.ascontiguousarray(frame.to_numpy(np.float64)).tobytes()).hexdigest()
