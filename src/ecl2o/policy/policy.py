"""Policies: an agent with all that is needed to run it, saved to and loaded from one file."""

import dataclasses
import datetime
import functools
import importlib.metadata
import json
import os
from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict

import equinox as eqx
import jax
import numpy as np
import pydantic

from ecl2o.agents import AbstractAgent, Reference, trainable_mask
from ecl2o.agents.base import child_agents
from ecl2o.agents.guards import Guard
from ecl2o.exceptions import PolicyFileError
from ecl2o.forecasters import AbstractForecaster
from ecl2o.json_text import as_json
from ecl2o.policy import policy_file
from ecl2o.policy.contract import Contract, describe_validation_error
from ecl2o.policy.policy_file import Contents
from ecl2o.problem import (
    AbstractHittingCost,
    Box,
    CurvedTracking,
    Limited,
    Problem,
    Total,
)

_KIND = "policy"
_PARTS = {"agent": AbstractAgent, "problem": Problem, "forecaster": AbstractForecaster}


@dataclasses.dataclass(frozen=True)
class Policy:
    """An agent with all that is needed to run it.

    Args:
        agent: The agent that decides.
        problem: The costs and the action set.
        forecaster: Predicts contexts for an agent with a lookahead. Default: none.
        metadata: How the policy was made, any JSON object: training settings, normalisation, validation figures. The package
            version and the time are added.
        contract: What the policy expects of its input. Its promise, action bounds, weights and shift are filled in from
            agent and problem.
        history: (H, q), the contexts that a run starts on if no fresher ones are given. Default: none.

    Raises:
        TypeError: A part is of the wrong class, or the metadata is not JSON.
        ValueError: The history does not fit the contract.

    >>> from ecl2o.agents import ROBD
    >>> from ecl2o.problem import Mahalanobis, SquaredTracking
    >>> problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> sorted(Policy(ROBD(), problem, metadata={"site": "Riverside"}).metadata)
    ['created', 'site', 'version']
    """

    agent: AbstractAgent
    problem: Problem
    forecaster: AbstractForecaster | None = None
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
    contract: Contract = Contract()
    history: np.ndarray | None = None

    def __post_init__(self):
        for name, kind in _PARTS.items():
            part = getattr(self, name)
            if not isinstance(part, kind) and not (name == "forecaster" and part is None):
                raise TypeError(f"{name} must be {kind.__name__}, got {type(part).__name__}.")
        object.__setattr__(self, "contract", _complete(self.contract, self.agent, self.problem))
        object.__setattr__(self, "history", _validate_history(self.history, self.contract))
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        metadata = {"version": importlib.metadata.version("ecl2o"), "created": now, **self.metadata}
        object.__setattr__(self, "metadata", as_json(metadata, "metadata", finite=False))

    @property
    def dim(self) -> int | None:
        """d, the dimension of actions; None if neither the problem nor the contract determines it."""
        return infer_action_dim(self.problem, self.contract.context_dim)

    @property
    def promises_optimum(self) -> bool:
        """Whether its first promise is relative to the optimum."""
        promise = self.agent.promise(self.problem)
        return promise is not None and promise.reference is Reference.OPTIMUM

    @property
    def optimum_is_bound(self) -> bool:
        """Whether the optimum that guard and service report is a lower bound: costs are not quadratic, or actions limited."""
        quadratic = self.problem.hitting.is_quadratic
        return not quadratic or isinstance(self.problem.actions, Limited)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of the structure and the arrays of agent, problem and forecaster, without the metadata.

        Of a function inside the problem it has only the name.
        """
        described, arrays = _describe_parts(self)
        return policy_file.digest([policy_file.pack(Contents(_KIND, described, arrays))])


def save(path: str | os.PathLike[str], policy: Policy) -> None:
    """Write a policy to one file: a JSON header, raw arrays and a checksum (docs/policy-format.md).

    The functions of a `ConvexCost` are left out, so that `load` needs the problem. The file appears whole or not at all.

    Args:
        path: The file; an existing one is replaced.
        policy: The policy to write.

    Raises:
        TypeError: A part other than the problem has a function in it, or an object that is neither a module nor an array.

    >>> import tempfile, ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/policy.ecl2o", Policy(ec.ROBD(), problem))
    ...     type(load(f"{folder}/policy.ecl2o").agent).__name__
    'ROBD'
    """
    described, arrays = _describe_parts(policy)
    if policy.history is not None:
        arrays = [*arrays, policy.history]
    header = {"metadata": policy.metadata, "contract": policy.contract.model_dump(), "dim": policy.dim}
    header |= {**described, "history": policy.history is not None}
    policy_file.write(path, Contents(_KIND, header, arrays))


def load(path: str | os.PathLike[str], problem: Problem | None = None, classes: Sequence[type] = ()) -> Policy:
    """Read a policy from a file. Nothing in the file is executed.

    Arrays keep their precision; if JAX runs in 32 bits, doubles are rounded, with a warning.

    Args:
        path: The file.
        problem: Replaces the problem in the file; needed if that has functions in it.
        classes: Modules of yours that the file may name.

    Returns:
        The policy. `save` has an example.

    Raises:
        PolicyFileError: The file is not a policy, is damaged, or needs `problem` or `classes`.
    """
    contents, name = policy_file.read(path, _KIND), os.fspath(path)
    header, arrays = contents.header, list(contents.arrays)
    metadata = header.get("metadata")
    if not isinstance(metadata, dict):
        raise PolicyFileError(f"{name} has no metadata. {policy_file.MAKE_AGAIN}")
    history = arrays.pop() if header.get("history") and arrays else None
    try:
        contract = Contract.model_validate_json(json.dumps(header.get("contract")))
    except pydantic.ValidationError as error:
        raise PolicyFileError(
            f"{name} has an invalid contract: {describe_validation_error(error)}. {policy_file.MAKE_AGAIN}"
        ) from None
    policy_file.warn_of_rounding(arrays, name)
    decoder = policy_file.Decoder(name, arrays, policy_file.allowed_classes(classes))
    stored = [part for part in _PARTS if part != "problem" or problem is None]
    decoded = {part: decoder.decode(header.get(part), part) for part in stored}
    dim = header.get("dim")
    try:
        if problem is not None:
            decoded["problem"] = problem
            if type(dim) is int and dim >= 1:
                problem.switching.check(dim)
                problem.actions.bounds(dim, float)
    except ValueError as error:
        raise PolicyFileError(f"problem does not fit {name}, whose actions have {dim} numbers: {error}") from None
    try:
        return Policy(**decoded, metadata=metadata, contract=contract, history=history)
    except (TypeError, ValueError) as error:
        raise PolicyFileError(f"{name} does not hold a policy: {error}") from None


def with_action_limits(policy: Policy, low: float, high: float) -> Policy:
    """Return the policy with every number of its actions limited to [low, high], and to the limits that it had.

    Actions outside are clipped. A promise relative to the optimum is then relative to the optimum within the limits, and holds
    for contexts within them.

    Raises:
        ValueError: The limits do not overlap the policy's own.

    >>> from ecl2o.agents import ROBD, Competitive
    >>> from ecl2o.problem import Mahalanobis, SquaredTracking
    >>> problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> limited = with_action_limits(Policy(Competitive(ROBD(), ratio=2.0), problem), 0.0, 5.0)
    >>> limited.contract.action_bounds, limited.contract.promise.contexts
    ([(0.0, 5.0)], ((0.0, 5.0),))
    """
    own = policy.contract.action_bounds or [(low, high)]
    lower, upper = max(low, *(bound[0] for bound in own)), min(high, *(bound[1] for bound in own))
    if not lower <= upper:
        had = ", ".join(f"{bound[0]:g}:{bound[1]:g}" for bound in own)
        raise ValueError(f"bounds {low:g}:{high:g} do not overlap the policy's bounds {had}.")

    def is_guard(part):
        return isinstance(part, Guard)

    def limit(part):
        if not is_guard(part):
            return part
        inside = jax.tree.map(limit, part.agent, is_leaf=is_guard)
        return dataclasses.replace(part.with_action_bounds(lower, upper), agent=inside)

    agent = jax.tree.map(limit, policy.agent, is_leaf=is_guard)
    actions, box = policy.problem.actions, Box(lower, upper)
    limited = Limited(box, actions.ramp, actions.spacing) if isinstance(actions, Limited) else box
    if isinstance(actions, Total):
        lower, upper = np.asarray([max(low, end[0]) for end in own]), np.asarray([min(high, end[1]) for end in own])
        limited = Total(actions.total, lower, upper, actions.column)
    problem = dataclasses.replace(policy.problem, actions=limited)
    return dataclasses.replace(policy, agent=agent, problem=problem)


class ProblemDescription(TypedDict):
    """A problem: the classes of its parts, and its constants; those of movement only where it is quadratic."""

    hitting: str
    m: float
    dim: int | None
    switching: str
    actions: str
    alpha: NotRequired[float]
    beta: NotRequired[float]
    alphas: NotRequired[list[float]]


class PolicyDescription(TypedDict):
    """A policy in JSON's types; `weights` is the number of trained weights."""

    agent: str
    weights: int
    dtypes: list[str]
    lookahead: int
    problem: ProblemDescription
    forecaster: str | None
    fingerprint: str
    contract: dict[str, Any]
    metadata: dict[str, Any]


