"""The shared memory of a queue: creation, opening, and the changes of slots that need the lock."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

import msgspec

from dataplane.ipc import futex, memory
from dataplane.ipc.arguments import instance, whole_number
from dataplane.ipc.memory import MappedMemory, MemoryGone
from dataplane.ipc.processes import PidWatch, runs, start_time
from dataplane.ipc.queue.errors import QueueError, QueueFull, QueueGone
from dataplane.ipc.queue.layout import (
    ALIGNMENT,
    MAGIC,
    MAX_CAPACITY,
    MAX_READERS,
    MAX_WORD,
    MIN_CAPACITY,
    VERSION,
    Flag,
    QueueHeader,
    ReaderSlot,
    SlotState,
    align,
    header_fault,
    position_fault,
    ring_at,
    slot_word,
)
from dataplane.protocol.barrier import UnsupportedMachine, check_machine

KIND = "queue"
LOCK_S = 1.0
"""Longest wait for the lock. Its holder runs a few instructions, and the kernel releases the lock of a dead holder."""
_LOCK_RETRY_S = 0.0005


class QueueHandle(msgspec.Struct, frozen=True):
    """How other processes open a queue: a value that can be pickled or encoded by msgspec. It keeps no memory."""

    identity: str
    name: str
    pid: int
    """A process that holds the memory. If it is gone, the queue is opened through another one."""
    fd: int
    remote: str | None = None
    """ZeroMQ endpoint for readers on other machines."""
    remote_key: bytes = b""
    """Key of that endpoint: the server key of CURVE."""


class ShmRingBuffer:
    """The memory of one queue, mapped by this process."""

    def __init__(self, fd: int, identity: str, name: str) -> None:
        """Map the memory. Takes over `fd`. Raises QueueGone if it is not a queue's memory, and UnsupportedMachine."""
        self.identity = identity
        self.name = name
        try:
            check_machine()
            self.memory = MappedMemory(fd)
        except UnsupportedMachine:
            os.close(fd)
            raise
        except (OSError, ValueError) as error:  # empty, too large, or sealed against writing
            os.close(fd)
            raise QueueGone(f"the memory of {name!r} cannot be mapped: {error}") from None
        words = self.memory.words
        if fault := header_fault(words, self.memory.bytes.nbytes) or position_fault(words):
            self.memory.close()
            raise QueueGone(f"the memory of {name!r} {fault}")
        self.slots = words[QueueHeader.SLOTS]
        self.capacity = words[QueueHeader.CAPACITY]
        self.flags = words[QueueHeader.FLAGS]
        self.data_at = ring_at(self.slots)
        self._threads = threading.Lock()
        """Keeps the memory mapped. Taken after the lock of a `Side`, and before the lock of the file, which does not
        exclude threads of one process."""

    @classmethod
    def create(cls, name: str, *, capacity: int, slots: int, reserved: int = 0, flags: int = 0) -> Self:
        """Create the memory of a queue without a writer.

        `capacity`: bytes of the ring. `slots`: most readers, at least `reserved`. `reserved`: slots that keep messages
        for readers that have not joined yet. `flags`: bits of `Flag`. Raises ValueError, TypeError, and OSError if
        there is no memory.
        """
        reserved = whole_number("readers", reserved, 0, MAX_READERS)
        slots = max(whole_number("max_readers", slots, 1, MAX_READERS), reserved)
        capacity = align(max(whole_number("capacity_bytes", capacity, 1, MAX_CAPACITY), MIN_CAPACITY))
        identity = os.urandom(16).hex()
        header = bytearray(ring_at(slots))
        words = memoryview(header).cast("Q")
        words[QueueHeader.SLOTS] = slots
        words[QueueHeader.CAPACITY] = capacity
        words[QueueHeader.FLAGS] = flags
        words[QueueHeader.CREATED_S] = int(time.time())
        for slot in range(reserved):
            words[slot_word(slot) + ReaderSlot.STATE] = SlotState.RESERVED
        words[QueueHeader.VERSION] = VERSION
        words[QueueHeader.MAGIC] = MAGIC
        fd = memory.create(KIND, identity, name, ring_at(slots) + capacity)
        try:
            os.pwrite(fd, header, 0)
        except OSError:
            os.close(fd)
            raise
        try:
            return cls(fd, identity, name)
        except QueueGone as error:
            raise OSError(errno.ENOMEM, str(error)) from None

    @classmethod
    def open(cls, handle: QueueHandle) -> Self:
        """Open the memory that a handle names. Raises QueueGone, TypeError, and OSError if this process has no free
        descriptor."""
        instance("handle", handle, QueueHandle)
        try:
            fd = memory.open_identity(KIND, handle.identity, handle.pid, handle.fd)
        except MemoryGone:
            raise QueueGone(f"no running process holds the queue {handle.name!r}") from None
        return cls(fd, handle.identity, handle.name)

    def handle(self) -> QueueHandle:
        """Return a handle of this process's descriptor. Raises QueueError when the memory is unmapped."""
        with self._mapped():
            return QueueHandle(self.identity, self.name, os.getpid(), self.memory.fd)

    def header(self) -> bytes:
        """Return a copy of the header and the slots. Raises QueueError when the memory is unmapped."""
        with self._mapped():
            return bytes(self.memory.bytes[: self.data_at])

    @contextmanager
    def _mapped(self, deadline: float | None = None) -> Iterator[None]:
        """Keep the memory mapped: `close` of another thread waits. Raises QueueError when it is unmapped, and
        TimeoutError at `deadline`."""
        take(self._threads, deadline)
        try:
            if self.memory.fd < 0:
                raise QueueError(f"{self.name!r} was closed by this process, or belongs to the parent process")
            yield
        finally:
            self._threads.release()

    @property
    def drops(self) -> bool:
        """Whether the writer moves slow readers forward instead of waiting for them."""
        return bool(self.flags & Flag.DROP)

    def wake(self, word: int) -> int:
        """Wake the processes that sleep on the low half of a word."""
        address = self.memory.address
        return futex.wake(address + word * 8) if address else 0

    def sleep(self, word: int, value: int, timeout_s: float) -> None:
        """Sleep while the low half of a word is that of `value`."""
        address = self.memory.address
        if address:
            futex.wait(address + word * 8, value & 0xFFFFFFFF, timeout_s)

    @contextmanager
    def locked(self, deadline: float | None = None) -> Iterator[None]:
        """Hold the lock that guards the states of slots and of the writer. Raises TimeoutError at `deadline` (monotonic
        seconds), and after LOCK_S at the latest, and QueueError when the memory is unmapped."""
        latest = time.monotonic() + LOCK_S
        deadline = latest if deadline is None else min(deadline, latest)
        with self._mapped(deadline):
            self._lock_file(deadline)
            try:
                yield
            finally:
                fcntl.flock(self.memory.fd, fcntl.LOCK_UN)

    def _lock_file(self, deadline: float) -> None:
        while True:
            try:
                fcntl.flock(self.memory.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"another process holds the lock of {self.name!r}") from None
                time.sleep(_LOCK_RETRY_S)

    def claim(self, requested: int | None) -> int:
        """Claim a reader slot for this process and return its number.

        `requested`: a reserved slot, for which messages were buffered so far; None for any free one. The reader of a
        free slot joins at the current position. Raises QueueFull, ValueError, TypeError, TimeoutError, and OSError if
        this process has no free descriptor.
        """
        if requested is not None:
            requested = whole_number("slot", requested, 0, self.slots - 1)
        started = start_time(os.getpid())
        with self.locked():
            words = self.memory.words
            for slot in range(self.slots) if requested is None else (requested,):
                at = slot_word(slot)
                state = words[at + ReaderSlot.STATE]
                if state == SlotState.RESERVED and requested is None:
                    continue
                if state == SlotState.ACTIVE and runs(words[at + ReaderSlot.PID], words[at + ReaderSlot.STARTED]):
                    continue
                self._take(slot, started, keep=state == SlotState.RESERVED)
                return slot
        raise QueueFull(
            f"{self.name!r} has no free reader slot of {self.slots}: create it with larger max_readers"
            if requested is None
            else f"slot {requested} of {self.name!r} belongs to another reader"
        )

    def _take(self, slot: int, started: int, *, keep: bool) -> None:
        words = self.memory.words
        at = slot_word(slot)
        if not keep:
            words[at + ReaderSlot.STATE] = SlotState.FREE  # of a dead reader
            for counter in (
                ReaderSlot.MESSAGES,
                ReaderSlot.BYTES,
                ReaderSlot.WAITS,
                ReaderSlot.WAKEUPS,
                ReaderSlot.LOST,
            ):
                words[at + counter] = 0
            words[at + ReaderSlot.POSITION] = words[QueueHeader.PUBLISHED]
        words[at + ReaderSlot.SLEEPING] = 0
        self._name(at, os.getpid(), started)
        words[at + ReaderSlot.STATE] = SlotState.ACTIVE
        self._changed()
        # Pairs with the fence of the writer between PUBLISHED and its look at the slots: either the writer sees this
        # reader before it reuses memory, or this reader sees how far the writer was.
        while not keep:
            futex.fence()
            published = words[QueueHeader.PUBLISHED]
            if published == words[at + ReaderSlot.POSITION]:
                self.wake(at + ReaderSlot.POSITION)  # the writer may sleep on a position that was moved on
                break
            words[at + ReaderSlot.POSITION] = published

    def expect(self, slot: int, pid: int) -> None:
        """Name the process that will claim a reserved slot, so that the writer can detect its death. Has no effect on a
        slot whose reader has joined. Raises TimeoutError, and OSError if this process has no free descriptor."""
        started = start_time(pid)
        with self.locked():
            at = slot_word(slot)
            if self.memory.words[at + ReaderSlot.STATE] == SlotState.RESERVED:
                self._name(at, pid, started)
                self._changed()

    def _name(self, at: int, pid: int, started: int) -> None:
        # The process may be killed between the stores: a pid with another start time names a dead process, too.
        self.memory.words[at + ReaderSlot.PID] = pid
        self.memory.words[at + ReaderSlot.STARTED] = started

    def release(self, slot: int) -> None:
        """Free a slot, of this reader or of a dead one."""
        with self.locked():
            self._free(slot)

    def release_if_dead(self, slot: int, watch: PidWatch, deadline: float | None) -> bool:
        """Free the slot of a dead reader, or of a dead process that was expected, unless another reader has claimed it.
        Return whether it was freed. Raises TimeoutError."""
        with self.locked(deadline):
            if self._state_if_of(slot, watch) == SlotState.FREE:
                return False
            self._free(slot)
            return True

    def is_reserved_for(self, slot: int, watch: PidWatch, deadline: float | None) -> bool:
        """Return whether a slot is reserved for this process, and no reader is claiming it. Raises TimeoutError."""
        with self.locked(deadline):
            return self._state_if_of(slot, watch) == SlotState.RESERVED

    def _state_if_of(self, slot: int, watch: PidWatch) -> int:
        """Return the state of a slot; FREE if the slot is of another process."""
        words = self.memory.words
        at = slot_word(slot)
        if watch.is_of(words[at + ReaderSlot.PID], words[at + ReaderSlot.STARTED]):
            return words[at + ReaderSlot.STATE]
        return SlotState.FREE

    def _free(self, slot: int) -> None:
        self.memory.words[slot_word(slot) + ReaderSlot.STATE] = SlotState.FREE
        self._changed()

    def _changed(self) -> None:
        words = self.memory.words
        words[QueueHeader.CHANGES] = words[QueueHeader.CHANGES] + 1 & MAX_WORD
        self.wake(QueueHeader.CHANGES)

    def close(self) -> None:
        """Unmap the memory, after calls of other threads that use it: they wait for at most LOCK_S."""
        with self._threads:
            self.memory.close()

    def abandon(self) -> None:
        """Unmap the memory in a forked child, in which no other thread runs that could hold the lock."""
        self._threads = threading.Lock()
        self.memory.close()


