"""Limits on actions that are set when a policy runs, not when it was made.

How much memory a stream of a policy takes, worked out before anything is made for it.
"""

import dataclasses

import jax

from ecl2o.agents import Start
from ecl2o.agents.guards import AbstractGuard
from ecl2o.exceptions import MemoryLimitError, PolicyFileError
from ecl2o.policy.policy import Policy
from ecl2o.policy.runner import infer_context_dim, working_dtype
from ecl2o.problem import Box
from ecl2o.problem.arrays import cast_floats
from ecl2o.running import Stepper
from ecl2o.running.compiled_step import MOST_BYTES, check_stream_bytes, count_bytes, largest_allocation


def with_action_limits(policy: Policy, low: float, high: float) -> Policy:
    """The policy with every number of its actions kept from `low` to `high`, and within the limits that it had.

    An advisor that leaves them is clipped. A promise relative to the optimum is then relative to the optimum within the limits,
    and counts on contexts within them, for which alone it is proven.

    >>> from ecl2o.agents import ROBD, Competitive
    >>> from ecl2o.problem import Mahalanobis, Problem, SquaredTracking
    >>> problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> limited = with_action_limits(Policy(Competitive(ROBD(), ratio=2.0), problem), 0.0, 5.0)
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
        return dataclasses.replace(part.with_action_bounds(lower, upper), agent=inside)

    agent = jax.tree.map(limited, policy.agent, is_leaf=is_guard)
    problem = dataclasses.replace(policy.problem, actions=Box(lower, upper))
    return dataclasses.replace(policy, agent=agent, problem=problem)


def check_memory(policy: Policy, name: str, most: int = MOST_BYTES) -> None:
    """Refuse a policy whose streams would take more memory than a sane one's do.

    Args:
        policy: what is to be run.
        name: what the message calls its file.
        most: bytes of a stream's state, and of what one operation of a step makes.
    """
    try:
        _trace(policy, most)
    except MemoryLimitError as error:
        raise PolicyFileError(f"{name} cannot be used: {error}") from None
    except (ValueError, TypeError):
        return  # what else keeps it from running is told where it runs


def _trace(policy: Policy, most: int) -> None:
    """Beginning and step on arrays that are not there; a horizon of one step stands for any."""
    dim, past, dtype = policy.dim or 1, policy.history, working_dtype()
    context_dim = policy.contract.context_dim or infer_context_dim(policy.problem, dim, past)
    stepper = cast_floats(Stepper(policy.agent, policy.problem, policy.forecaster, policy.contract.screen), dtype)
    x0, context = (jax.ShapeDtypeStruct((size,), dtype) for size in (dim, context_dim))
    history = jax.ShapeDtypeStruct((0 if past is None else len(past), context_dim), dtype)
    state = jax.eval_shape(lambda x0, history: stepper.init(Start(x0, history, 1)), x0, history)
    check_stream_bytes(count_bytes(jax.tree.leaves(state)), most)
    check_stream_bytes(largest_allocation(jax.make_jaxpr(stepper.step)(state, context).jaxpr), most)
