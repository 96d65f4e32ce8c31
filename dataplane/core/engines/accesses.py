"""The access trace: the requests of the last hour, in bounded memory.

The trace has one record per request: the chain that an engine acquired, or the longer chain that the engine then
stored, in one or more pieces. A request that hit nothing and stored nothing leaves no record. A block is identified by
53 bits of its key, combined with those of its space: enough to tell blocks apart, and few enough for any JSON reader.
"""

from __future__ import annotations

from collections import OrderedDict
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
MAX_PIECES = 65_536
"""Maximum number of requests recorded since the first piece of a record to which another piece is added."""
MAX_DROPPED = 1024
"""Maximum number of old requests that are dropped when one request is added."""
MAX_RECORDS = 262_144
_SHIFT = np.uint64(11)
_ROW = np.dtype(
    [
        ("at", np.float64),
        ("first", np.int64),
        ("nbytes", np.int64),
        ("tenant", np.int64),
        ("space", np.int64),
        ("before", np.int64),
        ("same_end", np.int64),
        ("oldest", np.int64),
        ("oldest_first", np.int64),
        ("own", np.int32),
        ("blocks", np.int32),
        ("hits", np.int32),
        ("replaced", np.bool_),
    ]
)
"""One request, or all pieces of one up to this one. `first` is the position of the first of its `own` blocks, counted
over all blocks ever recorded. `before` is the number of the row of the piece before, and `same_end` that of the last
record before with the same client, space and last block; -1 for none. `oldest` and `oldest_first` are the number and
`first` of the first piece. `blocks` and `hits` are of all pieces. `replaced` means that a longer record of the same
request follows."""


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


