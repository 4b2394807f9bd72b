"""A policy without data or training: a guard around advice that somebody else sends with each context."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from ecl2o.agents import ROBD, Advised, RampLimited, Rounded, Start
from ecl2o.agents.advisors import FromContext
from ecl2o.fitting.settings import Alpha, FitSettings, Interval, PromiseSpec, column_alphas, with_promise
from ecl2o.fitting.tasks import tracking_problem
from ecl2o.policy import Contract, Policy

_MINUTES_PER_DAY = 24 * 60


def guard_policy(
    promise: float | Mapping[str, float] | None = None,
    per: str = "run",
    *,
    alpha: Alpha = 10.0,
    never_worse: float | Mapping[str, float] | None = None,
    baseline: str | None = None,
    allowance: float = 0.0,
    contexts: Interval | None = None,
    bounds: Interval | None = None,
    misses: tuple[float, float] = (1.0, 1.0),
    weights: Interval | None = None,
    weight_column: str = "weight",
    ramp: float | None = None,
    spacing: float | None = None,
    delay: int = 0,
    plausible: Interval | Mapping[str, Interval] | None = None,
    columns: Sequence[str] = ("context",),
    advice: Sequence[str] | None = None,
    step_minutes: float = 60.0,
    shadow: bool = False,
) -> Policy:
    """Make a policy that plays advice from outside as far as promises allow.

    No data and no training are needed: each step brings a context and the advice, in `Runner.step`, `ecl2o act` or over HTTP.
    The advice may be anything. Where it is missing, the expert R-OBD decides, within the promises. A context has the followed
    columns, the weight if there are `weights`, the baseline's action if it has a column, and the advice.

    Args:
        promise: bound on the cost, in units of the optimum, for the period `per`; or a bound for each of several periods, as in
            {"run": 1.75, "day": 2.5}. Default: None, none relative to the optimum.
        per: period of a single promise: each "day", "week" or "month" of 30 days, the whole "run", or every window of up to so
            many hours, "48h". Default: "run".
        alpha: cost of moving: alpha/2 times the squared change, next to 1/2 the squared miss; one for all columns, or one per
            column name. Default: 10.
        never_worse: share by which the cost may exceed the baseline's, over the run or by period: 0.05, {"week": 0.05}.
        baseline: column with the actions of the rule in use today, or "still" for holding the action in force. Default: None.
        allowance: cost allowed on top of a promise relative to the optimum, in each period. Default: 0.
        contexts: (low, high) if all contexts are known to lie there; promises then allow more. Default: the bounds.
        bounds: (low, high) of actions. Promises relative to the optimum then assume contexts there. Default: none.
        misses: (short, long), weights of actions below and above the context. Default: (1, 1).
        weights: (low, high) of the weight of a miss, a number of each context. Default: all misses weigh the same.
        weight_column: name of that number. Default: "weight".
        ramp: greatest change of an action in one step. Promises then need `contexts` or `bounds`. Default: None, no limit.
        spacing: distance between neighbouring actions, 1 for whole numbers. Default: None, actions are any numbers.
        delay: steps from a context to the step in which its action is in force. Default: 0.
        plausible: (low, high) of readings, for all columns or by name; others are replaced. Default: contexts are used as sent.
        columns: names of the numbers to follow, one for each number of an action. Default: one, "context".
        advice: names of the advice, one for each. Default: "advice", or "advice_" and the name of each column.
        step_minutes: minutes from one step to the next. Default: 60.
        shadow: whether the advice is played unchanged, and the guard only reports what it would have done. Default: False.

    Returns:
        The policy.

    Raises:
        ValueError: If settings contradict each other, or no algorithm can keep the promises.

    >>> import ecl2o as ec
    >>> policy = ec.guard_policy(promise=2.0, per="day", alpha=10.0)
    >>> print(policy.contract.promise)
    the cost is at most 2 times the optimum in every 24 steps
    >>> runner = ec.Runner(policy, x0=[10.0])
    >>> bool(9 < runner.step([10.0], advice=[1e6])[0] < 11)
    True
    """
    dim, names = len(columns), list(columns)
    if advice is None:
        advice = ["advice"] if dim == 1 else [f"advice_{name}" for name in names]
    if len(advice) != dim:
        raise ValueError(f"advice must have one name for each of {dim} columns, got {list(advice)}.")
    if (never_worse is None) != (baseline is None):
        raise ValueError("never_worse needs a baseline, and a baseline needs never_worse.")
    if misses != (1.0, 1.0) and weights is not None:
        raise ValueError("with weights, misses weigh the same on both sides.")
    if delay < 0:
        raise ValueError(f"delay must be a whole number of steps, 0 or more, got {delay}.")
    if delay and weights is not None:
        raise ValueError("weights are not supported beside a delay.")
    core = names if weights is None else [*names, weight_column]
    from_column = baseline is not None and baseline != "still"
    covariates = [*([baseline] if from_column else []), *advice]
    all_names = [*core, *covariates]
    if len(set(all_names)) < len(all_names):
        raise ValueError(f"columns must have different names, got {', '.join(all_names)}.")
    if not {"time", "step"}.isdisjoint(all_names):
        raise ValueError(f"time and step are other fields of a step: rename these columns, got {', '.join(all_names)}.")
    place = None if baseline is None else len(core) if from_column else "still"
    given = FitSettings(alpha, bounds=bounds, weights=weights, misses=misses, shift=delay, ramp=ramp, spacing=spacing)
    bounds = given.bounds
    spec = _make_spec(promise, per, never_worse, place, allowance, bounds if contexts is None else contexts)
    per_day = _MINUTES_PER_DAY / step_minutes
    if per_day != round(per_day) and any(each.per != "run" for each in (spec, *spec.also)):
        raise ValueError(
            f"a day must be a whole number of steps, but one of {step_minutes:g} minutes makes {per_day:g}."
        )
    steps_per_day = max(round(per_day), 1)
    costs = dim, column_alphas(alpha, names), bounds, weights, len(covariates), misses, delay
    problem = tracking_problem(*costs, limits=(None, None) if shadow else given.limits)
    source = FromContext(len(all_names) - dim, otherwise=ROBD())
    guard = with_promise(source, spec, steps_per_day)
    if shadow:  # the limits are the guard's alone: the advice is played unchanged
        guard = guard if ramp is None else RampLimited(guard, ramp)
        guard = guard if spacing is None else Rounded(guard, spacing)
    agent = Advised(guard, dataclasses.replace(source, otherwise=None), shadow)
    x0, past = problem.actions.project(jnp.zeros(dim)), jnp.zeros((0, len(all_names)))
    agent.check(problem, Start(jnp.asarray(problem.start_state(x0, past)), past))
    contract = Contract(
        columns=all_names,
        step_minutes=float(step_minutes),
        steps_per_day=steps_per_day,
        day_start_minutes=0,
        period_name=spec.per,
        history_steps=0,
        plausible=_find_ranges(plausible, names, all_names),
        weight_column=None if weights is None else weight_column,
        covariates=dict.fromkeys(covariates),
        advice=list(advice),
        ramp=None if ramp is None else [ramp] * dim,
        spacing=None if spacing is None else [spacing] * dim,
    )
    settings = {"alpha": alpha, "promise": dataclasses.asdict(spec), "bounds": bounds, "misses": misses}
    settings |= {"ramp": ramp, "spacing": spacing, "delay": delay}
    return Policy(agent, problem, metadata={"study": "guard", "settings": settings, "created": None}, contract=contract)


def _make_spec(
    promise: float | Mapping[str, float] | None,
    per: str,
    never_worse: float | Mapping[str, float] | None,
    baseline: int | str | None,
    allowance: float,
    contexts: Interval | None,
) -> PromiseSpec:
    """Return all promises in one."""
    ratios = {} if promise is None else promise if isinstance(promise, Mapping) else {per: promise}
    shares = {} if never_worse is None else never_worse if isinstance(never_worse, Mapping) else {"run": never_worse}
    for share in shares.values():
        if not 0 < share < np.inf:
            raise ValueError(f"never_worse must be positive and finite, got {share:g}.")
    specs = [PromiseSpec(ratio, each, allowance, contexts) for each, ratio in ratios.items()]
    specs += [PromiseSpec(1 + share, each, baseline=baseline) for each, share in shares.items()]  # pyright: ignore[reportArgumentType]
    if not specs:
        raise ValueError("a guard needs a promise: give promise or never_worse.")
    return dataclasses.replace(specs[0], also=tuple(specs[1:]))


def _find_ranges(
    plausible: Interval | Mapping[str, Interval] | None, followed: Sequence[str], columns: Sequence[str]
) -> list[Interval] | None:
    """Return the plausible range of each column; of those that are not followed, any number."""
    if plausible is None:
        return None
    given = dict(plausible) if isinstance(plausible, Mapping) else dict.fromkeys(followed, plausible)
    if not given.keys() <= set(columns):
        raise ValueError(f"plausible is given for {', '.join(given)}, but the columns are {', '.join(columns)}.")
    return [given.get(name, (-np.inf, np.inf)) for name in columns]
