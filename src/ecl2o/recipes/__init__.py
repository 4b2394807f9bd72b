"""From a series to a policy: what `ecl2o fit` does, training through guards, and the agents that have a name.

The first room that knows data; knows nothing of case studies, figures or the command line.
"""
