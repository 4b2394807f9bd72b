"""How a run begins: on which past, and from which action."""

from typing import Any

import numpy as np

from ecl2o.serving.policy import Policy
from ecl2o.serving.runner import Runner


def begin(policy: Policy, x0: Any = None, history: Any = None) -> Runner:
    """A runner at the beginning of a run.

    Args:
        policy: what to run.
        x0: (d,), the action in force before the first one. Default: the last context of the history.
        history: (H, q), the contexts before the first one, of which the policy takes what it needs. Default: the policy's own.
    """
    past = policy.history if history is None else np.asarray(history, float)
    if x0 is None:
        if past is None or not len(past):
            raise ValueError("where does the run start? Give x0 (the action in force) or a history (contexts).")
        x0 = past[-1]
    return Runner(policy, x0, None if past is None else wanted(policy, past))


def wanted(policy: Policy, past: np.ndarray) -> np.ndarray | None:
    """What the policy takes of a past: as much as its own, at least what its contract asks for; all if that is silent."""
    needed = policy.contract.history_steps
    if needed is None:
        return past
    kept = max(
        needed, 0 if policy.history is None else len(policy.history)
    )  # a regression begins on more than it needs
    return past[max(len(past) - kept, 0) :] if kept else None
