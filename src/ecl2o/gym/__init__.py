"""The online problem as a `gymnasium.Env`, and a wrapper that keeps a promise for any policy (extra `gym`).

For agents of other libraries. Knows agents and running; knows nothing of data, studies or the command line.
"""

try:
    import gymnasium as _gymnasium  # noqa: F401
except ImportError as missing:
    raise ImportError("ecl2o.gym needs gymnasium: pip install 'ecl2o[gym]'.") from missing

from ecl2o.gym.decisions import DecisionEnv, Instances
from ecl2o.gym.guard import GuardWrapper

__all__ = ["DecisionEnv", "GuardWrapper", "Instances"]
