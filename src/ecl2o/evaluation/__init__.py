"""Evaluation: metrics, daily scores, comparison tables, certificates, and distances between sets of days.

Knows how agents are run; knows nothing of training, files or data.
"""

from ecl2o.evaluation import metrics
from ecl2o.evaluation.certify import Certificate, certify
from ecl2o.evaluation.daily import DailyScore, TestDays, score_agents, score_days, score_runs, score_runs_batch
from ecl2o.evaluation.metrics import UnconvergedCounts
from ecl2o.evaluation.wasserstein import TransportPlan, solve_transport

__all__ = [
    "Certificate",
    "DailyScore",
    "TestDays",
    "UnconvergedCounts",
    "TransportPlan",
    "certify",
    "metrics",
    "score_agents",
    "score_days",
    "score_runs",
    "score_runs_batch",
    "solve_transport",
]
