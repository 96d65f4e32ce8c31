"""Why operations fail.

The protocol has no errors. Each operation has a failure answer (`wire.operations`), which its client treats as a miss
or a refusal; without an answer, the client would wait for a timeout of minutes.
"""

from __future__ import annotations

from enum import StrEnum

from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.keys import TokenError


class Reason(StrEnum):
    """Why an operation failed. Failures are counted by reason."""

    UNKNOWN_OPERATION = "unknown_operation"
    BAD_ARGUMENTS = "bad_arguments"
    UNKNOWN_INSTANCE = "unknown_instance"
    """The worker never registered, unregistered, or is gone."""
    UNKNOWN_TRANSFER = "unknown_transfer"
    """There is nothing to commit: the transfer was never prepared, or it took too long."""
    NOT_CACHED = "not_cached"
    """A block that the client wants to read is not, or no longer, in the cache."""
    REFUSED = "refused"
    """The core refused the operation; see the refusals by tenant and reason."""
    UNSUPPORTED = "unsupported"
    """The node cannot serve this operation or kind of memory."""
    PICKLED = "pickled"
    """The request has bytes that would have to be unpickled."""
    COPY_FAILED = "copy_failed"
    NOT_ALLOWED = "not_allowed"
    INTERNAL = "internal"
    """This node has a fault; see the log."""


class OperationFailed(Exception):
    """An operation failed. Failures are counted by `reason`; the message goes to the log."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def as_failed(error: OperationFailed | ProtocolError | TokenError) -> OperationFailed:
    """Convert a refusal of the core, or wrong tokens, into a failure with a reason."""
    if isinstance(error, OperationFailed):
        return error
    if isinstance(error, TokenError):
        return OperationFailed(Reason.BAD_ARGUMENTS, str(error))
    bad = error.code in (Code.BAD_SALT, Code.BAD_KEYS, Code.BAD_FIELD)
    ended = error.code in (Code.RESERVATION_EXPIRED, Code.UNKNOWN_RESERVATION, Code.INVALIDATED)
    reason = Reason.BAD_ARGUMENTS if bad else Reason.UNKNOWN_TRANSFER if ended else Reason.REFUSED
    return OperationFailed(reason, f"{error.field}: {error.message}" if error.field else error.message)
