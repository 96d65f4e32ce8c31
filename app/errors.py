"""Errors of the management plane: one small tree, each class with a stable code.

A code names the failure, not its presentation: `http/problems.py` maps codes to HTTP.
`docs/reference/errors.md` lists them.
"""

from collections.abc import Sequence
from typing import ClassVar, Self

import msgspec

MAX_FAULTS = 100
"""Largest number of invalid fields that a response lists. The message of the error counts all of them."""


class FieldError(msgspec.Struct, frozen=True):
    """One invalid field of a request: its path, and what was expected."""

    path: str
    message: str


class LarderError(Exception):
    """A failure with a stable `code`, a one-sentence message, and the invalid fields."""

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, errors: list[FieldError] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.errors = errors or []

    @classmethod
    def at(cls, path: str, message: str) -> Self:
        """Return the error about one invalid field."""
        return cls.about([FieldError(path, message)])

    @classmethod
    def about(cls, errors: Sequence[FieldError]) -> Self:
        """Return the error about invalid fields: its message shows the first one, and how many more there are."""
        further = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        return cls(f"{errors[0].path}: {errors[0].message}{further}", list(errors))


class Malformed(LarderError):
    """The request cannot be parsed."""

    code = "malformed"


class Invalid(LarderError):
    """The request was parsed, but one or more fields are invalid."""

    code = "invalid"


class Unauthorized(LarderError):
    """The caller is not authenticated: the token is missing, unknown or expired."""

    code = "unauthorized"


class Forbidden(LarderError):
    """The caller is authenticated but not allowed to do this."""

    code = "forbidden"


class NotFound(LarderError):
    code = "not-found"


class Conflict(LarderError):
    """The request is valid but conflicts with an existing resource."""

    code = "conflict"


class PreconditionFailed(LarderError):
    """The record is not in the state that the caller expects."""

    code = "precondition-failed"


class PreconditionRequired(LarderError):
    """Changing an existing record requires a precondition that names the expected state."""

    code = "precondition-required"


class TooManyRequests(LarderError):
    """The caller sends requests, or fails to authenticate, too often."""

    code = "too-many-requests"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ServerBusy(LarderError):
    """The server has no memory, or no process, for the request now."""

    code = "server-busy"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotAcceptable(LarderError):
    """The caller does not accept the media type of the response."""

    code = "not-acceptable"


class UnsupportedMediaType(LarderError):
    code = "unsupported-media-type"


class ForeignOrigin(LarderError):
    """The request comes from a page of a foreign origin, or names a foreign host."""

    code = "foreign-origin"


class ClientGone(LarderError):
    """The client disconnected; its request was cancelled. Only the log shows this error."""

    code = "client-gone"


class NotReady(LarderError):
    """At least one node has not acknowledged the current state."""

    code = "not-ready"


class Stopping(LarderError):
    """The server is stopping, and the request did not finish within the grace period."""

    code = "stopping"


class StoreUnavailable(LarderError):
    """The database did not answer."""

    code = "store-unavailable"


class StoreBusy(StoreUnavailable):
    """The database works, but other transactions held its locks for too long."""


class FloorsExceedCapacity(LarderError):
    """The floors of all tenants together exceed the pool of a node."""

    code = "floors-exceed-capacity"


class NodeRefused(LarderError):
    """A node rejected the request."""

    code = "node-refused"


class NodeUnreachable(LarderError):
    """No node, or not the requested one, is connected or answers in time."""

    code = "node-unreachable"
