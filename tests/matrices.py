"""Matrices that tests share."""

import numpy as np


def spd(dim: int, seed: int, smallest: float, largest: float) -> np.ndarray:
    """Symmetric, positive definite, with eigenvalues from the smallest to the largest in a random basis."""
    basis, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, dim)))
    return basis @ np.diag(np.linspace(smallest, largest, dim)) @ basis.T
