"""How a run begins: on which past, and from which action."""

from typing import Any

import equinox as eqx
import numpy as np

from ecl2o.agents.calibrator import find_hitting_minimizer
from ecl2o.policy.context_validation import check_magnitude
from ecl2o.policy.policy import Policy, action_dim
from ecl2o.policy.runner import Runner
from ecl2o.problem.arrays import to_device

_cheapest_action = eqx.filter_jit(find_hitting_minimizer)


def start_run(policy: Policy, x0: Any = None, history: Any = None) -> Runner:
    """A runner at the beginning of a run.

    Args:
        policy: what to run.
        x0: (d,), the action in force before the first one. Default: the cheapest for the last context.
        history: (H, q), the contexts before the first one, of which the policy takes what it needs. Default: the policy's own.
    """
    past = policy.history if history is None else np.asarray(history, float)
    if x0 is None:
        if past is None or not len(past):
            raise ValueError("where does the run start? Give x0 (the action in force) or a history (contexts).")
        x0 = choose_x0(policy, past[-1])
    check_magnitude("x0", np.asarray(x0, float))
    if past is None:
        width = policy.contract.context_dim
        return Runner(policy, x0, None if width is None else np.zeros((0, width)))
    check_context_width(policy, past.shape[-1])
    return Runner(policy, x0, trim_history(policy, past))


def choose_x0(policy: Policy, context: np.ndarray) -> np.ndarray:
    """(d,), the action that a run begins with after a context (q,) if no other is known: the cheapest one for it."""
    check_context_width(policy, len(context))
    return np.asarray(_cheapest_action(policy.problem, to_device(context), _dim(policy, len(context))))


def check_context_width(policy: Policy, width: int) -> None:
    """Refuse contexts of another number of columns than the policy was made for."""
    made_for = policy.contract.context_dim
    if made_for is not None and width != made_for:
        raise ValueError(f"the policy takes contexts of {made_for} numbers, but these have {width}; name the columns.")
    policy.problem.hitting.check(_dim(policy, width), width)


def _dim(policy: Policy, width: int) -> int:
    """d; 1 where contexts of this width do not tell either, since movement that is billed by distance is solved on a line."""
    return action_dim(policy.problem, width) or 1


def trim_history(policy: Policy, past: np.ndarray) -> np.ndarray | None:
    """What the policy takes of a past: as much as its own, at least what its contract asks for; all if that is silent."""
    needed = policy.contract.history_steps
    if needed is None:
        return past
    kept = max(
        needed, 0 if policy.history is None else len(policy.history)
    )  # a regression begins on more than it needs
    return past[max(len(past) - kept, 0) :] if kept else None
