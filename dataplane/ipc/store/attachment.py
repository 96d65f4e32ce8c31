"""One process's part of a store: its mappings, its row, its leases. It lives as long as the store or any view."""

from __future__ import annotations

import fcntl
import os
import secrets
import weakref

import numpy as np

from dataplane.ipc.store.errors import StoreCorrupted, StoreError
from dataplane.ipc.store.layout import (
    ALIGNMENT,
    H_CHANGES,
    H_CHECK,
    H_DATA_BYTES,
    H_DATA_OFFSET,
    H_DEAD_PROCESSES,
    H_FLAGS,
    H_IDENTITY,
    H_MAGIC,
    H_OBJECTS,
    H_PAST_HITS,
    H_PAST_MISSES,
    H_PROCESSES,
    H_READERS,
    H_READERS_EVER,
    H_SECRET,
    H_SECRET_END,
    H_UNREAD_NS,
    MAGIC,
    PAGE_BYTES,
    R_HITS,
    R_LEFT,
    R_MISSES,
    R_PID,
    R_READER,
    READY,
    STATE_BITS,
    Shape,
    Tables,
    header_check,
    increment,
    shape_of,
    up,
)
from dataplane.ipc.store.locks import TableLock, row_byte, try_lock, unlock
from dataplane.ipc.store.steps import free_writes_of
from dataplane.protocol.barrier import check_machine, register
from dataplane.protocol.mappings import MADV_POPULATE_WRITE, Bytes, Mapping, advise, view

ONE = np.uint32(1)
_add, _subtract = np.add, np.subtract


def check_memory(fd: int) -> int:
    """Return the size in bytes of memory that is safe to map. Raise StoreCorrupted or StoreError if it is not."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        raise StoreCorrupted(f"fd {fd}: expected a memfd") from None
    needed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    if seals & needed != needed:
        raise StoreCorrupted(f"fd {fd}: expected memory that is sealed against resizing")
    status = os.fstat(fd)
    if status.st_uid != os.geteuid():
        raise StoreError(f"fd {fd}: the memory belongs to uid {status.st_uid}, this is uid {os.geteuid()}")
    return status.st_size


def reopen(fd: int) -> int:
    """Return a second, independent open file of the same memory, for locks of its own. Raises OSError."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)


def _mapped(fd: int, offset: int, nbytes: int, *, writable: bool) -> Mapping:
    """Map whole pages. Raise MemoryError if the machine refuses."""
    try:
        return Mapping(fd, nbytes, writable=writable, offset=offset)
    except OSError as error:
        raise MemoryError(str(error)) from None


