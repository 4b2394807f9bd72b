"""Files as tables of text cells that remember where each row stood, so that errors can say so."""

import csv
import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ecl2o.exceptions import DataError
from ecl2o.json_text import MISSING_VALUES

FILLS = ("interpolate", "previous")
_DELIMITERS = ",;\t"
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f]")
LARGEST = 1e100  # squares, and their sums, must stay far from where doubles end
_IN_GROUPS = {  # numbers with thousands separators, by the sign before the decimals
    ".": re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?"),
    ",": re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d*)?"),
}
_SPACED = re.compile(r"[+-]?[1-9]\d{0,2}([ '\u00a0\u2009\u202f]\d{3})+([.,]\d*)?")
_SPACES = re.compile(r"[ '\u00a0\u2009\u202f]")


class Fault(NamedTuple):
    """One thing wrong in a file: the 1-based row, the column, and what is wrong in words."""

    row: int
    column: str
    problem: str


def quote(text: str, most: int = 60) -> str:
    """Something from a file as it may stand in a message, however long it is.

    >>> quote("9" * 5000)
    "'999999999999999999999999999999999999999999999999999999999999'..."
    """
    return repr(text) if len(text) <= most else repr(text[:most]) + "..."


def join_names(names: Sequence[str], most: int = 12) -> str:
    """Names of columns as they may stand in a message, however many there are.

    >>> join_names([f"c{i}" for i in range(40)], most=3)
    'c0, c1, c2 and 37 more'
    """
    some = ", ".join(name if len(name) <= 60 else name[:60] + "..." for name in names[:most])
    return some if len(names) <= most else f"{some} and {len(names) - most} more"


@dataclass(frozen=True)
class SourceFile:
    """A file that was read: its path, its SHA-256, its bytes."""

    path: Path
    sha256: str
    content: bytes


@dataclass(frozen=True)
class Table:
    """Text under named columns, `cells` column by column. `rows` holds each row's number in the file, `unit` the word for it.

    `unfinished` says that the last row has no end of line, as where a file was cut off.
    """

    path: Path
    columns: tuple[str, ...]
    cells: Sequence[list[str]]
    rows: np.ndarray
    delimiter: str = ","
    unit: str = "line"
    unfinished: bool = False

    def column(self, name: str) -> pd.Series:
        """The cells of one column, without blanks around them."""
        if self.columns.count(name) > 1:
            raise DataError(
                f"{self.path}: the column {quote(name)} appears more than once. Rename or remove one of them."
            )
        return pd.Series([*map(str.strip, self.cells[self.columns.index(name)])], dtype=object)

    def check_faults(self, faults: list[Fault], advice: str) -> None:
        """Raise `DataError` for the first fault, if any, and count the others."""
        if not faults:
            return
        first = min(faults, key=lambda fault: fault.row)
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        cut = ""
        if self.unfinished and first.row == self.rows[-1]:
            cut = " The file ends in the middle of this line: if it was cut off, get the whole file again."
        raise DataError(
            f"{self.path}, {self.unit} {first.row}, column {quote(first.column)}: {first.problem}{more}.{cut} {advice}"
        )


def check_fill(fill: str | None) -> None:
    """Raise `DataError` unless `fill` is a known repair or None."""
    if fill is not None and fill not in FILLS:
        raise DataError(f"fill must be one of {', '.join(map(repr, FILLS))} or None, got {fill!r}.")


def read_source(path: str | Path) -> SourceFile:
    """Read a file, unpacking gzip; raise `DataError` if it is unreadable or empty."""
    path = Path(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder. Give the path of one file in it.")
    if path.is_char_device() or path.is_block_device():
        raise DataError(f"{path} is a device, which may have no end. Give a file, or the data in a pipe.")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} does not exist. Check the path; it is taken from {Path.cwd()}.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}. Check its permissions.") from error
    digest = hashlib.sha256(content).hexdigest()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{path} is packed by gzip, but cannot be unpacked: {error}. Get the whole file again."
            ) from error
    if not content.strip():
        raise DataError(f"{path} is empty. A header line and rows of data are needed.")
    return SourceFile(path, digest, content)


def decode_text(source: SourceFile) -> str:
    """Return the text of a file: UTF-8, UTF-16 with its mark, or Latin-1 (old weather files)."""
    content = source.content
    encodings = ("utf-16",) if content[:2] in (b"\xff\xfe", b"\xfe\xff") else ("utf-8-sig", "latin-1")
    for encoding in encodings:
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            continue
        if _CONTROL.search(text) is None:
            return text
    raise DataError(f"{source.path} is not a text file. Export the data as CSV (a spreadsheet can save as CSV).")


