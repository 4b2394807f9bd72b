"""How well it went: roll-outs, metrics, comparison tables and certificates."""

from ecl2o.evaluation import metrics
from ecl2o.evaluation.certify import Certificate, certify
from ecl2o.evaluation.daily import DailyScore, TestBed, score_days, score_runs
from ecl2o.evaluation.rollout import rollout, rollout_days, rollout_set, stream_days

__all__ = [
    "Certificate",
    "DailyScore",
    "TestBed",
    "certify",
    "metrics",
    "rollout",
    "rollout_days",
    "rollout_set",
    "score_days",
    "score_runs",
    "stream_days",
]
