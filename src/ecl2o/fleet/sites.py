"""The sites of a fleet: found in a folder, by a glob or in a manifest, and read."""

import csv
import dataclasses
import glob
import hashlib
import re
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from ecl2o import __version__
from ecl2o.data import Contexts, Split
from ecl2o.fitting.read import SeriesReader
from ecl2o.fitting.settings import DAYS, TRAINING, FitSettings, PromiseSpec
from ecl2o.interval import parse_interval

SUFFIXES = (".csv", ".csv.gz", ".parquet", ".pq")
FIELDS = (
    *("name", "file", "alpha", "promise", "per", "allowance", "contexts", "bounds", "advisor", "seed"),
    *("column", "time_column", "fill", "period", "training_days", "validation_days"),
)
_NAME = re.compile(r"[\w][\w .+-]{0,119}")


@dataclasses.dataclass(frozen=True)
class SiteSpec:
    """A site's name, file, and cells of the manifest; empty cells take the common settings."""

    name: str
    file: Path
    cells: dict[str, str] = dataclasses.field(default_factory=dict)

    def check_name(self) -> None:
        """Raise unless the name can be that of a file."""
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"name must consist of letters, digits, blanks and . + - _, since it becomes a file name; got {self.name!r}."
            )

    def make_settings(self, common: FitSettings) -> FitSettings:
        """Return the settings of the site's fit."""
        changes: dict[str, Any] = {
            "alpha": self._number("alpha", None) if "alpha" in self.cells else common.alpha,
            "advisor": self._word("advisor", ("auto", *TRAINING), common.advisor),
            "seed": self._whole("seed", common.seed),
            "bounds": self._interval("bounds", common.bounds),
        }
        return dataclasses.replace(common, promise=self._make_promise(common.promise), **changes)

    def _make_promise(self, common: PromiseSpec | None) -> PromiseSpec | None:
        given = [field for field in ("per", "allowance", "contexts") if field in self.cells]
        if common is None and "promise" not in self.cells:
            if given:
                raise ValueError(f"{given[0]} needs a promise, and {self.name} has none.")
            return None
        base = PromiseSpec(2.0) if common is None else common
        return PromiseSpec(
            cast(float, self._number("promise", base.ratio)),
            cast(Any, self._word("per", tuple(DAYS), base.per)),
            cast(float, self._number("allowance", base.allowance)),
            self._interval("contexts", base.contexts),
        )

    def make_reader(self, common: SeriesReader) -> SeriesReader:
        """Return the reader of its file; the cell `column` separates several columns by |."""
        columns = self.cells.get("column")
        return dataclasses.replace(
            common,
            path=self.file,
            columns=common.columns if columns is None else [part.strip() for part in columns.split("|")],
            time_column=self.cells.get("time_column", common.time_column),
            fill=self.cells.get("fill", common.fill),
            period=self._whole("period", common.period),
        )

    def make_split(self, common: Split | None) -> Split | None:
        """Return the split of its days; None: the default of `fit`."""
        days = [self._whole(name, None) for name in ("training_days", "validation_days")]
        if days == [None, None]:
            return common
        if None in days:
            raise ValueError("give both training_days and validation_days, or neither.")
        return Split(*cast(list[int], days))

    def _word(self, field: str, known: tuple[str, ...], default: str) -> str:
        word = self.cells.get(field, default)
        if word not in known:
            raise ValueError(f"{field} must be one of {', '.join(known)}, got {word!r}.")
        return word

    def _number(self, field: str, default: float | None) -> float | None:
        text = self.cells.get(field)
        try:
            return default if text is None else float(text)
        except ValueError:
            raise ValueError(f"{field} must be a number, got {text!r}.") from None

    def _whole(self, field: str, default: int | None) -> int | None:
        text = self.cells.get(field)
        try:
            return default if text is None else int(text)
        except ValueError:
            raise ValueError(f"{field} must be a whole number, got {text!r}.") from None

    def _interval(self, field: str, default: tuple[float, float] | None) -> tuple[float, float] | None:
        text = self.cells.get(field)
        try:
            return default if text is None else parse_interval(text)
        except ValueError as error:
            raise ValueError(f"{field} {error}") from None


