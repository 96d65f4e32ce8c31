"""The access trace: the requests of the last hour, in bounded memory.

The trace has one record per request: the chain that an engine acquired, or the longer chain that the engine then
stored, in one or more pieces. A longer chain replaces the record, and moves it to the end of the trace. A request that
hit nothing and stored nothing leaves no record. A block is identified by 53 bits of its key, combined with those of its
space: enough to tell blocks apart, and few enough for any JSON reader.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from dataplane.protocol.keys import DEFAULT_CHUNK_TOKENS
from dataplane.protocol.layout import U64
from dataplane.protocol.salts import shown

if TYPE_CHECKING:
    from dataplane.core.spaces import Spaces
    from dataplane.core.tenants.tenant import Tenant

RETAINED_S = 3600.0
PIECES_S = 30.0
"""Longest time between two pieces that an engine stores for a request, for example two chunks that it generates. A
later piece counts as a request that hit the chain before it, because the next turn of a chat whose blocks the engine
still has looks the same."""
REQUEST_S = 60.0
"""Longest time between the acquire of a request and the first piece that its engine stores."""
MAX_ENDS = 4096
"""Maximum number of blocks behind which the next piece of a record is expected."""
MAX_CONTINUED_BLOCKS = 65_536
"""Number of blocks from which on a record gets no further piece: blocks may name each other as parents."""
MAX_DROPPED = 512
"""Maximum number of old requests that are dropped when one request is added."""
MAX_RECORDS = 262_144
MARK_BYTES = 8
MIN_GROWING_BYTES = 4096
"""Bytes of the blocks of a record from which on further pieces are added in place: a copy for each piece would cost as
much as the whole chain. Fewer bytes are copied, because without room to grow they take half the memory."""
_SHIFT = np.uint64(11)
_ROW = np.dtype(
    [("at", np.float64), ("space", np.int64), ("nbytes", np.int64), ("hits", np.int64), ("before", np.int64)]
)
"""The numbers of a `RecordedRequest`, which would take four times as much as objects."""


class AccessRecord(msgspec.Struct):
    """One exported request. The first four fields are those of Mooncake's trace format."""

    timestamp: int
    """Milliseconds since the data plane started."""
    input_length: int
    output_length: int
    hash_ids: list[int]
    tenant: str
    model: str
    block_bytes: int
    """Bytes of a chunk in all ranks, pipeline stages and KV groups."""
    hit_blocks: int


class RecordedRequest(NamedTuple):
    """One request, as far as it is known."""

    at: float
    space: int
    nbytes: int
    hits: int
    before: int
    """Number of the record before with the same client, space and last block; -1 for none."""
    salt: str
    marks: bytes | bytearray
    """All its blocks, in chain order, MARK_BYTES each; empty once another record has replaced this one."""

    @property
    def blocks(self) -> int:
        return len(self.marks) // MARK_BYTES