def describe(policy: Policy) -> PolicyDescription:
    """Describe a policy as a dictionary of JSON's types: agent, problem, contract, fingerprint and metadata.

    Args:
        policy: As made or loaded.

    >>> from ecl2o.agents import ROBD
    >>> from ecl2o.problem import Mahalanobis, SquaredTracking
    >>> problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> about = describe(Policy(ROBD(), problem))
    >>> about["agent"], about["weights"], about["problem"]["alpha"]
    ('ROBD', 0, 10.0)
    """
    problem, arrays = policy.problem, jax.tree.leaves(eqx.filter(policy.agent, eqx.is_array))
    weights = jax.tree.leaves(eqx.filter(policy.agent, trainable_mask(policy.agent)))
    hitting, movement, actions = (type(part).__name__ for part in (problem.hitting, problem.switching, problem.actions))
    about = ProblemDescription(hitting=hitting, m=float(problem.m), dim=policy.dim, switching=movement, actions=actions)
    if problem.switching.is_quadratic:
        about["alpha"], about["beta"] = float(problem.alpha), float(problem.beta)
        twice_Q = 2 * np.asarray(problem.Q)
        if (twice_Q == np.diag(np.diag(twice_Q))).all() and twice_Q.shape[0] > 1:
            about["alphas"] = np.diag(twice_Q).tolist()
    return {
        "agent": _name_tree(policy.agent),
        "weights": sum(int(np.size(w)) for w in weights),
        "dtypes": sorted({a.dtype.name for a in arrays}),
        "lookahead": policy.problem.timing.lookahead(policy.agent.lookahead),
        "problem": about,
        "forecaster": None if policy.forecaster is None else type(policy.forecaster).__name__,
        "fingerprint": policy.fingerprint,
        "contract": policy.contract.model_dump(),
        "metadata": policy.metadata,
    }


