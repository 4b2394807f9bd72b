"""Files as tables of text cells that remember their rows' numbers, so that errors can name them."""

import csv
import gzip
import hashlib
import io
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from ecl2o.exceptions import DataError
from ecl2o.json_text import MISSING_CODES, MISSING_VALUES, shorten

_DELIMITERS = ",;\t"
MAX_COLUMNS = 10_000  # in a file
_HEADER_LINES = 50  # among which the names of the columns are looked for
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f]")
LARGEST = 1e100  # squares, and their sums, must stay far from where doubles end
_IN_GROUPS = {  # numbers with thousands separators, by the sign before the decimals
    ".": re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?"),
    ",": re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d*)?"),
}
_SPACED = re.compile(r"[+-]?[1-9]\d{0,2}([ '\u00a0\u2009\u202f]\d{3})+([.,]\d*)?")
_SPACES = re.compile(r"[ '\u00a0\u2009\u202f]")


class Fault(NamedTuple):
    """A fault in a file: the 1-based row, the column, a description, and the code if a number marks a missing value."""

    row: int
    column: str
    problem: str
    code: float | None = None


def join_names(names: Sequence[str], most: int = 12) -> str:
    """Return the names of columns for a message; only the first of many.

    >>> join_names([f"c{i}" for i in range(40)], most=3)
    'c0, c1, c2 and 37 more'
    """
    some = ", ".join(name if len(name) <= 60 else name[:60] + "..." for name in names[:most])
    return some if len(names) <= most else f"{some} and {len(names) - most} more"


class SourceFile(NamedTuple):
    """The path, the SHA-256 and the unpacked bytes of a file."""

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
        """Return the cells of one column, without blanks around them."""
        if self.columns.count(name) > 1:
            raise DataError(f"{self.path}: the column {shorten(name)} appears more than once. Rename or remove one.")
        return pd.Series([*map(str.strip, self.cells[self.columns.index(name)])], dtype=object)

    def fault(self, place: int | np.integer, column: str, problem: str) -> Fault:
        """Return a fault of the row at a place, counted from 0."""
        return Fault(int(self.rows[place]), column, problem)

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
            f"{self.path}, {self.unit} {first.row}, column {shorten(first.column)}: {first.problem}{more}.{cut} {advice}"
        )


def check_column_count(path: Path, count: int) -> None:
    """Raise if a file has more columns than are read."""
    if count > MAX_COLUMNS:
        raise DataError(
            f"{path} has {count:,} columns; at most {MAX_COLUMNS:,} are read. A row is one time: write a file with the time and "
            "the columns that you need, or swap rows and columns if each column is a time."
        )


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
            raise DataError(f"{path} cannot be unpacked by gzip: {error}. Get the whole file again.") from error
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
            return text if "\n" in text else text.replace("\r", "\n")  # of an old Macintosh
    raise DataError(f"{source.path} is not a text file. Export the data as CSV (a spreadsheet can save as CSV).")


def find_header(text: str) -> int:
    r"""Return how many lines, such as a name and an address, stand above the names of the columns.

    These lines have another number of cells than most of the first lines, and the line of names has no number in it.

    >>> find_header("Name,Jane Doe\n\ntime,used,cost\n2025-01-01,3,4\n2025-01-02,3,5\n2025-01-03,3,5\n")
    2
    """
    lines = text.split("\n", _HEADER_LINES)[:_HEADER_LINES]
    delimiter = max(_DELIMITERS, key="".join(lines).count)
    try:
        rows = [next(csv.reader([line], delimiter=delimiter), []) for line in lines]
    except csv.Error:
        return 0
    width = Counter(len(row) for row in rows if row).most_common(1)[0][0]
    first = next(place for place, row in enumerate(rows) if len(row) == width)
    names = [name.strip() for name in rows[first]]
    if width < 2 or len(rows[0]) == width or np.isfinite(to_floats(pd.Series(names))).any() or len(set(names)) < width:
        return 0
    return first


def read_table(source: SourceFile, text: str, skip: int = 0) -> Table:
    """Read a CSV table whose column names are on line `skip` + 1; commas, semicolons or tabs separate cells."""
    stream = io.StringIO(text)
    for _ in range(skip):
        stream.readline()
    start = stream.tell()
    delimiter = max(_DELIMITERS, key=stream.readline().count)
    stream.seek(start)
    reader = csv.reader(stream, delimiter=delimiter)
    begins, lines = skip + 1, []
    cells: list[str] = []  # one list for all: a list for each row would slow down the garbage collector
    try:
        columns = [name.strip() for name in next(reader, [])]
        while columns and not columns[-1]:  # spreadsheets pad short lines with empty cells
            columns.pop()
        width, begins = len(columns), reader.line_num + skip + 1
        if not columns:
            raise DataError(f"{source.path}, line {skip + 1}: the names of the columns are expected here.")
        check_column_count(source.path, width)
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
    except csv.Error as error:  # such as a cell longer than any may be
        raise DataError(
            f"{source.path}, line {begins}: {error}. Look for a quotation mark that is not closed, or export the file again."
        ) from error
    if not lines:
        raise DataError(f"{source.path} has a header but no rows of data below line {skip + 1}.")
    last = reader.line_num + skip
    if lines[-1] < last and "".join(text.split("\n")[lines[-1] - 1 :]).count('"') % 2:
        raise DataError(
            f"{source.path}, line {lines[-1]}: a quotation mark is not closed, so the rest of the file, to line {last}, is one "
            "cell. Close or remove it."
        )
    by_column = [cells[place::width] for place in range(width)]
    return Table(source.path, tuple(columns), by_column, np.array(lines), delimiter, unfinished=text[-1] not in "\r\n")


