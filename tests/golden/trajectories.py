"""The recorded trajectories: one file, and how far a run may be from what it holds.

The file has the name of each case, and of each field one array with the numbers of all cases, one case after the other, beside
the shapes of these.
"""

from pathlib import Path

import numpy as np

from golden.cases import Case, draw_parts

FILE = Path(__file__).with_name("trajectories.npz")
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}  # relative to the size of a case's numbers
Run = dict[str, np.ndarray]

_FLAGS = ("converged", "kept", "active")
_PLACES = ("actions", "shadow_action")
_COSTS = ("hitting", "switching", "cost", "reference", "left", "booked")
FIELDS = (*_FLAGS, *_PLACES, *_COSTS, "advice_cost")


def save(runs: dict[str, Run]) -> None:
    """Write the runs by the names of their cases."""
    content = {"names": _as_bytes("\n".join(runs))}
    for field in FIELDS:
        found = [run.get(field) for run in runs.values()]
        content[f"{field} shapes"] = np.array([_shape(each) for each in found], np.int8)
        dtype = bool if field in _FLAGS else np.float64
        content[field] = np.concatenate([np.ravel(each).astype(dtype) for each in found if each is not None])
    np.savez_compressed(FILE, **content)


def load() -> dict[str, Run]:
    """Return the recorded runs by the names of their cases."""
    with np.load(FILE) as content:
        names = content["names"].tobytes().decode().split("\n")
        runs: dict[str, Run] = {name: {} for name in names}
        for field in FIELDS:
            shapes, values = content[f"{field} shapes"], content[field]
            ends = np.cumsum([np.prod(shape[shape >= 0]) if shape[0] >= 0 else 0 for shape in shapes]).astype(int)
            for run, shape, end in zip(runs.values(), shapes, ends, strict=True):
                if shape[0] >= 0:
                    shape = shape[shape >= 0]
                    run[field] = values[end - np.prod(shape) : end].reshape(shape)
    return runs


def _as_bytes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


def _shape(array: np.ndarray | None) -> tuple[int, int]:
    """Return the shape with -1 for each axis that is missing."""
    return (-1, -1) if array is None else (*array.shape, -1)[:2]


def differences(case: Case, recorded: Run, found: Run) -> dict[str, float]:
    """Return by how much each field differs, relative to the size of the case's numbers; 0 is bit for bit.

    Infinite where a flag differs, a number is missing, or one of two is not finite.
    """
    if recorded.keys() != found.keys():
        return dict.fromkeys(recorded.keys() ^ found.keys(), np.inf)
    parts = draw_parts(case)
    place = _largest(parts.x0, parts.followed, recorded["actions"])
    cost = max(_largest(*(recorded[name] for name in _COSTS if name in recorded)), np.finfo(float).tiny)
    sizes = dict.fromkeys(_PLACES, place) | dict.fromkeys(_COSTS, cost)
    return {
        name: _difference(recorded[name], found[name], sizes.get(name) or _largest(recorded[name])) for name in recorded
    }


def _largest(*arrays: np.ndarray) -> float:
    return max(float(np.max(np.abs(each), initial=0.0, where=np.isfinite(each))) for each in arrays)


def _difference(old: np.ndarray, new: np.ndarray, size: float) -> float:
    if old.shape != new.shape:
        return np.inf
    if old.dtype == bool:
        return 0.0 if np.array_equal(old, new) else np.inf
    if np.array_equal(old, new, equal_nan=True):
        return 0.0
    usable = np.isfinite(old)
    if not np.array_equal(np.where(usable, 0.0, old), np.where(usable & np.isfinite(new), 0.0, new), equal_nan=True):
        return np.inf
    return float(np.max(np.abs(new - old), initial=0.0, where=usable)) / size
