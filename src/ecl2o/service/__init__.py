"""Many streams that survive the machine they run on: a store, a program that steps them together, commits in groups.

Knows policies and databases; knows nothing of HTTP.
"""

from ecl2o.service.refused import Refused
from ecl2o.service.service import Service
from ecl2o.service.store import Store

__all__ = ["Refused", "Service", "Store"]
