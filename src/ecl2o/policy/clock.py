"""The clock of a run: how many steps lie between two times, where a period starts, and the history that ends before a time."""

import datetime
import functools
import math

import numpy as np
from jaxtyping import Float

from ecl2o.local_time import clock_shift, find_zone, to_local_time
from ecl2o.policy.policy import Policy

Time = datetime.datetime | str | None
_MONDAY = datetime.datetime(2001, 1, 1)  # weeks, and periods of 30 days, are counted from here
_DAYS_PER_WEEK = 7


class StepClock:
    """The clock of a policy's runs.

    A period of a day starts at the policy's day start, one of a week on the day start of a Monday, and one of 30 days every
    30 days from Monday, 1 January 2001.

    If the policy has a time zone, steps follow the local clock there: the hour that it skips in spring is a missed step, and
    the hour that it repeats in autumn belongs to the last step of the first one.

    Args:
        policy: Its contract has the minutes of a step, the day start, the zone, and the time at which its history ends.
    """

    def __init__(self, policy: Policy):
        contract = policy.contract
        self._agent, self._day_start = policy.agent, contract.day_start_minutes or 0
        zone = contract.file_format.time_zone
        self._zone = None if zone is None else find_zone(zone)
        self._past, self._until = policy.history, None if policy.history is None else contract.history_until
        self.step_minutes, self.steps_per_day = contract.step_minutes, contract.steps_per_day or 1
        self._shift = contract.shift

    @functools.cached_property
    def cycle(self) -> int:
        """The steps after which all restarts of the agent repeat; 1 if there are none."""
        return math.lcm(1, *self._agent.periods)

    @property
    def week(self) -> int:
        """The steps of seven days."""
        return _DAYS_PER_WEEK * self.steps_per_day

    def count_filled(self, missed: int) -> int:
        """Return how many of the missed steps to fill in: without whole weeks and whole periods, so that both stay right.

        Of a promise per month, whole weeks alone would move the period; 210 days are left out.
        """
        return missed % math.lcm(self.week, self.cycle)

    @property
    def _step(self) -> datetime.timedelta:
        return datetime.timedelta(minutes=self.step_minutes or 1)

    def _to_local(self, time: datetime.datetime) -> datetime.datetime:
        """Return a time on the local clock of the policy's zone, if it has one."""
        if self._zone is None:
            return time
        local = to_local_time(time, self._zone)
        if local.fold:  # shown for the second time
            while clock_shift(local + self._step, self._zone) > 0:
                local += self._step
        return local

    def is_repeated(self, time: datetime.datetime) -> bool:
        """Return whether the local clock of the policy's zone shows this time for the second time, in autumn."""
        return self._zone is not None and bool(to_local_time(time, self._zone).fold)

    def count_steps(self, first: datetime.datetime, last: datetime.datetime) -> int:
        """Return the number of steps from one time to another, rounded."""
        first, last = self._to_local(first), self._to_local(last)
        return round((align_offset(last, first) - first) / self._step)

    def next_time(self, time: datetime.datetime) -> datetime.datetime:
        """Return the time of the step after that of another time.

        Raises:
            ValueError: Times end before.
        """
        try:
            return self._to_local(time) + self._step
        except OverflowError:
            raise ValueError(f"no time follows {time}; give the next step a time, or start a new run.") from None

    def in_force_from(self, time: datetime.datetime | None) -> datetime.datetime | None:
        """Return when the action that answers a context of this time is in force; None if it is at once, or unknown."""
        if time is None or not self._shift or self.step_minutes is None:
            return None
        return self._to_local(time) + self._shift * self._step

    def find_place(self, time: Time = None, own_history: bool = False) -> int:
        """Return how many steps before a time its period started; for a run that has no clock, 0.

        Args:
            time: Of a run's first step. Default: the step after the policy's own history.
            own_history: Whether the run starts on the policy's own history, which gives the time where none is given.
        """
        until = None if self._until is None else datetime.datetime.fromisoformat(self._until)
        if time is None and own_history and until is not None:
            time = self.next_time(until) if self.step_minutes is not None else None
        if time is None or self.step_minutes is None or self.cycle == 1:
            return 0
        time = datetime.datetime.fromisoformat(time) if isinstance(time, str) else time
        time = self._to_local(time)
        if time.tzinfo is not None and until is not None and until.tzinfo is not None:
            time = time.astimezone(until.tzinfo)
        since = time.replace(tzinfo=None) - _MONDAY - datetime.timedelta(minutes=self._day_start)
        return math.floor(since / self._step) % self.cycle

    def describe_default_start(self, own_history: bool) -> str | None:
        """Return what is assumed of a first step without a time; None if nothing depends on it."""
        if self.step_minutes is None or self.cycle == 1:
            return None
        if not own_history or self._until is None:
            return "without a time, the first step is taken to start a period."
        first = self.next_time(parse_time(self._until))
        return f"without a time, the first step is taken to be of {first}, one step after the history."

    def extend_own_history(self, time: datetime.datetime) -> tuple[Float[np.ndarray, "K q"] | None, str | None]:
        """Return the policy's own history as `extend_history` does; None if it has none."""
        if self._past is None or not len(self._past) or self._until is None or self.step_minutes is None:
            return self._past, None
        return self.extend_history(self._past, self._until, time)

    def extend_history(
        self, past: Float[np.ndarray, "H q"], until: str, time: datetime.datetime
    ) -> tuple[Float[np.ndarray, "K q"], str | None]:
        """Return a history that ends one step before a time, and a notice if it ended at another.

        Each missing context is taken from a week before it (or a day, of a shorter history), so that hours of the day are right.
        """
        end = datetime.datetime.fromisoformat(until)
        gap = self.count_steps(end, time) - 1
        if not gap:
            return past, None
        cycle = next((span for span in (self.week, self.steps_per_day) if span <= len(past)), 1)
        notice = (
            f"the history ends at {end}, {abs(gap)} steps {'too early' if gap > 0 else 'too late'} for a start at "
            f"{align_offset(time, end)}; the hours of the day are kept."
        )
        return np.concatenate([past, past[len(past) - cycle :][: gap % cycle]]), notice


def parse_time(text: str) -> datetime.datetime:
    """Return a time in ISO 8601.

    Raises:
        ValueError: The text is not one.
    """
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError:
        message = f"{text[:60]!r} is not a time; write it as 2024-01-31 06:00 or 2024-01-31T06:00+01:00."
        raise ValueError(message) from None


def align_offset(time: datetime.datetime, other: datetime.datetime) -> datetime.datetime:
    """Return a time with the offset from UTC of `other`, if only one of the two has an offset.

    >>> str(align_offset(datetime.datetime(2024, 1, 1, 6), datetime.datetime.fromisoformat("2023-01-01T00+02:00")))
    '2024-01-01 06:00:00+02:00'
    """
    return time if (time.tzinfo is None) == (other.tzinfo is None) else time.replace(tzinfo=other.tzinfo)
