"""How well it went: metrics, daily scores, comparison tables and certificates.

Knows how agents are run; knows nothing of training, files or data.
"""

from ecl2o.evaluation import metrics
from ecl2o.evaluation.certify import Certificate, certify
from ecl2o.evaluation.daily import DailyScore, TestBed, score_days, score_runs

__all__ = ["Certificate", "DailyScore", "TestBed", "certify", "metrics", "score_days", "score_runs"]