class StoreAttachment:
    """Leases are counted with in-place operations of numpy on single elements, which hold the GIL from load to store: a
    finalizer may run in any thread between two bytecodes."""

    def __init__(self, fd: int, *, writer: bool, deadline: float) -> None:
        """Take over the fd of a store's memory. Raise StoreCorrupted, StoreError, StoreTimeout or MemoryError."""
        self.fd = fd
        self.lock_fd = -1
        self.alive = True
        """False in a forked child, where nothing is mapped."""
        self.writer = writer
        _attachments.add(self)  # before it opens a file: a process that is forked meanwhile closes it
        try:
            check_machine()
            if not register():
                raise StoreError("the kernel does not support membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED)")
            nbytes = check_memory(fd)
            if nbytes < PAGE_BYTES:
                raise StoreCorrupted(f"header: expected {PAGE_BYTES} bytes at least, got {nbytes}")
            header = _mapped(fd, 0, PAGE_BYTES, writable=False).array().view(np.uint64)
            self.shape = shape_of(header, nbytes)
            offset_of, size = self.shape.data_offset, up(self.shape.data_bytes, PAGE_BYTES)
            self.tables = Tables(_mapped(fd, 0, offset_of, writable=True).array(), self.shape)
            self.readable = _mapped(fd, offset_of, size, writable=False)
            """Views are of this mapping: writing to one cannot change the object."""
            self.writable = _mapped(fd, offset_of, size, writable=True) if writer else None
            self.target = None if self.writable is None else self.writable.array()
            """[data_bytes, in whole pages] The data, for writing."""
            words = header[:H_CHANGES].tolist()
            self.flags: int = words[H_FLAGS]
            self.number: int = words[H_IDENTITY]
            """The store's number in handles of objects."""
            self.identity: str = header[H_IDENTITY : H_IDENTITY + 2].tobytes().hex()
            self.lock_fd = reopen(fd)
            self.lock = TableLock(self.lock_fd, self.tables.header, os.getpid())
            self.row = self._claim(deadline)
        except BaseException:
            self._close_files()
            raise
        self.leases = self.tables.leases[:, self.row]
        self.reads = self.tables.reads[:, self.row]
        self._words = self.tables.rows[self.row]
        self._hits = self._words[R_HITS : R_HITS + 1]
        self._misses = self._words[R_MISSES : R_MISSES + 1]

    @property
    def readers(self) -> int:
        """Number of readers that every handle is kept for; 0: none."""
        return int(self.tables.header[H_READERS])

    def populate(self) -> None:
        """Give every page of the data memory now, instead of at its first use. Raise MemoryError if there is too
        little."""
        if self.writable is not None:
            try:
                advise(self.writable.address, self.writable.nbytes, MADV_POPULATE_WRITE)
            except OSError as error:
                raise MemoryError(f"prefault of {self.writable.nbytes} bytes: {error.strerror}") from None

    def check_alive(self) -> None:
        if not self.alive:
            raise StoreError("the store is the parent's: a forked child attaches again, with `store.handle()`")

    # ---- leases

    def raise_lease(self, slot: int) -> None:
        cell = self.leases[slot : slot + 1]
        _add(cell, ONE, cell)

    def lower_lease(self, slot: int) -> None:
        if self.alive:
            cell = self.leases[slot : slot + 1]
            _subtract(cell, ONE, cell)

    def lease(self, slot: int, sequence: int) -> ObjectLease | None:
        """Keep an object in place. Return None if it is no longer in the store."""
        control = self.tables.control
        if slot >= self.tables.used_slots():  # only counters of used slots are cleaned
            return None
        self.raise_lease(slot)
        if int(control[slot]) != sequence << STATE_BITS | READY:
            self.lower_lease(slot)
            return None
        return ObjectLease(self, slot)

    def count(self, *, hit: bool) -> None:
        cell = self._hits if hit else self._misses
        _add(cell, np.uint64(1), cell)

    def location_of(self, slot: int) -> tuple[int, int]:
        """Return the start and the size of an object in bytes. Raise StoreCorrupted if it is not within the data."""
        offset, nbytes = int(self.tables.offset[slot]), int(self.tables.nbytes[slot])
        if offset % ALIGNMENT or nbytes > self.shape.data_bytes or offset > self.shape.data_bytes - nbytes:
            raise StoreCorrupted(
                f"object {slot}: expected a multiple of {ALIGNMENT} within {self.shape.data_bytes} bytes, "
                f"got {nbytes} bytes at {offset}"
            )
        return offset, nbytes

    # ---- rows

    def reclaim_dead(self) -> None:
        """Free the leases and half-written objects of dead processes. The caller holds the lock of the table."""
        for row in np.flatnonzero(self.tables.rows[:, R_PID]).tolist():
            if row != self.row and try_lock(self.lock_fd, row_byte(row)):
                try:
                    self._clean(row)
                finally:
                    unlock(self.lock_fd, row_byte(row))

    def living_readers(self) -> list[int]:
        """Return the rows of readers, including those of dead readers that were not reclaimed yet."""
        rows = self.tables.rows
        readers: list[int] = np.flatnonzero((rows[:, R_PID] != 0) & (rows[:, R_READER] != 0)).tolist()
        return readers

    def _claim(self, deadline: float) -> int:
        with self.lock.until(deadline):
            for row in range(self.shape.processes):
                if try_lock(self.lock_fd, row_byte(row)):
                    break
            else:
                raise StoreError(f"all {self.shape.processes} rows of processes are taken")
            self._clean(row)
            tables, words = self.tables, self.tables.rows[row]
            readers, ever = int(tables.header[H_READERS]), int(tables.header[H_READERS_EVER])
            tables.reads[:, row] = tables.refs if ever >= readers else 0
            words[R_LEFT] = 0
            words[R_READER] = not self.writer
            words[R_PID] = os.getpid()
            if not self.writer:
                increment(tables.header, H_READERS_EVER)
        return row

    def _clean(self, row: int) -> None:
        """Empty a row whose lock this process holds. The pid is set to 0 last: if this process is killed before, the
        next one cleans the row again."""
        words, header = self.tables.rows[row], self.tables.header
        self.tables.leases[: self.tables.used_slots(), row] = 0
        free_writes_of(self.tables, row)
        if words[R_PID] and not words[R_LEFT]:
            header[H_DEAD_PROCESSES] += np.uint64(1)
            words[R_LEFT] = 1  # it is counted: the next one does not count it again
        header[H_PAST_HITS] += words[R_HITS]
        words[R_HITS] = 0
        header[H_PAST_MISSES] += words[R_MISSES]
        words[R_MISSES] = 0
        words[R_PID] = 0

    # ---- the end

    def _close_files(self) -> None:
        fds = self.lock_fd, self.fd
        self.fd = self.lock_fd = -1  # a process that is forked during the next lines does not close them again
        for fd in fds:
            if fd >= 0:
                os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "alive", False) and getattr(self, "fd", -1) >= 0:
            self._words[R_LEFT] = 1
            unlock(self.lock_fd, row_byte(self.row))  # a process that is forked now may keep the open file
            self._close_files()

    def forked(self) -> None:
        """Release what belongs to the parent. The fd of the memory stays open, for attaching again."""
        self.alive = False
        fd, self.lock_fd = self.lock_fd, -1
        if fd >= 0:
            os.close(fd)