class AccessTrace:
    """Requests, numbered from 0, with a bound on the number of their blocks."""

    def __init__(self, started_at: float, capacity_blocks: int) -> None:
        self._started_at = started_at
        self._capacity_blocks = capacity_blocks
        self._rows = np.zeros(MAX_RECORDS + 1, _ROW)  # one is dropped after the next is added
        """Numbers of records, by the number of the record modulo the length. Memory is taken as rows are written."""
        self._salts: deque[str] = deque()
        self._marks: deque[bytes | bytearray] = deque()
        """Salts and blocks of the records from the oldest on."""
        self._oldest = self._next = 0
        """Number of the oldest record, and of the next one."""
        self._blocks = 0
        """Number of the blocks of all records."""
        self._acquired: dict[int, int] = {}
        """Record of each engine's last acquire that no store has followed yet, by client number."""
        self._ends: OrderedDict[tuple[int, int, int], int] = OrderedDict()
        """Last record that ends with a block, by client, space and block; the end that was recorded last is the last
        one. A record that was dropped keeps its end until others take the place."""

    def _request(self, number: int) -> RecordedRequest:
        at = number - self._oldest
        return RecordedRequest._make((*self._rows[number % len(self._rows)].item(), self._salts[at], self._marks[at]))

    def continued(self, client: int, space: int, parent: bytes, now: float, *, acquired: bool) -> int | None:
        """Return the record of an engine's request of which a chain behind the key `parent` is the next piece, which
        the caller then adds; None if it is of another request. `acquired`: whether the chain was acquired, not
        stored."""
        number = self._ends.get((client, space, int.from_bytes(parent[:8], "little") >> int(_SHIFT)), -1)
        if number < self._oldest:
            return None
        last = self._request(number)
        is_hit, age = last.hits == last.blocks, now - last.at
        is_continued = (is_hit or not acquired) and age <= (REQUEST_S if is_hit and not acquired else PIECES_S)
        return number if is_continued and last.blocks < MAX_CONTINUED_BLOCKS else None

    def record(
        self,
        client: int,
        tenant: Tenant,
        space: int,
        nbytes: int,
        words: U64,
        hits: int,
        now: float,
        continued: int | None = None,
        *,
        acquired: bool = False,
    ) -> None:
        """Record that an engine acquired a chain, or asked to store one, whose `hits` leading blocks were present; or,
        behind the record `continued`, the next piece of one. `words` are the first words of its keys, in chain order.

        When the engine's last acquire is the start of a chain that it stores, or this chain is its first piece, the new
        record replaces that of the acquire.
        """
        marks: bytes | bytearray = (words >> _SHIFT).tobytes()
        if continued is not None:
            request = self._request(continued)
            hits = request.hits + (hits if request.hits == request.blocks else 0)
            self._replace(client, continued)
            marks = _extended(request.marks, marks)
        elif not acquired:
            last = self._acquired.pop(client, -1)
            if last >= self._oldest:
                request = self._request(last)
                count = min(len(request.marks), len(marks))
                is_open = request.space == space and now - request.at <= REQUEST_S
                if is_open and count and request.marks[:count] == marks[:count]:
                    hits = min(request.hits, len(words))
                    self._replace(client, last)
        if acquired:
            self._acquired[client] = self._next
        end = _end(client, space, marks)
        self._rows[self._next % len(self._rows)] = now, space, nbytes, hits, self._ends.get(end, -1)
        self._salts.append(tenant.salt)
        self._marks.append(marks)
        self._blocks += len(marks) // MARK_BYTES
        self._ends[end] = self._next
        self._ends.move_to_end(end)
        if len(self._ends) > MAX_ENDS:
            self._ends.popitem(last=False)
        self._next += 1
        self._drop_old(now)

    def forget(self, client: int) -> None:
        """Drop the state of an engine that is gone."""
        self._acquired.pop(client, None)

    def _replace(self, client: int, number: int) -> None:
        """Remove the blocks of a record that a longer one of the same engine replaces."""
        request = self._request(number)
        self._blocks -= request.blocks
        self._marks[number - self._oldest] = b""
        end = _end(client, request.space, request.marks)
        if self._ends.get(end) != number:
            return
        while request.before >= self._oldest:
            before = request.before
            request = self._request(before)
            if request.marks:
                self._ends[end] = before
                return
        del self._ends[end]

    def _drop_old(self, now: float) -> None:
        for _ in range(min(MAX_DROPPED, self._next - self._oldest - 1)):
            oldest = self._request(self._oldest)
            fits = self._blocks <= self._capacity_blocks and self._next - self._oldest <= MAX_RECORDS
            if oldest.marks and fits and now - oldest.at <= RETAINED_S:
                return
            self._blocks -= oldest.blocks
            self._salts.popleft()
            self._marks.popleft()
            self._oldest += 1

    def part(self, since: float, after: int, max_bytes: int, spaces: Spaces) -> tuple[bytes, int]:
        """Return requests from number `after` on as JSON lines, and the number to continue with (0 at the end)."""
        encoder = msgspec.json.Encoder()
        lines: list[bytes] = []
        size = 0
        for number, request in self._from(since, after):
            line = encoder.encode(self._line(request, spaces))
            if lines and size + len(line) > max_bytes:
                return b"\n".join([*lines, b""]), number
            lines.append(line)
            size += len(line) + 1
        return b"\n".join([*lines, b""]), 0

    def _from(self, since: float, after: int) -> Iterator[tuple[int, RecordedRequest]]:
        """Yield the requests that an export includes, with their numbers, oldest first."""
        if self._oldest == self._next:
            return
        numbers = range(self._oldest, self._next)
        since = max(since, self._at(numbers[-1]) - RETAINED_S)
        first = max(after - self._oldest, bisect_left(numbers, since, key=self._at))
        kept = (islice(each, min(first, len(each)), None) for each in (numbers, self._salts, self._marks))
        for number, salt, marks in zip(*kept, strict=True):
            if marks:
                yield number, RecordedRequest._make((*self._rows[number % len(self._rows)].item(), salt, marks))

    def _at(self, number: int) -> float:
        return float(self._rows["at"][number % len(self._rows)])

    def _line(self, request: RecordedRequest, spaces: Spaces) -> AccessRecord:
        space = spaces.declared(request.space)
        of_space = 0 if space is None else int(space.identity()[:16], 16) >> int(_SHIFT)
        return AccessRecord(
            timestamp=int((request.at - self._started_at) * 1000),
            input_length=request.blocks * DEFAULT_CHUNK_TOKENS,
            output_length=0,
            hash_ids=[mark ^ of_space for mark in memoryview(request.marks).cast("Q")],
            tenant=shown(request.salt),
            model="" if space is None else space.model,
            block_bytes=request.nbytes if space is None else spaces.chunk_bytes(space, request.nbytes),
            hit_blocks=request.hits,
        )


def _end(client: int, space: int, marks: bytes | bytearray) -> tuple[int, int, int]:
    """Return what identifies the last block of an engine's request."""
    return client, space, int.from_bytes(marks[-MARK_BYTES:], "little")


def _extended(marks: bytes | bytearray, more: bytes | bytearray) -> bytes | bytearray:
    if len(marks) >= MIN_GROWING_BYTES and isinstance(marks, bytes):
        marks = bytearray(marks)
    marks += more  # in place, if it is a bytearray
    return marks
