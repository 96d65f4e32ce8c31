"""The reader's side of the ring: waiting for messages, reading them, and detecting that the writer is gone."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from dataplane.ipc import futex
from dataplane.ipc.memory import MemoryGone, map_whole, open_through
from dataplane.ipc.processes import PidWatch
from dataplane.ipc.queue.errors import CorruptMessage, MessageLost, QueueCancelled, QueueError, WriterGone
from dataplane.ipc.queue.layout import (
    ALIGNMENT,
    LARGE,
    LARGE_BYTES,
    RECORD,
    RECORD_BYTES,
    Flag,
    Kind,
    QueueHeader,
    ReaderSlot,
    SlotState,
    WriterState,
    align,
    describe,
    described,
    slot_word,
)
from dataplane.ipc.queue.payload import checksum, parse
from dataplane.ipc.queue.ring import ShmRingBuffer, Side, take

SLICE_S = 0.1
"""Longest sleep of a reader before it checks whether the writer runs."""
MAX_SPIN_S = 30e-6
_MIN_SPIN_S = 1e-6
_PUBLISHED, _NEEDED = int(QueueHeader.PUBLISHED), int(QueueHeader.NEEDED)
_MESSAGES, _BYTES = int(ReaderSlot.MESSAGES), int(ReaderSlot.BYTES)
_WAITS, _WAKEUPS = int(ReaderSlot.WAITS), int(ReaderSlot.WAKEUPS)
_PLAIN = describe(int(Kind.MESSAGE), 0, 0)
_ALIGN = ALIGNMENT - 1
_PADDING, _LARGE_KIND = int(Kind.PADDING), int(Kind.LARGE)
_ACTIVE = int(SlotState.ACTIVE)
"""Plain integers, because each message uses them."""

Message = TypeVar("Message", covariant=True)


class Receive(Protocol[Message]):
    """Receives a message in the memory of the queue. `body` is valid only during the call. If `owned`, the buffers are
    private to this reader and live as long as they are referenced; otherwise, they too are valid only during the
    call."""

    def __call__(self, body: memoryview | bytes, buffers: Sequence[memoryview], owned: bool, /) -> Message: ...


class ShmRingReader(Side):
    """A reader of a ring. Threads may share it; each message goes to one of them."""

    def __init__(self, ring: ShmRingBuffer, slot: int | None = None) -> None:
        """Join at the current position. `slot`: a reserved slot, for which all messages were kept. Raises what
        `ShmRingBuffer.claim` raises."""
        super().__init__()
        self.ring = ring
        self._pid = os.getpid()
        self.slot = ring.claim(slot)
        self._at = slot_word(self.slot)
        self._state_word, self._pid_word = self._at + int(ReaderSlot.STATE), self._at + int(ReaderSlot.PID)
        self._position_word = self._at + int(ReaderSlot.POSITION)
        self._drops = ring.drops
        self._checks = bool(ring.flags & Flag.CHECKSUM)
        self._words = words = ring.memory.words
        self._view = ring.memory.bytes
        self._sleeping_word = self._at + int(ReaderSlot.SLEEPING)
        self._messages_word, self._bytes_word = self._at + _MESSAGES, self._at + _BYTES
        self._position = words[self._position_word] & ~_ALIGN
        self._messages, self._bytes = words[self._messages_word], words[self._bytes_word]
        self._counts = {int(counter): words[self._at + counter] for counter in _COUNTERS}
        self._spin_s = MAX_SPIN_S
        self._cancelled = False
        self._writer: PidWatch | None = None
        self._epoch = 0

    def read(self, receive: Receive[Message], deadline: float | None = None) -> Message:
        """Wait for the next message, and return the result of `receive`.

        The message counts as read when `receive` has returned or raised. Raises TimeoutError at `deadline` (monotonic
        seconds; None: no limit), WriterGone, MessageLost, CorruptMessage, QueueCancelled, and what `receive` raises;
        QueueError when the reader is closed or has lost its slot; and OSError if this process has no free descriptor
        for a large message, which the next call reads again.
        """
        lock = self._lock
        if not lock.acquire(False):
            take(lock, deadline)
        try:
            while True:
                if not self._open:
                    raise self._closed_error()
                if self._words[_PUBLISHED] == self._position:
                    self._wait(deadline)
                if self._drops:
                    self._follow_skip()
                    if self._words[_PUBLISHED] == self._position:
                        continue
                elif not self._checks:
                    position, ring = self._position, self.ring
                    offset = position % ring.capacity
                    start = ring.data_at + offset
                    begins, description, size, _ = RECORD.unpack_from(self._view, start)
                    if begins == position and description == _PLAIN | size:
                        end = RECORD_BYTES + size
                        if offset + end <= ring.capacity:
                            try:
                                return receive(self._view[start + RECORD_BYTES : start + end], (), False)
                            finally:
                                self._finish(size, position + (end + _ALIGN & ~_ALIGN))
                message = self._read_record(receive)
                if message is not None:
                    return message[0]
        finally:
            lock.release()

    def _read_record(self, receive: Receive[Message]) -> tuple[Message] | None:
        """Read the record at the current position. Return None if it is not a message."""
        ring, position = self.ring, self._position
        view, capacity = ring.memory.bytes, ring.capacity
        offset = position % capacity
        start = ring.data_at + offset
        begins, description, body, check = RECORD.unpack_from(view, start)
        kind, count, nbytes = described(description)
        content = start + RECORD_BYTES
        stored = LARGE_BYTES if kind == _LARGE_KIND else nbytes
        end = position + align(RECORD_BYTES + stored)
        if self._drops and self._was_skipped():
            return None
        if begins != position or offset + RECORD_BYTES + stored > capacity or not 0 < kind <= _LARGE_KIND:
            self._check_slot()
            self._advance(self._words[_PUBLISHED] & ~_ALIGN)  # it may be garbage
            raise CorruptMessage(f"no record of {ring.name!r} begins at {position}; continuing at the newest message")
        if kind == _PADDING:
            self._advance(end)
            return None
        owned = kind == _LARGE_KIND
        if owned:
            source = self._large(content, nbytes)
        else:
            source = view[content : content + nbytes]
            if self._drops:  # copied first: the writer may reuse the memory at any time
                source = memoryview(bytes(source))
        try:
            if self._drops and self._was_skipped():
                return None
            if source is None:
                self._count(ReaderSlot.LOST)
                raise MessageLost(f"a message of {nbytes} bytes in {ring.name!r} ended with its writer")
            if self._checks and checksum(source) != check:
                raise CorruptMessage(f"a message of {nbytes} bytes in {ring.name!r} does not match its checksum")
            if count:
                return (receive(*parse(source, count, body), owned),)
            return (receive(source[:body], (), owned),)
        finally:
            if not (self._drops and self._was_skipped()):
                self._finish(nbytes, end)

    def _large(self, content: int, nbytes: int) -> memoryview | None:
        """Return a private view of a message that has memory of its own; None if that is gone. Raises OSError."""
        pid, number, inode = LARGE.unpack_from(self.ring.memory.bytes, content)
        try:
            fd = open_through(pid, number)
        except MemoryGone:
            return None
        try:
            status = os.fstat(fd)
            if not nbytes or (status.st_ino, status.st_size) != (inode, nbytes):
                return None
            return memoryview(map_whole(fd, nbytes, private=True))
        finally:
            os.close(fd)

    def _finish(self, nbytes: int, end: int) -> None:
        """Count a message as read."""
        words = self._words
        self._messages = messages = self._messages + 1
        self._bytes = total = self._bytes + nbytes
        words[self._messages_word] = messages
        words[self._bytes_word] = total
        # Messages take at most a quarter of the ring: this one's memory is used again after later ones were published.
        if words[_PUBLISHED] != end:
            self._check_slot()
        self._advance(end)

    def _advance(self, position: int) -> None:
        words = self._words
        self._position = position
        words[self._position_word] = position
        futex.fence()  # pairs with the fence of a writer that is about to sleep
        needed = words[_NEEDED]
        if needed and position >= needed:
            self.ring.wake(self._position_word)

    def _check_slot(self) -> None:
        """Leave the queue with QueueError if the slot is no longer this reader's: a process took this one for dead.

        The writer does not wait for such a reader, so what it has just read may be torn. A process that takes the slot
        frees it first, so either STATE or PID differs.
        """
        words = self._words
        if words[self._state_word] != _ACTIVE or words[self._pid_word] != self._pid:
            self._open = False
            raise self._closed_error()

    def _closed_error(self) -> QueueError:
        return QueueError(
            f"{self.ring.name!r} was closed by this reader, belongs to the parent process, or gave the slot of this "
            f"reader to another one: open it again"
        )

    def _was_skipped(self) -> bool:
        return self._skip() > self._position

    def _skip(self) -> int:
        """Return the position to which the writer moved this reader; 0 for garbage."""
        skip = self._words[self._at + ReaderSlot.SKIP_TO]
        return 0 if skip & _ALIGN or skip > self._words[_PUBLISHED] else skip

    def _follow_skip(self) -> None:
        skip = self._skip()
        if skip > self._position:
            self._advance(skip)
            self._count(ReaderSlot.LOST)
            raise MessageLost(f"the reader of {self.ring.name!r} was too slow, and messages were dropped")

    def _wait(self, deadline: float | None) -> None:
        """Return when something was published."""
        words, position = self._words, self._position
        began = now = time.monotonic()
        if self._spin_s > _MIN_SPIN_S:
            until = began + self._spin_s
            while time.monotonic() < until:
                if words[_PUBLISHED] != position:
                    self._spin_s = min(self._spin_s * 2, MAX_SPIN_S)
                    return
                os.sched_yield()
            self._spin_s /= 2
        self._count(_WAITS)
        sleeping = self._sleeping_word
        try:
            while True:
                words[sleeping] = 1
                futex.fence()  # pairs with the fence of the writer between PUBLISHED and SLEEPING
                if words[_PUBLISHED] != position:
                    break
                if self._cancelled or self._closing:
                    self._cancelled = False
                    raise QueueCancelled(f"the wait for {self.ring.name!r} was cancelled")
                remaining_s = SLICE_S if deadline is None else min(SLICE_S, deadline - now)
                if remaining_s <= 0:
                    self._check_writer(position)
                    if words[_PUBLISHED] != position:
                        break
                    raise TimeoutError(f"no message in {self.ring.name!r}")
                self.ring.sleep(_PUBLISHED, position, remaining_s)
                self._count(_WAKEUPS)
                if words[_PUBLISHED] != position:
                    break
                self._check_slot()
                self._check_writer(position)
                now = time.monotonic()
        finally:
            words[sleeping] = 0
        if time.monotonic() - began < 2 * MAX_SPIN_S:
            self._spin_s = MAX_SPIN_S

    def _check_writer(self, position: int) -> None:
        """Raise WriterGone if no writer runs, and it published nothing after `position`."""
        words = self._words
        if self.writer_runs() or words[QueueHeader.PUBLISHED] != position:
            return
        closed = words[QueueHeader.WRITER_STATE] == WriterState.CLOSED
        raise WriterGone(f"the writer of {self.ring.name!r} {'closed it' if closed else 'exited'}")

    def writer_runs(self) -> bool:
        """Return whether the queue has a writer whose process runs."""
        words = self._words
        if words[QueueHeader.WRITER_STATE] != WriterState.ACTIVE:
            return False
        epoch = words[QueueHeader.EPOCH]
        if self._writer is None or epoch != self._epoch:
            if self._writer is not None:
                self._writer.close()
            self._writer = PidWatch(words[QueueHeader.WRITER_PID], words[QueueHeader.WRITER_STARTED])
            self._epoch = epoch
        return self._writer.alive() or words[QueueHeader.EPOCH] != epoch

    def wait_for_messages(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` seconds. Return whether `read` has a message or an error."""
        deadline = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=timeout_s):
            return False
        try:
            if self._open and self._words[QueueHeader.PUBLISHED] == self._position:
                self._wait(deadline)
        except TimeoutError:
            return False
        except WriterGone:
            pass
        finally:
            self._lock.release()
        return True

    def wait_until_ready(self, deadline: float | None = None) -> None:
        """Wait until the writer has seen all expected readers. Raises TimeoutError, WriterGone, QueueCancelled, and
        QueueError when the reader is closed."""
        take(self._lock, deadline)
        try:
            if not self._open:
                raise self._closed_error()
            while not self._words[QueueHeader.READY]:
                if self._cancelled or self._closing:
                    raise QueueCancelled(f"the wait for {self.ring.name!r} was cancelled")
                remaining_s = SLICE_S if deadline is None else min(SLICE_S, deadline - time.monotonic())
                if remaining_s <= 0:
                    raise TimeoutError(f"the writer of {self.ring.name!r} waits for other readers")
                self.ring.sleep(QueueHeader.READY, 0, remaining_s)
                if not self._words[QueueHeader.READY]:
                    self._check_writer(self._words[QueueHeader.PUBLISHED])
        finally:
            self._lock.release()

    def cancel(self) -> None:
        """End a wait of another thread, or else the next wait, with QueueCancelled. Messages are not lost."""
        self._cancelled = True
        self._wake_self()

    def _wake_self(self) -> None:
        self.ring.wake(QueueHeader.PUBLISHED)
        self.ring.wake(QueueHeader.READY)

    def close(self) -> None:
        """Leave the queue, and end the waits of other threads."""
        self._closing = True
        self._wake_self()
        with self._lock:
            if self._open:
                self._open = False
                with suppress(QueueError):
                    self._check_slot()
                    self._release_slot()
            self._give_back()
            self.ring.close()

    def _release_slot(self) -> None:
        try:
            self.ring.release(self.slot)
        except (TimeoutError, OSError):  # the lock is busy: without a pid, the slot is a dead reader's
            self._words[self._pid_word] = 0
        self.ring.wake(self._position_word)

    def _give_back(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def abandon(self) -> None:
        super().abandon()
        self.ring.abandon()
        self._give_back()

    def _count(self, counter: int) -> None:
        self._counts[counter] += 1
        self._words[self._at + counter] = self._counts[counter]


_COUNTERS = (ReaderSlot.WAITS, ReaderSlot.WAKEUPS, ReaderSlot.LOST)
