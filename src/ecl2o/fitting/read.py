"""From a file to contexts: how a series is read, to be learned from, tested on or begun with."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from ecl2o.data import Contexts, SeriesMetadata, Split, read_series, series_contexts, trim_to_whole_days
from ecl2o.data.series import add_weight_column, move_weight_last
from ecl2o.exceptions import DataError
from ecl2o.fitting.pipeline import FEWEST_DAYS, default_split
from ecl2o.policy import Policy

FEWEST_TEST_DAYS = 3


def _unheard(words: str) -> None:
    """Tell nobody."""


@dataclasses.dataclass(frozen=True)
class SeriesReader:
    """How a series is read.

    Args:
        path: a CSV or Parquet file.
        columns: those to use. Default: all that hold numbers.
        time_column: the one with the time. Default: found by its name or cells.
        fill: "interpolate" or "previous" repairs gaps, repeated rows and bad cells. Default: they are refused.
        period: steps in a day. Default: those between two midnights.
        step_minutes: what the rows must be apart. Default: anything.
        tell: called with a sentence about what was repaired, and about part-days that are left out.
        day_start_minutes: when days begin, in minutes after midnight of the file's clock. Default: at midnight.
        weight_column: a column that is not followed, but says what a miss costs. Default: every miss costs the same.
    """

    path: Path
    columns: list[str] | None = None
    time_column: str | None = None
    fill: str | None = None
    period: int | None = None
    step_minutes: float | None = None
    tell: Callable[[str], None] = _unheard
    day_start_minutes: int | None = None
    weight_column: str | None = None

    def made_for(self, policy: Policy) -> "SeriesReader":
        """The same with the columns that a policy was made for, unless others are given, its step, and its days."""
        contract = policy.contract
        if None not in (self.period, contract.steps_per_day) and self.period != contract.steps_per_day:
            raise DataError(
                f"the policy was made for days of {contract.steps_per_day} steps, and its promise and its ratios are of such "
                f"days; --period {self.period} would judge it by others. Leave --period out."
            )
        return dataclasses.replace(
            self,
            columns=self.columns or contract.columns,
            weight_column=self.weight_column or contract.weight_column,
            period=contract.steps_per_day if self.period is None else self.period,
            step_minutes=contract.step_minutes,
            day_start_minutes=contract.day_start_minutes if self.day_start_minutes is None else self.day_start_minutes,
        )

    def contexts(self, split: Split | None = None) -> Contexts:
        """The series, divided into days for training, validation and testing; without a split, as `fit` does it."""
        frame, metadata = self._frame()
        days = len(frame) // metadata.steps_per_day
        if split is None and days < FEWEST_DAYS:
            raise DataError(
                f"{metadata.file} has {days} whole days ({len(frame)} rows, {metadata.steps_per_day} a day), but "
                f"{FEWEST_DAYS} are needed. With fewer, say how to divide them: --training-days and --validation-days; "
                "the rest is for testing."
            )
        return series_contexts(frame, metadata, default_split(days) if split is None else split)

    def whole(self) -> Contexts:
        """The series as days to test on."""
        frame, metadata = self._frame()
        days = len(frame) // metadata.steps_per_day
        if days < FEWEST_TEST_DAYS:
            raise DataError(
                f"{metadata.file} has {days} whole days ({len(frame)} rows, {metadata.steps_per_day} a day), but at least "
                f"{FEWEST_TEST_DAYS} are needed to test on."
            )
        return series_contexts(frame, metadata, Split(2, 0))

    def past(self) -> tuple[np.ndarray, str]:
        """The numbers, (n, q), and the time of the last row."""
        frame = self.rows()[0]
        return frame.to_numpy(float), str(frame.index[-1])

    def rows(self) -> tuple[pd.DataFrame, SeriesMetadata]:
        """The file as it is, with a word about what was repaired; refused where its step is not the one that is wanted."""
        frame, metadata = read_series(
            self.path, self.time_column, add_weight_column(self.columns, self.weight_column), self.fill
        )
        frame, metadata = move_weight_last(frame, metadata, self.weight_column)
        if self.step_minutes is not None and metadata.step_minutes != self.step_minutes:
            raise DataError(
                f"the rows of {metadata.file} are {metadata.step_minutes:g} minutes apart, but the policy was made for rows "
                f"{self.step_minutes:g} minutes apart."
            )
        repaired = metadata.repairs.describe()
        if repaired is not None:
            self.tell(f"{metadata.file}: {repaired}.")
        return frame, metadata

    def _frame(self) -> tuple[pd.DataFrame, SeriesMetadata]:
        frame, metadata = self.rows()
        steps = metadata.steps_per_day if self.period is None else self.period
        if steps < 2:
            raise DataError(
                f"the rows of {metadata.file} are a day or more apart. Say how many make one round of decisions with "
                "--period, for example --period 7 for weeks of daily rows; 'days' are such rounds then."
            )
        frame, metadata, part_days = trim_to_whole_days(
            frame, dataclasses.replace(metadata, steps_per_day=steps), self.day_start_minutes or 0
        )
        left_out = part_days.describe()
        if left_out is not None and len(frame):
            self.tell(f"{metadata.file}: days begin at {frame.index[0]:%H:%M}; {left_out}.")
        return frame, metadata
