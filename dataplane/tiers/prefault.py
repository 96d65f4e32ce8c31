"""Take segments' pages from the machine ahead of their first use.

First touch costs several times a copy: the kernel finds and clears a page at each fault. A worker thread does it before
anybody asks: it keeps segments that no space has yet, ready up to `ahead_bytes` and never more than the pool's size
allows, and a new segment is cut from one of them. What a segment lacks when it is given to a space is taken after that.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from dataplane.tiers.memory import SharedFile
from dataplane.tiers.pages import HUGE_BYTES, PAGE_BYTES, PIECE_BYTES, Pages, available_bytes, write_zeros

MAX_WAITING = 64
"""Segments beyond these are left to first touch: prefaulting is a favour, not a debt."""
MARGIN_BYTES = 256 << 20
"""Left to the machine: nothing is taken ahead of need beyond that."""
RETRY_S = 10.0
NICENESS = 10


@dataclass(eq=False, slots=True)
class Task:
    """One file whose pages are taken."""

    file: SharedFile
    segment: int = 0
    """0 while no space has it."""
    done: int = 0
    """Bytes from its start that are taken."""
    pages: Pages | None = None


class Prefault:
    """One background thread. No call but `stop` waits for more than one piece; none raises.

    A cancelled segment holds no page afterwards: what the thread took while it was cancelled is given back.
    """

    def __init__(
        self,
        on_failure: Callable[[str, OSError], None],
        *,
        ahead_bytes: int = 0,
        segment_bytes: int = 0,
        capacity_bytes: int = 0,
        huge: bool = False,
        lock: bool = False,
    ) -> None:
        self._changed = threading.Condition()
        self._ahead_bytes = ahead_bytes
        self._segment_bytes = segment_bytes
        self._capacity_bytes = capacity_bytes
        self._huge = huge
        self._lock = lock
        self._waiting: dict[int, Task] = {}
        self._given: dict[int, Task] = {}
        """Every segment that was submitted, by number."""
        self._spares: list[Task] = []
        self._cut: dict[int, Task] = {}
        """Spares that became segments and are not submitted yet, by fd."""
        self._current: Task | None = None
        self._busy = False
        """A piece of `_current` is being taken."""
        self._stopping = False
        self._failing = False
        self._paused_until = 0.0
        self._on_failure = on_failure
        self._thread = threading.Thread(target=self._run, name="prefault", daemon=True)
        self._thread.start()

    # ---- from the loop's thread

    @property
    def prefaulted_bytes(self) -> int:
        """Pages taken ahead of use, of segments and of those that will be some."""
        with self._changed:
            return sum(task.done for task in (*self._given.values(), *self._spares))

    @property
    def spare_bytes(self) -> int:
        """Pages taken that no space has yet."""
        with self._changed:
            return sum(task.done for task in self._spares)

    @property
    def locked(self) -> bool:
        """All that was taken is locked, and the machine has refused nothing."""
        return self._lock and not self._failing

    def make(self, name: str, nbytes: int) -> SharedFile:
        """A segment's file, cut from what is ready when something is. Raises MemoryError when the machine refuses."""
        with self._changed:
            spare = max(self._spares, key=lambda task: task.done, default=None)
            if spare is not None:
                self._leave(spare)
                self._spares.remove(spare)
                self._drop_spares(self._room() - nbytes)
        if spare is None:
            return SharedFile.create(name, nbytes, huge=self._huge)
        if spare.pages is not None and nbytes != spare.file.nbytes:
            spare.pages.close()
            spare.pages = None
            if self._lock:  # locks end with the mapping
                spare.done = 0
        try:
            spare.file = spare.file.sealed(nbytes)
        except MemoryError:
            if spare.pages is not None:
                spare.pages.close()
            spare.file.close()
            return SharedFile.create(name, nbytes, huge=self._huge)
        spare.done = min(spare.done, nbytes)
        self._cut[spare.file.fd] = spare
        return spare.file

    def submit(self, segment: int, file: SharedFile) -> None:
        """Take the rest of a segment's pages soon. Say `cancel` before the file is closed."""
        with self._changed:
            task = self._cut.pop(file.fd, None) or Task(file)
            task.segment = segment
            self._given[segment] = task
            self._drop_spares(self._room())
            if task.done < file.nbytes and len(self._waiting) < MAX_WAITING:
                self._waiting[segment] = task
            self._changed.notify_all()

    def cancel(self, segment: int) -> None:
        """Forget a segment; when this returns the thread does not touch it any more (at most one piece later)."""
        with self._changed:
            self._waiting.pop(segment, None)
            task = self._given.pop(segment, None)
            if task is None:
                return
            self._leave(task)
            if task.pages is not None:
                task.pages.close()
            self._changed.notify_all()

    def resize(self, capacity_bytes: int) -> None:
        """The pool may have another size now."""
        with self._changed:
            self._capacity_bytes = capacity_bytes
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(timeout=2)
        with self._changed:
            self._drop_spares(-1)

    # ---- under the lock

    def _room(self) -> int:
        """Bytes of the pool that no segment has."""
        return self._capacity_bytes - sum(task.file.nbytes for task in self._given.values())

    def _leave(self, task: Task) -> None:
        """Make the thread let go of a task."""
        if self._current is task:
            self._current = None
            self._changed.wait_for(lambda: not self._busy or self._stopping, timeout=1)

    def _drop_spares(self, most_bytes: int) -> None:
        """Give spares back until they have at most so many bytes."""
        while self._spares and sum(task.file.nbytes for task in self._spares) > most_bytes:
            spare = min(self._spares, key=lambda task: task.done)
            self._leave(spare)
            self._spares.remove(spare)
            if spare.pages is not None:
                spare.pages.close()
            spare.file.close()

    def _next(self) -> Task | None:
        if self._waiting:
            return self._waiting.pop(next(iter(self._waiting)))
        for spare in self._spares:
            if spare.done < spare.file.nbytes:
                return spare
        return None

    def _lacking(self) -> int:
        """Bytes of the next spare; 0 when there are enough."""
        ready = sum(task.file.nbytes for task in self._spares)
        page = HUGE_BYTES if self._huge else PAGE_BYTES
        wanted = min(self._segment_bytes, self._ahead_bytes - ready, self._room() - ready) // page * page
        return max(0, wanted)

    # ---- the thread

    def _run(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while True:
            with self._changed:
                paused = self._paused_until - time.monotonic()
                task = self._next() if paused <= 0 else None
                wanted = self._lacking() if task is None and paused <= 0 else 0
                if self._stopping:
                    return
                if task is None and not wanted:
                    self._changed.wait(timeout=paused if paused > 0 else None)
                    continue
                self._current = task
            if task is None:
                self._add_spare(wanted)
            else:
                self._take(task)

    def _add_spare(self, nbytes: int) -> None:
        try:
            if not self._huge and available_bytes() < nbytes + MARGIN_BYTES:
                raise OSError(0, f"less than {nbytes + MARGIN_BYTES} bytes are available on this machine")
            file = SharedFile.unsealed("larder-segment", nbytes, huge=self._huge)
        except MemoryError as error:
            self._failed("larder-segment", OSError(0, str(error)))
        except OSError as error:
            self._failed("larder-segment", error)
        else:
            with self._changed:
                self._spares.append(Task(file))

    def _take(self, task: Task) -> None:
        while task.done < task.file.nbytes:
            with self._changed:
                if self._current is not task or self._stopping:
                    return
                self._busy = True
            nbytes = min(HUGE_BYTES if self._huge else PIECE_BYTES, task.file.nbytes - task.done)
            failure: OSError | None = None
            try:
                self._take_piece(task, nbytes)
            except OSError as error:
                failure = error
            with self._changed:
                if failure is None:
                    task.done += nbytes
                    self._failing = False
                self._busy = False
                self._changed.notify_all()
            if failure is not None:
                self._failed(task.file.name, failure, task)
                return

    def _take_piece(self, task: Task, nbytes: int) -> None:
        if task.segment == 0 and not (self._huge or self._lock):
            write_zeros(task.file.fd, task.done, nbytes)
            return
        if task.pages is None:
            task.pages = Pages(task.file.fd, task.file.nbytes, lock=self._lock, offset=task.file.base)
        task.pages.take(task.done, nbytes)
        if not self._lock and task.done + nbytes == task.file.nbytes:
            task.pages.close()
            task.pages = None

    def _failed(self, name: str, error: OSError, task: Task | None = None) -> None:
        """The machine refused: what no space has goes back to it, and nothing more is asked for a while."""
        with self._changed:
            told, self._failing = self._failing, True
            self._paused_until = time.monotonic() + RETRY_S
            if task is not None and task.segment == 0 and task in self._spares:
                self._spares.remove(task)
                if task.pages is not None:
                    task.pages.close()
                task.file.close()
        if not told:
            self._on_failure(name, error)
