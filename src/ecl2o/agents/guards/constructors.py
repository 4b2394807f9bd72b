"""The guards by name: each returns a `Guard` with the references that its promises need."""

from collections.abc import Sequence
from typing import Any

from ecl2o.agents.base import AbstractAgent
from ecl2o.agents.calibrator import ROBD
from ecl2o.agents.control import LQR
from ecl2o.agents.guards.guard import Guard
from ecl2o.agents.guards.references.band import Band
from ecl2o.agents.guards.references.base import AbstractReference, PromiseTerms
from ecl2o.agents.guards.references.baseline import Baseline
from ecl2o.agents.guards.references.optimum import Optimum, Tracking
from ecl2o.agents.promise import Promise, Reference
from ecl2o.problem.arrays import as_float, check_finite, check_nonnegative, check_positive, concrete_value, to_host


def Competitive(
    agent: AbstractAgent,
    ratio: Any = 2.5,
    horizon: int | None = None,
    allowance: Any = 0.0,
    contexts: Any = None,
    weights: Any = None,
    period: int | None = None,
) -> Guard:
    """Guard cost <= ratio * optimum + allowance at every step, whatever the agent proposes.

    The optimum is that of the contexts so far. The promise holds for any agent (NaN and infinite actions included). An allowed
    action is played as it is; another one is pulled toward the safest action x_m until it is allowed.

    For quadratic hitting costs, constant ones and `CurvedTracking` with a `maximum`, the guard is maximal: an action that is not
    allowed can be punished by some continuation of contexts, whatever is played afterwards. For `AsymmetricTracking` with a
    diagonal Q, and on a line for any other cost whose curvature has bounds, such as a `ConvexCost` with `smoothness`, it carries
    a lower bound on the optimum: the promise is relative to the true optimum, but some actions may be changed needlessly.

    A ratio that cannot be promised is rejected; the message gives the smallest possible one. Bounds on actions are kept where
    all matrices are diagonal and contexts are known to lie within the bounds; elsewhere use `Guarded`.

    With a delay and constant quadratic costs without bounds, the promise holds at every step; with contexts known ahead, at the
    end of the horizon.

    The promise is lost (`kept` turns false, the safest action is played, and steps count as not converged) where its conditions
    are not met: a context outside `contexts`, or not finite; a weight outside of its range, or other than announced; more steps
    than `horizon`; a context so far away that its cost is not finite; a ratio or an allowance that turns out to be impossible
    inside a compiled program; rounding that could exceed the tolerance (docs/guarantees.md).

    Args:
        agent: the agent whose actions are played as far as the promise allows.
        ratio: above 1, and above the smallest ratio of any online algorithm on the problem. Default: 2.5.
        horizon: the longest run, in steps. Default: the period, or None, runs of any length, which allows less.
        allowance: cost allowed on top of ratio * optimum, 0 or more, in units of cost. Default: 0.
        contexts: (low, high), bounds within which contexts are known to lie, which allows more if costs are quadratic.
            Diagonal A and Q only. Default: None, contexts lie anywhere.
        weights: with `CurvedTracking`, the curvature of each step where it is known in advance, as a tariff is: one for each
            step of the horizon, or a recurring pattern without a horizon. Default: None, not known.
        period: steps after which the promise restarts, from the action then in force. Default: None, never.

    Raises:
        ValueError: if a number is out of its range.
        NotApplicableError: at the start of a run, if the costs have no known curvature or the ratio cannot be promised.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> run = ec.rollout(Competitive(ec.advisors.Fixed([[1e6]]), ratio=2.0), problem, ec.Instance([0.0], [[1.0]]))
    >>> bool(run.info.details["ratio"][-1, 0] <= 2.0 * (1 + 1e-4))
    True
    >>> print(Competitive(ec.ROBD(), ratio=2.0, period=24).promise(problem))
    the cost is at most 2 times the optimum in every 24 steps
    """
    tracking = Tracking(period if horizon is None else horizon, contexts, weights)
    terms = PromiseTerms(ratio, allowance, period)
    return Guard(agent, (terms,), (Optimum(tracking),))


