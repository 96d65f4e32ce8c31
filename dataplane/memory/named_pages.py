"""Allocate pages of the named segment ahead of use, and off the loop.

Clients write to a range of the named segment without a further request, so every page of the range must exist before
the first of its slots is granted. Allocating 64 MiB of pages takes tens of milliseconds. A thread therefore keeps the
lowest free ranges ready, because `core.blocks.ranges` assigns the lowest first. A caller that needs a range that is not
ready calls `take` on another thread. Pages are populated (`MADV_POPULATE_WRITE`), which also clears them, so that a
client's first touch only maps them. Populating changes no byte, so it does not disturb a client's write.

The unit is a piece. A piece at the border of a range in use may be a HOLE; the part of it that the range uses has its
pages.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable

from dataplane.memory.pages import PageTaker, available_bytes
from dataplane.memory.shared_file import punch

PIECE_BYTES = 1 << 20
MARGIN_BYTES = 256 << 20
"""Free memory of the machine and of `/dev/shm` that is never allocated ahead of use."""
RETRY_S = 10.0
_HOLE, _STRAY, _TAKING, _TAKEN = range(4)
"""States of a piece. STRAY: a previous data plane may have left pages in it."""

Range = tuple[int, int]
"""Offset and bytes."""


class NamedPages:
    """Tracks which pieces of one file have their pages. All methods may be called from any thread."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self._fd = fd
        self._nbytes = nbytes
        self._states = bytearray(-(-nbytes // PIECE_BYTES))
        self._users = [0] * len(self._states)
        """For each piece, the number of ranges in use that have a part in it."""
        self._free_taken = 0
        """Number of TAKEN pieces in which no range in use has a part."""
        self._strays = 0
        self._ahead = 0
        """Number of pieces to keep TAKEN without a user."""
        self._may_punch = False
        self._failing = False
        self._paused_until = 0.0
        self._stopping = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    # ---- state

    @property
    def taken_bytes(self) -> int:
        """Bytes with pages, of ranges in use and ranges kept ahead."""
        return min(self._nbytes, self._states.count(_TAKEN) * PIECE_BYTES)

    @property
    def ahead_bytes(self) -> int:
        """Bytes that are ready for future ranges."""
        return self._free_taken * PIECE_BYTES

    def lacking(self, ranges: Iterable[Range]) -> list[Range]:
        """Return the ranges that lack some of their pages."""
        return [byte_range for byte_range in ranges if any(self._states[at] != _TAKEN for at in _pieces(*byte_range))]

    @property
    def threaded(self) -> bool:
        """Whether a thread keeps pages ahead. The thread also gives pages back."""
        return self._thread is not None

    @property
    def surplus(self) -> bool:
        """Whether there are pages that belong to no range and need not be kept."""
        return bool(self._strays) or self._free_taken > self._ahead

    # ---- ranges

    def use(self, base: int, nbytes: int) -> None:
        """Mark a range as in use, and allocate missing pages. Raises OSError; then the range is not in use."""
        with self._changed:
            missing = [at for at in _pieces(base, nbytes) if self._states[at] != _TAKEN]
            if missing:
                first = max(base, missing[0] * PIECE_BYTES)
                end = min(base + nbytes, (missing[-1] + 1) * PIECE_BYTES)
                self._check(min(end - first, len(missing) * PIECE_BYTES))
                os.posix_fallocate(self._fd, first, end - first)
            self._begin(base, nbytes)

    def known(self, base: int, nbytes: int) -> None:
        """Mark a range of a previous data plane as in use; its pages exist."""
        with self._changed:
            self._begin(base, nbytes)

    def stray(self) -> None:
        """Note that a previous data plane may have left pages anywhere."""
        with self._changed:
            for at, state in enumerate(self._states):
                if state == _HOLE:
                    self._set(at, _STRAY)

    def release(self, base: int, nbytes: int) -> None:
        """Mark a range as no longer in use. Its pages stay until `give_back`."""
        with self._changed:
            self._count(base, nbytes, -1)

    def shed(self, base: int, nbytes: int) -> None:
        """Give ready pages outside a range back to the machine, which has no pages left for this range."""
        with self._changed:
            pieces = _pieces(base, nbytes)
            for at in range(len(self._states)):
                if self._states[at] == _TAKEN and not self._users[at] and at not in pieces:
                    self._punch(at)

    def give_back(self) -> None:
        """Give the surplus back to the machine: the thread does so soon, or without a thread it happens at once. Call
        this only while no device addresses the pages. `keep` withdraws the permission."""
        with self._changed:
            if self._thread is None:
                while (at := self._next_surplus()) is not None:
                    self._punch(at)
            elif self.surplus:
                self._may_punch = True
                self._changed.notify_all()

    def keep(self) -> None:
        """Give back no pages before the next `give_back`: a device may address them directly from now on."""
        self._may_punch = False  # the thread starts no further piece
        with self._changed:
            self._may_punch = False

    # ---- ahead of use

    def keep_ahead(self, nbytes: int, on_failure: Callable[[OSError], None]) -> int:
        """Keep this many bytes ready from now on, in whole pieces, and return the bytes of these pieces. A thread does
        so; the `on_failure` with which it was started is called on it when the machine refuses pages for the first
        time."""
        with self._changed:
            self._ahead = min(nbytes, self._nbytes) // PIECE_BYTES
            if self._thread is None and self._ahead and not self._stopping:
                self._thread = threading.Thread(target=self._run, args=(on_failure,), name="named-pages", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            return self._ahead * PIECE_BYTES

    def take(self, ranges: Iterable[Range]) -> None:
        """Allocate the pages of ranges that are about to be used. Blocks; do not call it on the loop. Raises
        OSError."""
        for byte_range in ranges:
            for at in _pieces(*byte_range):
                with self._changed:
                    while self._states[at] == _TAKING and self._changed.wait(timeout=1):
                        pass  # another thread is taking it
                    if self._states[at] == _TAKEN:
                        continue
                    self._check(PIECE_BYTES)
                    self._set(at, _TAKING)
                self._populate(at)

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(timeout=2)

    # ---- under the lock

    def _size(self, at: int) -> int:
        return min(PIECE_BYTES, self._nbytes - at * PIECE_BYTES)

    def _set(self, at: int, state: int) -> None:
        before = self._states[at]
        self._states[at] = state
        self._strays += (state == _STRAY) - (before == _STRAY)
        if not self._users[at]:
            self._free_taken += (state == _TAKEN) - (before == _TAKEN)

    def _begin(self, base: int, nbytes: int) -> None:
        """Mark a range, which has all its pages, as in use."""
        for at in _pieces(base, nbytes):
            if base <= at * PIECE_BYTES and at * PIECE_BYTES + self._size(at) <= base + nbytes:
                self._set(at, _TAKEN)
        self._count(base, nbytes, 1)
        self._changed.notify_all()

    def _count(self, base: int, nbytes: int, change: int) -> None:
        for at in _pieces(base, nbytes):
            was_used = bool(self._users[at])
            is_used = bool(self._users[at] + change)
            if is_used and self._states[at] == _STRAY:
                self._set(at, _HOLE)
            self._users[at] += change
            if self._states[at] == _TAKEN:
                self._free_taken += was_used - is_used
            elif self._states[at] == _HOLE and not is_used:  # some of its pages exist
                self._set(at, _STRAY)

    def _check(self, nbytes: int, margin: int = 0) -> None:
        """Raise OSError if the machine cannot provide this many bytes. Without the check the kernel would kill a
        process to get them, or allocate page after page before it finds the file system full."""
        if available_bytes() < nbytes + margin:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        space = os.fstatvfs(self._fd)
        if space.f_blocks and space.f_bavail * space.f_frsize < nbytes + margin:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _next_hole(self) -> int | None:
        """Return the lowest free piece without its pages; None if enough is ready."""
        if self._free_taken >= self._ahead:
            return None
        holes = [at for at in (self._first_free(_HOLE), self._first_free(_STRAY)) if at >= 0]
        return min(holes, default=None)

    def _first_free(self, state: int) -> int:
        at = self._states.find(state)
        while at >= 0 and self._users[at]:
            at = self._states.find(state, at + 1)
        return at

    def _next_surplus(self) -> int | None:
        """Return the highest piece with pages that need not be kept."""
        worst = _TAKEN if self._free_taken > self._ahead else _STRAY
        if worst == _STRAY and not self._strays:
            return None
        for at in range(len(self._states) - 1, -1, -1):
            if not self._users[at] and self._states[at] in (_STRAY, worst):
                return at
        return None

    def _punch(self, at: int) -> None:
        punch(self._fd, at * PIECE_BYTES, self._size(at))
        self._set(at, _HOLE)

    # ---- the thread

    def _populate(self, at: int) -> None:
        """Allocate the pages of a piece that is TAKING. Raises OSError."""
        try:
            pages = PageTaker(self._fd, self._size(at), lock=False, offset=at * PIECE_BYTES)
            try:
                pages.take(0, self._size(at))
            finally:
                pages.close()
        except OSError as error:
            with self._changed:
                self._set(at, _STRAY if self._states[at] == _TAKING else self._states[at])
                self._changed.notify_all()
            if error.errno == errno.EFAULT:  # touching the page would raise SIGBUS
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
            raise
        with self._changed:
            if self._states[at] == _TAKING:
                self._set(at, _TAKEN)
            self._changed.notify_all()

    def _run(self, on_failure: Callable[[OSError], None]) -> None:
        while True:
            with self._changed:
                if self._stopping:
                    return
                if self._may_punch:
                    at = self._next_surplus()
                    if at is not None:
                        self._punch(at)
                        continue
                    self._may_punch = False
                paused = self._paused_until - time.monotonic()
                at = self._next_hole() if paused <= 0 else None
                if at is None:
                    self._changed.wait(timeout=paused if paused > 0 else None)
                    continue
            failure = self._take_ahead(at)
            if failure is None:
                self._failing = False
                continue
            was_failing, self._failing = self._failing, True
            self._paused_until = time.monotonic() + RETRY_S
            if not was_failing:
                on_failure(failure)

    def _take_ahead(self, at: int) -> OSError | None:
        try:
            with self._changed:
                if self._states[at] >= _TAKING:
                    return None
                self._check(PIECE_BYTES, MARGIN_BYTES)
                self._set(at, _TAKING)
            self._populate(at)
        except OSError as error:
            return error
        return None


def _pieces(base: int, nbytes: int) -> range:
    return range(base // PIECE_BYTES, -(-(base + nbytes) // PIECE_BYTES))
