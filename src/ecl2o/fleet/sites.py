"""The sites of a fleet: a folder, a glob or a manifest, and each of them read, or the reason why it cannot be."""

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

SUFFIXES = (".csv", ".csv.gz", ".parquet", ".pq")
FIELDS = (
    *("name", "file", "alpha", "promise", "per", "allowance", "contexts", "bounds", "advisor", "seed"),
    *("column", "time_column", "fill", "period", "training_days", "validation_days"),
)
_NAME = re.compile(r"[\w][\w .+-]{0,119}")


@dataclasses.dataclass(frozen=True)
class SiteSpec:
    """A site by name, its file, and what the manifest says of it, cell by cell; what it does not say is everybody's."""

    name: str
    file: Path
    cells: dict[str, str] = dataclasses.field(default_factory=dict)

    def check_name(self) -> None:
        """Names become files."""
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"a site's name becomes a file and must be of letters, digits, blanks and . + - _, got {self.name!r}."
            )

    def settings(self, common: FitSettings) -> FitSettings:
        """How the site's policy is made."""
        terms = self._terms(common.promise)
        changes: dict[str, Any] = {
            "alpha": self._number("alpha", None) if "alpha" in self.cells else common.alpha,
            "advisor": self._word("advisor", ("auto", *TRAINING), common.advisor),
            "seed": self._whole("seed", common.seed),
            "bounds": self._interval("bounds", common.bounds),
        }
        return dataclasses.replace(common, promise=terms, **changes)

    def _terms(self, common: PromiseSpec | None) -> PromiseSpec | None:
        said = [field for field in ("per", "allowance", "contexts") if field in self.cells]
        if common is None and "promise" not in self.cells:
            if said:
                raise ValueError(f"{said[0]} goes with a promise, and {self.name} has none.")
            return None
        base = PromiseSpec(2.0) if common is None else common
        return PromiseSpec(
            cast(float, self._number("promise", base.ratio)),
            cast(Any, self._word("per", tuple(DAYS), base.per)),
            cast(float, self._number("allowance", base.allowance)),
            self._interval("contexts", base.contexts),
        )

    def reading(self, common: SeriesReader) -> SeriesReader:
        """How its file is read; several columns of it stand with a | between them."""
        columns = self.cells.get("column")
        return dataclasses.replace(
            common,
            path=self.file,
            columns=common.columns if columns is None else [part.strip() for part in columns.split("|")],
            time_column=self.cells.get("time_column", common.time_column),
            fill=self.cells.get("fill", common.fill),
            period=self._whole("period", common.period),
        )

    def split(self, common: Split | None) -> Split | None:
        """How its days are divided; None: as `fit` does it."""
        days = [self._whole(name, None) for name in ("training_days", "validation_days")]
        if days == [None, None]:
            return common
        if None in days:
            raise ValueError("training_days and validation_days go together: give both or neither.")
        return Split(*cast(list[int], days))

    def _word(self, field: str, known: tuple[str, ...], otherwise: str) -> str:
        word = self.cells.get(field, otherwise)
        if word not in known:
            raise ValueError(f"{field} must be one of {', '.join(known)}, got {word!r}.")
        return word

    def _number(self, field: str, otherwise: float | None) -> float | None:
        text = self.cells.get(field)
        try:
            return otherwise if text is None else float(text)
        except ValueError:
            raise ValueError(f"{field} must be a number, got {text!r}.") from None

    def _whole(self, field: str, otherwise: int | None) -> int | None:
        text = self.cells.get(field)
        try:
            return otherwise if text is None else int(text)
        except ValueError:
            raise ValueError(f"{field} must be a whole number, got {text!r}.") from None

    def _interval(self, field: str, otherwise: tuple[float, float] | None) -> tuple[float, float] | None:
        text = self.cells.get(field)
        if text is None:
            return otherwise
        try:
            low, high = map(float, text.split(":"))
        except ValueError:
            raise ValueError(f"{field} must be LOW:HIGH, for example 0:1.5, got {text!r}.") from None
        if not low < high:
            raise ValueError(f"{field} must have LOW less than HIGH, got {text!r}.")
        return low, high


