"""The store as a process uses it."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from typing import Any, Self

import numpy as np

from dataplane.ipc import memory
from dataplane.ipc.arguments import instance, seconds, whole_number
from dataplane.ipc.memory import EXHAUSTED, MemoryGone
from dataplane.ipc.store.attachment import ONE, ObjectLease, StoreAttachment, reopen, write_header
from dataplane.ipc.store.encoding import Encoded, decode, encode, encode_pieces
from dataplane.ipc.store.entries import ObjectTable, Tag, find
from dataplane.ipc.store.errors import ObjectMissing, StoreCorrupted, StoreError
from dataplane.ipc.store.handles import ObjectHandle, StoreHandle
from dataplane.ipc.store.layout import FLAG_CHECKSUMS, FLAG_PICKLE, KIND, Shape
from dataplane.ipc.store.stats import StoreStats, read_stats
from dataplane.protocol.mappings import Bytes

TIMEOUT_S = 5.0
LONGEST_UNREAD_S = 1e9
"""A longer wait for readers, 31 years, counts as one without end."""
MAX_OBJECTS = 4096
MAX_PROCESSES = 64


class ShmObjectStore:
    """A store, created by `create` or attached to by `attach`. Threads may share it. `with store:` closes it.

    The memory exists as long as any process is attached: a store outlives the process that created it, and any process
    that is attached with `writer=True` can continue to put. Every method that takes the store's lock waits for at most
    `timeout_s` seconds, and then raises StoreTimeout; only a living process that is stopped while it holds the lock can
    cause that. In a forked child all methods but `handle` raise StoreError: attach again.
    """

    def __init__(self, attachment: StoreAttachment, name: str, timeout_s: float, *, trust_pickle: bool) -> None:
        """Use `create` or `attach`."""
        self._parts: tuple[StoreAttachment, ObjectTable] | None = attachment, ObjectTable(attachment)
        self._name = name
        self._timeout_s = timeout_s
        self._trust_pickle = trust_pickle

    @classmethod
    def create(
        cls,
        budget_bytes: int,
        *,
        name: str = "",
        max_objects: int = MAX_OBJECTS,
        max_processes: int = MAX_PROCESSES,
        readers: int = 0,
        unread_s: float = inf,
        checksums: bool = False,
        trust_pickle: bool = False,
        prefault: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> Self:
        """Create a store for objects of `budget_bytes` together, and attach to it as a writer.

        `name`: letters, digits, '.', '_' and '-', for `attach` and for lists of stores; it need not be unique.
        `readers`: keep an object until this many readers have read every handle of it that `put` or `get_cached`
        returned, or have died, or it was not used for `unread_s` seconds. `checksums`: verify the bytes at each `get`,
        which then reads all of them. `trust_pickle`: store other values as pickles, for processes that attach with
        `trust_pickle`. `prefault`: allocate all memory now; otherwise the first write to each page takes about ten
        times as long as the copy.

        `timeout_s`: longest wait of each call for the store's lock, in seconds.

        Raise ValueError for an impossible size or name, TypeError, MemoryError if the machine refuses the memory.
        """
        shape = Shape(budget_bytes, max_objects, max_processes)
        readers = whole_number("readers", readers, 0, max_processes)
        unread_s = seconds("unread_s", unread_s)
        unread_ns = max(1, int(unread_s * 1e9)) if unread_s < LONGEST_UNREAD_S else 0
        instance("checksums", checksums, bool)
        instance("trust_pickle", trust_pickle, bool)
        timeout_s = seconds("timeout_s", timeout_s)
        identity = secrets.token_bytes(16)
        try:
            fd = memory.create(KIND, identity.hex(), name, shape.file_bytes)
        except OSError as error:
            raise MemoryError(f"memfd {name!r} of {shape.file_bytes} bytes: {error.strerror}") from None
        try:
            flags = FLAG_CHECKSUMS * checksums | FLAG_PICKLE * trust_pickle
            write_header(fd, shape, identity, readers=readers, unread_ns=unread_ns, flags=flags)
        except BaseException:
            os.close(fd)
            raise
        attachment = StoreAttachment(fd, writer=True, deadline=time.monotonic() + timeout_s)
        if prefault:
            attachment.populate()
        return cls(attachment, name, timeout_s, trust_pickle=trust_pickle)

    @classmethod
    def attach(
        cls,
        store: StoreHandle | str | int,
        *,
        writer: bool = False,
        trust_pickle: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> Self:
        """Attach to a store of the same user: by its handle, its name, or an fd that was received over a socket, which
        stays the caller's.

        Raise StoreError if there is no such store, StoreCorrupted if its memory is damaged, ValueError, TypeError, and
        OSError if this process has no free descriptor.
        """
        instance("trust_pickle", trust_pickle, bool)
        timeout_s = seconds("timeout_s", timeout_s)
        if isinstance(store, bool):
            raise TypeError(f"store: expected a handle, a name or an fd, not {store}")
        fd = _reopen(store) if isinstance(store, int) else _open_memory(store)
        name = store if isinstance(store, str) else ""
        attachment = StoreAttachment(fd, writer=writer, deadline=time.monotonic() + timeout_s)
        return cls(attachment, name, timeout_s, trust_pickle=trust_pickle)

    def handle(self) -> StoreHandle:
        """Return the handle with which another process of this user attaches; valid while any process is attached."""
        attachment, _ = self._open(forked=True)
        return StoreHandle(attachment.identity, os.getpid(), attachment.fd)

    def fileno(self) -> int:
        """Return the fd of the memory, for sending it over a Unix socket, into another container for example."""
        return self._open(forked=True)[0].fd

    @property
    def attachment(self) -> StoreAttachment:
        """This process's part of the store, for code that builds on it. Raise StoreError if the store is closed."""
        return self._open()[0]

    # ---- reading

    def is_cached(self, key: str) -> bool:
        """Return whether the key has an object now."""
        return find(self._open()[0].tables, _tag(key)) is not None

    def get_cached(self, key: str) -> ObjectHandle:
        """Return the handle of a key's object. Raise ObjectMissing, or StoreTimeout if the store has `readers`."""
        attachment, table = self._open()
        tag = _tag(key)
        entry = table.refer(tag, self._deadline()) if attachment.readers else find(attachment.tables, tag)
        if entry is None:
            attachment.count(hit=False)
            raise ObjectMissing(f"key {key!r} is not in the store")
        return ObjectHandle(attachment.number, *entry)

    def return_handle(self, handle: ObjectHandle) -> None:
        """Take back a handle that `put` or `get_cached` returned and that no reader will get. Raise StoreTimeout, and
        ValueError for a handle of another store."""
        attachment, table = self._open()
        _check_handle(attachment, handle)
        table.return_reference(handle.slot, handle.sequence, self._deadline())

    def get(self, what: str | ObjectHandle, type: Any = Any) -> Any:  # noqa: A002 as msgspec has it
        """Return an object, given its key or its handle.

        Arrays and tensors are read-only views of the store's memory, bytes a read-only memoryview; other values are
        decoded, as `type`, with views for the arrays in them. The object stays in the store's memory until the last
        view is collected. Torch has no read-only tensors: a write to one ends the process with SIGSEGV.

        Raise ObjectMissing if the object has been evicted, StoreCorrupted if its bytes are damaged, ValueError for a
        handle of another store.
        """
        attachment, _ = self._open()
        lease = _lease(attachment, what)
        if lease is None:
            attachment.count(hit=False)
            raise ObjectMissing(f"{what!r} is not in the store")
        attachment.count(hit=True)
        attachment.tables.used[lease.slot] = time.monotonic_ns()
        data = lease.array()
        if attachment.flags & FLAG_CHECKSUMS:
            _verify(attachment, lease.slot, data)
        value = decode(data, with_pickle=self._trust_pickle, type=type)
        if isinstance(what, ObjectHandle) and attachment.readers:
            cell = attachment.reads[lease.slot : lease.slot + 1]
            np.add(cell, ONE, cell)
        return value

    def touch(self, key: str) -> bool:
        """Mark an object as used now. Return whether there is one."""
        attachment, _ = self._open()
        entry = find(attachment.tables, _tag(key))
        if entry is None:
            return False
        attachment.tables.used[entry[0]] = time.monotonic_ns()
        return True

    # ---- writing

    def put(self, key: str, value: object) -> ObjectHandle:
        """Store a value under a new key. If there is no room, evict the least recently used objects.

        Raise ObjectExists if the key has an object, StoreFull if objects that are being read leave no room, ValueError
        if the value exceeds the budget, TypeError if it cannot be stored, StoreTimeout, and StoreError if the store was
        attached without `writer`.
        """
        pickle = self._trust_pickle and bool(self._open()[0].flags & FLAG_PICKLE)
        return self._put(key, encode(value, with_pickle=pickle))

    def put_pieces(self, key: str, pieces: Sequence[bytes | memoryview]) -> ObjectHandle:
        """Store bytes that are in several pieces, which `get` returns as one memoryview. Raises what `put` raises."""
        return self._put(key, encode_pieces(pieces))

    def _put(self, key: str, encoded: Encoded) -> ObjectHandle:
        attachment, table = self._open()
        target = _target(attachment)
        tag = _tag(key)
        if encoded.nbytes > attachment.shape.data_bytes:
            raise ValueError(
                f"key {key!r}: {encoded.nbytes} bytes exceed the budget of {attachment.shape.data_bytes} bytes"
            )
        reserved = table.allocate(key, tag, encoded.nbytes, self._deadline())
        try:
            slot, offset = reserved.slot, reserved.offset
            target_part = target[offset : offset + encoded.nbytes]
            encoded.copy_to(target_part)
            if attachment.flags & FLAG_CHECKSUMS:
                attachment.tables.check[slot], attachment.tables.check_2[slot] = _checksum(target_part)
            table.publish(key, tag, reserved, self._deadline())
        except BaseException:
            table.abandon(reserved, self._deadline())
            raise
        return ObjectHandle(attachment.number, slot, reserved.sequence)

    def evict(self, nbytes: int) -> int:
        """Evict objects that no process reads, least recently used first, until `nbytes` are freed. Return the number
        of freed bytes. Raise StoreTimeout, and StoreError if the store was attached without `writer`."""
        attachment, table = self._open()
        _target(attachment)
        return table.evict(nbytes, self._deadline())

    def clear(self) -> None:
        """Remove all objects. The memory of objects that are being read is freed later. Raise StoreTimeout, and
        StoreError if the store was attached without `writer`."""
        attachment, table = self._open()
        _target(attachment)
        table.clear(self._deadline())

    # ---- the rest

    def stats(self) -> StoreStats:
        """Return the store's counters."""
        attachment, _ = self._open()
        return read_stats(attachment.fd, self._name, attachment.identity, bounded=False)

    def close(self) -> None:
        """Detach. Views stay valid; the process counts as attached until the last one is collected."""
        self._parts = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, *, forked: bool = False) -> tuple[StoreAttachment, ObjectTable]:
        parts = self._parts
        if parts is None:
            raise StoreError("the store is closed")
        if not forked:
            parts[0].check_alive()
        return parts

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout_s


