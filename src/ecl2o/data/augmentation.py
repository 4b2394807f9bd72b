"""Windows that a training set lacks: other levels, other starts, and long calm or windy spells."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from ecl2o.exceptions import DataError
from ecl2o.problem import Instance

AUGMENTATIONS = ("scale", "start", "shift", "spells")
_SCALES = (0.5, 1.5)  # factors on contexts and x_0
_LARGEST_SHIFT = 0.3  # of the largest context
_SHORTEST_SPELL = 1 / 3  # of a window


def augment_windows(windows: Instance, kinds: Sequence[str], seed: int = 0) -> Instance:
    """Return the windows, and a changed copy of each for every kind.

    - `scale`: contexts and x_0 times one factor from 0.5 to 1.5.
    - `start`: x_0 anywhere between 0 and the largest context.
    - `shift`: contexts and x_0 moved by up to 0.3 of the largest context, and clipped at 0.
    - `spells`: a third of the window or more at 0 (wind), or at the window's own largest value or above (calm); half of them
      begin with the window.

    Args:
        windows: x0 (n, d) and contexts (n, T, q), not negative, without a history.
        kinds: any of `AUGMENTATIONS`; none: the windows as they are.
        seed: of the random numbers. Default: 0.

    >>> windows = Instance(np.ones((3, 1)), np.ones((3, 24, 1)))
    >>> augment_windows(windows, ["scale", "spells"]).contexts.shape
    (9, 24, 1)
    """
    unknown = [kind for kind in kinds if kind not in AUGMENTATIONS]
    if unknown:
        raise DataError(f"augmentations must be among {', '.join(AUGMENTATIONS)}, got {unknown[0]!r}.")
    x0, contexts = np.asarray(windows.x0), np.asarray(windows.contexts)
    if kinds and (contexts.min() < 0 or windows.history is not None):
        raise DataError("augmentation needs contexts that are not negative, in windows without a history.")
    largest, found = contexts.max(), [(x0, contexts)]
    for kind in kinds:
        rng = np.random.default_rng([seed, AUGMENTATIONS.index(kind)])
        if kind == "scale":
            factor = rng.uniform(*_SCALES, size=(len(x0), 1))
            found.append((x0 * factor, contexts * factor[:, None]))
        elif kind == "start":
            found.append((rng.uniform(0, largest, x0.shape), contexts))
        elif kind == "shift":
            shift = rng.uniform(-_LARGEST_SHIFT, _LARGEST_SHIFT, (len(x0), 1)) * largest
            found.append((np.maximum(x0 + shift, 0), np.maximum(contexts + shift[:, None], 0)))
        else:
            found.append((x0, _splice_spells(contexts, rng)))
    return Instance(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def _splice_spells(contexts: Float[np.ndarray, "n T q"], rng: np.random.Generator) -> Float[np.ndarray, "n T q"]:
    """Replace a stretch of each window by a level: 0, or one between its own largest value and that of all windows."""
    n, T, _ = contexts.shape
    length = rng.integers(max(1, int(T * _SHORTEST_SPELL)), T + 1, n)
    first = np.where(rng.random(n) < 0.5, 0, rng.integers(0, T - length + 1))
    step = np.arange(T)
    inside = (step >= first[:, None]) & (step < (first + length)[:, None])
    own = contexts.max(axis=(1, 2))
    calm = own + rng.random(n) * (contexts.max() - own)
    level = np.where(rng.random(n) < 0.5, 0.0, calm)
    return np.where(inside[:, :, None], level[:, None, None], contexts)
