"""Requests whose answers come later, written down: what a data plane that was killed had yet to answer, the next one
answers, where it goes on with the connection. To its client silence would be a time-out of minutes.

A file with a slot for each. A data plane that is killed between an answer and the end of its slot is followed by one
that answers again, which clients do not mind. What has too long a head for a slot is not written down.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import structlog

NAME = "unanswered"
SLOTS = 4096
_BYTES = 53
_SLOT = Struct(f"<QBB?{_BYTES}s")
"""Number of the connection (0: free), bytes of the uid and of the operation, whether it was a copy, and both heads."""

log = structlog.stdlib.get_logger()


class Head(NamedTuple):
    """What an answer begins with, and whose it is."""

    connection: int
    uid: bytes
    operation: bytes
    copied: bool
    """It says whether something was copied; else it says nothing."""


class Unanswered:
    """Those of one gateway."""

    def __init__(self, folder: Path) -> None:
        """What the data plane before left in `folder` is in `left`. Nothing is made before there is a request."""
        self.left: list[Head] = []
        self._path = folder / NAME
        self._free = list(range(SLOTS - 1, -1, -1))
        self._file: int | None = None
        self._told = False
        with suppress(OSError):
            self.left = list(_heads(self._path.read_bytes()))

    def settled(self) -> None:
        """All of `left` are answered. Called before the first `begin`."""
        self.left = []
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def begin(self, head: Head) -> int:
        """It is answered later; its slot, -1 for none."""
        if not self._free or len(head.uid) + len(head.operation) > _BYTES:
            return -1
        slot = self._free.pop()
        self._write(
            slot,
            _SLOT.pack(
                head.connection,
                len(head.uid),
                len(head.operation),
                head.copied,
                head.uid + head.operation,
            ),
        )
        return slot

    def end(self, slot: int) -> None:
        """It was answered, or nobody waits for it."""
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
            if not self._told:
                self._told = True
                log.warning("lmcache.unanswered_not_kept", file=str(self._path), reason=error.strerror)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _heads(data: bytes) -> Iterator[Head]:
    for at in range(0, len(data) // _SLOT.size * _SLOT.size, _SLOT.size):
        number, uid, operation, copied, both = _SLOT.unpack_from(data, at)
        if number and uid and uid + operation <= _BYTES:
            yield Head(number, both[:uid], both[uid : uid + operation], copied)