@dataclasses.dataclass(frozen=True)
class LoadedSite:
    """A site that was read: its series and the settings of its fit."""

    name: str
    contexts: Contexts
    settings: FitSettings

    @property
    def digest(self) -> str:
        """A hash of everything that its policy depends on; a resumed run compares it."""
        contexts = self.contexts
        inputs = (contexts.split, contexts.steps_per_day, contexts.values.shape, self.settings, __version__)
        return hashlib.sha256(contexts.values.tobytes() + repr(inputs).encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class FailedSite:
    """A site that failed, with the reason and the traceback."""

    name: str
    reason: str
    trace: str = dataclasses.field(default="", compare=False)

    @classmethod
    def of(cls, name: str, error: BaseException) -> "FailedSite":
        """Return the failure of an exception."""
        return cls(name, one_line(error), "".join(traceback.format_exception(error)))


def find_sites(sites: str | Path) -> list[SiteSpec]:
    """Find the sites of a folder of series, of a glob, or of a manifest.

    A manifest is a CSV file with the columns name and file, and optional columns named like the options of `ecl2o fit` (alpha,
    promise, per, column, ...). Empty cells take the common settings. Files are relative to the manifest's folder.

    Args:
        sites: the folder, glob or manifest.

    Raises:
        ValueError: If there are no sites, or the manifest has missing or unknown columns.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "north.csv").write_text("time,demand")
        ...     [site.name for site in find_sites(folder)]
        ['north']
    """
    path = Path(sites)
    if path.is_dir():
        found = [file for file in sorted(path.iterdir()) if file.name.lower().endswith(SUFFIXES)]
        if not found:
            raise ValueError(f"{path} holds no series: no file ends in {', '.join(SUFFIXES)}.")
        return [SiteSpec(_stem(file), file) for file in found]
    if path.is_file():
        return _read_manifest(path)
    matches = sorted(Path(match) for match in glob.glob(str(sites), recursive=True))
    if not matches:
        raise ValueError(f"{sites} is neither a folder nor a manifest, and matches no file.")
    return [SiteSpec(_stem(file), file) for file in matches if file.is_file()]


def _stem(file: Path) -> str:
    name = file.name.removesuffix(".gz")
    return name[: -len(Path(name).suffix)] if Path(name).suffix else name


def _read_manifest(path: Path) -> list[SiteSpec]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            header = [(name or "").strip() for name in rows.fieldnames or ()]
            content = [dict(zip(header, (row.get(key) for key in rows.fieldnames or ()), strict=True)) for row in rows]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a manifest, a CSV file with the columns name and file: {error}.") from None
    missing = [name for name in ("name", "file") if name not in header]
    if missing:
        raise ValueError(
            f"{path} has no column {missing[0]!r}. A manifest is a CSV file with a line for each site and the columns name "
            f"and file; optional columns are {', '.join(FIELDS[2:])}. For a single series use ecl2o fit."
        )
    unknown = [name for name in header if name not in FIELDS]
    if unknown:
        raise ValueError(f"{path} has an unknown column {unknown[0]!r}; known columns are {', '.join(FIELDS)}.")
    if not content:
        raise ValueError(f"{path} has no sites.")
    specs = []
    for row in content:
        cells = {name: str(cell).strip() for name, cell in row.items() if cell is not None and str(cell).strip()}
        specs.append(SiteSpec(cells.pop("name", ""), path.parent / cells.pop("file", ""), cells))
    return specs


def read_sites(
    specs: Sequence[SiteSpec], settings: FitSettings, reader: SeriesReader, split: Split | None = None
) -> Iterator[LoadedSite | FailedSite]:
    """Yield each site, read, or the reason why it cannot be; a bad file fails its own site only."""
    seen: set[str] = set()
    for spec in specs:
        try:
            spec.check_name()
            if spec.name in seen:
                raise ValueError(f"the name {spec.name!r} is used twice.")
            seen.add(spec.name)
            own = spec.make_settings(settings)
            yield LoadedSite(spec.name, spec.make_reader(reader).read_split(spec.make_split(split)), own)
        except (ValueError, OSError) as error:
            yield FailedSite.of(spec.name, error)


def one_line(error: BaseException) -> str:
    """Return the message of an error without line breaks."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__
