"""Invalidations that have not been carried out in every tier yet, in a file of the state directory.

Invalidated blocks must not be served again after a tier was out of service, after it was removed and added again, or
after the process was killed. The file has a list for each tier that this node ever had. It is written before an
invalidation is acknowledged, on a thread: the event loop never waits for the disk. The list of a tier is emptied when
the tier has deleted the blocks that it covers. The list of a shared tier stays, because this node cannot delete the
blocks of other nodes there.

The file has a bounded size. Of tiers that have not been used for the longest time, one list remains, which covers
everything that was stored before their last invalidation.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import msgspec
import structlog

from dataplane.base.durable_files import checked_body, read_bounded, replace_checked
from dataplane.core.tiering.invalidations import Tombstone, compacted

FILE = "tombstones"
MAX_FILE_BYTES = 1 << 30
_MAGIC = b"LARDERTS1\n"
MAX_SIZE = 1024
MAX_LISTS = 32
"""Tiers with a list of their own."""
UNKNOWN = "*"
"""Key of the list for tiers that the file does not name."""
Lists = dict[str, list[Tombstone]]
Run = Callable[[Callable[[], None], Callable[[object], None]], None]
CLOSE_S = 2.0
_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Lists)
log = structlog.stdlib.get_logger()


def _at_once(work: Callable[[], None], done: Callable[[object], None]) -> None:
    work()
    done(None)


class TombstoneFile:
    """The tombstones in force, by tier. If they exceed the size MAX_SIZE, those of a tenant are merged: see
    `compacted`."""

    def __init__(self, folder: Path, run: Run = _at_once, in_use: Callable[[], Collection[str]] = tuple) -> None:
        """`run` calls a function on another thread, and then a second one on the thread of the caller. `in_use` returns
        the tiers whose lists must stay."""
        self._in_use = in_use
        self._path = folder / FILE
        self._run = run
        self._lists: Lists = {}
        self._revision = self._written_revision = 0
        """Numbers of the newest state of the lists, and of the newest state that was written."""
        self._writing = False
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._file_lock = threading.Lock()
        self._in_file = 0
        """Number of the state that the file has."""
        try:
            data = read_bounded(self._path, MAX_FILE_BYTES)
            # Older releases wrote no digest.
            self._lists = _decoder.decode(checked_body(data, _MAGIC) if data.startswith(_MAGIC[:1]) else data)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, RecursionError) as error:
            log.warning("tombstones.unreadable", path=str(self._path), reason=str(error))
            newest = self._path.stat().st_mtime_ns if self._path.exists() else 0
            self._lists = {UNKNOWN: [Tombstone(before=newest)]}

    @property
    def knows_tiers(self) -> bool:
        """Whether this node has, or had, a tier."""
        return bool(self._lists)

    def of(self, tier: str) -> list[Tombstone]:
        """Return the tombstones that a tier has not carried out. Record in the file that this node has the tier."""
        if tier not in self._lists:
            self._lists[tier] = list(self._lists.get(UNKNOWN, ()))
            self._forget_oldest()
            self._changed()
        return self._lists[tier]

    def add(self, tombstone: Tombstone) -> None:
        """Add an invalidation, and begin to write the file."""
        for of_tier in self._lists.values():
            of_tier.append(tombstone)
            of_tier[:] = compacted(of_tier, MAX_SIZE)
        self._changed()

    def _forget_oldest(self) -> None:
        """Merge the lists of tiers that were added first and are not in use into the list of unknown tiers."""
        in_use = self._in_use()
        newest = next(reversed(self._lists))
        old = [tier for tier in self._lists if tier not in (UNKNOWN, newest) and tier not in in_use]
        excess = len(self._lists) - (UNKNOWN in self._lists) - MAX_LISTS
        for tier in old[: max(0, excess)]:
            tombstones = [*self._lists.get(UNKNOWN, ()), *self._lists.pop(tier)]
            # From now on, the list gets each invalidation, because a tier that it stands for may be added again.
            self._lists[UNKNOWN] = (
                [Tombstone(before=max(tombstone.before for tombstone in tombstones))] if tombstones else []
            )

    def clear(self, tier: str) -> None:
        """Forget the tombstones of a tier that has deleted the blocks that they cover."""
        if self._lists.get(tier):
            self._lists[tier] = []
            self._changed()

    def when_written(self, call: Callable[[], None]) -> None:
        """Call back when the file has all changes so far: at once, or later. A failed write is logged and counts as
        written, because invalidations take effect anyway."""
        if self._written_revision == self._revision:
            call()
        else:
            self._waiting.append((self._revision, call))

    def close(self) -> None:
        """Write the last changes, but do not wait long for a write that hangs."""
        if self._written_revision != self._revision:
            self._write(self._revision, self._lists)

    def _changed(self) -> None:
        self._revision += 1
        self._begin()

    def _begin(self) -> None:
        if self._writing or self._written_revision == self._revision:
            return
        self._writing = True
        lists = {tier: of_tier.copy() for tier, of_tier in self._lists.items()}
        self._run(partial(self._write, self._revision, lists), partial(self._ended, self._revision))

    def _ended(self, number: int, result: object) -> None:
        self._writing, self._written_revision = False, number
        while self._waiting and self._waiting[0][0] <= number:
            self._waiting.popleft()[1]()
        self._begin()

    def _write(self, number: int, lists: Lists) -> None:
        if not self._file_lock.acquire(timeout=CLOSE_S):
            return
        try:
            if number > self._in_file:
                replace_checked(self._path, _MAGIC, _encoder.encode(lists))
                self._in_file = number
        except OSError as error:
            log.warning("tombstones.not_written", path=str(self._path), reason=error.strerror)
        finally:
            self._file_lock.release()