def take(lock: threading.Lock, deadline: float | None) -> None:
    """Take a lock with which another thread of this process may wait. Raises TimeoutError at `deadline` (monotonic
    seconds; None: no limit)."""
    timeout_s = -1.0 if deadline is None else min(max(deadline - time.monotonic(), 0.0), threading.TIMEOUT_MAX)
    if not lock.acquire(timeout=timeout_s):
        raise TimeoutError("another thread of this process uses the queue")


class Side(ABC):
    """Base of writers and readers: used by one thread at a time, and closed in a forked child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = True
        self._closing = False
        """Set before `close` takes the lock: waits of other threads end."""
        _sides.add(self)

    @property
    def closed(self) -> bool:
        """Whether `close` was called, or this is a copy in a forked child."""
        return not self._open

    @abstractmethod
    def close(self) -> None:
        """Leave the queue."""

    def __del__(self) -> None:
        with suppress(AttributeError, TypeError, OSError, TimeoutError, QueueError):  # half made, or at exit
            self.close()

    def abandon(self) -> None:
        """End the use of this copy in a forked child, without effect on other processes."""
        self._open = False
        self._lock = threading.Lock()


_sides: weakref.WeakSet[Side] = weakref.WeakSet()


def _abandon_all() -> None:
    for side in list(_sides):
        with suppress(AttributeError):  # half made, or half closed
            side.abandon()


os.register_at_fork(after_in_child=_abandon_all)

assert MIN_CAPACITY % ALIGNMENT == 0
