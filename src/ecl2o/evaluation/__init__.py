"""How well it went: metrics, daily scores, comparison tables, certificates, and how far apart sets of days are.

Knows how agents are run; knows nothing of training, files or data.
"""

from ecl2o.evaluation import metrics
from ecl2o.evaluation.certify import Certificate, certify
from ecl2o.evaluation.daily import Bed, DailyScore, score_all, score_days, score_runs, score_runs_each
from ecl2o.evaluation.metrics import Unconverged
from ecl2o.evaluation.wasserstein import Transport, transport

__all__ = [
    "Certificate",
    "DailyScore",
    "Bed",
    "Unconverged",
    "Transport",
    "certify",
    "metrics",
    "score_all",
    "score_days",
    "score_runs",
    "score_runs_each",
    "transport",
]
