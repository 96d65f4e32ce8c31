"""Records of requests with deferred answers, so that they are answered even if the data plane is killed.

The next data plane answers them if it continues the connection; without an answer, the client would wait for a timeout
of minutes.

The records are slots in a file. If a data plane is killed between an answer and the end of its slot, the next one
answers again, which clients tolerate. A request whose uid and operation are too long for a slot is not recorded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import structlog

from dataplane.gateways.lmcache.wire.messages import NOT_COPIED, NOTHING_PREPARED, ZERO

NAME = "unanswered"
SLOTS = 4096
_BYTES = 53
_SLOT = Struct(f"<QBBB{_BYTES}s")
"""Number of the connection (0: free slot), lengths of the uid and of the operation in bytes, index of the failure
answer, and the uid followed by the operation."""
_FAILURES = (None, NOT_COPIED, NOTHING_PREPARED, ZERO)

log = structlog.stdlib.get_logger()


class PendingHead(NamedTuple):
    """The first frames of a pending answer, and its connection."""

    connection: int
    uid: bytes
    operation: bytes
    failure: bytes | None
    """The result that reports a failure to the client; None for an answer without a result."""


class PendingRequests:
    """The pending requests of one gateway."""

    def __init__(self, folder: Path) -> None:
        """Load the requests that the previous data plane left in `folder` into `inherited`.

        The file is created with the first request.
        """
        self.inherited: list[PendingHead] = []
        self._path = folder / NAME
        self._free = list(range(SLOTS - 1, -1, -1))
        self._file: int | None = None
        self._warned = False
        with suppress(OSError):
            self.inherited = list(_heads(self._path.read_bytes()))

    def settled(self) -> None:
        """Delete the file after all of `inherited` are answered. Call before the first `begin`."""
        self.inherited = []
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def begin(self, head: PendingHead) -> int:
        """Record a request with a deferred answer. Return its slot, or -1 if there is no slot for it."""
        if not self._free or len(head.uid) + len(head.operation) > _BYTES:
            return -1
        slot = self._free.pop()
        self._write(
            slot,
            _SLOT.pack(
                head.connection,
                len(head.uid),
                len(head.operation),
                _FAILURES.index(head.failure),
                head.uid + head.operation,
            ),
        )
        return slot

    def end(self, slot: int) -> None:
        """Free the slot of a request that was answered or no longer needs an answer."""
        if slot >= 0:
            self._write(slot, bytes(_SLOT.size))
            self._free.append(slot)

    def _write(self, slot: int, data: bytes) -> None:
        try:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._file, data, slot * _SLOT.size)
        except OSError as error:
            if not self._warned:
                self._warned = True
                log.warning("lmcache.pending_requests_not_saved", file=str(self._path), reason=error.strerror)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _heads(data: bytes) -> Iterator[PendingHead]:
    for at in range(0, len(data) // _SLOT.size * _SLOT.size, _SLOT.size):
        number, uid, operation, failure, both = _SLOT.unpack_from(data, at)
        if number and uid and uid + operation <= _BYTES and failure < len(_FAILURES):
            yield PendingHead(number, both[:uid], both[uid : uid + operation], _FAILURES[failure])