def _open_memory(store: StoreHandle | str) -> int:
    """Return a new fd of a store's memory, given its handle or its name. Raise StoreError if there is none, or if
    several have the name, TypeError, and OSError if this process has no free descriptor."""
    if isinstance(store, StoreHandle):
        described, identities = f"store {store.identity}", {store.identity}
        pid, fd = store.pid, store.fd
    else:
        instance("store", store, str)
        described = f"store named {store!r}"
        opened_by_identity = {opened.identity: opened for opened in memory.find(KIND) if opened.name == store}
        identities = set(opened_by_identity)
        pid, fd = next(((opened.pid, opened.fd) for opened in opened_by_identity.values()), (0, 0))
    if len(identities) > 1:
        raise StoreError(f"there is more than one {described}: attach by handle")
    for identity in identities:
        with suppress(MemoryGone):
            return memory.open_identity(KIND, identity, pid, fd)
    raise StoreError(f"no process of uid {os.geteuid()} has a {described} open")


def _reopen(fd: int) -> int:
    """Return an fd of our own of a store's memory. Raise StoreError, and OSError if there is no free descriptor."""
    try:
        return reopen(fd)
    except OSError as error:
        if error.errno in EXHAUSTED:
            raise
        raise StoreError(f"fd {fd}: expected a store's memory: {error.strerror}") from None