def Guarded(
    agent: AbstractAgent,
    expert: AbstractAgent | None = None,
    slack: Any = 0.5,
    reservation: Any = None,
    allowance: Any = 0.0,
    period: int | None = None,
) -> Guard:
    """Guard cost <= (1 + slack) * cost of the expert + allowance at every step.

    It holds for any agent (NaN and infinite actions included), any hitting costs f >= 0, any contexts, any box and actions that
    share a `Total`, also where the total changes. The expert is any agent, such as the rule in use today: `advisors.FromContext`
    for actions that are given from outside. It runs on its own trajectory, its actions b_t projected on X; one that is not a
    number repeats the last, and the step counts as not converged. A step may use what the promise leaves, except a reserve:

        C_{t-1} + f(x, y_t) + c(x, x_{t-1}) + kappa/2 |x - b_t|^2_S <= (1 + slack) C^expert_t + allowance.

    For costs of bounded curvature without bounds on actions, S is the stiffness of the future. For quadratic ones the guard is
    then maximal: if an action is not allowed, some contexts and some actions of the expert break the promise. The expert's own
    action need not be allowed; without usable advice the action of least cost and reserve is played.

    Elsewhere S = 2Q, enough to follow the expert, or kappa = 1 and the distance to b_t where movement is measured by distance;
    slack may then be 0. With quadratic movement kappa = 1 + 1/reservation. At the last step of a known horizon nothing is
    reserved. An action that is not allowed is replaced by the last one that is on the way from the safest.

    The promise is lost (`kept` turns false, the expert is followed, and steps count as not converged) where a compiled program
    turns out to have a reservation above the slack, where a context is not finite, where f < 0 and the cost exceeds it, where the
    bounds do not allow the total of a step, or where rounding could exceed the tolerance (docs/guarantees.md).

    Args:
        agent: the agent whose actions are played as far as the promise allows.
        expert: the agent whose cost is the reference, the baseline. Default: `ROBD()`.
        slack: extra cost allowed, as a share of the expert's; positive, or 0 with `LinearSwitching`. Default: 0.5.
        reservation: for quadratic movement, in (0, slack]. Default: the slack, the largest that is valid for every f. For
            training, `theory.training_reservation(slack)` keeps the allowed set from collapsing.
        allowance: cost allowed on top, 0 or more, in units of cost. Default: 0.
        period: steps after which the promise restarts, the expert from the action then in force. Default: None, never.

    Raises:
        ValueError: if slack, reservation or allowance is out of its range.
        NotApplicableError: at the start of a run with a reservation and `LinearSwitching`.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> run = ec.rollout(Guarded(ec.advisors.Fixed([[1e6]]), slack=0.25), problem, ec.Instance([0.0], [[1.0]]))
    >>> bool(run.info.details["ratio"][-1, 0] <= 1.25 * (1 + 1e-4))
    True
    """
    slack = as_float(slack)
    check_finite("slack", slack)
    check_nonnegative("slack", slack)
    if reservation is not None:
        check_positive("reservation", as_float(reservation))
        reserved, most = concrete_value(as_float(reservation)), concrete_value(slack)
        if reserved is not None and most is not None and (reserved > most).any():
            raise ValueError(f"reservation must not exceed slack, got reservation {reserved} and slack {most}.")
    reference = Baseline(ROBD() if expert is None else expert, reservation, Tracking(period))
    return Guard(agent, (PromiseTerms(1 + to_host(slack), allowance, period),), (reference,))


