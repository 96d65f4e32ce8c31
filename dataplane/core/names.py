"""The names: an append-only journal of what numbers in the index and the books mean.

A private memfd that engines never get, in two halves. The header says which half counts. A record is an 8-byte head
(length, CRC-32) and its MessagePack; its head is stored last and whole, so a kill leaves a journal without a last
record, never one with half of it. When a half is full, the names that still live are written into the other one, and
one store of the header makes that one count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from zlib import crc32

import msgspec

from dataplane.protocol.layout import LAYOUT_VERSION, PAGE, LayoutError
from dataplane.protocol.spaces import Space

NAMES_MAGIC = int.from_bytes(b"LARDERNM", "little")
N_MAGIC, N_VERSION, N_HALF, N_OVERFLOWED = range(4)
HALF_BYTES = 32 << 20
"""Only what is written takes memory."""
RETRY_EVERY = 4096
"""Records that a journal leaves out, before it looks again whether what lives fits."""
ATTACH_BYTES = HALF_BYTES // 2
"""What spaces and engines may take; the rest is for tenants and segments."""
PROCESS_BYTES = HALF_BYTES // 8
"""What all attachments of one process may bring."""
_HEAD = 8


class TenantName(msgspec.Struct, tag="tenant", array_like=True, frozen=True):
    """A tenant's number."""

    number: int
    salt: str


class SpaceName(msgspec.Struct, tag="space", array_like=True, frozen=True):
    """A space's number."""

    number: int
    space: Space


class SegmentName(msgspec.Struct, tag="segment", array_like=True, frozen=True):
    """A segment of the arena that has, or had, a block."""

    number: int
    space: int
    nbytes: int
    small: bool
    base: int | None = None
    """Where it begins in the named segment; None for a memfd."""


class EngineName(msgspec.Struct, tag="engine", array_like=True, frozen=True):
    """A process that attached."""

    client: int
    pid: int
    started: int
    """Start of the process in clock ticks since boot, so that a reused pid is not taken for it; 0: not known."""
    group: str
    name: str
    attached_at: float
    spaces: list[tuple[int, bool]]
    """Space number and whether it writes there, in the order of its attach."""
    gateway: str = ""
    """Which attached it."""


class EngineEnd(msgspec.Struct, tag="gone", array_like=True, frozen=True):
    """A process that is gone, or said goodbye."""

    client: int


class SpaceEnd(msgspec.Struct, tag="forgotten", array_like=True, frozen=True):
    """A space without engines and blocks."""

    number: int


class SegmentEnd(msgspec.Struct, tag="retired", array_like=True, frozen=True):
    """A segment that was given back."""

    number: int


Record = TenantName | SpaceName | SegmentName | EngineName | EngineEnd | SpaceEnd | SegmentEnd

_decoder = msgspec.msgpack.Decoder(Record)
_encoder = msgspec.msgpack.Encoder()


@dataclass(slots=True)
class Known:
    """What a journal says, all records taken together."""

    tenants: dict[int, str] = field(default_factory=dict)
    spaces: dict[int, Space] = field(default_factory=dict)
    segments: dict[int, SegmentName] = field(default_factory=dict)
    engines: dict[int, EngineName] = field(default_factory=dict)

    def take(self, record: Record) -> None:
        if isinstance(record, TenantName):
            self.tenants[record.number] = record.salt
        elif isinstance(record, SpaceName):
            self.spaces[record.number] = record.space
        elif isinstance(record, SegmentName):
            self.segments[record.number] = record
        elif isinstance(record, EngineName):
            self.engines[record.client] = record
        elif isinstance(record, EngineEnd):
            self.engines.pop(record.client, None)
        elif isinstance(record, SpaceEnd):
            self.spaces.pop(record.number, None)
        else:
            self.segments.pop(record.number, None)


def names_bytes(half_bytes: int = HALF_BYTES) -> int:
    """Size of the names in bytes."""
    return PAGE + 2 * half_bytes


