"""Features of columns that are seen and not followed: covariates, and forecasts given from outside."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ecl2o.agents.advisors.periodic_profile import PeriodicProfile, ProfileState
from ecl2o.exceptions import NotApplicableError
from ecl2o.planning.given_leads import DECAY, group_leads, spread_errors
from ecl2o.problem import Problem

_HOURS = (1, 2, 3, 6, 12, 24)  # of 24 in a period, over which changes are taken
_MOST_LEADS = 4  # of a group of forecasts whose own deviations are features


class CovariateMemory(eqx.Module):
    """The profile of each column, and signals[i], the signals of i steps ago."""

    profiles: ProfileState
    signals: Float[Array, "n s"]


class CovariateFeatures(eqx.Module):
    """Features of the last numbers of a context, which are not followed; they do not depend on units.

    Of each covariate, with its deviation from its own profile: the deviation, its changes over 1, 2, 3, 6, 12 and 24 hours (24
    are a period), and harmonics of the phase times its change over an hour. Of each group of forecasts with different leads: the
    discounted mean of the coming contexts that they predict, completed by the profile of what is followed (`spread_errors`),
    less the present context; and the deviations of up to four of them from their own profiles, which no bias disturbs.

    Args:
        season: profile of a period.
        leads: of each number: None for a covariate, the steps ahead for a forecast.
        harmonics: sines and cosines of the time of day, how many of each.
    """

    season: PeriodicProfile
    leads: tuple[int | None, ...] = eqx.field(static=True)
    harmonics: int = eqx.field(static=True)

    def check(self, problem: Problem, dim: int) -> None:
        """Raise unless contexts have these numbers, and forecasts are of one column."""
        if problem.covariates != len(self.leads) or (self._groups and dim > 1):
            raise NotApplicableError(
                f"the regression was made for {len(self.leads)} covariates, forecasts being of the only column that is followed; "
                f"this problem has {problem.covariates} covariates and follows {dim}."
            )

    @property
    def _groups(self) -> list[list[tuple[int, int]]]:
        return group_leads(self.leads)

    @property
    def _plain(self) -> list[int]:
        return [place for place, lead in enumerate(self.leads) if lead is None]

    @property
    def _columns(self) -> list[int]:
        """The places of the columns that have a profile: covariates, then some forecasts of each group."""
        chosen = [
            group[i][0]
            for group in self._groups
            for i in sorted(set(np.linspace(0, len(group) - 1, _MOST_LEADS).round().astype(int).tolist()))
        ]
        return self._plain + chosen

    @property
    def _spans(self) -> list[int]:
        return sorted({max(1, round(hours * self.season.period / 24)) for hours in _HOURS})

    @property
    def sizes(self) -> list[int]:
        """How many features there are of each kind."""
        plain = [1 + len(self._spans), 2 * self.harmonics] * len(self._plain)
        return plain + [count for count in (len(self._columns) - len(self._plain), len(self._groups)) if count]

    def empty(self, maturity: int, dtype) -> CovariateMemory:
        """Return the memory before the first context, for rows that are learned from `maturity` steps later."""
        profiles = jax.tree.map(
            lambda leaf: jnp.zeros((len(self._columns) + 1, *leaf.shape), dtype), self.season.empty(dtype)
        )
        count = len(self._columns) + len(self._groups)
        return CovariateMemory(profiles, jnp.zeros((maturity + self.season.period, count), dtype))

    def advance(
        self,
        memory: CovariateMemory,
        step: Int[Array, ""],
        context: Float[Array, " q"],
        followed: Float[Array, ""],
        rho: Float[Array, ""],
    ) -> tuple[CovariateMemory, Float[Array, "2 c"]]:
        """Return the memory after a context, and the features of this step and of the row that matures."""
        season, period = self.season, self.season.period
        values = context[context.shape[0] - len(self.leads) :]
        known = jnp.append(values[np.array(self._columns, int)], followed)
        usual = jax.vmap(season.at, in_axes=(0, None, 0))(memory.profiles, step[None] % period, known)[:, 0]
        signals = (known - usual)[:-1]
        if self._groups:
            of_followed = jax.tree.map(lambda leaf: leaf[-1], memory.profiles)
            path = season.at(of_followed, (step + np.arange(period)) % period, followed)
            signals = jnp.concatenate([signals, self._predict_means(values, path, followed, rho)])
        recent = jnp.concatenate([signals[None], memory.signals[:-1]])
        late = recent.shape[0] - period - 1
        rows = jnp.stack([self._at(recent[: period + 1], step), self._at(recent[late:], step - late)])
        profiles = jax.vmap(season.update, in_axes=(0, None, 0))(memory.profiles, step % period, known)
        return CovariateMemory(profiles, recent), rows

    def _predict_means(
        self, values: Float[Array, " k"], path: Float[Array, " p"], followed: Float[Array, ""], rho: Float[Array, ""]
    ) -> Float[Array, " groups"]:
        """Return the discounted mean of the coming contexts by each group of forecasts, less the present context."""
        period = path.shape[0]
        usual, found = jnp.exp(jnp.log(rho) * np.arange(period)), []
        usual = jnp.sum(usual * path) / jnp.sum(usual)
        for group in self._groups:
            places, leads = map(list, zip(*group, strict=True))
            powers = jnp.exp(jnp.log(rho) * np.arange(leads[-1] + 1))
            later = rho * DECAY ** (24 / period)  # the last error decays for ever
            powers = (1 - rho) * jnp.concatenate([powers[:-1], powers[-1:] / (1 - later)])
            shares = powers @ spread_errors(leads, leads[-1] + 1, period)
            errors = jnp.concatenate(
                [(followed - path[0])[None], values[np.array(places)] - path[np.array(leads) % period]]
            )
            found.append(usual + jnp.sum(shares * errors) - followed)
        return jnp.stack(found)

    def _at(self, recent: Float[Array, "n s"], step: Int[Array, ""]) -> Float[Array, " c"]:
        """Return the features of a step from the signals of its last period."""
        plain, period = len(self._plain), self.season.period
        changes = recent[0, :plain] - recent[np.array(self._spans), :plain]
        angle = (2 * np.pi / period) * (step % period) * np.arange(1, self.harmonics + 1)
        waves = jnp.concatenate([jnp.cos(angle), jnp.sin(angle)]).astype(recent.dtype)
        parts = [[recent[0, i][None], changes[:, i], waves * changes[0, i]] for i in range(plain)]
        return jnp.concatenate([each for part in parts for each in part] + [recent[0, plain:]])