def Promises(
    agent: AbstractAgent,
    promises: Sequence[Promise],
    baseline: AbstractAgent | None = None,
    contexts: Any = None,
) -> Guard:
    """Guard several promises at once, whatever the agent proposes.

    Each promise bounds the cost, in the whole run, in each period, or in every window of up to so many steps, by a ratio times
    the optimum's or the baseline's, which both start from the action in force. At the start of each period its account
    restarts, and the baseline moves to the action in force and keeps its memory. What is allowed is what all of them allow: an
    action that is not allowed is pulled toward an action that keeps them all, until it is.

    For quadratic hitting costs of bounded curvature. The least ratio must exceed the smallest one of any online algorithm
    (`theory.smallest_joint_ratio`), that relative to the baseline too; a single promise below it is `Guarded`'s. Bounds on
    actions are kept where all matrices are diagonal and contexts are known to lie within the bounds.

    Args:
        agent: the agent whose actions are played as far as the promises allow.
        promises: a list of `Promise`, without `contexts`.
        baseline: the agent whose cost is the reference of promises relative to an expert. Default: None, there is none.
        contexts: (low, high) within which contexts are known to lie, needed where actions are bounded. Default: None.

    Raises:
        ValueError: if a number is out of its range, or a promise needs a baseline that is not given.
        NotApplicableError: at the start of a run, if the problem is not quadratic or the least ratio is too small.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> guard = Promises(ec.advisors.Fixed([[1e6]]), [ec.Promise(1.75), ec.Promise(2.5, period=24)])
    >>> run = ec.rollout(guard, problem, ec.Instance([0.0], [[1.0]]))
    >>> bool((run.info.details["left"] > -1e-4).all())
    True
    >>> print(guard.promise(problem))
    the cost is at most 1.75 times the optimum over the whole run, and at most 2.5 times the optimum in every 24 steps
    """
    for each in promises:
        if each.contexts is not None or each.also or each.at_end:
            raise ValueError(f"promises must be plain, without contexts, at_end and also, got {each!r}.")
    to_baseline = [each.reference is Reference.EXPERT for each in promises]
    if any(to_baseline) != (baseline is not None):
        raise ValueError("a baseline and promises relative to an expert need each other.")
    if len(promises) == 1 and baseline is not None:
        raise ValueError("one promise relative to a baseline is Guarded(agent, expert, slack), which allows more.")
    tracking = Tracking(contexts=contexts)
    references: list[AbstractReference] = [] if all(to_baseline) else [Optimum(tracking)]
    if baseline is not None:
        references.append(Baseline(baseline, tracking=tracking))
    terms = [
        PromiseTerms(each.ratio, each.allowance, each.period, each.rolling, len(references) - 1 if is_relative else 0)
        for each, is_relative in zip(promises, to_baseline, strict=True)
    ]
    return Guard(agent, tuple(terms), tuple(references))


def CompetitiveBand(
    agent: AbstractAgent,
    half_width: Any,
    ratio: Any = 2.5,
    horizon: int = 24,
    allowance: Any = 0.0,
    columns: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
    period: int | None = None,
) -> Guard:
    """Guard cost <= ratio * optimum at the end of a period whose contexts stay in a band around a forecast.

    At the first step of a period the forecaster predicts the contexts of the others, or the context has the ends of a band in its
    covariates (`columns`). The promise is for contexts within `half_width` of that forecast or band. The guard allows every
    action with which the promise can still be kept, so the narrower the band, the less it changes. A context outside ends the
    promise: `kept` turns false, and the safest action is played.

    For quadratic costs with a constant curvature and quadratic movement, and for a `ControlProblem`; without bounds on actions.
    Each step solves a few quadratic programs of as many variables as contexts remain.

    Args:
        agent: the agent whose actions are played as far as the promise allows.
        half_width: how far contexts may be from their forecast: one number, one for each number of a context (q,), or one for
            each step after the first as well (T - 1, q). 0 or more.
        ratio: above the smallest ratio of any online algorithm without a band. Default: 2.5.
        horizon: T, the steps of the run, or of the period. Default: 24.
        allowance: cost allowed on top of ratio * optimum, 0 or more. Default: 0.
        columns: the places in a context of the low ends of the band 1, ..., T - 1 steps ahead, and of the high ends; for actions
            of one number. Default: None, the band is around the forecaster's predictions.
        period: T, for a promise that restarts. Default: None, it does not.

    Raises:
        ValueError: if a number is out of its range.
        NotApplicableError: at the start of a run, if the problem does not fit or the ratio cannot be promised.

    `Info.details["reference"]` is the least optimum that the period can still have.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> guard = CompetitiveBand(ec.advisors.Fixed([[1e6], [1e6]]), half_width=0.5, ratio=2.0, horizon=2)
    >>> print(guard.promise(problem))
    the cost is at most 2 times the optimum at the end of every 2 steps while contexts stay in the band around their forecasts
    >>> day = ec.Instance([0.0], [[1.0], [3.0]])
    >>> bool(ec.rollout(guard, problem, day).cost <= 2.0 * ec.oracle(problem, day).cost * (1 + 1e-4))
    True
    """
    terms = PromiseTerms(ratio, allowance, period)
    check_nonnegative("ratio", terms.ratio)
    return Guard(agent, (terms,), (Band(half_width, horizon, columns),))


