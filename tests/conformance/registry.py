"""The one list of agents that the conformance suite runs.

To cover a new agent add a `Case` to `CASES`: a name, a function that makes the agent for dimension d, and the facts that
hold for it. Everything else (causality, cost >= oracle, jit, vmap, grad, one trace, dtypes, streaming ...) is checked for
every case without being asked. `test_every_agent_is_registered` fails while an agent that `ecl2o.agents` or
`ecl2o.agents.advisors` exports is in no case; an agent inside another one counts. So it is with the references of guards:
`test_every_kind_of_promise_is_registered` fails while a class of `ecl2o.agents.guards.references` is in no case.

What a case is run on: instances of HORIZON steps whose contexts have the dimension of actions (q = d), on problems with
constant curvature ("open": no bounds; "box": bounds that bind; "function": the box, in the last of its dimensions, with
the same cost given as a `ConvexCost`). At d = 1 it is isotropic with m = 1, alpha = beta = 10; at d = 3 A and Q are full
matrices.
Advisors that need something per instance (a sequence of advice) get the same for all.

Fields of a case
  make           d -> agent. Called several times; must give an equal agent each time (fixed seeds).
  dims           the dimensions it is run in; (1,) for agents that live on a line.
  ema            at d = 1, open: x_t = y_t + r (x_{t-1} - y_t), r the decay root.
  equals_greedy  plays what Greedy plays, on every problem of the suite.
  equals_oracle  plays what the oracle plays, on every problem of the suite (its window reaches the end).
  equivariant    (x0, y) -> (a x0 + u, a y + u) turns actions x into a x + u, on open problems. False only for agents with
                 raw inputs (networks, fixed advice) or absolute thresholds.
  linear         the dimensions in which it says of itself, on open problems, that its actions are linear in the contexts.
  bound          (problem, instances, runs, bests) -> largest cost allowed, one per instance (all have a leading axis).
  box            "inside": its actions stay in a box. "ignores": an advisor, whoever uses its advice clips it.
                 "refuses": `init` raises on a box.
  total          it is run, at d = 3, on actions that share a total, which is the first number of each context.
  two_sided      it is run on `AsymmetricTracking` too, on a line.
  late           it is run on actions that take effect a step late too, on a line.
  convex         True: plays on any convex cost. False: `init` refuses costs that are not quadratic.
  smooth         its actions are differentiable in the contexts almost everywhere *and* continuous; False for agents that
                 jump (switching between two trajectories): then gradients need only be finite.
  uses_horizon   what it does depends on T: streamed by hand it is told T, else it is told no horizon at all.
  history        how many contexts before the first step its instances have.
  forecaster     () -> forecaster for agents with a lookahead; None: exact forecasts.
  variant        another setting of a class that another case runs in full: open problems only, to spare compilations.
  repeats        runs the code of another case with other numbers: only what it plays is checked.
  tolerance      of comparisons, relative to the size of the contexts; more than the default only for iterative agents.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np

import ecl2o as ec
from ecl2o.agents.advisors.discounted_forecast import DiscountedForecast, Replayed
from ecl2o.agents.advisors.features import ContextFeatures
from ecl2o.agents.advisors.fourier_regression import FourierFeatures
from ecl2o.agents.advisors.guard_aware_correction import GuardAwareCorrection
from ecl2o.agents.guards.references.band import Band
from ecl2o.evaluation import metrics
from ecl2o.forecasters import Persistence
from ecl2o.problem.arrays import to_device
from ecl2o.theory import decay_root, greedy_ratio, hitting_minimizer_ratio, mla_robd_bound, robd_ratio, switch_bound

HORIZON = 6
# Agents of a `ControlProblem`, which tests/agents/guards/test_control_guards.py and tests/planning/test_control_path.py run.
CONTROLLERS = {ec.HInfinity, ec.LQR, ec.WithinLimits}
# References that are tested in a file of their own: where contexts do not move, a band has nothing left but rounding.
ELSEWHERE = {Band}  # tests/agents/guards/test_band.py


@dataclass(frozen=True)
class Case:
    """An agent and what is promised of it; the fields are explained at the top of this file."""

    name: str
    make: Callable[[int], ec.AbstractAgent]
    dims: tuple[int, ...] = (1, 3)
    ema: bool = False
    equals_greedy: bool = False
    equals_oracle: bool = False
    equivariant: bool = True
    linear: tuple[int, ...] = ()
    bound: Callable[[Any, Any, Any, Any], np.ndarray] | None = None
    box: Literal["inside", "ignores", "refuses"] = "inside"
    convex: bool = True
    two_sided: bool = False
    late: bool = False
    total: bool = False
    smooth: bool = True
    uses_horizon: bool = False
    history: int = 0
    forecaster: Callable[[], Any] | None = None
    variant: bool = False
    repeats: bool = False
    tolerance: float = 1e-8


def given_advice(dim: int) -> ec.advisors.Fixed:
    """Advice that has nothing to do with the instance, some of it far away."""
    draws = np.random.default_rng(dim).normal(size=(HORIZON, dim))
    draws[HORIZON // 2] *= 50.0
    return ec.advisors.Fixed(draws)


def small_ridge() -> ec.advisors.OnlineRidge:
    """A regression that has begun after 24 contexts."""
    return ec.advisors.OnlineRidge(period=4, lags=2, harmonics=1, maturity=6)


def small_mixture(dim: int) -> ec.advisors.Mixture:
    """Of a regression and R-OBD, whose weights differ after 24 contexts."""
    return ec.advisors.Mixture([small_ridge(), ec.ROBD()], period=4, memory=3.0, maturity=6)


def small_fourier(dim: int) -> ec.advisors.FourierRegression:
    """Three groups of two cosines, on all features."""
    features = ContextFeatures(2)
    count = features.count
    basis = FourierFeatures.draw(np.random.default_rng(1).normal(size=(9, count)), 3, count, 2, seed=0)
    return ec.advisors.FourierRegression(basis=basis, weights=0.1 * np.cos(np.arange(basis.count)), features=features)


def corrected_ridge(dim: int) -> GuardAwareCorrection:
    """With weights that matter."""
    weight = np.random.default_rng(9).normal(size=(7, 10))
    return eqx.tree_at(lambda c: c.weights.weight, GuardAwareCorrection(small_ridge(), period=4), to_device(weight))


def given_outlook(dim: int) -> Replayed:
    """Predictions that have nothing to do with the instance."""
    draws = np.random.default_rng(dim).normal(size=(HORIZON, 4, dim))
    return Replayed(DiscountedForecast(to_device(draws[:, 0]), to_device(draws[:, 1:])))


def _times_optimum(ratio: Callable[[Any], Any]) -> Callable[[Any, Any, Any, Any], np.ndarray]:
    return lambda problem, instances, runs, bests: np.asarray(ratio(problem)) * np.asarray(bests.cost)


_prediction_errors = jax.jit(jax.vmap(metrics.prediction_error))


def _theorem_4_1(trust: float) -> Callable[[Any, Any, Any, Any], np.ndarray]:
    def largest_cost(problem, instances, runs, bests):
        rho = np.asarray(_prediction_errors(runs.advice, bests))
        bound = mla_robd_bound(problem.m, problem.alpha, problem.beta, trust, to_device(np.where(rho < 1e12, rho, 0.0)))
        return np.where(rho < 1e12, np.asarray(bound) * np.asarray(bests.cost), np.inf)

    return largest_cost


def _times_the_cheaper_leg(problem, instances, runs, bests):
    bills = np.asarray(runs.info.details["costs"])
    return np.asarray(switch_bound(problem.m, problem.beta, 1.5)) * bills[:, -1].min(axis=-1)


def _balance_of_the_moving_average() -> np.ndarray:
    """The gamma with which OBD is the moving average at m = 1, beta = 10."""
    r = np.asarray(decay_root(1.0, 10.0))
    return 10.0 * ((1 - r) / r) ** 2


_run_r_obd = jax.jit(jax.vmap(lambda problem, instance: ec.rollout(ec.ROBD(), problem, instance), in_axes=(None, 0)))


def _times_r_obd(ratio: float) -> Callable[[Any, Any, Any, Any], np.ndarray]:
    return lambda problem, instances, runs, bests: ratio * np.asarray(_run_r_obd(problem, instances).cost)


_greedy_bound = _times_optimum(lambda p: greedy_ratio(p.m, p.beta))
_robd_bound = _times_optimum(lambda p: robd_ratio(p.m, p.alpha, p.beta))

CASES: list[Case] = [
    # --- the calibrated family
    Case("Greedy", lambda d: ec.Greedy(), equals_greedy=True, bound=_greedy_bound, linear=(1, 3)),
    Case(
        "HittingMinimizer",
        lambda d: ec.HittingMinimizer(),
        bound=_times_optimum(lambda p: hitting_minimizer_ratio(p.m, p.beta)),
        linear=(1, 3),
    ),
    Case("ROBD", lambda d: ec.ROBD(), ema=True, bound=_robd_bound, linear=(1, 3), two_sided=True, total=True),
    Case(
        "ROBD, smaller lambda1",
        lambda d: ec.ROBD(lambda1=0.8),
        ema=True,
        bound=_robd_bound,
        variant=True,
        repeats=True,
        linear=(1, 3),
    ),
    Case(
        "MLAROBD without trust",
        lambda d: ec.MLAROBD(given_advice(d), trust=0.0),
        ema=True,
        bound=_robd_bound,
        variant=True,
        repeats=True,
    ),
    Case(
        "MLAROBD as Greedy",
        lambda d: ec.MLAROBD(given_advice(d), trust=0.0, lambda2=0.0),
        equals_greedy=True,
        bound=_greedy_bound,
        variant=True,
        repeats=True,
    ),
    Case("MLAROBD of fixed advice", lambda d: ec.MLAROBD(given_advice(d)), equivariant=False, bound=_theorem_4_1(0.5)),
    Case(
        "MLAROBD of Greedy",
        lambda d: ec.MLAROBD(ec.Greedy(), trust=0.3),
        bound=_theorem_4_1(0.3),
        variant=True,
        repeats=True,
        linear=(1, 3),
    ),
    Case("FollowPrediction", lambda d: ec.FollowPrediction(ec.HittingMinimizer()), linear=(1, 3)),
    Case(
        "FollowPrediction, paper's",
        lambda d: ec.FollowPrediction(given_advice(d), form="paper"),
        equivariant=False,
        variant=True,
    ),
    # --- balanced descent, gradients, interpolation, laziness
    Case("OBD", lambda d: ec.OBD(_balance_of_the_moving_average()), ema=True, linear=(1,)),
    Case("GreedyOBD", lambda d: ec.GreedyOBD(), linear=(1,)),
    Case("ABCS", lambda d: ec.ABCS(ec.Greedy())),
    Case("OGD", lambda d: ec.OGD(), ema=True, linear=(1, 3)),
    Case("OGD, blind and fading", lambda d: ec.OGD("blind", steps="sqrt", eta=0.2), variant=True, linear=(1, 3)),
    Case("LAI", lambda d: ec.LAI(), box="refuses", convex=False, uses_horizon=True, linear=(1, 3)),
    Case("LCP as a heuristic", lambda d: ec.LCP(heuristic=True), dims=(1,), uses_horizon=True),
    # --- switching between two trajectories
    Case("Switch", lambda d: ec.Switch(ec.Greedy()), smooth=False, bound=_times_the_cheaper_leg),
    Case(
        "Switch of calibrated advice, by ratio",
        lambda d: ec.Switch(ec.MLAROBD(given_advice(d), trust=0.2), mode="ratio"),
        smooth=False,
        equivariant=False,
        variant=True,
    ),
    # --- planning over forecasts
    Case(
        "RHC of no window",
        lambda d: ec.RHC(0),
        equals_greedy=True,
        bound=_greedy_bound,
        uses_horizon=True,
        variant=True,
        repeats=True,
        linear=(1, 3),
    ),
    Case("RHC", lambda d: ec.RHC(2), uses_horizon=True, linear=(1, 3)),
    Case(
        "RHC to the end",
        lambda d: ec.RHC(HORIZON - 1),
        equals_oracle=True,
        uses_horizon=True,
        linear=(1, 3),
        two_sided=True,
        total=True,
    ),
    Case(
        "RHC of persistence",
        lambda d: ec.RHC(40, truncate=False),
        ema=True,
        forecaster=Persistence,
        variant=True,
        linear=(1, 3),
    ),
    Case("CHC", lambda d: ec.CHC(2, 2), uses_horizon=True, linear=(1, 3)),
    Case(
        "CHC of one step",
        lambda d: ec.CHC(0, 1),
        equals_greedy=True,
        bound=_greedy_bound,
        uses_horizon=True,
        variant=True,
        repeats=True,
        linear=(1, 3),
    ),
    Case("CHC to the end", lambda d: ec.CHC(HORIZON, 2), equals_oracle=True, uses_horizon=True, linear=(1, 3)),
    Case("AFHC", lambda d: ec.AFHC(2), uses_horizon=True, linear=(1, 3)),
    Case("RHGD", lambda d: ec.RHGD(2, smoothness=1.0 if d == 1 else 6.0), uses_horizon=True, linear=(1, 3)),
    # --- guards
    Case(
        "Guarded of fixed advice",
        lambda d: ec.Guarded(given_advice(d)),
        dims=(1,),
        equivariant=False,
        uses_horizon=True,
        two_sided=True,
        late=True,
        total=True,
        bound=_times_r_obd(1.5),
    ),
    Case(
        "Guarded with much slack",
        lambda d: ec.Guarded(ec.HittingMinimizer(), slack=1e4),
        uses_horizon=True,
        bound=_times_optimum(lambda p: hitting_minimizer_ratio(p.m, p.beta)),
        variant=True,
    ),
    Case("ClippedAdvice", lambda d: ec.ClippedAdvice(given_advice(d)), dims=(1,), equivariant=False),
    Case(
        "Competitive of fixed advice",
        lambda d: ec.Competitive(given_advice(d)),
        equivariant=False,
        box="refuses",
        convex=False,
        two_sided=True,
        late=True,
        bound=_times_optimum(lambda p: 2.5),
    ),
    Case(
        "Competitive, horizon known",
        lambda d: ec.Competitive(ec.HittingMinimizer(), ratio=1.9, horizon=HORIZON),
        box="refuses",
        convex=False,
        bound=_times_optimum(lambda p: 1.9),
    ),
    Case(
        "Promises of fixed advice",
        lambda d: ec.Promises(
            given_advice(d),
            [ec.Promise(1.9), ec.Promise(2.5, period=4), ec.Promise(2.2, ec.Reference.EXPERT, "Greedy", period=3)],
            baseline=ec.Greedy(),
        ),
        equivariant=False,
        box="refuses",
        convex=False,
        bound=_times_optimum(lambda p: 1.9),
    ),
    Case(
        "Promises for windows",
        lambda d: ec.Promises(ec.HittingMinimizer(), [ec.Promise(1.9), ec.Promise(2.1, period=3, rolling=True)]),
        box="refuses",
        convex=False,
        variant=True,
        bound=_times_optimum(lambda p: 1.9),
    ),
    # --- actions within limits
    Case("RampLimited", lambda d: ec.RampLimited(ec.HittingMinimizer(), limit=0.8), equivariant=False),
    Case(
        "RampLimited guard",
        lambda d: ec.RampLimited(ec.Competitive(given_advice(d), 2.5, contexts=(-1e6, 1e6)), limit=6e5),
        dims=(1,),
        equivariant=False,
        convex=False,
        variant=True,
        bound=_times_optimum(lambda p: 2.5),
    ),
    Case("Rounded", lambda d: ec.Rounded(ec.ROBD(), spacing=0.2371), equivariant=False, smooth=False),
    Case(
        "Rounded guard",
        lambda d: ec.Rounded(ec.Competitive(given_advice(d), 2.5), spacing=0.25),
        dims=(1,),
        equivariant=False,
        smooth=False,
        box="refuses",
        convex=False,
        bound=lambda problem, instances, runs, bests: (
            2.5 * np.asarray(bests.cost) + np.asarray(runs.info.details["rounding_allowance"])[:, -1, 0]
        ),
    ),
    # --- beginning anew
    Case(
        "Periodic Greedy",
        lambda d: ec.Periodic(ec.Greedy(), 4),
        equals_greedy=True,
        bound=_greedy_bound,
        linear=(1, 3),
    ),
    Case(
        "Periodic guard",
        lambda d: ec.Periodic(ec.Competitive(ec.HittingMinimizer(), ratio=1.9, horizon=4), 4),
        box="refuses",
        convex=False,
        history=3,
    ),
    Case(
        "Competitive, renewed",
        lambda d: ec.Competitive(ec.HittingMinimizer(), ratio=1.9, period=4),
        box="refuses",
        convex=False,
    ),
    # --- networks, and agents left to themselves
    Case(
        "MLAROBD of an MLP",
        lambda d: ec.MLAROBD(ec.advisors.MLP(d, d, width=4, depth=2, key=jax.random.key(1))),
        equivariant=False,
        bound=_theorem_4_1(0.5),
    ),
    Case(
        "PureML of an LSTM",
        lambda d: ec.PureML(ec.advisors.LSTM(d, d, width=3, depth=2, key=jax.random.key(1))),
        equivariant=False,
    ),
    Case("Independent ROBD", lambda d: ec.Independent(ec.ROBD()), ema=True, bound=_robd_bound, linear=(1, 3)),
    # --- advisors
    Case(
        "SeasonalLinear",
        lambda d: ec.advisors.SeasonalLinear(d, d, period=3, days=2),
        history=5,
        box="ignores",
        linear=(1, 3),
    ),
    Case("OnlineRidge without a past", lambda d: ec.advisors.OnlineRidge(), ema=True, box="ignores", convex=False),
    Case("OnlineRidge", lambda d: small_ridge(), history=24, box="ignores", convex=False, tolerance=1e-7),
    Case(
        "OnlineRidge, rich and forgetful",
        lambda d: ec.advisors.OnlineRidge(period=4, lags=2, harmonics=1, maturity=6, week=2, rich=True, memory=3.0),
        history=24,
        box="ignores",
        convex=False,
        variant=True,
        tolerance=1e-6,
    ),
    Case("Mixture", small_mixture, history=24, box="ignores", convex=False, smooth=False, tolerance=1e-6),
    Case(
        "FourierRegression",
        small_fourier,
        dims=(1,),
        history=24,
        equivariant=False,
        box="ignores",
        convex=False,
    ),
    Case("Corrected", corrected_ridge, history=24, equivariant=False, box="ignores", convex=False, tolerance=1e-7),
    Case("Recorded", given_outlook, equivariant=False, box="ignores", convex=False),
    Case("Fixed", given_advice, equivariant=False, box="ignores"),
    Case("FromContext", lambda d: ec.advisors.FromContext(0), box="ignores"),
    Case("HoldStill", lambda d: ec.advisors.HoldStill(), linear=(1, 3)),
    # --- advice from outside
    Case(
        "Advised",
        lambda d: ec.Advised(ec.Competitive(ec.advisors.FromContext(0), ratio=1.9), ec.advisors.FromContext(0)),
        box="refuses",
        convex=False,
        bound=_times_optimum(lambda p: 1.9),
    ),
    Case(
        "Advised, in shadow mode",
        lambda d: ec.Advised(ec.Competitive(ec.advisors.FromContext(0)), ec.advisors.FromContext(0), shadow=True),
        box="refuses",
        convex=False,
        variant=True,
    ),
]
