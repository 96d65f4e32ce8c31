"""The access trace: the requests of the last hour, in bounded memory.

The trace has one record per request: the chain that an engine acquired, or the longer chain that the engine then
stored, in one or more pieces. A longer chain replaces the record, and moves it to the end of the trace. A request that
hit nothing and stored nothing leaves no record. A block is identified by 53 bits of its key, combined with those of its
space: enough to tell blocks apart, and few enough for any JSON reader.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

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
_SHIFT = np.uint64(11)


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


@dataclass(eq=False, slots=True)
class RecordedRequest:
    """One request, as far as it is known."""

    number: int
    """Number of the record, in the order of the trace."""
    at: float
    client: int
    space: int
    salt: str
    nbytes: int
    marks: array[int]
    """All its blocks, in chain order; empty once another record has replaced this one."""
    hits: int

    @property
    def end(self) -> tuple[int, int, int]:
        """Client, space and last block."""
        return self.client, self.space, self.marks[-1]


class AccessTrace:
    """Requests, numbered from 0, with a bound on the number of their blocks."""

    def __init__(self, started_at: float, capacity_blocks: int) -> None:
        self._started_at = started_at
        self._capacity_blocks = capacity_blocks
        self._requests: deque[RecordedRequest] = deque()
        """Oldest first."""
        self._blocks = 0
        """Number of their blocks."""
        self._next = 0
        """Number of the next record."""
        self._acquired: dict[int, RecordedRequest] = {}
        """Each engine's last acquire that no store has followed yet, by client number."""
        self._ends: OrderedDict[tuple[int, int, int], deque[RecordedRequest]] = OrderedDict()
        """Requests, oldest first, by their `end`; the end that was recorded last is the last one."""

    def continued(
        self, client: int, space: int, parent: bytes, now: float, *, acquired: bool
    ) -> RecordedRequest | None:
        """Return the record of an engine's request of which a chain behind the key `parent` is the next piece, which
        the caller then adds; None if it is of another request. `acquired`: whether the chain was acquired, not
        stored."""
        requests = self._ends.get((client, space, int.from_bytes(parent[:8], "little") >> int(_SHIFT)))
        if requests is None:
            return None
        last = requests[-1]
        is_hit, age = last.hits == len(last.marks), now - last.at
        is_continued = (is_hit or not acquired) and age <= (REQUEST_S if is_hit and not acquired else PIECES_S)
        return last if is_continued and len(last.marks) < MAX_CONTINUED_BLOCKS else None

    def record(
        self,
        client: int,
        tenant: Tenant,
        space: int,
        nbytes: int,
        words: U64,
        hits: int,
        now: float,
        continued: RecordedRequest | None = None,
        *,
        acquired: bool = False,
    ) -> None:
        """Record that an engine acquired a chain, or asked to store one, whose `hits` leading blocks were present; or,
        behind the record `continued`, the next piece of one. `words` are the first words of its keys, in chain order.

        When the engine's last acquire is the start of a chain that it stores, or this chain is its first piece, the new
        record replaces that of the acquire.
        """
        marks = array("Q", (words >> _SHIFT).tobytes())
        if continued is not None:
            hits = continued.hits + (hits if continued.hits == len(continued.marks) else 0)
            chain = continued.marks
            self._clear(continued)
            chain.extend(marks)  # in place: a copy for each piece would cost as much as the whole chain
            marks = chain
        elif not acquired:
            last = self._acquired.pop(client, None)
            if last is not None and last.space == space and now - last.at <= REQUEST_S:
                count = min(len(last.marks), len(marks))
                if count and last.marks[:count] == marks[:count]:
                    hits = min(last.hits, len(marks))
                    self._clear(last)
        request = RecordedRequest(self._next, now, client, space, tenant.salt, nbytes, marks, hits)
        if acquired:
            self._acquired[client] = request
        self._next += 1
        self._requests.append(request)
        self._blocks += len(marks)
        self._ends.setdefault(request.end, deque()).append(request)
        self._ends.move_to_end(request.end)
        if len(self._ends) > MAX_ENDS:
            self._ends.popitem(last=False)
        self._drop_old(now)

    def forget(self, client: int) -> None:
        """Drop the state of an engine that is gone."""
        self._acquired.pop(client, None)

    def _clear(self, request: RecordedRequest) -> None:
        """Remove the blocks of a request, whose record then counts no more."""
        end = request.end
        of_end = self._ends.get(end, deque())
        if of_end and of_end[-1] is request:
            of_end.pop()
        elif request in of_end:
            of_end.remove(request)
        if not of_end:
            self._ends.pop(end, None)
        self._blocks -= len(request.marks)
        request.marks = array("Q")

    def _drop_old(self, now: float) -> None:
        for _ in range(min(MAX_DROPPED, len(self._requests) - 1)):
            oldest = self._requests[0]
            fits = self._blocks <= self._capacity_blocks and len(self._requests) <= MAX_RECORDS
            if oldest.marks and fits and now - oldest.at <= RETAINED_S:
                return
            if oldest.marks:
                self._clear(oldest)
            self._requests.popleft()

    def part(self, since: float, after: int, max_bytes: int, spaces: Spaces) -> tuple[bytes, int]:
        """Return requests from number `after` on as JSON lines, and the number to continue with (0 at the end)."""
        encoder = msgspec.json.Encoder()
        lines: list[bytes] = []
        size = 0
        for request in self._from(since, after):
            line = encoder.encode(self._line(request, spaces))
            if lines and size + len(line) > max_bytes:
                return b"\n".join([*lines, b""]), request.number
            lines.append(line)
            size += len(line) + 1
        return b"\n".join([*lines, b""]), 0

    def _from(self, since: float, after: int) -> Iterator[RecordedRequest]:
        """Return the requests that an export includes, oldest first."""
        requests = self._requests
        if not requests:
            return iter(())
        since = max(since, requests[-1].at - RETAINED_S)
        first = max(after - requests[0].number, bisect_left(requests, since, key=lambda request: request.at))
        return (request for request in islice(requests, min(first, len(requests)), None) if request.marks)

    def _line(self, request: RecordedRequest, spaces: Spaces) -> AccessRecord:
        space = spaces.declared(request.space)
        of_space = 0 if space is None else int(space.identity()[:16], 16) >> int(_SHIFT)
        return AccessRecord(
            timestamp=int((request.at - self._started_at) * 1000),
            input_length=len(request.marks) * DEFAULT_CHUNK_TOKENS,
            output_length=0,
            hash_ids=[mark ^ of_space for mark in request.marks],
            tenant=shown(request.salt),
            model="" if space is None else space.model,
            block_bytes=request.nbytes if space is None else spaces.chunk_bytes(space, request.nbytes),
            hit_blocks=request.hits,
        )
