"""Policies: an agent with all that is needed to run it, and the file it travels in."""

import dataclasses
import datetime
import functools
import importlib.metadata
import json
import os
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pydantic

from ecl2o.agents import AbstractAgent, trainable_mask
from ecl2o.exceptions import PolicyFileError
from ecl2o.forecasters import AbstractForecaster
from ecl2o.policy import policy_file
from ecl2o.policy.contract import Contract, PromiseTerms, describe_validation_error
from ecl2o.policy.policy_file import Contents
from ecl2o.problem import AbstractQuadraticCost, CurvedTracking, Mahalanobis, Problem

_KIND = "policy"
_PARTS = {"agent": AbstractAgent, "problem": Problem, "forecaster": AbstractForecaster}


@dataclasses.dataclass(frozen=True)
class Policy:
    """An agent with all that is needed to run it.

    Args:
        agent: who decides.
        problem: what is decided.
        forecaster: whom the agent asks about the future; None if it asks nobody.
        metadata: how it came to be, any JSON object: training settings, normalisation, validation figures. The package
            version and the time are added unless they are there.
        contract: what it expects of those who run it. Its promise and its bounds of actions are filled in from agent and
            problem, so that they cannot say anything else.
        history: (H, q) contexts to begin on where nobody gives fresher ones; None if there are none.

    >>> from ecl2o.agents import ROBD
    >>> from ecl2o.problem import SquaredTracking
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
        _check_parts({name: getattr(self, name) for name in _PARTS})
        object.__setattr__(self, "contract", _completed(self.contract, self.agent, self.problem))
        object.__setattr__(self, "history", _checked_history(self.history, self.contract))
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        metadata = {"version": importlib.metadata.version("ecl2o"), "created": now, **self.metadata}
        object.__setattr__(self, "metadata", _as_json(metadata, "metadata"))

    @property
    def dim(self) -> int | None:
        """d, how many numbers an action has; None where neither the problem nor the contract tells."""
        return action_dim(self.problem, self.contract.context_dim)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of agent, problem and forecaster, by structure and every bit of their arrays; not of the metadata.

        The code of a function inside the problem is not in it, only its name.
        """
        described, arrays = _describe_parts(self)
        return policy_file.digest([policy_file.pack(Contents(_KIND, described, arrays))])


def save(path: str | os.PathLike[str], policy: Policy) -> None:
    """Write a policy to one file: a JSON header, raw arrays and a checksum (docs/policy-format.md).

    The functions of a `ConvexCost` are not in the file, and `load` then asks for the problem; a function anywhere else is
    refused. The file appears whole or not at all.

    Args:
        path: the file; one that is there is replaced.
        policy: what to write.
    """
    described, arrays = _describe_parts(policy)
    if policy.history is not None:
        arrays = [*arrays, policy.history]
    header = {
        **described,
        "metadata": policy.metadata,
        "contract": policy.contract.model_dump(),
        "history": policy.history is not None,
        "dim": policy.dim,
    }
    policy_file.write(path, Contents(_KIND, header, arrays))


def load(path: str | os.PathLike[str], problem: Problem | None = None, classes: Sequence[type] = ()) -> Policy:
    """Read a policy; nothing in the file is executed, and a file that is not sound is refused with `PolicyFileError`.

    Numbers keep their precision; where JAX runs in 32 bits, doubles are rounded with a warning.

    Args:
        path: the file.
        problem: takes the place of the one in the file; needed where that has functions in it.
        classes: modules of yours that the file may name.
    """
    contents, name = policy_file.read(path, _KIND), os.fspath(path)
    header, arrays = contents.header, list(contents.arrays)
    metadata = header.get("metadata")
    if not isinstance(metadata, dict):
        raise PolicyFileError(f"{name} has no metadata.")
    history = arrays.pop() if header.get("history") and arrays else None
    contract = _read_contract(header.get("contract"), name)
    policy_file.warn_of_rounding(arrays, name)
    decoder = policy_file.Decoder(name, arrays, policy_file.allowed_classes(classes))
    stored = [part for part in _PARTS if part != "problem" or problem is None]
    decoded = {part: decoder.decode(header.get(part), part) for part in stored}
    if problem is not None:
        _check_fit(problem, header.get("dim"), name)
        decoded["problem"] = problem
    try:
        _check_parts(decoded)
        return Policy(**decoded, metadata=metadata, contract=contract, history=history)
    except (TypeError, ValueError) as error:
        raise PolicyFileError(f"{name} does not hold a policy: {error}") from None


def _read_contract(described: Any, name: str) -> Contract:
    try:
        return Contract.model_validate_json(json.dumps(described))
    except pydantic.ValidationError as error:
        raise PolicyFileError(
            f"{name} has a contract that cannot be understood: {describe_validation_error(error)}."
        ) from None


