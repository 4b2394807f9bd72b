"""The ML optimizer and how it is trained: losses, fitting, policy files, the streaming runner."""

from ecl2o.learning.fit import FitLog, FitResult, authors_schedule, fit, fit_many
from ecl2o.learning.imitation import ImitationLoss
from ecl2o.learning.losses import AbstractLoss, CalibratedLoss, StandaloneLoss, TailLoss

__all__ = [
    "AbstractLoss",
    "CalibratedLoss",
    "FitLog",
    "FitResult",
    "ImitationLoss",
    "StandaloneLoss",
    "TailLoss",
    "authors_schedule",
    "fit",
    "fit_many",
]
