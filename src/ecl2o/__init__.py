"""Online decisions when changing one's mind is costly, made by machine learning with a safety net.

Names are resolved when they are first used, so that `import ecl2o` and `ecl2o --help` do not import JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# The public names, by the subpackage that holds them.
_PUBLIC = {
    "exceptions": "ChunkFailedError DataError Ecl2oError MemoryLimitError NotAnsweredError NotApplicableError PolicyFileError",
    "problem": (
        "AbstractActionSet AbstractHittingCost AbstractProblem AbstractSwitchingCost AbstractTiming AsymmetricTracking battery "
        "Box ControlProblem ConvexCost CurvedTracking Delayed delayed Everywhere Immediate Instance known_ahead KnownAhead "
        "Limited LinearSwitching Mahalanobis Problem Quadratic Simplex SquaredTracking Total Trajectory with_memory"
    ),
    "offline": "constrained_oracle oracle oracle_days",
    "agents": (
        "ABCS AbstractAgent Advised advisors AFHC calibrate Calibration CHC citation ClippedAdvice Competitive "
        "CompetitiveBand CompetitiveControl FollowPrediction Greedy GreedyOBD Guard Guarded GuardedControl HInfinity "
        "HittingMinimizer Independent Info LAI LCP LQR MLAROBD OBD Observation OGD Periodic Promise Promises PureML "
        "RampLimited Reference RHC RHGD ROBD Rounded Start Switch Trainable trainable_mask Weights WithinLimits"
    ),
    "learning": (
        "AbstractLoss authors_schedule AuthorsLoss Backpropagation CalibratedLoss fit fit_many FitResult "
        "ImitationLoss StandaloneLoss SurrogateCalibrator TailLoss ZeroOrder"
    ),
    "running": "rollout rollout_days stream_days",
    "evaluation": "Certificate certify metrics",
    "policy": "load Policy Runner save",
    "fitting": "fit_series guard_policy SeriesPolicy",
}
_HOME = {name: package for package, names in _PUBLIC.items() for name in names.split()}
_SUBPACKAGES = ("data", "fleet", "forecasters", "gym", "theory")

__all__ = ["__version__", *_SUBPACKAGES, *_HOME]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"ecl2o.{name}")
    if name in _HOME:
        return getattr(importlib.import_module(f"ecl2o.{_HOME[name]}"), name)
    raise AttributeError(f"module 'ecl2o' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from ecl2o import data as data
    from ecl2o import fleet as fleet
    from ecl2o import forecasters as forecasters
    from ecl2o import gym as gym
    from ecl2o import theory as theory
    from ecl2o.agents import *  # noqa: F403
    from ecl2o.evaluation import *  # noqa: F403
    from ecl2o.exceptions import *  # noqa: F403
    from ecl2o.fitting import *  # noqa: F403
    from ecl2o.learning import *  # noqa: F403
    from ecl2o.offline import *  # noqa: F403
    from ecl2o.policy import *  # noqa: F403
    from ecl2o.problem import *  # noqa: F403
    from ecl2o.running import *  # noqa: F403
