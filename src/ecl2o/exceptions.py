"""Every error of ecl2o that a user can catch.

All derive from `Ecl2oError`, those of the service from `ServiceError`. Wrong arguments raise `ValueError` or `TypeError`.
"""

from concurrent.futures import Future
from typing import Any


class Ecl2oError(Exception):
    """The base class of all errors on this page."""


class NotApplicableError(Ecl2oError, ValueError):
    """An agent or a method does not fit the problem or the run.

    Raised for every unmet requirement: a kind of cost, a dimension, a horizon, a forecast, a promise that the problem does not
    admit. Comparisons catch it, skip the agent and report the message.

    >>> import ecl2o as ec
    >>> curved = ec.Problem(ec.CurvedTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> try:
    ...     run = ec.rollout(ec.LAI(), curved, ec.Instance([0.0], [[1.0, 2.0]]))
    ... except ec.NotApplicableError as error:
    ...     print(error)
    LAI needs a quadratic cost of constant curvature, got CurvedTracking.
    """


class DataError(Ecl2oError, ValueError):
    """A file or a series cannot be used. The message names the file, row and column, and what to do."""


class PolicyFileError(Ecl2oError, ValueError):
    """A file is not a policy or a runner's state, is damaged, or needs an argument that was not given."""


class MemoryLimitError(Ecl2oError, ValueError):
    """One stream of a policy needs more memory than allowed. The message gives both sizes."""


class NotAnsweredError(Ecl2oError, OSError):
    """A step was not answered and does not count: the saved state is the one before it, unless the message says otherwise."""


class ChunkFailedError(Ecl2oError):
    """A cluster could not run a chunk of work: its workers died, or the chunk itself raised an error."""


class ServiceError(Ecl2oError):
    """The service could not fulfil a request. Nothing was changed, unless it is an `InDoubtError`.

    Args:
        message: What was wrong and what to do.
        details: Further fields of the answer, such as `last_step`.
    """

    def __init__(self, message: str, **details: Any):
        super().__init__(message)
        self.details = details


class NotFoundError(ServiceError):
    """There is no such stream or policy."""


class ConflictError(ServiceError):
    """The request contradicts what is stored, such as a step number that does not follow."""


class InvalidRequestError(ServiceError):
    """The request cannot be fulfilled as it is, such as a context of the wrong length."""


class UnavailableError(ServiceError):
    """The service cannot fulfil the request now, such as on a full disk. Try again later."""


class InDoubtError(UnavailableError):
    """The database did not confirm a commit: the change may have been made. Send the request again, with its step number."""

    def __init__(self, message: str, **details: Any):
        super().__init__(message, **details | {"in_doubt": True})


class LoadingError(UnavailableError):
    """The compiled step of a policy is not ready yet. `ready` is done when it is, or has the error."""

    def __init__(self, message: str, ready: "Future[Any]"):
        super().__init__(message)
        self.ready = ready
