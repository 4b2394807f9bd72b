"""What was asked cannot be done, and why: the same words over HTTP, in logs and in Python."""

from typing import Any


class Refused(Exception):  # noqa: N818
    """A refusal for the one who asked; nothing was changed.

    Args:
        status: the kind, in the numbers of HTTP: 404 not there, 409 against what is there, 422 not sound, 503 not now.
        detail: what was wrong and what to do, without anything about the machine.
        more: further fields of the answer.
    """

    def __init__(self, status: int, detail: str, **more: Any):
        super().__init__(detail)
        self.status, self.detail, self.more = status, detail, more

    def as_json(self) -> dict[str, Any]:
        """The answer's body."""
        return {"detail": self.detail, **self.more}