@dataclasses.dataclass(frozen=True)
class LoadedSite:
    """A site that has been read: its series, and how its policy is made."""

    name: str
    contexts: Contexts
    settings: FitSettings

    @property
    def digest(self) -> str:
        """A hash of all that its policy depends on, by which a run that goes on knows what is done."""
        contexts = self.contexts
        told = (contexts.split, contexts.steps_per_day, contexts.values.shape, self.settings, __version__)
        return hashlib.sha256(contexts.values.tobytes() + repr(told).encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class FailedSite:
    """A site that could not be done, why, and where in the program that was noticed."""

    name: str
    reason: str
    trace: str = dataclasses.field(default="", compare=False)

    @classmethod
    def of(cls, name: str, error: BaseException) -> "FailedSite":
        """By what was raised."""
        return cls(name, one_line(error), "".join(traceback.format_exception(error)))


def find_sites(sites: str | Path) -> list[SiteSpec]:
    """The sites of a folder of series, of a glob, or of a manifest: a CSV file with the columns name and file.

    A manifest may say of each site what `ecl2o fit` can be told (alpha, promise, per, column, ...); an empty cell says nothing.
    Files are relative to the manifest's folder.
    """
    path = Path(sites)
    if path.is_dir():
        found = [file for file in sorted(path.iterdir()) if file.name.lower().endswith(SUFFIXES)]
        if not found:
            raise ValueError(f"{path} holds no series: no file ends in {', '.join(SUFFIXES)}.")
        return [SiteSpec(_stem(file), file) for file in found]
    if path.is_file():
        return _manifest(path)
    matches = sorted(Path(match) for match in glob.glob(str(sites), recursive=True))
    if not matches:
        raise ValueError(f"{sites} is no folder, no manifest, and matches no file.")
    return [SiteSpec(_stem(file), file) for file in matches if file.is_file()]


def _stem(file: Path) -> str:
    name = file.name.removesuffix(".gz")
    return name[: -len(Path(name).suffix)] if Path(name).suffix else name


def _manifest(path: Path) -> list[SiteSpec]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            named = [(name or "").strip() for name in rows.fieldnames or ()]
            content = [dict(zip(named, (row.get(key) for key in rows.fieldnames or ()), strict=True)) for row in rows]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a manifest, a CSV file with the columns name and file: {error}.") from None
    missing = [name for name in ("name", "file") if name not in named]
    if missing:
        raise ValueError(
            f"{path} has no column {missing[0]!r}. A manifest is a CSV file with a line for each site and the columns name "
            f"and file, and those of {', '.join(FIELDS[2:])} that are wanted; for one series there is ecl2o fit."
        )
    unknown = [name for name in named if name not in FIELDS]
    if unknown:
        raise ValueError(
            f"{path} has a column {unknown[0]!r}, which means nothing here; there are {', '.join(FIELDS)}."
        )
    if not content:
        raise ValueError(f"{path} has no sites.")
    orders = []
    for row in content:
        cells = {name: str(cell).strip() for name, cell in row.items() if cell is not None and str(cell).strip()}
        orders.append(SiteSpec(cells.pop("name", ""), path.parent / cells.pop("file", ""), cells))
    return orders


def read_sites(
    orders: Sequence[SiteSpec], settings: FitSettings, reading: SeriesReader, split: Split | None = None
) -> Iterator[LoadedSite | FailedSite]:
    """Each site as it is to be fitted, or why it cannot be. A bad file is one site's matter."""
    seen: set[str] = set()
    for order in orders:
        try:
            order.check_name()
            if order.name in seen:
                raise ValueError(f"another site is called {order.name!r} too.")
            seen.add(order.name)
            own = order.settings(settings)
            yield LoadedSite(order.name, order.reading(reading).contexts(order.split(split)), own)
        except (ValueError, OSError) as error:
            yield FailedSite.of(order.name, error)


def one_line(error: BaseException) -> str:
    """Why, without line breaks."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__
