"""The writer's side of the ring: making room, writing and publishing records, and dropping dead readers."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import NamedTuple

from dataplane.ipc import futex, memory
from dataplane.ipc.processes import PidWatch, start_time
from dataplane.ipc.queue.errors import MessageTooLarge, QueueCancelled, QueueError, ReaderGone, WriterAlive
from dataplane.ipc.queue.layout import (
    ALIGNMENT,
    LARGE,
    LARGE_BYTES,
    MAX_BUFFERS,
    MAX_MESSAGE_BYTES,
    MAX_WORD,
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
    slot_word,
)
from dataplane.ipc.queue.payload import Payload, checksum
from dataplane.ipc.queue.ring import ShmRingBuffer, Side, take

SLICE_S = 0.1
"""Longest sleep of a writer before it checks for dead readers."""
MAX_LARGE = 64
_PUBLISHED, _CHANGES = int(QueueHeader.PUBLISHED), int(QueueHeader.CHANGES)
_MESSAGES, _BYTES, _WAKES = int(QueueHeader.MESSAGES), int(QueueHeader.BYTES), int(QueueHeader.WAKES)
_MESSAGE, _PADDING, _LARGE_KIND = int(Kind.MESSAGE), int(Kind.PADDING), int(Kind.LARGE)
_PLAIN = describe(_MESSAGE, 0, 0)
_ALIGN = ALIGNMENT - 1
"""Plain integers, because each message uses them."""


class _LargeMessage(NamedTuple):
    """Memory of one large message, held until every reader has read past it."""

    end: int
    fd: int
    nbytes: int
    inode: int
    check: int


class ShmRingWriter(Side):
    """The one writer of a ring. Threads may share it."""

    def __init__(self, ring: ShmRingBuffer) -> None:
        """Become the writer. Raises WriterAlive if the queue has a writer that runs, TimeoutError, and OSError if this
        process has no free descriptor."""
        super().__init__()
        self.ring = ring
        self._words = words = ring.memory.words
        started = start_time(os.getpid())
        with ring.locked():
            if words[QueueHeader.WRITER_STATE] == WriterState.ACTIVE:
                watch = PidWatch(words[QueueHeader.WRITER_PID], words[QueueHeader.WRITER_STARTED])
                alive = watch.alive()
                watch.close()
                if alive:
                    raise WriterAlive(f"process {watch.pid} writes to {ring.name!r}")
            words[QueueHeader.WRITER_STATE] = WriterState.NONE
            words[QueueHeader.WRITER_PID] = os.getpid()
            words[QueueHeader.WRITER_STARTED] = started
            words[QueueHeader.NEEDED] = 0
            words[QueueHeader.EPOCH] = words[QueueHeader.EPOCH] + 1 & MAX_WORD
            words[QueueHeader.WRITER_STATE] = WriterState.ACTIVE
        ring.wake(QueueHeader.PUBLISHED)
        self._position = words[QueueHeader.PUBLISHED]
        """A record that a dead writer did not publish is overwritten."""
        self._limit = self._position
        """Position up to which the ring is known to be free."""
        self._changes = -1
        self._active: list[int] = []
        self._sleeping: list[int] = []
        """Indices of the words that are 1 while active readers sleep."""
        self._planned = (0, 0, 0)
        """Bytes of the payload and of its record, and bytes up to the end of the ring."""
        self._planned_large: _LargeMessage | None = None
        self._checks = bool(ring.flags & Flag.CHECKSUM)
        self._reserved: list[int] = []
        self._watches: dict[int, PidWatch] = {}
        self._large: list[_LargeMessage] = []
        self._messages, self._bytes = words[_MESSAGES], words[_BYTES]
        self._counts = {int(counter): words[counter] for counter in _COUNTERS}
        self.inline_bytes = ring.capacity // 4
        """Largest payload that is written into the ring."""

    def write(self, payload: Payload, deadline: float | None = None) -> None:
        """Publish a message.

        Waits for slow readers until `deadline` (monotonic seconds; None: without a limit), then raises TimeoutError
        and publishes nothing. A queue that drops does not wait. Raises MessageTooLarge, QueueCancelled when another
        thread closes the queue, and QueueError when it is closed.
        """
        take(self._lock, deadline)
        try:
            if not self.write_now(payload):
                self.reserve(payload, deadline)
                self.commit(payload)
        finally:
            self._lock.release()

    def write_now(self, payload: Payload) -> bool:
        """Publish a message at once, if it only has to be copied into room that is known to be free. Return whether it
        was published. Only one thread may call this at a time."""
        body, buffers = payload
        words, ring, position = self._words, self.ring, self._position
        size = len(body)
        end = position + (RECORD_BYTES + size + _ALIGN & ~_ALIGN)
        offset = position % ring.capacity
        if (
            buffers
            or end > self._limit
            or offset + RECORD_BYTES + size > ring.capacity
            or size > self.inline_bytes
            or self._checks
            or self._large
            or not self._active
            or not self._open
            or words[_CHANGES] != self._changes
        ):
            return False
        view, start = ring.memory.bytes, ring.data_at + offset
        content = start + RECORD_BYTES
        view[content : content + size] = body
        RECORD.pack_into(view, start, position, _PLAIN | size, size, 0)
        self._count_message(size)
        self._publish(end)
        return True

    def _count_message(self, size: int) -> None:
        words = self._words
        self._messages = messages = self._messages + 1
        self._bytes = total = self._bytes + size
        words[_MESSAGES] = messages
        words[_BYTES] = total

    def _publish(self, end: int) -> None:
        """Make all records up to `end` readable, and wake readers that sleep."""
        words = self._words
        self._position = end
        words[_PUBLISHED] = end
        # Pairs with the fences of readers that are about to sleep, and of readers that join: either this look at the
        # slots sees them, or they see what was published.
        futex.fence()
        if words[_CHANGES] != self._changes:
            self._look_at_slots()
        for word in self._sleeping:
            if words[word]:
                self.ring.wake(_PUBLISHED)
                self._count(_WAKES)
                break

    def reserve(self, payload: Payload, deadline: float | None) -> None:
        """Wait until `commit` has room for the payload. The caller is the only thread, and calls `commit` or
        `cancel_reserved` next."""
        self.check_open()
        self.cancel_reserved()  # an exception in a thread may have come before `commit`
        size = len(payload.body) if not payload.buffers else payload.nbytes
        if size > MAX_MESSAGE_BYTES or len(payload.buffers) > MAX_BUFFERS:
            raise MessageTooLarge(f"a message of {size} bytes in {len(payload.buffers)} buffers")
        if not self._active and not self._reserved and self._words[_CHANGES] == self._changes:
            self._planned = size, 0, 0  # nothing is written without readers
            return
        large = size > self.inline_bytes
        need = align(RECORD_BYTES + (LARGE_BYTES if large else size))
        capacity, position = self.ring.capacity, self._position
        bytes_to_end = capacity - position % capacity
        end = position + need + (bytes_to_end if need > bytes_to_end else 0)
        if end > self._limit or large or self._large or self._words[_CHANGES] != self._changes:
            self._make_room(end, size if large else 0, deadline)
        self._planned = size, need, bytes_to_end
        if large:
            self._planned_large = self._new_large(payload, size)

    def cancel_reserved(self) -> None:
        """Give back what `reserve` took."""
        if self._planned_large is not None:
            os.close(self._planned_large.fd)
            self._planned_large = None

    def check_open(self) -> None:
        """Raise QueueError if this writer is closed."""
        if not self._open:
            raise QueueError(f"{self.ring.name!r} was closed by this writer, or belongs to the parent process")

    def commit(self, payload: Payload) -> None:
        """Write and publish a payload that has room."""
        size, need, bytes_to_end = self._planned
        self._count_message(size)
        if not self._active and not self._reserved:
            self.cancel_reserved()
            return
        ring, position = self.ring, self._position
        view, capacity = ring.memory.bytes, ring.capacity
        large, self._planned_large = self._planned_large, None
        if need > bytes_to_end:
            skipped = ring.data_at + position % capacity
            RECORD.pack_into(view, skipped, position, describe(_PADDING, 0, bytes_to_end - RECORD_BYTES), 0, 0)
            position += bytes_to_end
        start = ring.data_at + position % capacity
        content = start + RECORD_BYTES
        check = 0
        if large:
            LARGE.pack_into(view, content, os.getpid(), large.fd, large.inode)
            check = large.check
        elif payload.buffers:
            payload.write(view[content : content + size])
        else:
            view[content : content + size] = payload.body
        if self._checks and not large:
            check = checksum(view[content : content + size])
        kind = describe(_LARGE_KIND if large else _MESSAGE, len(payload.buffers), size)
        RECORD.pack_into(view, start, position, kind, len(payload.body), check)
        end = position + need
        if large:
            self._count(QueueHeader.LARGE_MESSAGES)
            self._large.append(large._replace(end=end))
        self._publish(end)

    def _new_large(self, payload: Payload, size: int) -> _LargeMessage:
        """Return new memory that has the payload."""
        fd = memory.create("message", self.ring.name, self.ring.identity, size)
        try:
            content = memoryview(memory.map_whole(fd, size))
            payload.write(content)
            check = checksum(content) if self._checks else 0
        except BaseException:
            os.close(fd)
            raise
        return _LargeMessage(0, fd, size, os.fstat(fd).st_ino, check)

    def _make_room(self, end: int, large_bytes: int, deadline: float | None) -> None:
        """Wait until readers have freed the ring up to `end`, and `large_bytes` more are allowed."""
        waited = False
        while True:
            if self._words[QueueHeader.CHANGES] != self._changes:
                self._look_at_slots()
            done = self._slowest()
            self._release_large(done)
            self._limit = done + self.ring.capacity
            if end <= self._limit and self._may_hold(large_bytes):
                return
            needed = max(end - self.ring.capacity, 0)
            if not self._may_hold(large_bytes):
                needed = max(needed, self._large[0].end)
            slow = [slot for slot in self._active if self._done(slot) < needed]
            if self.ring.drops:
                self._skip(slow)
                continue
            if not waited:
                waited = True
                self._count(QueueHeader.WAITS)
            elif self._drop_dead([*slow, *self._named()], deadline):
                continue
            self._check_closing()
            remaining_s = SLICE_S if deadline is None else min(SLICE_S, deadline - time.monotonic())
            if remaining_s <= 0:
                raise TimeoutError(f"{len(slow) + len(self._reserved)} readers of {self.ring.name!r} are too slow")
            self._sleep_on(slow, needed, remaining_s)

    def _sleep_on(self, slow: list[int], needed: int, timeout_s: float) -> None:
        words = self._words
        if not slow:  # only readers that have not joined: they change slots
            self.ring.sleep(QueueHeader.CHANGES, self._changes, timeout_s)
            return
        slot = slow[0]
        seen = words[slot + ReaderSlot.POSITION]
        # Readers wake the writer once there is room for more than one message.
        words[QueueHeader.NEEDED] = max(min(needed + self.ring.capacity // 8, self._position), needed, 1)
        futex.fence()  # pairs with the fence of a reader between POSITION and WANTED
        if words[slot + ReaderSlot.POSITION] == seen and words[QueueHeader.CHANGES] == self._changes:
            self.ring.sleep(slot + ReaderSlot.POSITION, seen, timeout_s)
        words[QueueHeader.NEEDED] = 0

    def _look_at_slots(self) -> None:
        words = self._words
        self._changes = words[QueueHeader.CHANGES]
        slots_by_word = {slot_word(number): number for number in range(self.ring.slots)}
        states = {at: words[at + ReaderSlot.STATE] for at in slots_by_word}
        self._active = [at for at, state in states.items() if state == SlotState.ACTIVE]
        self._sleeping = [at + int(ReaderSlot.SLEEPING) for at in self._active]
        self._reserved = [at for at, state in states.items() if state == SlotState.RESERVED]
        for at in slots_by_word:
            watch = self._watches.get(at)
            if watch and (
                states[at] == SlotState.FREE
                or not watch.is_of(words[at + ReaderSlot.PID], words[at + ReaderSlot.STARTED])
            ):
                watch.close()
                del self._watches[at]

    def _done(self, slot: int) -> int:
        """Return the position up to which this reader allows the memory to be reused."""
        words = self._words
        position = words[slot + ReaderSlot.POSITION]
        return max(position, words[slot + ReaderSlot.SKIP_TO]) if self.ring.drops else position

    def _slowest(self) -> int:
        return min(map(self._done, (*self._active, *self._reserved)), default=self._position)

    def _skip(self, slow: list[int]) -> None:
        """Move slow readers to the end of the ring. A reader that was copying a message discards the copy."""
        for slot in slow or self._reserved:  # a reserved slot's reader misses what came before
            self._words[slot + ReaderSlot.SKIP_TO] = self._position
            self._count(QueueHeader.DROPPED)

    def _drop_dead(self, slots: list[int], deadline: float | None) -> bool:
        """Free the slots of dead readers. Return whether there were any."""
        has_dead = False
        for at in slots:
            watch = self._watch(at)
            if not watch.alive() and self.ring.release_if_dead(_number(at), watch, deadline):
                self._count(QueueHeader.DEAD_READERS)
                has_dead = True
        if has_dead:
            self._look_at_slots()
        return has_dead

    def _watch(self, at: int) -> PidWatch:
        process = self._words[at + ReaderSlot.PID], self._words[at + ReaderSlot.STARTED]
        watch = self._watches.get(at)
        if watch is None or not watch.is_of(*process):
            if watch is not None:
                watch.close()
            watch = self._watches[at] = PidWatch(*process)
        return watch

    def _named(self) -> list[int]:
        """Return the slots of expected readers that have not joined, and whose process is known."""
        return [at for at in self._reserved if self._words[at + ReaderSlot.PID]]

    def _check_closing(self) -> None:
        if self._closing:
            raise QueueCancelled(f"{self.ring.name!r} was closed or cancelled by another thread")

    def _may_hold(self, large_bytes: int) -> bool:
        if not large_bytes or not self._large:
            return True
        open_bytes = sum(message.nbytes for message in self._large)
        return len(self._large) < MAX_LARGE and open_bytes + large_bytes <= 4 * self.ring.capacity

    def _release_large(self, done: int) -> None:
        while self._large and self._large[0].end <= done:
            os.close(self._large.pop(0).fd)

    def _count(self, counter: int) -> None:
        self._counts[counter] += 1
        self._words[counter] = self._counts[counter]

    def expect(self, slot: int, pid: int) -> None:
        """Name the process that will claim a reserved slot. May be called while another thread waits."""
        self.check_open()
        self.ring.expect(slot, pid)

    def wait_for_readers(self, count: int, deadline: float | None = None) -> None:
        """Wait until `count` readers have joined, and wake those that wait for it. Raises TimeoutError, ReaderGone,
        QueueCancelled, and QueueError when it is closed."""
        take(self._lock, deadline)
        try:
            self.check_open()
            while True:
                self._check_closing()
                self._look_at_slots()
                if len(self._active) >= count:
                    break
                for at in self._named():
                    watch = self._watch(at)
                    if not watch.alive() and self.ring.is_reserved_for(_number(at), watch, deadline):
                        raise ReaderGone(
                            f"an expected reader of {self.ring.name!r}, process {watch.pid}, exited before it joined"
                        )
                remaining_s = SLICE_S if deadline is None else min(SLICE_S, deadline - time.monotonic())
                if remaining_s <= 0:
                    raise TimeoutError(f"{len(self._active)} of {count} readers joined {self.ring.name!r}")
                self.ring.sleep(QueueHeader.CHANGES, self._changes, remaining_s)
            self._words[QueueHeader.READY] = 1
            self.ring.wake(QueueHeader.READY)
        finally:
            self._lock.release()

    def cancel(self) -> None:
        """End all waits, present and later ones, with QueueCancelled, within a tenth of a second."""
        self._closing = True

    def close(self, linger_s: float = 1.0) -> None:
        """Stop writing, and end the waits of other threads. Readers still read what was published, then raise
        WriterGone.

        `linger_s`: longest wait, in seconds, for readers of messages that are in memory of this process.
        """
        self.cancel()
        with self._lock:
            self.end(linger_s)

    def end(self, linger_s: float) -> None:
        """Close, as `close` does, for a caller that has the lock."""
        if not self._open:
            return
        if self._large:
            with suppress(TimeoutError):
                self._drain(time.monotonic() + linger_s)
        self._open = False
        self._words[QueueHeader.WRITER_STATE] = WriterState.CLOSED
        self.ring.wake(QueueHeader.PUBLISHED)
        self.ring.wake(QueueHeader.READY)
        self._give_back()
        self.ring.close()

    def _drain(self, deadline: float) -> None:
        while self._large:
            self._look_at_slots()
            self._release_large(self._slowest())
            slow = [slot for slot in self._active if self._done(slot) < self._position]
            remaining_s = min(SLICE_S, deadline - time.monotonic())
            if not self._large or remaining_s <= 0 or not slow:
                return
            if not self._drop_dead(slow, deadline):
                self._sleep_on(slow, self._position, remaining_s)

    def _give_back(self) -> None:
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()
        for large in self._large:
            os.close(large.fd)
        self._large.clear()
        self.cancel_reserved()

    def abandon(self) -> None:
        super().abandon()
        self.ring.abandon()
        self._give_back()


def _number(at: int) -> int:
    """Return the number of the slot whose first word is `at`."""
    return (at - slot_word(0)) // (slot_word(1) - slot_word(0))


_COUNTERS = (
    QueueHeader.WAITS,
    QueueHeader.WAKES,
    QueueHeader.DROPPED,
    QueueHeader.DEAD_READERS,
    QueueHeader.LARGE_MESSAGES,
)