def to_floats(cells: pd.Series) -> np.ndarray:
    """Return cells as floats, NaN where they are not numbers."""
    return np.array(pd.to_numeric(cells, errors="coerce").astype(float))  # pyright: ignore[reportAttributeAccessIssue]


def parse_numbers(table: Table, name: str, grouped: bool = False) -> tuple[np.ndarray, list[Fault]]:
    """Return a column as floats, with NaN and a fault for cells that are empty, not numbers, infinite or far too large.

    `grouped` says that points separate thousands in a file with decimal commas, also if no cell shows it.
    """
    cells = table.column(name)
    values = to_floats(cells)
    if table.delimiter == ";" or not np.isfinite(values).all():
        decimal, grouped = "," if table.delimiter == ";" else ".", grouped or shows_grouping(table, [name])
        values = to_floats(_remove_grouping(cells, decimal, grouped))
    faults = []
    for i in np.flatnonzero(~(np.abs(values) <= LARGEST)):
        cell = shorten(str(cells[i]))
        if np.isinf(values[i]):
            problem = f"{cell} is not finite"
        elif not np.isnan(values[i]):
            problem = f"{cell} is too large to be squared; the limit is {LARGEST:g}"
        elif str(cells[i]).lower() in MISSING_VALUES:
            problem = "the cell is empty or marked as missing"
        else:
            problem = f"{cell} is not a number"
        faults.append(table.fault(i, name, problem))
        values[i] = np.nan
    return values, faults + remove_missing_codes(table, name, values)


def remove_missing_codes(table: Table, name: str, values: np.ndarray) -> list[Fault]:
    """Replace codes for missing values, such as -9999, by NaN in a column, and return a fault for each.

    A number of `MISSING_CODES` is such a code if it occurs twice or more and lies far beyond all other values: farther from the
    nearest of them than that one is from their median, and than the width of all but half a percent at each end.
    """
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32)  # files of 32 bits have rounded codes
    is_code = np.isin(rounded, np.array(MISSING_CODES, np.float32))
    others = values[np.isfinite(values) & ~is_code]
    if not is_code.any() or len(others) == 0:
        return []
    least, low, median, high, greatest = np.quantile(others, [0.0, 0.005, 0.5, 0.995, 1.0])
    faults = []
    for code in MISSING_CODES:
        rows, nearest = np.flatnonzero(rounded == np.float32(code)), np.clip(code, least, greatest)
        reach = max(high - low, abs(nearest - median))
        if len(rows) > 1 and 0 < reach < abs(code - nearest):
            problem = f"{code:.10g} is a usual code for a missing value; it occurs {len(rows)} times, while the other "
            problem += f"values are from {least:g} to {greatest:g}"
            faults += [table.fault(row, name, problem)._replace(code=code) for row in rows]
            values[rows] = np.nan
    return faults


def shows_grouping(table: Table, names: Sequence[str]) -> bool:
    """Return whether columns of a file with decimal commas show that points separate thousands.

    1.234 alone may be either: some cell must show both signs, or two points.
    """
    if table.delimiter != ";":
        return False
    pointed = [cell for name in names for cell in table.column(name) if "." in cell and _IN_GROUPS[","].fullmatch(cell)]
    return any("," in cell or cell.count(".") > 1 for cell in pointed)


def _remove_grouping(cells: pd.Series, decimal: str, grouped: bool) -> pd.Series:
    """Return cells with a point before their decimals and nothing between their thousands.

    A comma (or a point, if `decimal` is a comma) separates thousands only if it does so in every cell that has one. Otherwise
    "0,125" is not a number.

    In a file with decimal commas, `grouped` must say that points separate thousands (`shows_grouping`).

    >>> _remove_grouping(pd.Series(["1,234.5", "12", "1 234"]), ".", grouped=False).tolist()
    ['1234.5', '12', '1234']
    >>> _remove_grouping(pd.Series(["1.234,5", "0,125"]), ",", grouped=True).tolist()
    ['1234.5', '0.125']
    """
    spaced = cells.map(lambda cell: _SPACED.fullmatch(cell) is not None)
    cells = cells.where(~spaced, cells.str.replace(_SPACES, "", regex=True))
    separator = "," if decimal == "." else "."
    having = [cell for cell in cells if separator in cell]
    if having and (decimal == "." or grouped) and all(_IN_GROUPS[decimal].fullmatch(cell) for cell in having):
        cells = cells.str.replace(separator, "", regex=False)
    return cells.str.replace(",", ".", regex=False) if decimal == "," else cells