def read_table(source: SourceFile, text: str, skip: int = 0) -> Table:
    """A CSV table whose column names stand on line `skip` + 1; commas, semicolons or tabs between cells."""
    stream = io.StringIO(text)
    for _ in range(skip):
        stream.readline()
    start = stream.tell()
    heading = stream.readline()
    stream.seek(start)
    delimiter = max(_DELIMITERS, key=heading.count)
    reader = csv.reader(stream, delimiter=delimiter)
    try:
        columns = [name.strip() for name in next(reader)]
        while columns and not columns[-1]:  # spreadsheets pad short lines with empty cells
            columns.pop()
        if not columns:
            raise DataError(f"{source.path}, line {skip + 1}: the names of the columns are expected here.")
        lines, cells = _read_rows(source, reader, len(columns), skip)
    except StopIteration:
        raise DataError(f"{source.path} has no line {skip + 1} with the names of the columns.") from None
    except csv.Error as error:
        raise DataError(
            f"{source.path}, line {reader.line_num + skip}: {error}. Export the file as CSV again."
        ) from error
    _check_quotes(source, text, lines, reader.line_num + skip)
    if not lines:
        raise DataError(f"{source.path} has a header but no rows of data below line {skip + 1}.")
    return Table(source.path, tuple(columns), cells, np.array(lines), delimiter, unfinished=text[-1] not in "\r\n")


def _check_quotes(source: SourceFile, text: str, lines: Sequence[int], last: int) -> None:
    """Raise `DataError` if the last row runs to the end of the file because of an unclosed quotation mark."""
    if lines and lines[-1] < last and "".join(text.split("\n")[lines[-1] - 1 :]).count('"') % 2:
        raise DataError(
            f"{source.path}, line {lines[-1]}: a quotation mark is opened here and never closed, so that the rest of the file, "
            f"to line {last}, is one cell. Remove it, or close it."
        )


def _read_rows(source: SourceFile, reader: Any, width: int, skip: int) -> tuple[list[int], list[list[str]]]:
    """The lines on which rows begin, and their cells, column by column; cells that a short row lacks are empty.

    One list takes all cells: a list for each row would keep the garbage collector busy for as long as the reading takes.
    """
    lines: list[int] = []
    cells: list[str] = []
    begins = reader.line_num + skip + 1
    try:
        for row in reader:
            line, begins = begins, reader.line_num + skip + 1
            if not "".join(row).strip():
                continue
            if len(row) != width:
                if "".join(row[width:]).strip():
                    raise DataError(
                        f"{source.path}, line {line}: {len(row)} cells under {width} columns. "
                        "Check for a stray separator, or a decimal comma in a comma-separated file."
                    )
                row = [*row[:width], *[""] * (width - len(row))]
            lines.append(line)
            cells += row
    except csv.Error as error:  # of a cell without an end, for one, that is longer than any cell may be
        raise DataError(
            f"{source.path}, line {begins}: {error}. Look for a quotation mark that is not closed, or export the file again."
        ) from error
    return lines, [cells[place::width] for place in range(width)]


def to_floats(cells: pd.Series) -> np.ndarray:
    """Text as floats, NaN where it is not a number."""
    return np.array(pd.to_numeric(cells, errors="coerce"), dtype=float)


def parse_numbers(table: Table, name: str) -> tuple[np.ndarray, list[Fault]]:
    """One column as floats, with NaN and a fault wherever a cell is empty, not a number, not finite, or far too large."""
    cells = table.column(name)
    values = to_floats(cells)
    if table.delimiter == ";" or not np.isfinite(values).all():
        values = to_floats(_remove_grouping(cells, "," if table.delimiter == ";" else "."))
    faults = []
    for i in np.flatnonzero(~(np.abs(values) <= LARGEST)):
        cell = str(cells[i])
        problem = (
            "the cell is empty or marked as missing"
            if cell.lower() in MISSING_VALUES
            else f"{quote(cell)} is not a number"
        )
        if np.isinf(values[i]):
            problem = f"{quote(cell)} is not finite"
        elif not np.isnan(values[i]):
            problem = f"{quote(cell)} is too large to be squared; numbers up to {LARGEST:g} are understood"
        faults.append(Fault(int(table.rows[i]), name, problem))
        values[i] = np.nan
    return values, faults


def _remove_grouping(cells: pd.Series, decimal: str) -> pd.Series:
    """Cells with a point before their decimals and nothing between their thousands.

    A comma (a point, where the decimals come after a comma) separates thousands only if it does so in every cell of the column
    that has one: "0,125" is then no number, rather than a wrong one.

    >>> _remove_grouping(pd.Series(["1,234.5", "12", "1 234"]), ".").tolist()
    ['1234.5', '12', '1234']
    >>> _remove_grouping(pd.Series(["1.234,5", "0,125"]), ",").tolist()
    ['1234.5', '0.125']
    """
    spaced = cells.map(lambda cell: _SPACED.fullmatch(cell) is not None)
    cells = cells.where(~spaced, cells.str.replace(_SPACES, "", regex=True))
    separator = "," if decimal == "." else "."
    having = pd.Series(cells[cells.str.contains(separator, regex=False)])
    grouped = len(having) > 0 and having.map(lambda cell: _IN_GROUPS[decimal].fullmatch(cell) is not None).all()
    # In files with a decimal comma, 1.234 alone may be either: some cell must show both signs, or two points.
    if grouped and (decimal == "." or having.map(lambda cell: "," in cell or cell.count(".") > 1).any()):
        cells = cells.str.replace(separator, "", regex=False)
    return cells.str.replace(",", ".", regex=False) if decimal == "," else cells