def describe(policy: Policy) -> dict[str, Any]:
    """What a policy is, as a dictionary of plain values for people to read.

    Args:
        policy: what to describe.

    >>> from ecl2o.agents import ROBD
    >>> from ecl2o.problem import SquaredTracking
    >>> problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> about = describe(Policy(ROBD(), problem))
    >>> about["agent"], about["weights"], about["problem"]["alpha"]
    ('ROBD', 0, 10.0)
    """
    problem, arrays = policy.problem, jax.tree.leaves(eqx.filter(policy.agent, eqx.is_array))
    weights = jax.tree.leaves(eqx.filter(policy.agent, trainable_mask(policy.agent)))
    about = {"hitting": type(problem.hitting).__name__, "m": float(problem.m), "dim": policy.dim}
    about |= {"switching": type(problem.switching).__name__, "actions": type(problem.actions).__name__}
    if isinstance(problem.switching, Mahalanobis):
        about |= {"alpha": float(problem.alpha), "beta": float(problem.beta)}
        twice_Q = 2 * np.asarray(problem.Q)
        if (twice_Q == np.diag(np.diag(twice_Q))).all() and twice_Q.shape[0] > 1:
            about["alphas"] = np.diag(twice_Q).tolist()
    return {
        "agent": _name_tree(policy.agent),
        "weights": sum(int(np.size(w)) for w in weights),
        "dtypes": sorted({a.dtype.name for a in arrays}),
        "lookahead": policy.agent.lookahead,
        "problem": about,
        "forecaster": None if policy.forecaster is None else type(policy.forecaster).__name__,
        "fingerprint": policy.fingerprint,
        "contract": policy.contract.model_dump(),
        "metadata": policy.metadata,
    }


def _completed(contract: Contract, agent: AbstractAgent, problem: Problem) -> Contract:
    """The contract with what agent and problem say themselves."""
    promise, dim = agent.promise(problem), action_dim(problem, contract.context_dim)
    terms = None if promise is None else PromiseTerms.of(promise, contract.period_name)
    bounds = None
    if problem.is_bounded and dim is not None:
        low, high = (np.asarray(bound, float).tolist() for bound in problem.actions.bounds(dim, float))
        bounds = list(zip(low, high, strict=True))
    hitting, weights = problem.hitting, None
    if isinstance(hitting, CurvedTracking) and hitting.maximum is not None:
        weights = float(np.asarray(hitting.minimum)), float(np.asarray(hitting.maximum))
    return contract.model_copy(update={"promise": terms, "action_bounds": bounds, "weights": weights})


def _checked_history(history: Any, contract: Contract) -> np.ndarray | None:
    if history is None:
        return None
    history = np.array(history, float)
    wanted = contract.context_dim
    if history.ndim != 2 or (wanted is not None and history.shape[1] != wanted):
        raise ValueError(f"history must have shape (H, {'q' if wanted is None else wanted}), got {history.shape}.")
    if not np.isfinite(history).all():
        raise ValueError("history must be finite.")
    return history


def _check_parts(parts: dict[str, Any]) -> None:
    for name, kind in _PARTS.items():
        part = parts[name]
        if not isinstance(part, kind) and not (name == "forecaster" and part is None):
            raise TypeError(f"{name} must be {kind.__name__}, got {type(part).__name__}.")


def _name_tree(agent: AbstractAgent) -> str:
    """The class names of an agent and the agents inside it: "MLAROBD(LSTM)"."""
    fields = [getattr(agent, field.name) for field in dataclasses.fields(agent)]
    inside = [_name_tree(value) for value in fields if isinstance(value, AbstractAgent)]
    return type(agent).__name__ + (f"({', '.join(inside)})" if inside else "")


def _describe_parts(policy: Policy) -> tuple[dict[str, Any], list[np.ndarray]]:
    encoder = policy_file.Encoder()
    described = {part: encoder.encode(getattr(policy, part), part) for part in _PARTS}
    for where in encoder.functions:
        if not where.startswith("problem."):
            raise TypeError(f"{where} cannot be saved: it is a function, and files hold no code.")
    return described, encoder.arrays


def action_dim(problem: Problem, context_dim: int | None) -> int | None:
    """d, as the movement knows it, or contexts of q numbers tell it where the cost compares actions with them; else None."""
    if isinstance(problem.switching, Mahalanobis):
        return problem.Q.shape[0]
    if context_dim is None or not isinstance(problem.hitting, AbstractQuadraticCost):
        return None
    for dim in (context_dim, context_dim - 1):
        try:
            problem.hitting.check(dim, context_dim)
        except ValueError:
            continue
        return dim
    return None


def _check_fit(problem: Problem, dim: Any, name: str) -> None:
    """Refuse a problem of another dimension than the one that the policy was saved with."""
    if type(dim) is not int or dim < 1:
        return
    try:
        problem.switching.check(dim)
        problem.actions.bounds(dim, float)
    except ValueError as error:
        raise PolicyFileError(
            f"the given problem does not fit {name}, whose actions have {dim} numbers: {error}"
        ) from None


def _as_json(value: Any, where: str) -> Any:
    """A JSON value of the library's own: NumPy and JAX numbers become Python's, tuples and arrays become lists."""
    if value is None or isinstance(value, bool | str) or type(value) in (int, float):
        return value
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _as_json(np.asarray(value).tolist(), where)
    if isinstance(value, list | tuple):
        return [_as_json(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _as_json(item, f"{where}[{key!r}]") for key, item in value.items()}
    raise TypeError(f"{where} must be made of what JSON knows, got {type(value).__name__} {value!r:.60}.")
