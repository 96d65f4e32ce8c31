"""The id journal: an append-only log that maps the numbers in the index and the recovery table to names.

The journal is a private memfd, which engines never get, in two halves. The header says which half is active. A record
is an 8-byte head (length, CRC-32) and a MessagePack body. The head is stored last, in one store, so a kill may lose the
last record but never leaves half of it. When a half is nearly full, a compaction copies the newest record of each live
number into the other one, a few at each tick, and a single store to the header makes that half active. Records that are
appended meanwhile are written to both halves. If the active half fills first, all live records are copied at once.

The live records always fit a half: the journal bounds the records of spaces and engines (`refusal`) and those of
tenants with blocks (`takes_tenant`). A fifth of a half stays free, so that compactions are rare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from zlib import crc32

import msgspec

from dataplane.protocol.layout import LAYOUT_VERSION, PAGE, LayoutError
from dataplane.protocol.salts import MAX_SALT_CHARACTERS
from dataplane.protocol.spaces import Space

NAMES_MAGIC = int.from_bytes(b"LARDERNM", "little")
N_MAGIC, N_VERSION, N_HALF, N_OVERFLOWED = range(4)
MIN_HALF_BYTES = 32 << 20
MAX_HALF_BYTES = 128 << 20
"""Largest size of a half. Only written pages take memory."""
RETRY_EVERY = 4096
"""Number of records that an overflowed journal omits before it tries another compaction."""
ATTACH_BYTES = 16 << 20
"""Maximum bytes of the records of spaces and engines; the rest is for tenants and segments."""
PROCESS_BYTES = 4 << 20
"""Maximum bytes of the records of all attachments of one process."""
COMPACTED_AT_ONCE = 2000
"""Number of live records that one step of a compaction visits: about 2 ms."""
_HEAD = 8
"""Bytes of a record's head."""


class TenantName(msgspec.Struct, tag="tenant", array_like=True, frozen=True):
    """Record of a tenant's number."""

    number: int
    salt: str


class SpaceName(msgspec.Struct, tag="space", array_like=True, frozen=True):
    """Record of a space's number."""

    number: int
    space: Space


class SegmentName(msgspec.Struct, tag="segment", array_like=True, frozen=True):
    """Record of a segment of the pool that has or had a block."""

    number: int
    space: int
    nbytes: int
    small: bool
    base: int | None = None
    """Offset in the named segment; None for a memfd."""


class EngineName(msgspec.Struct, tag="engine", array_like=True, frozen=True):
    """Record of an engine that attached."""

    client: int
    pid: int
    started: int
    """Start time of the process in clock ticks since boot, to detect a reused pid; 0 when unknown."""
    group: str
    name: str
    attached_at: float
    spaces: list[tuple[int, bool]]
    """Number of each space and whether the engine writes there, in the order of the attach message."""
    gateway: str = ""
    """Name of the gateway that attached the engine; empty for none."""
    expelled: int = 0
    """Value of an `Expulsion`."""


class EngineEnd(msgspec.Struct, tag="gone", array_like=True, frozen=True):
    """Record of an engine that is gone or has detached."""

    client: int


class SpaceEnd(msgspec.Struct, tag="forgotten", array_like=True, frozen=True):
    """Record of a space that was forgotten because it had no engines and no blocks."""

    number: int


class SegmentEnd(msgspec.Struct, tag="retired", array_like=True, frozen=True):
    """Record of a segment that was given back."""

    number: int


Record = TenantName | SpaceName | SegmentName | EngineName | EngineEnd | SpaceEnd | SegmentEnd
_ENDED: dict[type[Record], type[Record]] = {EngineEnd: EngineName, SpaceEnd: SpaceName, SegmentEnd: SegmentName}
"""Kind of the record that a record ends."""
_Key = tuple[type[Record], int]
"""Kind and number of what a record names."""

_decoder = msgspec.msgpack.Decoder(Record)
_encoder = msgspec.msgpack.Encoder()


@dataclass(slots=True)
class JournalContents:
    """The state that all records of a journal describe together."""

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


def half_bytes_for(max_blocks: int) -> int:
    """Return the size of a half with room for a tenant with the longest salt and a segment for every block, up to
    MAX_HALF_BYTES."""
    tenant = _size_of(TenantName(2**32, "\U00020000" * MAX_SALT_CHARACTERS))
    segment = _size_of(SegmentName(2**32, 2**32, 2**48, True, 2**48))
    needed = (ATTACH_BYTES + max_blocks * (tenant + segment)) * 5 // 4
    return min(max(needed, MIN_HALF_BYTES), MAX_HALF_BYTES) // PAGE * PAGE