class ObjectLease:
    """A raised lease counter, lowered when this Python object is no longer referenced."""

    __slots__ = ("_attachment", "slot")

    def __init__(self, attachment: StoreAttachment, slot: int) -> None:
        self._attachment = attachment
        self.slot = slot

    def array(self) -> Bytes:
        """Return the object's bytes, read-only. Every array that is derived from them keeps the object in place."""
        memory = self._attachment.readable
        offset, nbytes = self._attachment.location_of(self.slot)
        return view(self, memory.address + offset, nbytes, writable=False)

    def __del__(self) -> None:
        self._attachment.lower_lease(self.slot)


def write_header(fd: int, shape: Shape, identity: bytes, *, readers: int, unread_ns: int, flags: int) -> None:
    """Write the header of new memory. The checksum is written last."""
    header = _mapped(fd, 0, PAGE_BYTES, writable=True).array().view(np.uint64)
    header[H_IDENTITY : H_IDENTITY + 2] = np.frombuffer(identity, np.uint64)
    header[H_DATA_OFFSET] = shape.data_offset
    header[H_DATA_BYTES] = shape.data_bytes
    header[H_OBJECTS] = shape.objects
    header[H_PROCESSES] = shape.processes
    header[H_READERS] = readers
    header[H_UNREAD_NS] = unread_ns
    header[H_SECRET:H_SECRET_END] = np.frombuffer(secrets.token_bytes(32), np.uint64)
    header[H_FLAGS] = flags
    header[H_MAGIC] = MAGIC
    header[H_CHECK] = header_check(header)


_attachments: weakref.WeakSet[StoreAttachment] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for attachment in list(_attachments):
        attachment.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
