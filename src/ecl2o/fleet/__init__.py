"""Many sites and many settings at once: in this process, on a cluster of this machine's cores, or on any Dask cluster.

Work is cut into chunks before anybody asks who does it, and a chunk is a function of arrays and settings: the same chunks give
the same bits wherever they run. Inside a chunk everything runs under `vmap`, between chunks Dask does the rest. Imports Dask only
when a cluster is asked for; knows nothing of figures or the command line.
"""

from ecl2o.fleet.evaluating import evaluate_sites
from ecl2o.fleet.fitting import fit_sites
from ecl2o.fleet.sites import find_sites

__all__ = ["evaluate_sites", "find_sites", "fit_sites"]
