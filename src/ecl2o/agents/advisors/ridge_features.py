"""What `OnlineRidge` regresses on: some forty differences of recent contexts and profiles, whatever the length of the period.

Everything here is about one coordinate. Grids are fine near the present and coarse far from it.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ecl2o.agents.advisors.season import Profile, Season
from ecl2o.problem.arrays import as_float, refuse_unless_count

_NODES = 48  # of the profile of a period
_WEEK_NODES = 24  # of that of a week, for each period in it
_WEEKS = 2.0  # its half-life
_MOST = 4096  # features, about
_LONGEST_TABLE = 10_000_000


class Profiles(eqx.Module):
    """What is usual in a period, and in a week if there is one, as of some step."""

    period: Profile
    week: Profile | None


class RidgeFeatures(eqx.Module):
    """Features of degree one: they scale with the contexts, and do not change when all contexts are shifted.

    Changes between the means of `lags` stretches of the last period, whose ends are spaced evenly and then geometrically, and are
    close again around the same phase a period ago; the profile now and 1, 2, 4, 8, ... steps ahead, less the present context; the
    same of the weekly profile, less the other one; and `harmonics` of the phase times the present context less the profile.
    """

    season: Season
    weekly: Season | None
    lags: int = eqx.field(static=True)
    harmonics: int = eqx.field(static=True)

    def __init__(self, period: int, half_life: float, lags: int, harmonics: int, week: int | None):
        refuse_unless_count("period", period)
        self.season = Season(as_float(half_life), period, min(period, _NODES))
        if week is None:
            self.weekly = None
        else:
            refuse_unless_count("week", week)
            self.weekly = Season(as_float(_WEEKS), period * week, min(period, _WEEK_NODES) * week)
        self.lags = lags
        self.harmonics = harmonics

    def __check_init__(self):
        refuse_unless_count("lags", self.lags)
        refuse_unless_count("harmonics", self.harmonics)
        if self.lags + 2 * self.harmonics > _MOST:
            raise ValueError(
                f"lags + 2 harmonics must be at most {_MOST}, since the regression holds the square of its features, got "
                f"{self.lags} lags and {self.harmonics} harmonics."
            )
        if self.period * self.harmonics > _LONGEST_TABLE:
            raise ValueError(
                f"period times harmonics must be at most {_LONGEST_TABLE}, for so long is the table of sines, got "
                f"{self.period} and {self.harmonics}."
            )

    @property
    def period(self) -> int:
        """How many steps a period has."""
        return self.season.period

    @property
    def leads(self) -> list[int]:
        """How far ahead profiles are looked at: 0, 1, 2, 4, 8, ..., less than a period."""
        return [0, *(2**i for i in range((self.period - 1).bit_length()))]

    @property
    def ends(self) -> list[int]:
        """Where the stretches of recent contexts end, in steps before now."""
        ends = {max(i, round(self.period ** (i / self.lags))) for i in range(1, min(self.lags, self.period) + 1)}
        return sorted({0} | ends | {self.period - lead for lead in self.leads})

    @property
    def sizes(self) -> list[int]:
        """How many features there are of each kind."""
        profiles = [len(self.leads)] * (1 if self.weekly is None else 2)
        return [len(self.ends) - 1, *profiles, 2 * self.harmonics]

    @property
    def count(self) -> int:
        """k, how many there are."""
        return sum(self.sizes)

    @property
    def needed(self) -> int:
        """How many contexts must have been seen before: two periods."""
        return 2 * self.period

    def nothing(self, dtype) -> Profiles:
        """Profiles that have seen nothing."""
        return Profiles(self.season.empty(dtype), None if self.weekly is None else self.weekly.empty(dtype))

    def profiles_with(self, profiles: Profiles, step: Int[Array, ""], now: Float[Array, ""]) -> Profiles:
        """With the context of one more step."""
        week = profiles.week
        if self.weekly is not None and week is not None:
            week = self.weekly.then(week, step % self.weekly.period, now)
        return Profiles(self.season.then(profiles.period, step % self.period, now), week)

    def at(
        self, sums: Float[Array, " n"], profiles: Profiles, step: Int[Array, ""], now: Float[Array, ""]
    ) -> tuple[Float[Array, " k"], Float[Array, " 3"]]:
        """The features of a step, the first of all being step 0, and the signals that go with an outlook.

        sums[i] are sums of the contexts of this step and the i before it, up to a constant; the profiles are of what came before.
        The signals are the last change, and the profile an eighth and a quarter of a period ahead, less the present context.
        """
        ends, leads = np.array(self.ends), self.leads
        means = jnp.diff(sums[ends]) / np.diff(ends)
        changes = -jnp.diff(jnp.concatenate([now[None], means]))
        ahead = step + np.array([*leads, max(self.period // 8, 1), self.period // 4])
        usual, soon = jnp.split(self.season.at(profiles.period, ahead % self.period, now), [len(leads)])
        parts = [changes, usual - now]
        if self.weekly is not None and profiles.week is not None:
            ahead = ahead[: len(leads)] % self.weekly.period
            parts.append(self.weekly.at(profiles.week, ahead, usual) - usual)
        features = jnp.concatenate([*parts, self._waves(now.dtype)[step % self.period] * (now - usual[0])])
        return features, jnp.concatenate([(now - (sums[1] - sums[0]))[None], soon - now])

    def _waves(self, dtype) -> Float[Array, "p h"]:
        """Cosines and sines of every phase."""
        angle = (2 * np.pi / self.period) * np.arange(self.period)[:, None] * np.arange(1, self.harmonics + 1)
        return jnp.asarray(np.concatenate([np.cos(angle), np.sin(angle)], axis=1), dtype)