class AccessTrace:
    """A ring of requests and a ring of their blocks. Requests are numbered from 0."""

    def __init__(self, started_at: float, capacity_blocks: int) -> None:
        self._started_at = started_at
        self._marks = np.zeros(capacity_blocks, np.uint64)
        self._rows = np.zeros(MAX_RECORDS, _ROW)
        self._written = 0
        """Number of blocks ever recorded."""
        self._oldest = self._next = 0
        """Number of the oldest request that is kept, and of the next request."""
        self._acquired: dict[int, int] = {}
        """Number of each engine's last acquire that no store has followed yet, by client number."""
        self._ends: OrderedDict[tuple[int, int, int], int] = OrderedDict()
        """Number of the last record of a client in a space that ends with a block, oldest first."""
        self._salts: dict[int, str] = {}

    def continued(self, client: int, space: int, parent: bytes, now: float, *, acquired: bool) -> int:
        """Return the number of the record of an engine's request of which a chain behind the key `parent` is the next
        piece, which the caller then adds; -1 if it is of another request. `acquired`: whether the chain was acquired,
        not stored."""
        end = client, space, int.from_bytes(parent[:8], "little") >> int(_SHIFT)
        number = self._ends.pop(end, -1)
        while True:
            if number < max(0, self._next - len(self._rows)):
                return -1
            row = self._rows[number % len(self._rows)]
            if not row["replaced"] and self._is_whole(row):
                break
            number = int(row["same_end"])
        is_hit, age = row["hits"] == row["blocks"], now - row["at"]
        is_continued = number - row["oldest"] < MAX_PIECES
        is_continued &= (is_hit or not acquired) and age <= (REQUEST_S if is_hit and not acquired else PIECES_S)
        following = int(row["same_end"]) if is_continued else number
        if following >= 0:
            self._ends[end] = following
        return number if is_continued else -1

    def served(
        self, client: int, tenant: Tenant, space: int, nbytes: int, words: U64, now: float, continued: int = -1
    ) -> None:
        """Record that an engine acquired a chain. `words` are the first words of its keys, in chain order; of a piece,
        behind those of the record `continued`."""
        if len(words):
            self._append(client, tenant, space, nbytes, words >> _SHIFT, len(words), now, continued)
            self._acquired[client] = self._next - 1

    def forget(self, client: int) -> None:
        """Drop the state of an engine that is gone."""
        self._acquired.pop(client, None)

    def stored(
        self,
        client: int,
        tenant: Tenant,
        space: int,
        nbytes: int,
        words: U64,
        hits: int,
        now: float,
        continued: int = -1,
    ) -> None:
        """Record that an engine asked to store a chain whose `hits` leading blocks were present; or, behind the record
        `continued`, the next piece of one.

        When the engine's last acquire is the start of this chain, or this chain is its first piece, the new record
        replaces that of the acquire.
        """
        marks = words >> _SHIFT
        last = self._acquired.pop(client, -1) if continued < 0 else -1
        if last >= self._oldest:
            row = self._rows[last % len(self._rows)]
            is_open = not row["replaced"] and now - row["at"] <= REQUEST_S
            if is_open and self._is_whole(row) and self._is_start(row, space, marks):
                row["replaced"] = True
                hits = min(int(row["hits"]), len(marks))
        if len(marks):
            self._append(client, tenant, space, nbytes, marks, hits, now, continued)

    def _is_start(self, last: np.void, space: int, marks: U64) -> bool:
        count = min(int(last["blocks"]), len(marks))
        if last["space"] != space or not count:
            return False
        return bool(np.array_equal(self._marks_of(last)[:count], marks[:count]))

    def _marks_of(self, row: np.void) -> U64:
        pieces: list[U64] = []
        while True:
            first = int(row["first"])
            pieces.append(self._marks.take(np.arange(first, first + int(row["own"])), mode="wrap"))
            if row["before"] < 0:
                return np.concatenate(pieces[::-1])
            row = self._rows[int(row["before"]) % len(self._rows)]

    def _append(
        self, client: int, tenant: Tenant, space: int, nbytes: int, marks: U64, hits: int, now: float, continued: int
    ) -> None:
        ring = self._marks
        count = min(len(marks), len(ring))
        start = self._written % len(ring)
        until_end = min(count, len(ring) - start)
        ring[start : start + until_end] = marks[:until_end]
        if until_end < count:
            ring[: count - until_end] = marks[until_end:count]
        oldest, oldest_first, blocks, hits = self._next, self._written, count, min(hits, count)
        if continued >= 0:
            row = self._rows[continued % len(self._rows)]
            row["replaced"] = True
            oldest, oldest_first = int(row["oldest"]), int(row["oldest_first"])
            hits = int(row["hits"]) + (hits if row["hits"] == row["blocks"] else 0)
            blocks += int(row["blocks"])
        end = client, space, int(marks[count - 1])
        same_end = self._ends.pop(end, -1)
        self._ends[end] = self._next
        if len(self._ends) > MAX_ENDS:
            self._ends.popitem(last=False)
        self._rows[self._next % len(self._rows)] = (
            now,
            self._written,
            nbytes,
            tenant.number,
            space,
            continued,
            same_end,
            oldest,
            oldest_first,
            count,
            blocks,
            hits,
            False,
        )
        if tenant.number not in self._salts:
            self._name(tenant)
        self._written += count
        self._next += 1
        self._drop_old(now)

    def _name(self, tenant: Tenant) -> None:
        if len(self._salts) >= 2 * len(self._rows):  # most belong to requests that are no longer kept
            used_numbers = set(self._rows["tenant"].tolist())
            self._salts = {number: salt for number, salt in self._salts.items() if number in used_numbers}
        self._salts[tenant.number] = tenant.salt

    def _drop_old(self, now: float) -> None:
        rows, last = self._rows, self._next - 1
        self._oldest = max(self._oldest, self._next - len(rows))
        for _ in range(MAX_DROPPED):
            row = rows[self._oldest % len(rows)]
            if self._oldest == last or (self._is_whole(row) and now - row["at"] <= RETAINED_S):
                return
            self._oldest += 1

    def _is_whole(self, row: np.void) -> bool:
        """Return whether the blocks of a request have not been overwritten."""
        first, oldest = self._written - len(self._marks), self._next - len(self._rows)
        return bool(row["oldest_first"] >= first and row["oldest"] >= oldest)

    def _retained(self, after: int, since: float) -> list[int]:
        """Return the numbers of the requests that an export includes."""
        numbers = np.arange(min(max(after, self._oldest), self._next), self._next)
        rows = self._rows[numbers % len(self._rows)]
        if len(rows):
            since = max(since, float(rows["at"][-1]) - RETAINED_S)
        complete = rows["oldest_first"] >= self._written - len(self._marks)
        complete &= rows["oldest"] >= self._next - len(self._rows)
        shown: list[int] = numbers[complete & (rows["at"] >= since) & ~rows["replaced"]].tolist()
        return shown

    def part(self, since: float, after: int, max_bytes: int, spaces: Spaces) -> tuple[bytes, int]:
        """Return requests from number `after` on as JSON lines, and the number to continue with (0 at the end)."""
        encoder = msgspec.json.Encoder()
        lines: list[bytes] = []
        size = 0
        for number in self._retained(after, since):
            row = self._rows[number % len(self._rows)]
            line = encoder.encode(self._line(row, spaces))
            if lines and size + len(line) > max_bytes:
                return b"\n".join([*lines, b""]), number
            lines.append(line)
            size += len(line) + 1
        return b"\n".join([*lines, b""]), 0

    def _line(self, row: np.void, spaces: Spaces) -> AccessRecord:
        blocks, nbytes = int(row["blocks"]), int(row["nbytes"])
        space = spaces.declared(int(row["space"]))
        marks = self._marks_of(row)
        if space is not None:
            marks ^= np.uint64(int(space.identity()[:16], 16)) >> _SHIFT
        return AccessRecord(
            timestamp=int((row["at"] - self._started_at) * 1000),
            input_length=blocks * DEFAULT_CHUNK_TOKENS,
            output_length=0,
            hash_ids=marks.tolist(),
            tenant=shown(self._salts.get(int(row["tenant"]), "")),
            model="" if space is None else space.model,
            block_bytes=nbytes if space is None else spaces.chunk_bytes(space, nbytes),
            hit_blocks=int(row["hits"]),
        )
