"""How much memory a stream of a policy takes, worked out before anything is made for it."""

import jax

from ecl2o.agents import Start
from ecl2o.problem.arrays import cast_floats
from ecl2o.running import Stepper
from ecl2o.running.footprint import MOST_BYTES, TooLarge, bytes_of, largest_made, refuse_too_large
from ecl2o.serving.policy import Policy
from ecl2o.serving.policy_file import PolicyFileError
from ecl2o.serving.runs import context_dim_of, working_dtype


def refuse_unless_fitting(policy: Policy, name: str, most: int = MOST_BYTES) -> None:
    """Refuse a policy whose streams would take more memory than a sane one's do.

    Args:
        policy: what is to be run.
        name: what the message calls its file.
        most: bytes of a stream's state, and of what one operation of a step makes.
    """
    try:
        _trace(policy, most)
    except TooLarge as error:
        raise PolicyFileError(f"{name} cannot be used: {error}") from None
    except (ValueError, TypeError):
        return  # what else keeps it from running is told where it runs


def _trace(policy: Policy, most: int) -> None:
    """Beginning and step on arrays that are not there; a horizon of one step stands for any."""
    dim, past, dtype = policy.dim or 1, policy.history, working_dtype()
    context_dim = policy.contract.context_dim or context_dim_of(policy.problem, dim, past)
    stepper = cast_floats(Stepper(policy.agent, policy.problem, policy.forecaster, policy.contract.screen), dtype)
    x0, context = (jax.ShapeDtypeStruct((size,), dtype) for size in (dim, context_dim))
    history = jax.ShapeDtypeStruct((0 if past is None else len(past), context_dim), dtype)
    state = jax.eval_shape(lambda x0, history: stepper.init(Start(x0, history, 1)), x0, history)
    refuse_too_large(bytes_of(jax.tree.leaves(state)), most)
    refuse_too_large(largest_made(jax.make_jaxpr(stepper.step)(state, context).jaxpr), most)
