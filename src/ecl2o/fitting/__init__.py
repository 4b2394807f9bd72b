"""From a series to a policy: the stages of `ecl2o fit`, one file each, the pandas estimator, and agents by name.

read -> tasks (problem, days) -> candidates (train) -> pipeline (select, compare, build). Imports the library, policy/ and
data/, not the paper's studies, the figures or the command line.
"""

from ecl2o.fitting.estimator import SeriesPolicy, fit_series
from ecl2o.fitting.guard_policy import guard_policy

__all__ = ["SeriesPolicy", "fit_series", "guard_policy"]
