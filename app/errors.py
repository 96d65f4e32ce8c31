"""What can go wrong in the management plane: one small tree, each with a stable code.

A code says what happened, never how it is told: `http/problems.py` maps codes to HTTP. `docs/api.md` lists them.
"""

from typing import ClassVar

import msgspec


class FieldError(msgspec.Struct, frozen=True):
    """One fault of a request: where, and what was expected."""

    path: str
    message: str


class LarderError(Exception):
    """A failure with a stable `code`, one clear sentence, and the fields at fault."""

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, errors: list[FieldError] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.errors = errors or []


class Malformed(LarderError):
    """The request could not be read at all."""

    code = "malformed"


class Invalid(LarderError):
    """The request was read, and fields of it have values that cannot be."""

    code = "invalid"


class Unauthorized(LarderError):
    """Nobody knows who asks: no token, or one that is not (or no longer) valid."""

    code = "unauthorized"


class Forbidden(LarderError):
    """It is known who asks, and they may not."""

    code = "forbidden"


class NotFound(LarderError):
    code = "not-found"


class Conflict(LarderError):
    """The request is right, and something that is there already stands against it."""

    code = "conflict"


class PreconditionFailed(LarderError):
    """The record is in another state than the caller expects."""

    code = "precondition-failed"


class PreconditionRequired(LarderError):
    """A record that is there is changed only by callers who say which state of it they know."""

    code = "precondition-required"


class TooManyRequests(LarderError):
    """The caller asks, or fails to authenticate, too often."""

    code = "too-many-requests"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotAcceptable(LarderError):
    """The caller takes no answer of the kind that there is."""

    code = "not-acceptable"


class UnsupportedMediaType(LarderError):
    code = "unsupported-media-type"


class ForeignOrigin(LarderError):
    """A browser asks on behalf of a page that is not ours, or under a name that is not ours."""

    code = "foreign-origin"


class ClientGone(LarderError):
    """Who asked is gone, and what was done for them alone was given up. Nobody reads this but the log."""

    code = "client-gone"


class BodyTooSlow(LarderError):
    """The body did not come in time, and the connection was ended."""

    code = "body-too-slow"


class NotReady(LarderError):
    """Some node has not acknowledged what was asked for."""

    code = "not-ready"


class Stopping(LarderError):
    """The server stops, and the request was still open when the time for that was over."""

    code = "stopping"


class StoreUnavailable(LarderError):
    """The database did not answer."""

    code = "store-unavailable"


class StoreBusy(StoreUnavailable):
    """The database works, and others held what was needed for too long."""


class FloorsExceedCapacity(LarderError):
    """The floors of all tenants together are more than a node's pool can hold."""

    code = "floors-exceed-capacity"


class NodeRefused(LarderError):
    """A node answered that it will not do what it was asked."""

    code = "node-refused"


class NodeUnreachable(LarderError):
    """No node, or not the one that was asked for, is connected or answers in time."""

    code = "node-unreachable"
