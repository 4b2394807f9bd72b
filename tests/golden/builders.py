"""What turns the data of a case into objects of the library, and a run of it into figures with neutral names.

Every use of the library's interface by these tests is here.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

import ecl2o as ec
from ecl2o.agents.timed import follow_timing
from golden.cases import (
    GREATEST,
    GREATEST_PART,
    HIGH,
    LEAST,
    LEAST_PART,
    LOW,
    PATTERN,
    TOTAL,
    Bound,
    Case,
    Parts,
    draw_advice,
    draw_parts,
    matrix_A,
    matrix_Q,
)

TRAJECTORY = ("actions", "hitting", "switching", "converged")


def convex(x, y):
    """Curvature from 1 to 2, with a minimiser that is not the context."""
    return jnp.sum(0.5 * (x - y[: len(x)]) ** 2 + jnp.sqrt(1 + (x - 0.5 * y[: len(x)]) ** 2) - 0.3)


def steep(x, y):
    """Curvature of at least 1.2, without a bound."""
    return jnp.sum(16 * (jnp.cosh((x - y[: len(x)]) / 4) - 1) + 0.1 * (x - y[: len(x)]) ** 2)


def make_cost(case: Case, parts: Parts) -> Any:
    """The hitting cost."""
    ignored = parts.ignored
    return {
        "tracking": lambda: ec.SquaredTracking(case.weight, covariates=ignored),
        "full": lambda: ec.Quadratic(matrix_A(case), covariates=ignored),
        "diagonal": lambda: ec.Quadratic(matrix_A(case), covariates=ignored),
        "curved": lambda: ec.CurvedTracking(LEAST, GREATEST, covariates=ignored),
        "curved, open": lambda: ec.CurvedTracking(LEAST, covariates=ignored),
        "asymmetric": lambda: ec.AsymmetricTracking(3.0 * case.weight, case.weight, covariates=ignored),
        "convex": lambda: ec.ConvexCost(convex, 1.0, smoothness=2.0),
        "steep": lambda: ec.ConvexCost(steep, 1.2),
    }[case.cost]()


def make_movement(case: Case) -> Any:
    """The switching cost."""
    return ec.LinearSwitching(case.alpha / 10) if case.movement == "linear" else ec.Mahalanobis(matrix_Q(case))


def make_actions(case: Case, parts: Parts) -> Any:
    """The action set."""
    shared = {"lower": LEAST_PART, "upper": GREATEST_PART}
    limits = {"ramp": case.ramp if "ramp" in case.actions else None}
    limits["spacing"] = case.spacing if "spacing" in case.actions else None
    box = ec.Box(LOW, HIGH) if "box" in case.actions else ec.Everywhere()
    sets = {
        "total": lambda: ec.Total(TOTAL, **shared),
        "total, open": lambda: ec.Total(TOTAL),
        "total column": lambda: ec.Total(column=parts.places["total"][0], **shared),
        "simplex": ec.Simplex,
        "everywhere": ec.Everywhere,
        "box": lambda: box,
    }
    return sets.get(case.actions, lambda: ec.Limited(box, **limits))()


def make_problem(case: Case, parts: Parts) -> Any:
    """The problem."""
    terms = make_cost(case, parts), make_movement(case), make_actions(case, parts)
    if case.timing:
        return ec.Problem(*terms, timing=ec.Delayed(case.timing) if case.timing > 0 else ec.KnownAhead(-case.timing))
    plain = ec.Problem(*terms)
    dynamics = {
        None: lambda: plain,
        "battery": lambda: ec.battery(case.alpha, 0.05, case.weight),
        "bounded battery": lambda: ec.battery(
            case.alpha, 0.05, case.weight, power_within=(LOW, HIGH), charge_within=(-2.0, 2.0)
        ),
        "delayed": lambda: ec.delayed(plain, 2),
        "known ahead": lambda: ec.known_ahead(plain, 2),
        "with memory": lambda: ec.with_memory(plain, (2.0, -1.0)),
        "regulator": lambda: ec.ControlProblem.regulator(F=0.9, B=1.0, Q=1.0, R=case.alpha),
    }
    return dynamics[case.dynamics]()


def make_state(case: Case, parts: Parts, problem: Any) -> np.ndarray:
    """What the first step starts from: the action in force, or the state of the dynamics."""
    d, x0 = case.dim, parts.x0
    if case.timing:
        contexts = make_contexts(parts)[: case.history]
        return np.asarray(problem.start_state(jnp.asarray(x0), jnp.asarray(contexts)))
    return {
        None: x0,
        "battery": np.array([x0[0], 0.3]),
        "bounded battery": np.array([x0[0], 0.3]),
        "delayed": np.tile(x0, 2),
        "known ahead": np.concatenate([x0, np.full(2 * d, 0.2)]),
        "with memory": np.tile(x0, 2),
        "regulator": x0,
    }[case.dynamics]


def make_contexts(parts: Parts) -> np.ndarray:
    """The rows that agents and costs see, history first."""
    return np.concatenate([part for _, part in parts.columns], axis=1)


def make_agent(case: Case, parts: Parts, name: str | None = None) -> Any:
    """The agent inside of the guard, or the baseline of this name."""
    advisors, inside = ec.advisors, case.agent if name is None else name
    fixed = advisors.Fixed(draw_advice(case, parts.followed)[case.history :])
    column = advisors.FromContext(parts.places["advice"][0]) if "advice" in parts.places else None
    agents = {
        "fixed": lambda: fixed,
        "column": lambda: advisors.FromContext(parts.places["advice" if name is None else "baseline"][0]),
        "column or still": lambda: advisors.FromContext(parts.places["advice"][0], otherwise=advisors.HoldStill()),
        "MLAROBD": lambda: ec.MLAROBD(fixed, trust=0.4),
        "MLAROBD of column": lambda: ec.MLAROBD(column, trust=0.4),
        "MLAROBD of ROBD": lambda: ec.MLAROBD(ec.ROBD(), trust=0.3),
        "ROBD": ec.ROBD,
        "ROBD, lambda1": lambda: ec.ROBD(lambda1=0.8),
        "Greedy": ec.Greedy,
        "HittingMinimizer": ec.HittingMinimizer,
        "HoldStill": advisors.HoldStill,
        "PureML": lambda: ec.PureML(fixed),
        "FollowPrediction": lambda: ec.FollowPrediction(fixed),
        "FollowPrediction, paper's": lambda: ec.FollowPrediction(fixed, form="paper"),
        "OBD": ec.OBD,
        "GreedyOBD": ec.GreedyOBD,
        "ABCS": lambda: ec.ABCS(fixed),
        "OGD": ec.OGD,
        "OGD, blind": lambda: ec.OGD("blind", steps="sqrt", eta=0.2),
        "LAI": ec.LAI,
        "LCP": lambda: ec.LCP(heuristic=True),
        "LCP, proved": ec.LCP,
        "Switch": lambda: ec.Switch(fixed),
        "Switch, ratio": lambda: ec.Switch(ec.MLAROBD(fixed, trust=0.2), mode="ratio"),
        "RHC": lambda: ec.RHC(2),
        "RHC, on": lambda: ec.RHC(4, truncate=False),
        "CHC": lambda: ec.CHC(2, 2),
        "AFHC": lambda: ec.AFHC(2),
        "RHGD": lambda: ec.RHGD(2, smoothness=6.0),
        "Independent": lambda: ec.Independent(ec.ROBD()),
        "RampLimited": lambda: ec.RampLimited(ec.HittingMinimizer(), limit=0.8),
        "Rounded": lambda: ec.Rounded(ec.ROBD(), spacing=0.2371),
        "Periodic": lambda: ec.Periodic(ec.ROBD(), 4),
        "OnlineRidge": lambda: make_ridge(case, parts),
        "Mixture": lambda: advisors.Mixture([make_ridge(case, parts), ec.ROBD()], period=4, memory=3.0, maturity=6),
        "SeasonalLinear": lambda: advisors.SeasonalLinear(case.dim, case.dim, period=3, days=2),
        "LQR": ec.LQR,
        "HInfinity": lambda: ec.HInfinity(8.0),
        "WithinLimits": lambda: ec.WithinLimits(fixed),
    }
    return agents[inside]()


def make_ridge(case: Case, parts: Parts) -> Any:
    """A regression that has begun after 24 contexts."""
    leads = (None,) * parts.ignored
    return ec.advisors.OnlineRidge(
        period=4, lags=2, harmonics=1, maturity=6, ahead=max(case.timing, 0), covariates=leads
    )


def make_guard(case: Case, parts: Parts, agent: Any) -> Any:
    """The guard around the agent, and what restarts it or prices its advice; the agent itself without a guard."""
    guard = case.guard
    if guard is None:
        return agent
    first, dtype = guard.promises[0], np.float64
    numbers = {"allowance": first.allowance, "horizon": guard.horizon}
    baseline = None if guard.baseline is None else make_agent(case, parts, guard.baseline)
    if guard.kind == "competitive":
        weights = None if not guard.announced else np.resize(PATTERN, guard.horizon or len(PATTERN)).astype(dtype)
        made = ec.Competitive(agent, first.ratio, contexts=guard.within, weights=weights, **numbers)
    elif guard.kind == "guarded":
        expert = ec.ROBD() if baseline is None else baseline
        made = ec.Guarded(agent, expert, first.ratio - 1, guard.reservation, first.allowance)
    elif guard.kind == "promises":
        made = ec.Promises(agent, list(map(make_promise, guard.promises)), baseline, guard.within)
    elif guard.kind == "band":
        places = None
        if guard.columns:
            band = parts.places["band"]
            places = tuple(band[: len(band) // 2]), tuple(band[len(band) // 2 :])
        made = ec.CompetitiveBand(agent, guard.half_width, first.ratio, columns=places, **numbers)
    elif guard.kind == "competitive control":
        made = ec.CompetitiveControl(agent, first.ratio, every_prefix=guard.every_prefix, **numbers)
    elif guard.kind == "guarded control":
        expert = ec.LQR() if baseline is None else baseline
        made = ec.GuardedControl(agent, expert, first.ratio - 1, every_prefix=guard.every_prefix, **numbers)
    else:
        assert guard.kind == "clipped"
        made = ec.MLAROBD(ec.ClippedAdvice(agent, delta=first.ratio - 1), trust=0.4)
    if guard.restarts is not None:
        made = made.every(guard.restarts)
    if guard.advised is not None:
        made = ec.Advised(made, ec.advisors.FromContext(parts.places["advice"][0]), shadow=guard.advised == "shadow")
    return made


def make_promise(bound: Bound) -> Any:
    """One of several promises."""
    to_optimum = bound.reference == "optimum"
    reference = (ec.Reference.OPTIMUM, None) if to_optimum else (ec.Reference.EXPERT, "baseline")
    return ec.Promise(bound.ratio, *reference, bound.allowance, bound.period, rolling=bound.rolling)


def make_forecaster(case: Case) -> Any:
    """The forecaster; None where the default, exact forecasts, is meant."""
    return ec.forecasters.Persistence() if case.forecaster == "persistence" else None


@eqx.filter_jit
def _play(agent, problem, x0, contexts, history, forecaster):
    return ec.rollout(agent, problem, ec.Instance(x0, contexts, history), forecaster)


@eqx.filter_jit
def _plan(problem, x0, contexts, history):
    return ec.oracle(problem, ec.Instance(x0, contexts, history))


def build(case: Case) -> tuple[Any, ...]:
    """(agent, problem, x0, contexts, history) of a run."""
    parts = draw_parts(case)
    problem, rows = make_problem(case, parts), make_contexts(parts).astype(case.dtype)
    x0 = make_state(case, parts, problem).astype(case.dtype)
    agent = None if case.agent == "oracle" else make_guard(case, parts, make_agent(case, parts))
    history = rows[: case.history] if case.history else None
    return agent, problem, jnp.asarray(x0), jnp.asarray(rows[case.history :]), history


def check(case: Case) -> None:
    """Raise the error with which the library rejects a run before anything is compiled, if it does."""
    agent, problem, x0, contexts, history = build(case)
    instance = ec.Instance(x0, jnp.nan_to_num(contexts, posinf=0.0), history)
    problem.check(instance)
    if agent is not None:
        start = ec.Start(instance.x0, instance.past, instance.horizon)
        follow_timing(agent, problem).check(problem, start)


def trace(case: Case) -> None:
    """Raise the error with which the library rejects a run while it is traced, if it does; nothing is compiled."""
    agent, problem, *data = build(case)
    if agent is None:
        eqx.filter_eval_shape(_plan, problem, *data)
    else:
        eqx.filter_eval_shape(_play, agent, problem, *data, make_forecaster(case))


def play(case: Case) -> dict[str, np.ndarray]:
    """The run, by neutral names; what it does not have is left out."""
    agent, problem, *data = build(case)
    run = _plan(problem, *data) if agent is None else _play(agent, problem, *data, make_forecaster(case))
    return {name: np.asarray(getattr(run, name)) for name in TRAJECTORY} | read_account(run)


# Of an account: by neutral names those of the library.
ACCOUNT = {"booked": "rounding_allowance"} | {name: name for name in ("cost", "reference", "left", "kept", "active")}


def read_account(run: Any) -> dict[str, np.ndarray]:
    """The account of the guard in a run, each (steps, promises), and what its advice alone costs; empty without a guard."""
    found, info = {}, run.info
    if info is not None and "advice_cost" in info.details:
        priced = ("advice_cost", "shadow_action")
        found = {name: np.asarray(info.details[name]) for name in priced if name in info.details}
    while info is not None and "active" not in info.details:
        info = info.inner
    details = {} if info is None else info.details
    found |= {name: np.asarray(details[key]) for name, key in ACCOUNT.items() if key in details}
    for name in ("kept", "active"):  # of all promises together
        if name in found:
            found[name] = (np.all if name == "kept" else np.any)(found[name].reshape(len(run.actions), -1), axis=1)[
                :, None
            ]
    return found
