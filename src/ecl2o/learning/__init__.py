"""Training of advisors: losses, their gradients, and fitting.

Knows how agents are run and scored; knows nothing of files, data or policies at work.
"""

from ecl2o.learning.fit import FitLog, FitResult, fit, fit_many
from ecl2o.learning.gradients import AbstractGradient, Backpropagation, SurrogateCalibrator, ZeroOrder
from ecl2o.learning.losses import AbstractLoss, AuthorsLoss, CalibratedLoss, ImitationLoss, StandaloneLoss, TailLoss
from ecl2o.learning.training_loop import AUTHORS_RATES_IN_USE, authors_schedule

__all__ = [
    "AUTHORS_RATES_IN_USE",
    "AbstractGradient",
    "AbstractLoss",
    "AuthorsLoss",
    "Backpropagation",
    "CalibratedLoss",
    "FitLog",
    "FitResult",
    "ImitationLoss",
    "StandaloneLoss",
    "SurrogateCalibrator",
    "TailLoss",
    "ZeroOrder",
    "authors_schedule",
    "fit",
    "fit_many",
]
