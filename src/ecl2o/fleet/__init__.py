"""Fit and evaluate many sites at once: in this process, on this machine's cores, or on a Dask cluster.

The work is divided into chunks first, and a chunk is a pure function of arrays and settings, so the results are the same bits
wherever it runs. A chunk runs under `vmap`; Dask distributes chunks. Dask is imported only if a cluster is requested. Knows
nothing of figures or the command line.
"""

from ecl2o.fleet.fit_and_evaluate import evaluate_sites, fit_sites
from ecl2o.fleet.sites import find_sites

__all__ = ["evaluate_sites", "find_sites", "fit_sites"]
