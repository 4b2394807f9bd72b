"""Lines of text to contexts: numbers with commas or semicolons between them, or JSON, with or without a time."""

import contextlib
import csv
import dataclasses
import datetime
import json
import math
import re
from collections.abc import Collection
from typing import Any

from ecl2o.json_text import MISSING_VALUES
from ecl2o.policy.advice import attach_advice
from ecl2o.policy.clock import parse_time

_TIME_NAMES = ("time", "timestamp", "datetime", "date")
_DATE = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4})[ T](\d{1,2})(:\d{2}.*)")  # 3/4/2025 6:00
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+")


@dataclasses.dataclass(frozen=True)
class ParsedLine:
    """One line: the context (NaN for missing numbers), whether it was JSON, and step and time if the line has them."""

    context: list[float]
    as_json: bool = False
    step: int | None = None
    time: datetime.datetime | None = None


class LineReader:
    """Parses lines one by one; the first may name the columns.

    Args:
        columns: The names of the policy's columns; None if it has none.
        size: q, how many numbers a context has.
        time_column: The name of the time, or several joined by +. Default: "time" and the like, else the first other entry
            that is a time.
        day_first: Whether dates like 3/4/2025 start with the day. Default: they are rejected.
        optional: Those of the columns that may be absent: their numbers are then missing.
        advice: How many numbers at the end of a context are advice, which may be given apart, or be absent.

    >>> reader = LineReader(["demand"], 1)
    >>> reader.read("time,demand"), reader.read("2024-01-01 06:00,1.5").context, reader.read('{"demand": null}').context
    (None, [1.5], [nan])
    """

    def __init__(
        self,
        columns: list[str] | None,
        size: int,
        time_column: str | None = None,
        optional: Collection[str] = (),
        day_first: bool | None = None,
        advice: int = 0,
    ):
        self._columns, self._size, self._advice = columns, size, advice
        self._required = [name for name in columns or () if name not in optional]
        self._time_names = _TIME_NAMES if time_column is None else (time_column.lower(), *_TIME_NAMES)
        self._day_first = day_first
        self._places: list[int | None] | None = None  # of the policy's columns, in the first line
        self._time_places: list[int] = []
        self._width, self._first = 0, True

    def read(self, line: str) -> ParsedLine | None:
        """Parse a line. Return None for an empty one, and for column names on the first.

        Raises:
            ValueError: The line does not hold a context.
        """
        if "\0" in line:
            raise ValueError("the line is not text in UTF-8: it has zero bytes, as UTF-16 and binary files have.")
        text, first = line.strip(), self._first
        if first:
            text = text.removeprefix("\ufeff").strip()  # a byte order mark
        if not text:
            return None
        self._first = False
        if text[0] in "{[" or text == "null":
            return self._parse_json(text)
        delimiter = ";" if ";" in text else ","
        cells = [cell.strip() for cell in next(csv.reader([text], delimiter=delimiter, skipinitialspace=True))]
        if delimiter == ";":
            cells = [cell.replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell) else cell for cell in cells]
        if first and not any(
            _is_number(cell) or self._is_time(cell) or cell.lower() in MISSING_VALUES for cell in cells
        ):
            self._read_header(cells)
            return None
        return self._parse_cells(cells)

    def _parse_cells(self, cells: list[str]) -> ParsedLine:
        time = None
        if self._places is not None:
            needed = max(place for place in (*self._places, *self._time_places, -1) if place is not None)
            if not needed < len(cells) <= self._width:
                raise ValueError(f"the line has {len(cells)} cells, but the first line named {self._width} columns.")
            if not self._time_places:
                others = (place for place in range(len(cells)) if place not in self._places)
                self._time_places = [place for place in others if self._is_time(cells[place])][:1]
            if self._time_places:
                time = self._parse_time(" ".join(cells[place] for place in self._time_places))
            cells = ["" if place is None else cells[place] for place in self._places]
        elif len(cells) in (self._size + 1, self._size - self._advice + 1) and self._is_time(cells[0]):
            time, cells = self._parse_time(cells[0]), cells[1:]
        return ParsedLine(self._check_size([_as_number(cell) for cell in cells]), time=time)

    def _read_header(self, names: list[str]) -> None:
        columns = self._columns or []
        if not columns or not all(name in names for name in self._required):
            expected = f", nor the policy's columns: {', '.join(columns)}" if columns else ""
            hint = " Save it in UTF-8." if "\ufffd" in "".join(names) else ""
            raise ValueError(f"{', '.join(names)[:60]!r} are not numbers{expected}.{hint}")
        places = {name.lower(): place for place, name in enumerate(names) if name not in columns}
        named = (name.split("+") if name not in places else [name] for name in self._time_names)
        self._time_places = next(
            ([places[part] for part in parts] for parts in named if all(part in places for part in parts)), []
        )
        self._places = [names.index(name) if name in names else None for name in columns]
        self._width = len(names)

    def _parse_json(self, text: str) -> ParsedLine:
        try:
            value = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"invalid JSON: {error}.") from None
        step, time = None, None
        if isinstance(value, dict):
            texts = {name.lower(): entry for name, entry in value.items() if isinstance(entry, str)}
            times = [texts[name] for name in self._time_names if name in texts] or filter(self._is_time, texts.values())
            step, time = value.get("step"), next(map(self._parse_time, times), None)
            if step is not None and (type(step) is not int or step < 1):
                raise ValueError(f"step must be a whole number, 1 or more, got {step!r}.")
            value = self._join_context(value)
        numbers = value if isinstance(value, list) else [value] * (self._size if value is None else 1)
        if not all(entry is None or type(entry) in (int, float) for entry in numbers):
            given = "context, baseline and advice" if self._advice else "the context"
            raise ValueError(f"{given} must be numbers, got {text[:60]}.")
        given = [math.nan if entry is None else float(entry) for entry in numbers]
        return ParsedLine(self._check_size(given), True, step, time)

    def _join_context(self, value: dict[str, Any]) -> Any:
        """Return the numbers of a JSON object: by the columns' names, or `context`, then `baseline`, then `advice`."""
        is_named = self._is_named(value)
        context = [_only(value.get(name)) for name in self._columns or ()] if is_named else value.get("context", value)
        if context is value:
            expected = dict.fromkeys(("context", *self._required))
            raise ValueError(f"no {' or '.join(map(repr, expected))} in {json.dumps(value)[:60]}.")
        known = (self._columns or ()) if is_named else ()
        baseline, advice = (None if name in known else value.get(name) for name in ("baseline", "advice"))
        if not is_named and advice is None:  # its columns may be named beside `context`
            names = (self._columns or ())[self._size - self._advice :]
            advice = [_only(value[name]) for name in names if name in value and name != "context"] or None
        if baseline is None and advice is None:
            return context
        numbers = context if isinstance(context, list) else [context]
        if is_named and self._advice:  # the names gave all numbers
            numbers = numbers[: -self._advice]
        apart = advice if isinstance(advice, list) or advice is None else [advice]
        if baseline is not None:
            numbers, apart = [*numbers, _only(baseline)], apart or []  # the baseline is not the advice
        return attach_advice(numbers, apart, self._size, self._advice, self._columns)

    def _is_named(self, value: dict[str, Any]) -> bool:
        """Return whether an object has the numbers by the columns' names, of which one may be "context"."""
        if not self._columns or not all(name in value for name in self._required):
            return False
        others = [name for name in self._columns[: self._size - self._advice] if name != "context"]
        return "context" not in value or ("context" in self._columns and any(name in value for name in others))

    def _is_time(self, cell: str) -> bool:
        if _DATE.fullmatch(cell):
            return True
        if _is_number(cell) or len(cell) < len("20240101T00") or not cell[:4].isdigit():
            return False
        with contextlib.suppress(ValueError):
            return bool(parse_time(cell))
        return False

    def _parse_time(self, cell: str) -> datetime.datetime:
        date = _DATE.fullmatch(cell)
        if date is None or self._day_first is None:
            return parse_time(cell)
        day, month = (date[1], date[3]) if self._day_first else (date[3], date[1])
        return parse_time(f"{date[4]}-{month.zfill(2)}-{day.zfill(2)} {date[5].zfill(2)}{date[6]}")

    def _check_size(self, numbers: list[float]) -> list[float]:
        joined = attach_advice(numbers, None, self._size, self._advice, self._columns)
        return [math.nan if entry is None else entry for entry in joined]


def _only(entry: Any) -> Any:
    """Return the number of a list of one; anything else as it is."""
    return entry[0] if isinstance(entry, list) and len(entry) == 1 else entry


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _as_number(cell: str) -> float:
    if cell.lower() in MISSING_VALUES:
        return math.nan
    try:
        return float(cell)
    except ValueError:
        hint = " Write it without thousands separators." if _is_number(cell.replace(",", "")) else ""
        raise ValueError(f"{cell[:60]!r} is not a number.{hint}") from None
