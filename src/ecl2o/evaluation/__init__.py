"""How well it went: roll-outs, metrics, comparison tables and certificates."""

from ecl2o.evaluation import metrics
from ecl2o.evaluation.certify import Certificate, certify
from ecl2o.evaluation.rollout import rollout, rollout_days

__all__ = ["Certificate", "certify", "metrics", "rollout", "rollout_days"]
