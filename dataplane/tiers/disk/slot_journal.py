"""The journal of a directory: what each slot holds, as frames that are appended.

A frame is `kind u32, size u32, xxh3-64 of the payload with the kind as its seed u64`, and the payload:

    HEAD     the directory's identity and the boot of the machine, at each start
    TENANT   the name of the next tenant, counted from 0
    RECORDS  records of 128 bytes: op u8, 3 zeros, segment u32, slot u32, tenant u32, sequence u64, length u64,
             checksum 16 bytes, name 48 bytes, parent 32 bytes, zeros for none
    CLOSED   the directory was closed; the last frame

`OPEN` precedes every change of a slot's bytes, `STORE` and `FREE` follow it: a slot whose last record is `OPEN` was
being changed when the process ended, and its header decides. The last record of a slot counts.

The journal is synced when the directory is closed, and not before. After `kill -9` the kernel still has all of it. A
journal of another boot that was not closed may lack records: it is not used.
"""

import os
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import msgspec
import numpy as np
import xxhash

from dataplane.base.durable_files import sync_folder
from dataplane.protocol.spaces import MAX_BLOCK_BYTES
from dataplane.protocol.stored_blocks import BlockName, StoredBlock
from dataplane.tiers.disk.own_file import create_own, open_own, read_own
from dataplane.tiers.header import MAX_SEQUENCE, MAX_TENANT_BYTES

JOURNAL = "journal"
VERSION = 1
HEAD, TENANT, RECORDS, CLOSED = 1, 2, 3, 4
OPEN, STORE, FREE = 1, 2, 3
RECORD = np.dtype(
    [
        ("op", "u1"),
        ("zeros", "V3"),
        ("segment", "<u4"),
        ("slot", "<u4"),
        ("tenant", "<u4"),
        ("sequence", "<u8"),
        ("length", "<u8"),
        ("checksum", "V16"),
        ("name", "V48"),
        ("parent", "V32"),
    ]
)
_RECORD = Struct("<B3xIIIQQ16s48s32s")
_FRAME = Struct("<IIQ")
_MIN_COMPACTED_BYTES = 16 << 20
_GROWTH = 3
"""A journal is replaced when it has this many times the bytes that it needs."""
_PIECE = 1 << 18
"""Records in a frame of a checkpoint."""


class JournalError(Exception):
    """A journal cannot be used, and the headers of the slots must be read. The message says why."""


class Head(msgspec.Struct, frozen=True, array_like=True):
    """What a start writes."""

    version: int
    directory: str
    boot: str


class Checkpoint(NamedTuple):
    """The contents of a journal."""

    tenants: list[str]
    records: np.ndarray
    """Of the type RECORD, in the order in which they count."""
    size: int = 0
    """Bytes of the file up to its last complete frame."""

    @property
    def nbytes(self) -> int:
        """Bytes of the names and records."""
        return self.records.nbytes + sum(_FRAME.size + len(tenant.encode()) for tenant in self.tenants)


def pack_record(op: int, segment: int, slot: int, tenant: int = 0, block: StoredBlock | None = None) -> bytes:
    """Return a record; `block` is needed for STORE alone."""
    if block is None:
        return _RECORD.pack(op, segment, slot, tenant, 0, 0, b"", b"", b"")
    name = b"".join(block.name)
    details = (block.sequence, block.length, block.checksum, name, block.parent)
    return _RECORD.pack(op, segment, slot, tenant, *details)


def packed_name(name: BlockName) -> bytes:
    """Return the 48 bytes of a name."""
    return name.space + name.key


def boot() -> str:
    """Return the identity of this run of the kernel; empty if the kernel does not provide it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class SlotJournal:
    """The journal that is being written. The owner serializes calls. Every method raises OSError."""

    def __init__(self, directory: Path, identity: str) -> None:
        self._path = directory / JOURNAL
        self._identity = identity
        self._fd = -1
        self._bytes = 0
        self._compact_at = _MIN_COMPACTED_BYTES
        self.tenants = 0
        """Tenants that the journal names."""

    @property
    def is_long(self) -> bool:
        """Whether a new checkpoint would make the journal much shorter."""
        return self._bytes > self._compact_at

    def resume(self, contents: Checkpoint) -> None:
        """Append to the journal that was read, after its last complete frame. It says the same as `contents`."""
        self._fd = open_own(self._path, os.O_WRONLY | os.O_APPEND)
        os.ftruncate(self._fd, contents.size)
        self._bytes = contents.size
        self._compact_at = max(_MIN_COMPACTED_BYTES, _GROWTH * contents.nbytes)
        self.tenants = len(contents.tenants)
        self.append(HEAD, self._head())

    def replace(self, contents: Checkpoint) -> None:
        """Write a new journal in place of the one before, which is left as it is if that fails."""
        partial = self._path.with_name(f"{JOURNAL}.new")
        fd = create_own(partial, os.O_WRONLY | os.O_APPEND)
        try:
            written = _write(fd, HEAD, self._head())
            for tenant in contents.tenants:
                written += _write(fd, TENANT, tenant.encode())
            for at in range(0, len(contents.records), _PIECE):
                written += _write(fd, RECORDS, contents.records[at : at + _PIECE].tobytes())
            os.replace(partial, self._path)
        except BaseException:
            os.close(fd)
            with suppress(OSError):  # a full device needs the room
                os.unlink(partial)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        self._bytes = written
        self._compact_at = max(_MIN_COMPACTED_BYTES, _GROWTH * contents.nbytes)
        self.tenants = len(contents.tenants)

    def append(self, kind: int, payload: bytes) -> None:
        self._bytes += _write(self._fd, kind, payload)
        if kind == TENANT:
            self.tenants += 1

    def close(self) -> None:
        """Make the journal durable, so that a start after another boot can use it."""
        if self._fd >= 0:
            self.append(CLOSED, b"")
            os.fsync(self._fd)
            sync_folder(self._path.parent)
            self.discard_file()

    def abandon(self) -> None:
        """Delete a journal that can no longer be written: the next start reads the headers instead."""
        self.discard_file()
        with suppress(FileNotFoundError):
            os.unlink(self._path)

    def discard_file(self) -> None:
        """Close the file as it is."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _head(self) -> bytes:
        return msgspec.msgpack.encode(Head(VERSION, self._identity, boot()))


