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
    check_column_count,
    decode_text,
    join_names,
    parse_numbers,
    read_source,
    read_table,
    remove_missing_codes,
    to_floats,
)
from ecl2o.data.timeline import DAY, RegularSeries, Repairs, regularize
from ecl2o.data.timestamps import find_time_column, has_date_as_name, parse_times
from ecl2o.exceptions import DataError
from ecl2o.json_text import shorten

PARQUET_SUFFIXES = (".parquet", ".pq")
MAX_FOLLOWED = 256  # columns of a series
SUFFIXES = (".csv", ".csv.gz", *PARQUET_SUFFIXES)


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
        weight_column: the last of the columns if it is the weight of a miss, which actions do not follow. Default: none.
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

    `fill="interpolate"` (on a straight line) or `"previous"` (the value before) repairs cells that are missing or no numbers,
    gaps, repeated rows (the first is kept) and rows out of order, and counts them in `metadata.repairs`.

    Args:
        path: the file; CSV may be compressed by gzip.
        time_column: the column with the time. Default: found by its name or its cells.
        columns: those to read, in this order. Default: all that hold numbers.
        fill: "interpolate" or "previous". Default: raise an error.

    Returns:
        The frame, and where it comes from.

    Raises:
        DataError: The file cannot be used; the message names the row and the column.
    """
    source = read_source(path)
    if source.content[:4] == b"PAR1" or source.path.name.lower().endswith(PARQUET_SUFFIXES):
        table = _read_parquet(source)
    else:
        table = read_table(source, decode_text(source))
        if np.isfinite(to_floats(pd.Series(table.columns))).all() or has_date_as_name(table):
            raise DataError(
                f"{table.path}, line 1 must name the columns, but it has data: {join_names(table.columns, 3)}. Add a line of "
                "names on top, such as 'time,demand', so that this row is not lost."
            )
    time_column = find_time_column(table) if time_column is None else _check_column(table, time_column)
    found, ignored = _read_numeric_columns(table, time_column, columns)
    _check_followed(table, list(found))
    parsed, cells = parse_times(table, time_column), table.column(time_column)
    faults = [
        table.fault(i, time_column, f"{shorten(str(cells[i]))} {parsed.fault(str(cells[i]))}")
        for i in np.flatnonzero(parsed.times.isna())
    ]
    faults += [fault for _, wrong in found.values() for fault in wrong]
    frame = pd.DataFrame({name: values for name, (values, _) in found.items()}, index=parsed.times)
    whole = regularize(table, time_column, frame, faults, fill)
    return whole.frame, _describe_series(whole, source.path, source.sha256, time_column, parsed.how, ignored)


def _describe_series(
    whole: RegularSeries, path: Path, sha256: str, time_column: str, time_format: str, ignored: list[str]
) -> SeriesMetadata:
    steps_per_day = DAY / whole.step
    if steps_per_day > 1 and steps_per_day != int(steps_per_day):
        raise DataError(f"{path}: one row every {whole.step} does not divide a day. Resample the series.")
    return SeriesMetadata(
        file=path.name,
        sha256=sha256,
        time_column=time_column,
        time_format=time_format,
        columns=tuple(whole.frame.columns),
        ignored_columns=tuple(ignored),
        step_minutes=whole.step.total_seconds() / 60,
        steps_per_day=max(1, int(steps_per_day)),
        leap_day_dropped=whole.leap_day_dropped,
        repairs=whole.repairs,
    )


def add_weight_column(columns: Sequence[str] | None, weight_column: str | None) -> list[str] | None:
    """Return the columns to read, the weight among them; None for all.

    >>> add_weight_column(["demand"], "price")
    ['demand', 'price']
    """
    if not columns:
        return None
    return [*columns] if weight_column is None or weight_column in columns else [*columns, weight_column]


def move_weight_last(
    frame: pd.DataFrame, metadata: SeriesMetadata, weight_column: str | None
) -> tuple[pd.DataFrame, SeriesMetadata]:
    """Return a series whose last column is the weight of a miss; unchanged if no column is named."""
    if weight_column is None:
        return frame, metadata
    if weight_column not in metadata.columns:
        raise DataError(
            f"{metadata.file}: the weight column {shorten(weight_column)} is not among its columns of numbers, "
            f"{join_names(metadata.columns)}."
        )
    followed = [name for name in metadata.columns if name != weight_column]
    if not followed:
        raise DataError(f"{metadata.file}: besides the weight {shorten(weight_column)} a column is needed to follow.")
    columns = (*followed, weight_column)
    return frame.reindex(columns=list(columns)), replace(metadata, columns=columns, weight_column=weight_column)


def _read_parquet(source: SourceFile) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DataError(
            f"{source.path} is a Parquet file, which needs pyarrow: pip install 'ecl2o[parquet]', or save it as CSV."
        ) from None
    try:
        content = pyarrow.BufferReader(source.content)
        check_column_count(source.path, len(pyarrow.parquet.read_schema(content)))
        frame = pyarrow.parquet.read_table(content).to_pandas()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{source.path} is not a readable Parquet file: {error}. Write it again, or as CSV.") from error
    if not isinstance(frame.index, pd.RangeIndex):
        frame = frame.reset_index()
    if frame.empty:
        raise DataError(f"{source.path} has no rows of data.")

    def to_text(column: pd.Series) -> list[str]:
        return ["" if missing else str(cell) for cell, missing in zip(column.tolist(), column.isna(), strict=True)]

    text = [to_text(frame[name]) for name in frame.columns]
    return Table(source.path, tuple(map(str, frame.columns)), text, np.arange(1, len(frame) + 1), unit="row")


def _check_column(table: Table, name: str) -> str:
    if name not in table.columns:
        raise DataError(
            f"{table.path}: the column {shorten(name)} is missing; the file has {join_names(table.columns)}."
        )
    return name


def _read_numeric_columns(
    table: Table, time_column: str, columns: Sequence[str] | None
) -> tuple[dict[str, tuple[np.ndarray, list[Fault]]], list[str]]:
    """Return the columns to use with their numbers, and the names of those without a single number."""
    if columns is not None:
        wanted = [_check_column(table, name) for name in columns]
        if not wanted or time_column in wanted:
            raise DataError(f"{table.path}: columns must name columns besides the time, got {list(columns)}.")
        return {name: parse_numbers(table, name) for name in wanted}, []
    found = {name: parse_numbers(table, name) for name in dict.fromkeys(table.columns) if name and name != time_column}
    empty = [name for name, (values, _) in found.items() if not np.isfinite(values).any()]
    ignored = [name for name in empty if not np.isfinite(to_floats(table.column(name))).any()]  # some are too large
    if len(ignored) == len(found):
        raise DataError(
            f"{table.path}: no column holds numbers besides the time column {shorten(time_column)}; "
            f"the file has {join_names(table.columns)}."
        )
    return {name: each for name, each in found.items() if name not in ignored}, ignored


def _check_followed(table: Table, names: list[str]) -> None:
    if len(names) > MAX_FOLLOWED:
        raise DataError(
            f"{table.path} has {len(names):,} columns of numbers, {join_names(names, 3)}; at most {MAX_FOLLOWED} can be used "
            "together, because the work grows with the cube of their number. Name those that you need with `column`, or make one "
            "series of each."
        )


_FRAME = Path("the frame")


def frame_series(
    series: pd.DataFrame | pd.Series, columns: Sequence[str] | None = None, fill: str | None = None
) -> tuple[pd.DataFrame, SeriesMetadata]:
    """Return a frame of floats on a regular clock, checked and repaired as `read_series` does for a file.

    Args:
        series: its index holds the times (a `DatetimeIndex`), its columns numbers.
        columns: which columns to use. Default: all that hold numbers.
        fill: how to repair missing values and gaps, "interpolate" or "previous". Default: raise an error.

    >>> hours = pd.date_range("2025-01-01", periods=48, freq="h")
    >>> frame, metadata = frame_series(pd.Series(range(48), hours, name="demand"))
    >>> metadata.columns, metadata.steps_per_day
    (('demand',), 24)
    """
    frame = series
    if isinstance(series, pd.Series):
        frame = series.to_frame("value" if series.name is None else series.name)
    if not isinstance(frame, pd.DataFrame):
        raise DataError(f"a pandas DataFrame or Series is expected, got {type(series).__name__}.")
    if not isinstance(frame.index, pd.DatetimeIndex):
        raise DataError(
            f"the index of the frame must hold the times (a DatetimeIndex), got {type(frame.index).__name__}; for example "
            "frame.set_index(pd.to_datetime(frame.pop('time')))."
        )
    if frame.empty:
        raise DataError("the frame has no rows of data.")
    names = tuple(map(str, frame.columns))
    if not frame.columns.is_unique:
        twice = str(frame.columns[frame.columns.duplicated()][0])
        raise DataError(f"the column {shorten(twice)} appears more than once in the frame. Rename or drop one of them.")
    wanted = names if columns is None else tuple(map(str, columns))
    if not wanted or not set(wanted) <= set(names):
        raise DataError(f"columns must name columns of the frame ({join_names(names)}), got {columns}.")
    frame = frame.set_axis(list(names), axis="columns")
    time_column = "time" if frame.index.name is None else str(frame.index.name)
    table = Table(_FRAME, names, [], np.arange(1, len(frame) + 1), unit="row")
    numbers = {name: to_floats(pd.Series(frame[name])) for name in wanted}
    ignored = [name for name, each in numbers.items() if columns is None and not np.isfinite(each).any()]
    used = {name: each for name, each in numbers.items() if name not in ignored}
    if not used:
        raise DataError(f"no column of the frame holds numbers; it has {join_names(names)}.")
    faults = [
        table.fault(i, name, f"{shorten(str(frame[name].iloc[i]))} is not a finite number")
        for name, each in used.items()
        for i in np.flatnonzero(~np.isfinite(each))
    ]
    faults += [fault for name, each in used.items() for fault in remove_missing_codes(table, name, each)]
    faults += [table.fault(i, time_column, "there is no time") for i in np.flatnonzero(frame.index.isna())]
    _check_followed(table, list(used))
    values = pd.DataFrame(used, index=frame.index)
    whole = regularize(table, time_column, values.where(np.isfinite(values)), faults, fill)
    times = pd.DatetimeIndex(whole.frame.index).asi8.tobytes()
    digest = hashlib.sha256(times + np.ascontiguousarray(whole.frame.to_numpy(np.float64)).tobytes()).hexdigest()
    return whole.frame, _describe_series(whole, _FRAME, digest, time_column, "DatetimeIndex", ignored)
