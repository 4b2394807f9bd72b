"""Forecasts that are given for some of the coming steps, completed for all of them."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

DECAY = 0.9  # of an error after an hour, 24 hours being a period


def group_leads(leads: Sequence[int | None]) -> list[list[tuple[int, int]]]:
    """Return groups of forecasts with different leads, as (place, lead) by lead; the second forecast of a lead is in the second.

    >>> group_leads([None, 2, 1, 2])
    [[(2, 1), (1, 2)], [(3, 2)]]
    """
    groups: list[dict[int, int]] = []
    for place, lead in enumerate(leads):
        if lead is not None:
            group = next((group for group in groups if lead not in group), None)
            if group is None:
                groups.append(group := {})
            group[lead] = place
    return [[(group[lead], lead) for lead in sorted(group)] for group in groups]


def spread_errors(leads: Sequence[int], steps: int, period: int) -> Float[np.ndarray, "steps k"]:
    """Return what the present error of a profile, and its errors at the leads, say about its errors at steps 0, 1, 2, ...

    They are linear between the leads, and decay after the last.

    >>> spread_errors([2], 3, 24).tolist()
    [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    """
    known, ahead = [0, *leads], np.arange(steps)
    shares = np.stack([np.interp(ahead, known, row) for row in np.eye(len(known))], axis=1)
    return shares * DECAY ** (24 / period * np.maximum(ahead - known[-1], 0))[:, None]
