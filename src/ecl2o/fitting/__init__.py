"""From a series to a policy: what `ecl2o fit` does, for files and for pandas; training through guards; named agents.

The first room that knows data; knows nothing of case studies, figures of reports or the command line.
"""

from ecl2o.fitting.estimator import SeriesPolicy, fit_series

__all__ = ["SeriesPolicy", "fit_series"]
