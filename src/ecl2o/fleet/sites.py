"""The sites of a fleet: found in a folder, by a glob or in a manifest, read, and what came of each."""

import csv
import dataclasses
import glob
import hashlib
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ecl2o import __version__
from ecl2o.data import Contexts, Split
from ecl2o.data.series import SUFFIXES, parse_covariates
from ecl2o.fitting.read import SeriesReader
from ecl2o.fitting.settings import DAYS, TRAINING, FitSettings, PromiseSpec
from ecl2o.json_text import parse_interval
from ecl2o.policy import Policy

# Columns of a manifest, by what they are settings of.
_OF_FIT = ("alpha", "bounds", "plausible", "advisor", "seed")
_OF_PROMISE = ("per", "allowance", "contexts")
_OF_COLUMNS = ("column", "covariate", "forecast")
_OF_FILE = ("time_column", "fill", "fill_limit", "time_zone", "period")
_OF_SPLIT = ("training_days", "validation_days")
FIELDS = ("name", "file", "promise", *_OF_PROMISE, *_OF_FIT, *_OF_COLUMNS, *_OF_FILE, *_OF_SPLIT)
_ADVISORS = ("auto", *TRAINING)
_CONVERTERS: dict[str, tuple[Callable[[str], Any], str]] = {
    **dict.fromkeys(("alpha", "promise", "allowance", "fill_limit"), (float, "a number")),
    **dict.fromkeys(("seed", "period", "training_days", "validation_days"), (int, "a whole number")),
    **dict.fromkeys(("contexts", "bounds", "plausible"), (parse_interval, "LOW:HIGH with LOW less than HIGH")),
    "per": (lambda text: tuple(DAYS)[tuple(DAYS).index(text)], f"one of {', '.join(DAYS)}"),
    "advisor": (lambda text: _ADVISORS[_ADVISORS.index(text)], f"one of {', '.join(_ADVISORS)}"),
}
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
        own = self._given(*_OF_FIT)
        return dataclasses.replace(common, promise=self._make_promise(common.promise), **own)

    def _make_promise(self, common: PromiseSpec | None) -> PromiseSpec | None:
        own = self._given(*_OF_PROMISE)
        if "promise" in self.cells:
            own |= {"ratio": self._given("promise")["promise"]}
        elif common is None and own:
            raise ValueError(f"{min(own)} needs a promise, and {self.name} has none.")
        return dataclasses.replace(common or PromiseSpec(2.0), **own) if common or own else None

    def make_reader(self, common: SeriesReader) -> SeriesReader:
        """Return the reader of its file; the cells of columns separate several by |."""
        own = self._given(*_OF_FILE)
        column, *extra = (
            [part.strip() for part in self.cells[field].split("|")] if field in self.cells else None
            for field in _OF_COLUMNS
        )
        own |= {} if column is None else {"columns": column}
        own |= {} if extra == [None, None] else {"covariates": parse_covariates(*extra)}
        return dataclasses.replace(common, path=self.file, **own)

    def make_split(self, common: Split | None) -> Split | None:
        """Return the split of its days; None: the default of `fit`."""
        own = self._given(*_OF_SPLIT)
        if len(own) == 1:
            raise ValueError("give both training_days and validation_days, or neither.")
        return Split(**own) if own else common

    def _given(self, *fields: str) -> dict[str, Any]:
        """Return those of the fields that have a cell, converted."""
        found = {}
        for field in fields:
            if field in self.cells:
                convert, expected = _CONVERTERS.get(field, (str, "text"))
                try:
                    found[field] = convert(self.cells[field])
                except ValueError:
                    raise ValueError(f"{field} must be {expected}, got {self.cells[field]!r}.") from None
        return found


def hash_inputs(contexts: Contexts, *inputs: Any) -> str:
    """Return a hash of a series and the other inputs of its figures; a resumed run compares it."""
    described = repr((contexts.steps_per_day, contexts.values.shape, *inputs, __version__))
    return hashlib.sha256(contexts.values.tobytes() + contexts.measured.tobytes() + described.encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class LoadedSite:
    """A site that was read: its series and the settings of its fit."""

    name: str
    contexts: Contexts
    settings: FitSettings

    @property
    def digest(self) -> str:
        """A hash of everything that its policy depends on."""
        return hash_inputs(self.contexts, self.contexts.split, self.settings)


@dataclasses.dataclass(frozen=True)
class SiteResult:
    """What came of a site.

    Args:
        name: name of the site.
        row: its figures by name; of a failed site, the status "failed" and the reason.
        policy: the fitted policy. Default: None.
        trace: the traceback of a failure.
    """

    name: str
    row: dict[str, Any]
    policy: Policy | None = None
    trace: str = dataclasses.field(default="", compare=False)

    @classmethod
    def failed(cls, name: str, error: BaseException) -> "SiteResult":
        """Return the result of a site that raised an error."""
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, OSError) and error.strerror and error.filename is not None:
            reason = f"{error.filename}: {error.strerror}"
        row = {"name": name, "status": "failed", "reason": reason}
        return cls(name, row, trace="".join(traceback.format_exception(error)))


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
            f"and file; optional columns are {', '.join(map(repr, FIELDS[2:]))}. For a single series use ecl2o fit."
        )
    unknown = [name for name in header if name not in FIELDS]
    if unknown:
        raise ValueError(
            f"{path} has an unknown column {unknown[0]!r}; known columns are {', '.join(map(repr, FIELDS))}."
        )
    if not content:
        raise ValueError(f"{path} has no sites.")
    specs = []
    for row in content:
        cells = {name: str(cell).strip() for name, cell in row.items() if cell is not None and str(cell).strip()}
        specs.append(SiteSpec(cells.pop("name", ""), path.parent / cells.pop("file", ""), cells))
    return specs


def read_sites(
    specs: Sequence[SiteSpec], settings: FitSettings, reader: SeriesReader, split: Split | None = None
) -> Iterator[LoadedSite | SiteResult]:
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
            yield SiteResult.failed(spec.name, error)