class Names:
    """The journal in a buffer. `live` gives all names that still count, for when a half is full."""

    def __init__(
        self, buffer: memoryview | bytearray, live: Callable[[], Iterable[Record]] | None = None
    ) -> None:
        self._bytes = memoryview(buffer).cast("B")
        self._cells = self._bytes.cast("Q")
        self._half_bytes = (len(self._bytes) - PAGE) // 2 // 8 * 8
        if self._half_bytes < PAGE:
            raise LayoutError(f"a journal of {len(self._bytes)} bytes")
        self._end = 0
        """Where the next head goes, from the start of the half that counts."""
        self._left_out = 0
        self.live = live
        self.known: dict[tuple[type[Record], int], int] = {}
        """What has a record, and its bytes."""
        self._attach_bytes = 0
        """Bytes of those of spaces and engines."""
        self._engines: dict[int, tuple[int, int]] = {}
        """Pid of each engine, and bytes of the names that it brought."""
        self._process_bytes: Counter[int] = Counter()
        """As much of each process."""

    @classmethod
    def private(cls) -> Names:
        """A journal that nobody can take over."""
        names = cls(bytearray(names_bytes(PAGE * 16)))
        names.format()
        return names

    def format(self) -> None:
        """Write the header of fresh (zeroed) memory; the magic last."""
        self._cells[N_VERSION] = LAYOUT_VERSION
        self._cells[N_MAGIC] = NAMES_MAGIC

    @classmethod
    def attach(cls, buffer: memoryview | bytearray) -> tuple[Names, Known]:
        """The journal that a data plane before this one wrote, and what it says. Raises LayoutError."""
        names = cls(buffer)
        if names._cells[N_MAGIC] != NAMES_MAGIC:
            raise LayoutError("not a journal of a Larder data plane")
        if names._cells[N_VERSION] != LAYOUT_VERSION:
            raise LayoutError(f"the journal has layout {names._cells[N_VERSION]}, expected {LAYOUT_VERSION}")
        if names._cells[N_OVERFLOWED] or names._cells[N_HALF] > 1:
            raise LayoutError(
                "the journal overflowed" if names._cells[N_OVERFLOWED] else "the journal has no half"
            )
        return names, names._read()

    def _read(self) -> Known:
        known = Known()
        start = self._start()
        while self._end + _HEAD <= self._half_bytes:
            head = self._cells[(start + self._end) // 8]
            length = head & 0xFFFFFFFF
            first = start + self._end + _HEAD
            if not head:
                break
            if length > self._half_bytes - self._end - _HEAD:
                raise LayoutError(f"the journal has a record of {length} bytes at {self._end}")
            body = self._bytes[first : first + length]
            if crc32(body) != head >> 32:
                raise LayoutError(f"the journal has a corrupted record at {self._end}")
            try:
                record = _decoder.decode(body)
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                raise LayoutError(f"the journal has an unknown record at {self._end}: {error}") from None
            known.take(record)
            self._note(record, _HEAD + _padded(length))
            self._end += _HEAD + _padded(length)
        return known

    def _start(self) -> int:
        return PAGE + self._half_bytes * self._cells[N_HALF]

    def _note(self, record: Record, nbytes: int) -> None:
        if isinstance(record, EngineName):
            self._forget(EngineName, record.client)
            self.known[EngineName, record.client] = nbytes
            self._attach_bytes += nbytes
            spaces = sum(self.known.get((SpaceName, number), 0) for number, _ in record.spaces)
            self._engines[record.client] = record.pid, nbytes + spaces
            self._process_bytes[record.pid] += nbytes + spaces
        elif isinstance(record, EngineEnd):
            self._forget(EngineName, record.client)
        elif isinstance(record, SpaceEnd):
            self._forget(SpaceName, record.number)
        elif isinstance(record, SegmentEnd):
            self._forget(SegmentName, record.number)
        else:
            self._forget(type(record), record.number)
            self.known[type(record), record.number] = nbytes
            if isinstance(record, SpaceName):
                self._attach_bytes += nbytes

    def _forget(self, kind: type[Record], number: int) -> None:
        nbytes = self.known.pop((kind, number), 0)
        if kind in (SpaceName, EngineName):
            self._attach_bytes -= nbytes
        if kind is EngineName and number in self._engines:
            pid, brought = self._engines.pop(number)
            self._process_bytes[pid] -= brought
            if self._process_bytes[pid] <= 0:
                del self._process_bytes[pid]

    def refusal(self, pid: int, spaces: Iterable[Space]) -> str | None:
        """Why a process may not attach with these spaces: the journal would overflow one day. None when it may."""
        nbytes = sum(_HEAD + _padded(len(_encoder.encode(SpaceName(2**32, space)))) for space in spaces)
        if self._process_bytes[pid] + nbytes > PROCESS_BYTES:
            return (
                f"names of spaces may take {PROCESS_BYTES} bytes in all attachments of one process,"
                " lost ones included"
            )
        if self._attach_bytes + nbytes > ATTACH_BYTES:
            return f"names of spaces may take {ATTACH_BYTES} bytes on this data plane"
        return None

    def append(self, record: Record) -> None:
        """Write a record down before what it names is used."""
        body = _encoder.encode(record)
        if not self._fits(body) and self._left_out % RETRY_EVERY == 0:
            self._compact()
        self._note(record, _HEAD + _padded(len(body)))
        if self._cells[N_OVERFLOWED] or not self._fits(body):
            self._cells[N_OVERFLOWED] = 1
            self._left_out += 1
            return
        self._end = self._write(self._start(), self._end, body)

    def _fits(self, body: bytes) -> bool:
        return self._end + 2 * _HEAD + _padded(len(body)) <= self._half_bytes

    def _write(self, start: int, end: int, body: bytes) -> int:
        first = start + end + _HEAD
        size = _padded(len(body))
        self._bytes[first : first + size] = body.ljust(size, b"\0")
        self._cells[(first + size) // 8] = 0  # no head of an older journal may follow
        self._cells[(start + end) // 8] = len(body) | crc32(body) << 32
        return end + _HEAD + size

    def _compact(self) -> None:
        """Write what lives into the other half, then let that one count."""
        other = 1 - self._cells[N_HALF]
        start, end = PAGE + self._half_bytes * other, 0
        self._cells[start // 8] = 0
        self._note_nothing()
        for record in self.live() if self.live is not None else ():
            body = _encoder.encode(record)
            if end + 2 * _HEAD + _padded(len(body)) > self._half_bytes:
                self._cells[N_OVERFLOWED] = 1
                return
            end = self._write(start, end, body)
            self._note(record, _HEAD + _padded(len(body)))
        self._cells[N_HALF] = other
        self._cells[N_OVERFLOWED] = 0
        self._end, self._left_out = end, 0

    def _note_nothing(self) -> None:
        self.known.clear()
        self._engines.clear()
        self._process_bytes.clear()
        self._attach_bytes = 0

    @property
    def overflowed(self) -> bool:
        """Too many names for the journal: a restart would be cold."""
        return bool(self._cells[N_OVERFLOWED])


def _padded(length: int) -> int:
    return -(-length // 8) * 8