def CompetitiveControl(
    agent: AbstractAgent,
    ratio: Any = 2.5,
    horizon: int | None = None,
    every_prefix: bool = False,
    allowance: Any = 0.0,
    period: int | None = None,
) -> Guard:
    """Guard cost <= ratio * optimum on a `ControlProblem`, whatever the agent proposes.

    It allows every action with which the promise can still be kept. Where contexts cannot make every state free, as with a
    battery's charge, the promise is for the end of the run: before it, cost <= ratio * (the optimum so far and the least that it
    will still grow by). `every_prefix` promises cost <= ratio * optimum at every step, at a larger smallest ratio.

    Args:
        agent: the agent whose actions are played as far as the promise allows.
        ratio: above `theory.smallest_control_ratio`. Default: 2.5.
        horizon: the number of steps of the run. Default: the period, or None, a run without an end.
        every_prefix: whether the promise is for every step instead of the end. Default: false.
        allowance: cost allowed on top of ratio * optimum, 0 or more. Default: 0.
        period: as in `Competitive`.

    Raises:
        ValueError: if a number is out of its range.
        NotApplicableError: at the start of a run, if the problem does not fit or the ratio cannot be promised.

    `Info.details["reference"]` includes the least growth of the optimum that is still ahead.

    >>> import ecl2o as ec
    >>> battery = ec.battery(alpha=10.0, charge=0.05)
    >>> guard = CompetitiveControl(ec.advisors.Fixed([[1e6], [-1e6]]), ratio=2.0, horizon=2)
    >>> run = ec.rollout(guard, battery, ec.Instance([0.0, 0.0], [[1.0], [3.0]]))
    >>> bool(run.cost <= 2.0 * ec.oracle(battery, ec.Instance([0.0, 0.0], [[1.0], [3.0]])).cost * (1 + 1e-4))
    True
    """
    reference = Optimum(Tracking(period if horizon is None else horizon), every_prefix)
    return Guard(agent, (PromiseTerms(ratio, allowance, period),), (reference,))


def GuardedControl(
    agent: AbstractAgent,
    baseline: AbstractAgent | None = None,
    slack: Any = 0.5,
    horizon: int | None = None,
    every_prefix: bool = False,
    allowance: Any = 0.0,
    period: int | None = None,
) -> Guard:
    """Guard cost <= (1 + slack) * cost of a baseline on a `ControlProblem`.

    The baseline runs on its own trajectory. Promises at the end and at every step differ as in `CompetitiveControl`.

    Args:
        agent: the agent whose actions are played as far as the promise allows.
        baseline: the agent whose cost is the reference. Default: `LQR()`.
        slack: extra cost allowed, as a share of the baseline's; positive. Default: 0.5.
        horizon: as in `CompetitiveControl`.
        every_prefix: as in `CompetitiveControl`.
        allowance: as in `CompetitiveControl`.
        period: as in `Competitive`.

    Raises:
        ValueError: if a number is out of its range.
        NotApplicableError: at the start of a run, if the problem does not fit.

    >>> import ecl2o as ec
    >>> battery, day = ec.battery(alpha=10.0, charge=0.05), ec.Instance([0.0, 0.0], [[1.0], [3.0]])
    >>> guard = GuardedControl(ec.advisors.Fixed([[1e6], [-1e6]]), slack=0.25, horizon=2)
    >>> run, baseline = ec.rollout(guard, battery, day), ec.rollout(ec.LQR(), battery, day)
    >>> bool(run.cost <= 1.25 * baseline.cost * (1 + 1e-4))
    True
    """
    slack = as_float(slack)
    check_finite("slack", slack)
    check_positive("slack", slack)
    tracking = Tracking(period if horizon is None else horizon)
    reference = Baseline(LQR() if baseline is None else baseline, None, tracking, every_prefix)
    return Guard(agent, (PromiseTerms(1 + to_host(slack), allowance, period),), (reference,))