def _target(attachment: StoreAttachment) -> Bytes:
    """Return the data, for writing. Raise StoreError if the store was attached without `writer`."""
    if attachment.target is None:
        raise StoreError("attached for reading: attach with writer=True to put, evict or clear")
    return attachment.target


def _lease(attachment: StoreAttachment, key_or_handle: str | ObjectHandle) -> ObjectLease | None:
    if not isinstance(key_or_handle, ObjectHandle):
        entry = find(attachment.tables, _tag(key_or_handle))
        return None if entry is None else attachment.lease(*entry)
    _check_handle(attachment, key_or_handle)
    return attachment.lease(key_or_handle.slot, key_or_handle.sequence)


def _check_handle(attachment: StoreAttachment, handle: ObjectHandle) -> None:
    if handle.store != attachment.number:
        raise ValueError(f"handle: expected store {attachment.number:#x}, got {handle.store:#x}")
    if not (0 <= handle.slot < attachment.shape.objects and handle.sequence >= 0):
        raise ValueError(f"handle: expected a slot below {attachment.shape.objects}, got {handle}")


def _tag(key: str) -> Tag:
    if not isinstance(key, str):
        raise TypeError(f"expected a key of the type str, got {type(key).__name__}")
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def _checksum(data: Bytes) -> Tag:
    from dataplane.protocol.checksums import checksum  # imports xxhash

    digest = checksum(data)
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def _verify(attachment: StoreAttachment, slot: int, data: Bytes) -> None:
    tables = attachment.tables
    if _checksum(data) != (int(tables.check[slot]), int(tables.check_2[slot])):
        raise StoreCorrupted(f"object {slot}: the checksum of its {len(data)} bytes does not match")
