"""A time-of-use tariff: what energy costs by the hour, known in advance, and what can be promised under it."""

import numpy as np
from jaxtyping import Float

from ecl2o.agents import AbstractAgent, Competitive

LOWEST, HIGHEST = 0.5, 2.0  # prices, in units of the usual one
PROMISE = 2.1  # for a day of 24 hours 1.96 is the least; for prices that may be anything between their ends it is 2.43


def time_of_use(steps_per_day: int) -> Float[np.ndarray, " n"]:
    """The price of each step of a day: 0.5 from 22 to 6, 2 from 16 to 21, 1 otherwise.

    >>> time_of_use(4).tolist()
    [0.5, 1.0, 1.0, 2.0]
    """
    hour = np.arange(steps_per_day) * 24 / steps_per_day
    return np.where((hour >= 22) | (hour < 6), LOWEST, np.where((hour >= 16) & (hour < 21), HIGHEST, 1.0))


def under_tariff(agent: AbstractAgent, steps_per_day: int) -> Competitive:
    """The agent behind a promise for each day that counts on this tariff."""
    return Competitive(agent, PROMISE, horizon=steps_per_day, weights=time_of_use(steps_per_day))