def names_bytes(half_bytes: int) -> int:
    """Return the size of the journal in bytes."""
    return PAGE + 2 * half_bytes


@dataclass(slots=True)
class _Half:
    """A half of the journal. Offsets are in bytes from its start."""

    start: int
    """Offset of the half in the journal."""
    end: int = 0
    """Offset of the next head."""
    offsets: dict[_Key, int] = field(default_factory=dict)
    """Offset of the newest record of each live number, in this order."""


@dataclass(slots=True)
class _Compaction:
    """A compaction that has begun."""

    target: _Half
    keys: Iterator[_Key]
    """The live numbers at its begin that are still to visit."""


class IdJournal:
    """The id journal in a buffer."""

    def __init__(self, buffer: memoryview | bytearray) -> None:
        self._bytes = memoryview(buffer).cast("B")
        if len(self._bytes) % 8:
            raise LayoutError(f"a journal of {len(self._bytes)} bytes, expected a multiple of 8")
        self._cells = self._bytes.cast("Q")
        self._half_bytes = (len(self._bytes) - PAGE) // 2 // 8 * 8
        if self._half_bytes < PAGE:
            raise LayoutError(f"a journal of {len(self._bytes)} bytes")
        self._active = _Half(self._start(self._cells[N_HALF]))
        self._left_out = 0
        """Number of records that were omitted since the last compaction."""
        self._omitted: dict[_Key, bytes] = {}
        """Bodies of the live ones among all omitted records."""
        self.record_bytes: dict[_Key, int] = {}
        """Size in bytes of each live record."""
        self._kind_bytes: Counter[type[Record]] = Counter()
        """Bytes of the live records of each kind."""
        self._unused: set[int] = set()
        """Tenants that have a record but no block; the next compaction drops their records."""
        self._unused_bytes = 0
        self._engines: dict[int, tuple[int, int]] = {}
        """Pid of each engine and bytes of its own record and those of its spaces, by client."""
        self._process_bytes: Counter[int] = Counter()
        """The sum of these bytes for each process, by pid."""
        self._compaction: _Compaction | None = None

    @property
    def nbytes(self) -> int:
        """Size of the whole journal."""
        return len(self._bytes)

    def format(self) -> None:
        """Write the header of fresh (zeroed) memory, with the magic number last."""
        self._cells[N_VERSION] = LAYOUT_VERSION
        self._cells[N_MAGIC] = NAMES_MAGIC

    @classmethod
    def attach(cls, buffer: memoryview | bytearray) -> tuple[IdJournal, JournalContents]:
        """Return the journal that a previous data plane wrote, and its contents. Raise LayoutError when it is
        invalid."""
        journal = cls(buffer)
        if journal._cells[N_MAGIC] != NAMES_MAGIC:
            raise LayoutError("not a journal of a Larder data plane")
        if journal._cells[N_VERSION] != LAYOUT_VERSION:
            raise LayoutError(f"the journal has layout {journal._cells[N_VERSION]}, expected {LAYOUT_VERSION}")
        if journal._cells[N_OVERFLOWED] or journal._cells[N_HALF] > 1:
            raise LayoutError("the journal overflowed" if journal._cells[N_OVERFLOWED] else "the journal has no half")
        return journal, journal._read()

    def _read(self) -> JournalContents:
        contents = JournalContents()
        active = self._active
        while active.end + _HEAD <= self._half_bytes:
            head = self._cells[(active.start + active.end) // 8]
            length = head & 0xFFFFFFFF
            first = active.start + active.end + _HEAD
            if not head:
                break
            if length > self._half_bytes - active.end - _HEAD:
                raise LayoutError(f"the journal has a record of {length} bytes at {active.end}")
            body = self._bytes[first : first + length]
            if crc32(body) != head >> 32:
                raise LayoutError(f"the journal has a corrupted record at {active.end}")
            try:
                record = _decoder.decode(body)
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                raise LayoutError(f"the journal has an unknown record at {active.end}: {error}") from None
            contents.take(record)
            key = self._note(record, _HEAD + _padded(length))
            if key is not None:
                active.offsets[key] = active.end
            active.end += _HEAD + _padded(length)
        for engine in contents.engines.values():  # a compaction may have put the spaces of an engine behind it
            self._charge(engine)
        return contents

    def _start(self, half: int) -> int:
        return PAGE + self._half_bytes * half

    def _note(self, record: Record, nbytes: int) -> _Key | None:
        """Count a record; return its key unless it ends another one."""
        key = _key_of(record)
        self._forget(key)
        if type(record) in _ENDED:
            return None
        self.record_bytes[key] = nbytes
        self._kind_bytes[key[0]] += nbytes
        return key

    def _charge(self, engine: EngineName) -> None:
        """Count the records of an engine and of its spaces for its process."""
        keys: list[_Key] = [(EngineName, engine.client), *((SpaceName, space) for space, _ in engine.spaces)]
        nbytes = sum(self.record_bytes.get(key, 0) for key in keys)
        self._engines[engine.client] = engine.pid, nbytes
        self._process_bytes[engine.pid] += nbytes

    def _forget(self, key: _Key) -> None:
        kind, number = key
        self._kind_bytes[kind] -= self.record_bytes.pop(key, 0)
        self._omitted.pop(key, None)
        self._active.offsets.pop(key, None)
        if self._compaction is not None:
            self._compaction.target.offsets.pop(key, None)
        if kind is EngineName and number in self._engines:
            pid, brought = self._engines.pop(number)
            self._process_bytes[pid] -= brought
            if self._process_bytes[pid] <= 0:
                del self._process_bytes[pid]

    def has(self, kind: type[Record], number: int) -> bool:
        """Return whether the journal has a live record of this kind and number."""
        return (kind, number) in self.record_bytes

    def refusal(self, pid: int, spaces: Iterable[Space]) -> str | None:
        """Return the reason why a process may not attach with these spaces, or None when it may.

        A process is refused when its records could make the journal overflow later.
        """
        nbytes = sum(_HEAD + _padded(len(_encoder.encode(SpaceName(2**32, space)))) for space in spaces)
        if self._process_bytes[pid] + nbytes > PROCESS_BYTES:
            return (
                f"names of spaces may take {PROCESS_BYTES} bytes in all attachments of one process, lost ones included"
            )
        if self._kind_bytes[SpaceName] + self._kind_bytes[EngineName] + nbytes > ATTACH_BYTES:
            return f"names of spaces may take {ATTACH_BYTES} bytes on this data plane"
        return None

    # ---- tenants

    @property
    def capacity_bytes(self) -> int:
        """Maximum bytes of the records of segments and of tenants with blocks."""
        return self._half_bytes * 4 // 5 - min(ATTACH_BYTES, self._half_bytes // 2)

    @property
    def used_bytes(self) -> int:
        """Bytes of the records of segments and of tenants with blocks."""
        return self._kind_bytes[TenantName] - self._unused_bytes + self._kind_bytes[SegmentName]

    def takes_tenant(self, number: int, salt: str) -> bool:
        """Return whether a tenant without blocks may store one, that is, whether its record fits beside all live
        ones."""
        return self.used_bytes + _size_of(TenantName(number, salt)) <= self.capacity_bytes

    def name_tenant(self, number: int, salt: str) -> None:
        """Write the record of a tenant that is about to have blocks, unless there is one."""
        if number in self._unused:
            self._unused.remove(number)
            self._unused_bytes -= self.record_bytes[TenantName, number]
        elif not self.has(TenantName, number):
            self.append(TenantName(number, salt))

    def tenant_unused(self, number: int) -> None:
        """Let the next compaction drop the record of a tenant that no longer has blocks."""
        nbytes = self.record_bytes.get((TenantName, number))
        if nbytes is not None and number not in self._unused:
            self._unused.add(number)
            self._unused_bytes += nbytes

    def only_tenants(self, used: Container[int]) -> None:
        """Mark the records of all tenants that are not in `used` as unused, after a restart."""
        for kind, number in list(self.record_bytes):
            if kind is TenantName and number not in used:
                self.tenant_unused(number)

    def _drop_unused(self, number: int) -> None:
        """Forget the record of an unused tenant; if the tenant is used again, it is written again."""
        key = TenantName, number
        self._unused.remove(number)
        self._unused_bytes -= self.record_bytes[key]
        self._forget(key)

    # ---- writing

    def append(self, record: Record) -> None:
        """Append a record. Call this before the number that it names is used."""
        body = _encoder.encode(record)
        if not self._fits(body) and self._left_out % RETRY_EVERY == 0:
            self._compact()
        key = self._note(record, _HEAD + _padded(len(body)))
        if isinstance(record, EngineName):
            self._charge(record)
        if self._cells[N_OVERFLOWED] or not self._fits(body):
            self._cells[N_OVERFLOWED] = 1
            self._left_out += 1
            if key is not None:
                self._omitted[key] = body
            return
        self._write(key, body)

    def _fits(self, body: bytes) -> bool:
        return self._active.end + 2 * _HEAD + _padded(len(body)) <= self._half_bytes

    def _write(self, key: _Key | None, body: bytes) -> None:
        """Write a record, which fits, to the end of the active half, and to that of the other one during a compaction,
        which never has more records. `key`: of what it names; None if it ends another record."""
        size = _padded(len(body))
        for half in (self._active,) if self._compaction is None else (self._active, self._compaction.target):
            head = half.start + half.end
            self._bytes[head + _HEAD : head + _HEAD + size] = body.ljust(size, b"\0")
            self._cells[(head + _HEAD + size) // 8] = 0  # clear a stale head that an older journal left here
            self._cells[head // 8] = len(body) | crc32(body) << 32
            if key is not None:
                half.offsets[key] = half.end
            half.end += _HEAD + size

    # ---- compactions

    def compact_some(self) -> None:
        """Begin a compaction if the active half is nearly full, or take its next step. Call this at every tick."""
        if self._compaction is None:
            live_bytes = sum(self._kind_bytes.values()) - self._unused_bytes
            slack_bytes = self._half_bytes // 16  # else the next compaction would begin at once
            end = self._active.end
            is_full = end >= self._half_bytes * 7 // 8 and live_bytes + slack_bytes < end
            if not is_full or self._cells[N_OVERFLOWED]:
                return
            self._compaction = self._begun()
        self._copy_live(self._compaction, COMPACTED_AT_ONCE)

    def _compact(self) -> None:
        """Copy all live records at once, and write those that were omitted, as far as they fit."""
        for number in list(self._unused):
            self._drop_unused(number)
        self._compaction = self._begun()
        self._copy_live(self._compaction, None)
        for key, body in list(self._omitted.items()):
            if not self._fits(body):
                return
            self._write(key, body)
            del self._omitted[key]
        self._cells[N_OVERFLOWED] = 0

    def _begun(self) -> _Compaction:
        return _Compaction(_Half(self._start(1 - self._cells[N_HALF])), iter(list(self._active.offsets)))

    def _copy_live(self, compaction: _Compaction, count: int | None) -> None:
        """Visit up to `count` numbers, all if it is None, and copy the records of those that are still live into the
        other half. Make that half active when all have been visited."""
        source, target = self._active, compaction.target
        visited = 0
        for key in islice(compaction.keys, count):
            visited += 1
            kind, number = key
            offset = source.offsets.get(key)
            if offset is None or key in target.offsets:  # it has ended, or was written again
                continue
            if kind is TenantName and number in self._unused:
                self._drop_unused(number)
                continue
            size = self.record_bytes[key]
            head, to = source.start + offset, target.start + target.end
            self._bytes[to : to + size] = self._bytes[head : head + size]
            target.offsets[key] = target.end
            target.end += size
        if visited != count:
            self._cells[(target.start + target.end) // 8] = 0  # clear a stale head
            self._cells[N_HALF] = 1 - self._cells[N_HALF]
            self._active, self._left_out, self._compaction = target, 0, None

    @property
    def overflowed(self) -> bool:
        """Whether the journal has no room for all live records; a restart would then be cold."""
        return bool(self._cells[N_OVERFLOWED])


def migrated(contents: JournalContents, buffer: memoryview | bytearray) -> IdJournal:
    """Return a journal in fresh (zeroed) memory with the records of a journal of another size."""
    journal = IdJournal(buffer)
    journal.format()
    for number, space in contents.spaces.items():
        journal.append(SpaceName(number, space))
    for number, salt in contents.tenants.items():
        journal.append(TenantName(number, salt))
    for segment in contents.segments.values():
        journal.append(segment)
    for engine in contents.engines.values():
        journal.append(engine)
    return journal


def _key_of(record: Record) -> _Key:
    """Return the kind and number of what a record names or ends."""
    kind = type(record)
    number = record.client if isinstance(record, EngineName | EngineEnd) else record.number
    return _ENDED.get(kind, kind), number


def _size_of(record: Record) -> int:
    """Return the bytes that a record takes."""
    return _HEAD + _padded(len(_encoder.encode(record)))


def _padded(length: int) -> int:
    return -(-length // 8) * 8
