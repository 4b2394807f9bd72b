"""How the ML optimizer is trained: losses, their gradients, and fitting.

Knows how agents are run and scored; knows nothing of files, data or policies at work.
"""

from ecl2o.learning.authors_loss import AUTHORS_RATES_IN_USE, AuthorsLoss, authors_schedule
from ecl2o.learning.fit import FitLog, FitResult, fit, fit_many
from ecl2o.learning.gradients import AbstractGradient, Backpropagation, SurrogateCalibrator, ZeroOrder
from ecl2o.learning.imitation import ImitationLoss
from ecl2o.learning.losses import AbstractLoss, CalibratedLoss, StandaloneLoss, TailLoss

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
