"""The one loop: an agent steps through contexts, one instance or many, day after day or as a stream.

Knows agents, forecasters and problems; knows nothing of metrics, training or files.
"""

from ecl2o.running.rollout import rollout, rollout_batch, rollout_days, stream_days
from ecl2o.running.screening import Screen, plausible_range, stuck_limits
from ecl2o.running.stepper import Step, Stepper

__all__ = [
    "Screen",
    "Step",
    "Stepper",
    "plausible_range",
    "rollout",
    "rollout_days",
    "rollout_batch",
    "stream_days",
    "stuck_limits",
]
