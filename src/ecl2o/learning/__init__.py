"""The ML optimizer and how it is trained: losses, fitting, policy files, the streaming runner."""

from ecl2o.learning.fit import FitLog, FitResult, authors_schedule, fit, fit_many
from ecl2o.learning.gradients import AbstractGradient, Backpropagation, SurrogateCalibrator, ZeroOrder
from ecl2o.learning.imitation import ImitationLoss
from ecl2o.learning.losses import AbstractLoss, CalibratedLoss, StandaloneLoss, TailLoss
from ecl2o.learning.policy import Policy, describe, load, save
from ecl2o.learning.policy_file import PolicyFileError
from ecl2o.learning.runner import Runner, Streams

__all__ = [
    "AbstractGradient",
    "AbstractLoss",
    "Backpropagation",
    "CalibratedLoss",
    "FitLog",
    "FitResult",
    "ImitationLoss",
    "Policy",
    "PolicyFileError",
    "Runner",
    "StandaloneLoss",
    "Streams",
    "SurrogateCalibrator",
    "TailLoss",
    "ZeroOrder",
    "authors_schedule",
    "describe",
    "fit",
    "fit_many",
    "load",
    "save",
]