def _complete(contract: Contract, agent: AbstractAgent, problem: Problem) -> Contract:
    """Return the contract with the promise, bounds, limits, weights and shift of agent and problem."""
    dim, bounds = infer_action_dim(problem, contract.context_dim), None
    if problem.relaxed.is_bounded and dim is not None:
        low, high = (np.asarray(bound, float).tolist() for bound in problem.actions.bounds(dim, float))
        bounds = list(zip(low, high, strict=True))
    hitting, weights = problem.hitting, None
    if isinstance(hitting, CurvedTracking) and hitting.maximum is not None:
        weights = float(np.asarray(hitting.minimum)), float(np.asarray(hitting.maximum))
    found = {
        "promise": agent.promise(problem),
        "action_bounds": bounds,
        "weights": weights,
        "shift": problem.timing.shift,
    }
    if isinstance(problem.actions, Limited):
        for name in ("ramp", "spacing"):
            limit = getattr(problem.actions, name)
            shape = () if dim is None else (dim,)
            found[name] = None if limit is None else np.broadcast_to(np.asarray(limit, float), shape).ravel().tolist()
    return contract.model_copy(update=found)


def _validate_history(history: Any, contract: Contract) -> np.ndarray | None:
    if history is None:
        return None
    history = np.array(history, float)
    width = contract.context_dim
    if history.ndim != 2 or (width is not None and history.shape[1] != width):
        raise ValueError(f"history must have shape (H, {width or 'q'}), got {history.shape}.")
    if not np.isfinite(history).all():
        raise ValueError("history must be finite.")
    return history


def _name_tree(agent: AbstractAgent) -> str:
    """Return the class names of an agent and of the agents inside it: "MLAROBD(LSTM)"."""
    inside = [_name_tree(value) for value in child_agents(agent)]
    return agent.known_as[0] + (f"({', '.join(inside)})" if inside else "")


def _describe_parts(policy: Policy) -> tuple[dict[str, Any], list[np.ndarray]]:
    encoder = policy_file.Encoder()
    described = {part: encoder.encode(getattr(policy, part), part) for part in _PARTS}
    for where in encoder.functions:
        if not where.startswith("problem."):
            raise TypeError(f"{where} cannot be saved: it is a function, and files hold no code.")
    return described, encoder.arrays


def infer_action_dim(problem: Problem, context_dim: int | None) -> int | None:
    """Return d, from the switching cost, or from q if the hitting cost compares actions with contexts; else None."""
    if problem.switching.is_quadratic:
        return problem.Q.shape[0]
    if context_dim is None or not problem.hitting.is_quadratic:
        return None
    most = context_dim - problem.covariates
    return next((d for d in (most, most - 1) if hitting_fits(problem.hitting, d, context_dim)), None)


def hitting_fits(hitting: AbstractHittingCost, dim: int, context_dim: int) -> bool:
    """Return whether a cost takes actions (dim,) and contexts (context_dim,)."""
    try:
        hitting.check(dim, context_dim)
    except ValueError:
        return False
    return True
