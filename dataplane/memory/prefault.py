"""Allocate the pages of segments ahead of their first use.

The first touch of memory costs several times a copy, because the kernel finds and clears a page at each fault. A worker
thread therefore allocates pages in advance. It prepares segments without a space: up to
`ahead_bytes`, and never more than the pool's size allows. A new segment is made from a prepared one. Pages that it
still lacks when a space gets it are allocated afterwards.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from dataplane.memory.pages import HUGE_BYTES, PAGE_BYTES, PIECE_BYTES, PageTaker, available_bytes, write_zeros
from dataplane.memory.shared_file import SharedFile

MAX_WAITING = 64
"""Limit of waiting segments. Further ones get their pages at first touch, because prefaulting is only an
optimization."""
MARGIN_BYTES = 256 << 20
"""Available memory that is left to the machine and never allocated ahead of use."""
RETRY_S = 10.0
LEAVE_S = 1.0
"""Longest time that the loop waits for the thread to finish a piece, which can take longer on a busy machine."""
NICENESS = 10


@dataclass(eq=False, slots=True)
class PrefaultTask:
    """One file whose pages are being allocated."""

    file: SharedFile
    segment: int = 0
    """0 for a prepared segment."""
    done: int = 0
    """Bytes from the start of the file that are allocated."""
    pages: PageTaker | None = None
    busy: bool = False
    """The thread is allocating a piece without the lock, and uses `pages`, or the file of a prepared segment."""
    gone: bool = False
    """Given up while it was busy: the thread closes `pages` and, for a prepared segment, the file."""


class Prefault:
    """One background thread. Only `stop` may wait for more than one piece; no call raises.

    A cancelled segment holds no page afterwards: pages that the thread allocated during the cancellation are returned.
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
        self._waiting: dict[int, PrefaultTask] = {}
        self._submitted: dict[int, PrefaultTask] = {}
        """Every segment that was submitted, by number."""
        self._prepared: list[PrefaultTask] = []
        self._cut: dict[int, PrefaultTask] = {}
        """Prepared files that became segments and are not submitted yet, by fd."""
        self._current: PrefaultTask | None = None
        self._stopping = False
        self._failing = False
        self._paused_until = 0.0
        self.on_failure = on_failure
        self._thread = threading.Thread(target=self._run, name="prefault", daemon=True)
        self._thread.start()

    # ---- from the loop's thread

    @property
    def prefaulted_bytes(self) -> int:
        """Bytes allocated ahead of use, of segments and prepared files."""
        with self._changed:
            return sum(task.done for task in (*self._submitted.values(), *self._prepared))

    @property
    def prepared_bytes(self) -> int:
        """Bytes allocated for prepared segments."""
        with self._changed:
            return sum(task.done for task in self._prepared)

    @property
    def locks(self) -> bool:
        """Whether allocated memory is locked into RAM."""
        return self._lock

    @property
    def locked(self) -> bool:
        """Whether all allocated memory is locked and the machine has refused none."""
        return self._lock and not self._failing

    def make(self, name: str, nbytes: int) -> SharedFile:
        """Return a segment's file, made from a prepared one if possible. Raises MemoryError if the machine refuses."""
        with self._changed:
            prepared = max(self._prepared, key=lambda task: task.done, default=None)
            if prepared is not None and not (self._leave(prepared) and prepared in self._prepared):
                prepared = None  # a write by the thread would change the segment's size
            if prepared is not None:
                self._prepared.remove(prepared)
                self._drop_prepared(self._free_bytes() - nbytes)
        if prepared is None:
            return SharedFile.create(name, nbytes, huge=self._huge)
        if prepared.pages is not None and nbytes != prepared.file.nbytes:
            prepared.pages.close()
            prepared.pages = None
            if self._lock:  # closing the mapping unlocks the pages
                prepared.done = 0
        try:
            prepared.file = prepared.file.sealed(nbytes)
        except MemoryError:
            if prepared.pages is not None:
                prepared.pages.close()
            prepared.file.close()
            return SharedFile.create(name, nbytes, huge=self._huge)
        prepared.done = min(prepared.done, nbytes)
        self._cut[prepared.file.fd] = prepared
        return prepared.file

    def submit(self, segment: int, file: SharedFile) -> None:
        """Allocate the rest of a segment's pages soon. Call `cancel` before the file is closed."""
        with self._changed:
            task = self._cut.pop(file.fd, None) or PrefaultTask(file)
            task.segment = segment
            self._submitted[segment] = task
            self._drop_prepared(self._free_bytes())
            if task.done < file.nbytes and len(self._waiting) < MAX_WAITING:
                self._waiting[segment] = task
            self._changed.notify_all()

    def cancel(self, segment: int) -> None:
        """Forget a segment. On return the thread no longer touches it, except to finish one piece."""
        with self._changed:
            self._waiting.pop(segment, None)
            task = self._submitted.pop(segment, None)
            if task is None:
                return
            self._leave(task)
            self._give_up(task)
            self._changed.notify_all()

    def resize(self, capacity_bytes: int) -> None:
        """Set the size of the pool."""
        with self._changed:
            self._capacity_bytes = capacity_bytes
            self._changed.notify_all()

    def keep_ahead(self, nbytes: int) -> None:
        """Keep at most this many bytes ready from now on; the thread releases the rest."""
        with self._changed:
            self._ahead_bytes = nbytes
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(timeout=2)
        with self._changed:
            self._drop_prepared(-1)

    # ---- under the lock

    def _free_bytes(self) -> int:
        """Return the bytes of the pool that no segment has."""
        return self._capacity_bytes - sum(task.file.nbytes for task in self._submitted.values())

    def _leave(self, task: PrefaultTask) -> bool:
        """Make the thread leave a task. Return False if its piece takes longer than LEAVE_S.

        The thread may release a prepared segment meanwhile.
        """

        def left() -> bool:
            if self._current is task:  # also if the thread chose it again while this call waited
                self._current = None
            return not task.busy

        return self._changed.wait_for(left, LEAVE_S)

    def _give_up(self, task: PrefaultTask) -> None:
        """Close the resources of a task, now or at the end of its piece. The caller closes the file of a segment."""
        if task.busy:
            task.gone = True
            return
        if task.pages is not None:
            task.pages.close()
            task.pages = None
        if task.segment == 0:
            task.file.close()

    def _drop_prepared(self, most_bytes: int) -> None:
        """Release prepared segments until they have at most this many bytes."""
        while self._prepared and sum(task.file.nbytes for task in self._prepared) > most_bytes:
            prepared = min(self._prepared, key=lambda task: task.done)
            self._leave(prepared)
            if prepared in self._prepared:
                self._prepared.remove(prepared)
                self._give_up(prepared)

    def _excess(self) -> PrefaultTask | None:
        """Remove a prepared segment that exceeds the memory to keep ready, and return it; None if there is none."""
        if sum(task.file.nbytes for task in self._prepared) <= self._ahead_bytes:
            return None
        prepared = min(self._prepared, key=lambda task: task.done)
        self._prepared.remove(prepared)
        return prepared

    def _next(self) -> PrefaultTask | None:
        if self._waiting:
            return self._waiting.pop(next(iter(self._waiting)))
        for prepared in self._prepared:
            if prepared.done < prepared.file.nbytes:
                return prepared
        return None

    def _lacking(self) -> int:
        """Return the size of the next segment to prepare; 0 if there are enough."""
        ready = sum(task.file.nbytes for task in self._prepared)
        page = HUGE_BYTES if self._huge else PAGE_BYTES
        lacking = min(self._segment_bytes, self._ahead_bytes - ready, self._free_bytes() - ready) // page * page
        return max(0, lacking)

    # ---- the thread

    def _run(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while True:
            with self._changed:
                excess = self._excess()
            if excess is not None:
                if excess.pages is not None:
                    excess.pages.close()
                excess.file.close()
                continue
            with self._changed:
                paused = self._paused_until - time.monotonic()
                task = self._next() if paused <= 0 else None
                lacking = self._lacking() if task is None and paused <= 0 else 0
                if self._stopping:
                    return
                if task is None and not lacking:
                    self._changed.wait(timeout=paused if paused > 0 else None)
                    continue
                self._current = task
            if task is None:
                self._add_prepared(lacking)
            else:
                self._take(task)

    def _add_prepared(self, nbytes: int) -> None:
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
                self._prepared.append(PrefaultTask(file))

    def _take(self, task: PrefaultTask) -> None:
        while task.done < task.file.nbytes:
            nbytes = min(HUGE_BYTES if self._huge else PIECE_BYTES, task.file.nbytes - task.done)
            failure: OSError | None = None
            with self._changed:
                if self._current is not task or self._stopping:
                    return
                try:  # under the lock: the file of a segment may be closed as soon as the task is cancelled
                    self._map(task)
                    task.busy = True
                except OSError as error:
                    failure = error
            if failure is None:
                try:
                    self._take_piece(task, nbytes)
                except OSError as error:
                    failure = error
            with self._changed:
                if failure is None:
                    task.done += nbytes
                    self._failing = False
                task.busy = False
                if task.gone:
                    self._give_up(task)
                self._changed.notify_all()
            if failure is not None:
                self._failed(task.file.name, failure, task)
                return

    def _map(self, task: PrefaultTask) -> None:
        """Map the file, unless its pages are allocated by writing, which is possible only for a prepared segment,
        because no other process has its file."""
        if task.pages is None and (task.segment or self._huge or self._lock):
            task.pages = PageTaker(task.file.fd, task.file.nbytes, lock=self._lock, offset=task.file.base)

    def _take_piece(self, task: PrefaultTask, nbytes: int) -> None:
        if task.pages is None:
            write_zeros(task.file.fd, task.done, nbytes)
            return
        task.pages.take(task.done, nbytes)
        if not self._lock and task.done + nbytes == task.file.nbytes:
            task.pages.close()
            task.pages = None

    def _failed(self, name: str, error: OSError, task: PrefaultTask | None = None) -> None:
        """Handle a refusal of the machine: release the segment, and pause allocation for a while."""
        with self._changed:
            was_failing, self._failing = self._failing, True
            self._paused_until = time.monotonic() + RETRY_S
            if task is not None and task.segment == 0 and task in self._prepared:
                self._prepared.remove(task)
                if task.pages is not None:
                    task.pages.close()
                task.file.close()
        if not was_failing:
            self.on_failure(name, error)
