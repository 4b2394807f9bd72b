"""Series from CSV and Parquet files and from pandas: a time column and one or more numeric columns."""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ecl2o.data.tables import (
    SourceFile,
    Table,
    check_column_count,
    decode_text,
    find_header,
    join_names,
    parse_numbers,
    read_source,
    read_table,
    remove_missing_codes,
    shows_grouping,
    to_floats,
)
from ecl2o.data.timeline import DAY, RegularSeries, Repairs, regularize
from ecl2o.data.timestamps import has_date_as_name, join_time_columns, parse_times
from ecl2o.exceptions import DataError
from ecl2o.json_text import shorten
from ecl2o.local_time import find_zone

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
        ignored_columns: those of a file that were not read.
        step_minutes: between rows.
        steps_per_day: 1 for daily and slower series.
        leap_day_dropped: whether a leap year lacks 29 February.
        repairs: what `fill` did.
        day_start_minutes: when days begin, in minutes past midnight. Default: 0.
        weight_column: the one of the columns that is the weight of a miss, which actions do not follow. Default: none.
        covariates: the last of the columns, which are seen and not followed: None, or how many hours ahead one forecasts.
        clock: the clock of the times in words: a zone, an offset from UTC. Default: unknown.
        file_format: the arguments of `read_series` that read the file so again: those given, and the order of dates and the
            separators that were found. Default: none.
        imputed: which cells were imputed, a frame with the rows and columns of the series. Default: none.
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
    covariates: dict[str, float | None] = field(default_factory=dict)
    clock: str = "unknown"
    file_format: dict[str, Any] = field(default_factory=dict)
    imputed: pd.DataFrame | None = field(default=None, repr=False, compare=False)

    @property
    def followed(self) -> tuple[str, ...]:
        """The columns that actions follow: all but a weight and covariates."""
        return tuple(name for name in self.columns if name != self.weight_column and name not in self.covariates)

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers and strings, for JSON."""
        plain = asdict(replace(self, imputed=None)) | {"columns": list(self.columns)}
        return plain | {"ignored_columns": list(self.ignored_columns)}

    def describe(self) -> str:
        """Return what is followed, on which clock and in which steps, in one line."""
        parts = [f"follows: {join_names(self.followed)}"]
        if self.weight_column is not None:
            parts.append(f"weight of a miss: {self.weight_column}")
        for role, forecasts in (("covariates", False), ("forecasts", True)):
            names = [name for name, lead in self.covariates.items() if (lead is not None) == forecasts]
            parts += [f"{role}: {join_names(names)}"] if names else []
        if self.ignored_columns:
            parts.append(f"not used: {join_names(self.ignored_columns)}")
        return "; ".join([*parts, f"clock: {self.clock}", f"step: {self.step_minutes:g} minutes"]) + "."


def read_series(
    path: str | Path,
    time_column: str | None = None,
    columns: Sequence[str] | None = None,
    fill: str | None = None,
    *,
    fill_limit: float | int | None = None,
    time_zone: str | None = None,
    weight_column: str | None = None,
    covariates: Mapping[str, float | None] | None = None,
    day_first: bool | None = None,
    grouped: bool | None = None,
) -> tuple[pd.DataFrame, SeriesMetadata]:
    """Read a CSV or Parquet file into a frame of floats on a regular clock.

    `fill="interpolate"` (on a straight line) or `"previous"` (the value before) repairs cells that are missing or no numbers,
    gaps, repeated rows (the first is kept) and rows out of order, and counts them in `metadata.repairs`.

    With a `time_zone` times are those of local clocks there, and each day has the same number of rows: what the clocks skip in
    spring is imputed, and what they show again in autumn is left out.

    Args:
        path: the file; CSV may be compressed by gzip.
        time_column: the column with the time, or several joined by +, such as DATE+CLOCK. Default: found by name or cells.
        columns: those to follow, in this order. Default: the only one that holds numbers.
        fill: "interpolate" or "previous". Default: raise an error.
        fill_limit: hours of the longest gap that is filled. Default: 6, or a single row if they are farther apart.
        time_zone: name of a zone, such as "America/New_York". Default: times are as in the file.
        weight_column: column of the weight of a miss; it comes after those that are followed. Default: none.
        covariates: columns that are seen and not followed, which come last (`parse_covariates`); their missing cells are NaN.
        day_first: whether dates like 3/4/2015 start with the day, if both are possible. Default: only if the rows show it.
        grouped: whether points separate thousands in a file with decimal commas. Default: only if a cell shows it.

    Returns:
        The frame, and where it comes from.

    Raises:
        DataError: The file cannot be used, or has several columns; the message names the row and the column.
    """
    told = {
        "fill": fill,
        "fill_limit": fill_limit and float(fill_limit),
        "time_zone": time_zone,
        "time_column": time_column,
    }
    zone = None if time_zone is None else find_zone(time_zone)
    source = read_source(path)
    if source.content[:4] == b"PAR1" or source.path.name.lower().endswith(PARQUET_SUFFIXES):
        table = _read_parquet(source)
    else:
        text = decode_text(source)
        table = read_table(source, text, find_header(text))
        if np.isfinite(to_floats(pd.Series(table.columns))).all() or has_date_as_name(table):
            raise DataError(
                f"{table.path}, line 1 must name the columns, but it has data: {join_names(table.columns, 3)}. Add a line of "
                "names on top, such as 'time,demand', so that this row is not lost."
            )
    table, time_column = join_time_columns(table, time_column)
    extra = dict(covariates or {})
    names, ignored = _choose_columns(table, time_column, columns, weight_column, list(extra))
    _check_followed(table, names)
    grouped = bool(grouped) or shows_grouping(table, names)
    found = {name: parse_numbers(table, name, grouped) for name in names}
    parsed, cells = parse_times(table, time_column, zone, day_first), table.column(time_column)
    faults = [
        table.fault(i, time_column, f"{shorten(str(cells[i]))} {parsed.fault(str(cells[i]))}")
        for i in np.flatnonzero(parsed.times.isna())
    ]
    faults += [fault for name, (_, wrong) in found.items() if name not in extra for fault in wrong]
    frame = pd.DataFrame({name: values for name, (values, _) in found.items()}, index=parsed.times)
    whole = regularize(table, time_column, frame, faults, fill, fill_limit, zone, list(extra))
    metadata = _describe_series(whole, source.path, source.sha256, time_column, parsed.how, ignored, parsed.clock)
    told |= {"time_column": time_column} if "+" in time_column else {}
    told |= {"day_first": parsed.day_first, "grouped": grouped}
    _check_covariates(whole.frame, metadata, extra)
    return whole.frame, replace(metadata, file_format=told, weight_column=weight_column, covariates=extra)


_FAMILY = re.compile(r"(?P<stem>.*?)(?P<first>\d+)\.\.(?P<other>.*?)(?P<last>\d+)")


def parse_covariates(covariates: Sequence[str] | None, forecasts: Sequence[str] | None) -> dict[str, float | None]:
    """Return columns that are seen and not followed: None for a covariate, the hours ahead for a forecast.

    Args:
        covariates: names of columns whose values are known at each step.
        forecasts: NAME@HOURS, a column that forecasts what is followed so many hours ahead; or f1..f48, for the columns f1, f2,
            ..., f48, each named for its hours.

    >>> parse_covariates(["wind"], ["day_ahead@24", "f1..f3"])
    {'wind': None, 'day_ahead': 24.0, 'f1': 1.0, 'f2': 2.0, 'f3': 3.0}

    Raises:
        DataError: A forecast has no hours, or a column is named twice.
    """
    found: list[tuple[str, float | None]] = [(name, None) for name in covariates or ()]
    for text in forecasts or ():
        name, _, hours = text.rpartition("@")
        family = _FAMILY.fullmatch(text)
        if family is not None and family["stem"] == family["other"] and int(family["first"]) < int(family["last"]):
            found += [(f"{family['stem']}{i}", float(i)) for i in range(int(family["first"]), int(family["last"]) + 1)]
        elif name and re.fullmatch(r"\d+(\.\d+)?", hours):
            found.append((name, float(hours)))
        else:
            raise DataError(f"a forecast is NAME@HOURS, or a family of columns as f1..f48, got {text!r}.")
    twice = [name for name, count in Counter(name for name, _ in found).items() if count > 1]
    if twice:
        raise DataError(f"the column {shorten(twice[0])} is named twice among covariates and forecasts.")
    return dict(found)


def _check_covariates(frame: pd.DataFrame, metadata: SeriesMetadata, extra: Mapping[str, float | None]) -> None:
    for name, lead in extra.items():
        if not np.isfinite(frame[name].to_numpy(float)).any():
            raise DataError(f"{metadata.file}: the covariate {shorten(name)} holds no numbers.")
        steps = None if lead is None else lead * 60 / metadata.step_minutes
        if steps is not None and (steps < 1 or steps != round(steps)):
            raise DataError(
                f"{metadata.file}: the forecast {shorten(name)} is for {lead:g} hours ahead, which must be a whole number of "
                f"steps of {metadata.step_minutes:g} minutes."
            )


def _describe_series(
    whole: RegularSeries,
    path: Path,
    sha256: str,
    time_column: str,
    time_format: str,
    ignored: list[str],
    clock: str,
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
        clock=clock,
        imputed=whole.imputed if whole.imputed.to_numpy().any() else None,
    )


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


def _choose_columns(
    table: Table, time_column: str, columns: Sequence[str] | None, weight_column: str | None, covariates: list[str]
) -> tuple[list[str], list[str]]:
    """Return the columns to read, the weight and the covariates last, and those that are not read."""
    taken = (time_column, weight_column, *covariates)
    if columns is None:
        others = [name for name in dict.fromkeys(table.columns) if name and name not in taken]
        followed = [name for name in others if _holds_numbers(table, name)]
        if not followed:
            raise DataError(
                f"{table.path}: no column holds numbers to follow besides the time column {shorten(time_column)}; the file has "
                f"{join_names(table.columns)}."
            )
        _check_only_one(table.path, followed, "column")
    else:
        followed = [_check_column(table, name) for name in dict.fromkeys(columns) if name not in taken[1:]]
        if not followed or time_column in followed:
            besides = join_names([time_column, *([] if weight_column is None else [weight_column]), *covariates])
            raise DataError(
                f"{table.path}: the column to follow must not be the time, a weight, a covariate or baseline ({besides}), got "
                f"{join_names(columns)}."
            )
    extra = [name for name in (weight_column, *covariates) if name is not None]
    if len(set(extra)) < len(extra) or time_column in extra:
        raise DataError(f"{table.path}: a column has one role, time, weight or covariate, got {join_names(extra)}.")
    used = [*followed, *(_check_column(table, name) for name in extra)]
    return used, [name for name in table.columns if name and name not in (time_column, *used)]


def _holds_numbers(table: Table, name: str) -> bool:
    """Return whether a column has a number, be it too large."""
    return bool(np.isfinite(parse_numbers(table, name)[0]).any() or np.isfinite(to_floats(table.column(name))).any())


def _check_only_one(path: Path, names: Sequence[str], argument: str) -> None:
    if len(names) > 1:
        raise DataError(
            f"{path} has {len(names)} columns of numbers: {join_names(names)}. Name the one to follow, such as "
            f"{argument}='{names[0]}'; several are followed if several are named."
        )


def _check_followed(table: Table, names: list[str]) -> None:
    if len(names) > MAX_FOLLOWED:
        raise DataError(
            f"{table.path}: {len(names):,} columns are named, {join_names(names, 3)}; at most {MAX_FOLLOWED} can be used "
            "together, because the work grows with the cube of their number. Name fewer, or make one series of each."
        )


_FRAME = Path("the frame")


def frame_series(
    series: pd.DataFrame | pd.Series,
    columns: Sequence[str] | None = None,
    fill: str | None = None,
    *,
    fill_limit: float | int | None = None,
    time_zone: str | None = None,
    weight_column: str | None = None,
    covariates: Mapping[str, float | None] | None = None,
) -> tuple[pd.DataFrame, SeriesMetadata]:
    """Return a frame of floats on a regular clock, checked and repaired as `read_series` does for a file.

    Args:
        series: its index holds the times (a `DatetimeIndex`), its columns numbers.
        columns: which columns to follow. Default: the only one that holds numbers.
        fill: how to repair missing values and gaps, "interpolate" or "previous". Default: raise an error.
        fill_limit: hours of the longest gap that is filled. Default: 6, or a single row if they are farther apart.
        time_zone: name of a zone whose local time the series follows, as in `read_series`. Default: times are as in the index.
        weight_column: as in `read_series`. Default: none.
        covariates: as in `read_series`. Default: none.

    >>> hours = pd.date_range("2025-01-01", periods=48, freq="h")
    >>> frame, metadata = frame_series(pd.Series(range(48), hours, name="demand"))
    >>> metadata.columns, metadata.steps_per_day
    (('demand',), 24)
    """
    frame, zone = series, None if time_zone is None else find_zone(time_zone)
    if isinstance(series, pd.Series):
        frame = series.to_frame("value" if series.name is None else series.name)
    if not isinstance(frame, pd.DataFrame):
        raise DataError(f"a pandas DataFrame or Series is expected, got {type(series).__name__}.")
    if not isinstance(frame.index, pd.DatetimeIndex):
        raise DataError(
            f"the index of the frame must hold the times (a DatetimeIndex), got {type(frame.index).__name__}; for example "
            "frame.set_index(pd.to_datetime(frame.pop('time'))), with utc=True if the times have offsets from UTC."
        )
    if frame.empty:
        raise DataError("the frame has no rows of data.")
    names = tuple(map(str, frame.columns))
    if not frame.columns.is_unique:
        twice = str(frame.columns[frame.columns.duplicated()][0])
        raise DataError(f"the column {shorten(twice)} appears more than once in the frame. Rename or drop one of them.")
    wanted = names if columns is None else tuple(dict.fromkeys(map(str, columns)))
    extra = dict(covariates or {})
    unfollowed = [*filter(None, [weight_column]), *extra]
    if not wanted or not {*wanted, *unfollowed} <= set(names):
        raise DataError(f"columns must name columns of the frame ({join_names(names)}), got {columns or unfollowed}.")
    frame = frame.set_axis(list(names), axis="columns")
    time_column, times = "time" if frame.index.name is None else str(frame.index.name), pd.DatetimeIndex(frame.index)
    clock = "local time without an offset" if times.tz is None else str(times.tz)
    if zone is not None:
        times, clock = times if times.tz is None else times.tz_convert(zone).tz_localize(None), zone.key
    table = Table(_FRAME, names, [], np.arange(1, len(frame) + 1), unit="row")
    numbers = {name: to_floats(pd.Series(frame[name])) for name in wanted if name not in unfollowed}
    used = {name: each for name, each in numbers.items() if columns is not None or np.isfinite(each).any()}
    if not used:
        raise DataError(f"no column of the frame holds numbers to follow; it has {join_names(names)}.")
    if columns is None:
        _check_only_one(_FRAME, list(used), "columns")
    used |= {name: to_floats(pd.Series(frame[name])) for name in unfollowed}
    faults = [
        table.fault(i, name, f"{shorten(str(frame[name].iloc[i]))} is not a finite number")
        for name, each in used.items()
        if name not in extra
        for i in np.flatnonzero(~np.isfinite(each))
    ]
    codes = {name: remove_missing_codes(table, name, each) for name, each in used.items()}
    faults += [fault for name, found in codes.items() if name not in extra for fault in found]
    faults += [table.fault(i, time_column, "there is no time") for i in np.flatnonzero(times.isna())]
    _check_followed(table, list(used))
    values = pd.DataFrame(used, index=times)
    whole = regularize(
        table, time_column, values.where(np.isfinite(values)), faults, fill, fill_limit, zone, list(extra)
    )
    instants = pd.DatetimeIndex(whole.frame.index).asi8.tobytes()
    digest = hashlib.sha256(instants + np.ascontiguousarray(whole.frame.to_numpy(np.float64)).tobytes()).hexdigest()
    ignored = [name for name in names if name not in used]
    metadata = _describe_series(whole, _FRAME, digest, time_column, "DatetimeIndex", ignored, clock)
    told = {"fill": fill, "fill_limit": fill_limit and float(fill_limit), "time_zone": time_zone}
    _check_covariates(whole.frame, metadata, extra)
    return whole.frame, replace(metadata, file_format=told, weight_column=weight_column, covariates=extra)
