"""How an agent says that it is not for a problem.

How bad input is refused.
"""


class NotApplicable(ValueError):  # noqa: N818 (it names what is so, and it is what callers wait for)
    """An agent or a method that is not for this problem or this run: what it needs is not there.

    Every refusal of that kind is one of these, wherever it arises, so that comparisons can leave the agent out and say why.

    >>> import ecl2o as ec
    >>> curved = ec.Problem(ec.CurvedTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> try:
    ...     run = ec.rollout(ec.LAI(), curved, ec.Instance([0.0], [[1.0, 2.0]]))
    ... except ec.NotApplicable as reason:
    ...     print(reason)
    LAI needs a quadratic hitting cost of constant curvature, got CurvedTracking.
    """


class DataError(ValueError):
    """A file or series that cannot be used; the message names file, row and column, and says what to do."""
