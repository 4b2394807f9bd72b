"""Smoothing as in the authors' code: a Hann window over a series mirrored at both ends."""

import numpy as np


def hann_smoothed(values: np.ndarray, length: int) -> np.ndarray:
    """A moving average with a Hann window of `length` samples that sums to 1; as long as the input.

    The ends are mirrored without repeating the end samples, `x[length-1:0:-1]` before and `x[-2:-length-1:-1]` after, and
    the half window of overhang on each side is cut off.

    Args:
        values: (n,), what to smooth.
        length: of the window, in samples; odd, at least 3.

    Returns:
        (n,), the smoothed values.

    >>> [round(float(x), 3) for x in hann_smoothed(np.array([0.0, 0.0, 0.0, 4.0, 0.0, 0.0, 0.0]), 5)]
    [0.0, 0.0, 1.0, 2.0, 1.0, 0.0, 0.0]
    """
    if length < 3 or length % 2 == 0 or len(values) < length:
        raise ValueError(f"length must be odd, at least 3, and at most the {len(values)} values given, got {length}.")
    window = np.hanning(length)
    mirrored = np.concatenate([values[length - 1 : 0 : -1], values, values[-2 : -length - 1 : -1]])
    smooth = np.convolve(window / window.sum(), mirrored, mode="valid")
    return smooth[length // 2 : length // 2 + len(values)]
