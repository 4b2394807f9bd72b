"""From a series to a policy: the stages of `ecl2o fit`, one file each, the pandas estimator, and agents by name.

read -> tasks -> candidates -> train -> select -> test_days -> pipeline (build). Imports the library, policy/ and data/; knows
nothing of the paper's studies, figures or the command line.
"""

from ecl2o.fitting.estimator import SeriesPolicy, fit_series

__all__ = ["SeriesPolicy", "fit_series"]