def read_journal(directory: Path, identity: str) -> Checkpoint:
    """Return the contents of the journal. A torn frame at its end does not count.

    Raises JournalError if there is no journal or it does not say what the slots hold now.
    """
    try:
        data = read_own(directory / JOURNAL)
    except OSError as error:
        raise JournalError(f"{JOURNAL}: {error.strerror}") from None
    head: Head | None = None
    closed = False
    tenants: dict[str, None] = {}
    pieces: list[memoryview] = []
    view = memoryview(data)
    at = 0
    while at + _FRAME.size <= len(data):
        kind, size, digest = _FRAME.unpack_from(data, at)
        payload = view[at + _FRAME.size : at + _FRAME.size + size]
        if len(payload) < size:
            break
        if xxhash.xxh3_64_intdigest(payload, seed=kind) != digest:
            raise JournalError(f"{JOURNAL}: the frame at byte {at} does not match its checksum")
        closed = kind == CLOSED
        if kind == HEAD:
            head = _read_head(payload, identity)
        elif kind == TENANT:
            tenants[_read_tenant(payload, tenants)] = None
        elif kind == RECORDS:
            _check_records(payload, len(tenants))
            pieces.append(payload)
        at += _FRAME.size + size
    if head is None:
        raise JournalError(f"{JOURNAL}: it has no beginning")
    if not closed and not (head.boot and head.boot == boot()):
        raise JournalError(f"{JOURNAL}: the machine stopped while the directory was open")
    return Checkpoint(list(tenants), np.frombuffer(b"".join(pieces), RECORD), at)


def _read_tenant(payload: memoryview, tenants: Container[str]) -> str:
    """Return the next tenant. Records name tenants by their place, so that none may occur twice."""
    if len(payload) > MAX_TENANT_BYTES:
        raise JournalError(
            f"{JOURNAL}: the name of a tenant has {len(payload)} bytes, expected at most {MAX_TENANT_BYTES}"
        )
    try:
        tenant = str(payload, "utf-8")
    except UnicodeDecodeError:
        raise JournalError(f"{JOURNAL}: the name of a tenant is not UTF-8") from None
    if tenant in tenants:
        raise JournalError(f"{JOURNAL}: it names the tenant {tenant[:64]!r} twice")
    return tenant


def _check_records(payload: memoryview, tenants: int) -> None:
    """Check the records of a frame, before which the journal named so many tenants."""
    if len(payload) % RECORD.itemsize:
        raise JournalError(f"{JOURNAL}: a record is incomplete")
    records = np.frombuffer(payload, RECORD)
    stored = records[records["op"] == STORE]
    for field, wrong in (
        ("operation", ~np.isin(records["op"], (OPEN, STORE, FREE))),
        ("tenant", stored["tenant"] >= tenants),
        ("sequence", stored["sequence"] > MAX_SEQUENCE),
        ("length", stored["length"] > MAX_BLOCK_BYTES),
    ):
        if wrong.any():
            raise JournalError(f"{JOURNAL}: a record has an unknown or too high {field}")


def _read_head(payload: memoryview, identity: str) -> Head:
    try:
        head = msgspec.msgpack.decode(payload, type=Head)
    except (ValueError, RecursionError):
        raise JournalError(f"{JOURNAL}: the beginning cannot be read") from None
    if head.version != VERSION or head.directory != identity:
        raise JournalError(f"{JOURNAL}: it is of another directory or version")
    return head


def _write(fd: int, kind: int, payload: bytes) -> int:
    frame = _FRAME.pack(kind, len(payload), xxhash.xxh3_64_intdigest(payload, seed=kind)) + payload
    remaining = memoryview(frame)
    while remaining:
        remaining = remaining[os.write(fd, remaining) :]
    return len(frame)
