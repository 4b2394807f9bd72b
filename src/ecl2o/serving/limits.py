"""Limits on actions that are set when a policy runs, not when it was made."""

import dataclasses

import jax

from ecl2o.agents.guards import AbstractGuard
from ecl2o.problem import Box
from ecl2o.serving.policy import Policy


def within(policy: Policy, low: float, high: float) -> Policy:
    """The policy with every number of its actions kept from `low` to `high`, and within the limits that it had.

    An advisor that leaves them is clipped. A promise relative to the optimum is then relative to the optimum within the limits,
    and counts on contexts within them, for which alone it is proven.

    >>> from ecl2o.agents import ROBD, Competitive
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

    def is_guard(part):
        return isinstance(part, AbstractGuard)

    def limited(part):
        if not is_guard(part):
            return part
        inside = jax.tree.map(limited, part.agent, is_leaf=is_guard)
        return dataclasses.replace(part.within(lower, upper), agent=inside)

    agent = jax.tree.map(limited, policy.agent, is_leaf=is_guard)
    problem = dataclasses.replace(policy.problem, actions=Box(lower, upper))
    return dataclasses.replace(policy, agent=agent, problem=problem)
