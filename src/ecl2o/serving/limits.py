"""Limits on actions that are set when a policy runs, not when it was made."""

import dataclasses

import jax
import numpy as np

from ecl2o.agents import Competitive
from ecl2o.problem import Box
from ecl2o.serving.policy import Policy


def within(policy: Policy, low: float, high: float) -> Policy:
    """The policy with every number of its actions kept from `low` to `high`, and within the limits that it had.

    An advisor that leaves them is clipped. A promise relative to the optimum is then relative to the optimum within the limits,
    and counts on contexts within them, for which alone it is proven.

    >>> from ecl2o.agents import ROBD
    >>> from ecl2o.problem import Mahalanobis, Problem, SquaredTracking
    >>> problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> limited = within(Policy(Competitive(ROBD(), ratio=2.0), problem), 0.0, 5.0)
    >>> limited.contract.action_bounds, limited.contract.promise.contexts
    ([(0.0, 5.0)], [(0.0, 5.0)])
    """
    lower, upper = low, high
    for had_low, had_high in policy.contract.action_bounds or ():
        lower, upper = max(lower, had_low), min(upper, had_high)
    if not lower <= upper:
        raise ValueError(f"from {low:g} to {high:g} there is no action: the policy's own limits lie elsewhere.")

    def limited(part):
        if not isinstance(part, Competitive):
            return part
        counted_on = (-np.inf, np.inf) if part.contexts is None else (np.asarray(end) for end in part.contexts)
        ends = [np.clip(end, lower, upper) for end in counted_on]
        return dataclasses.replace(part, contexts=tuple(ends))

    agent = jax.tree.map(limited, policy.agent, is_leaf=lambda part: isinstance(part, Competitive))
    problem = dataclasses.replace(policy.problem, actions=Box(lower, upper))
    return dataclasses.replace(policy, agent=agent, problem=problem)
