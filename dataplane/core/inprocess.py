"""Engines that a gateway of this process attaches, in the name of processes that speak another protocol.

An `Attachment` does what `dataplane.client` does in a process of its own, by calls instead of messages: it reserves,
commits, acquires and lets go. Leases are counters in the area of its engine and uses go through its ring, so eviction,
audit, accounting and a restarted data plane see nothing unusual. One thread, the data plane's; nothing here waits, and
nothing but ProtocolError is raised.

Who owns which process is the gateway's knowledge: it says `detach` when the peer is lost, `process_gone` when its end
is proven, and `goodbye` when it holds and writes nothing any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.engine import VERSION, Abort, Attach, Commit, Reserve, SpaceRequest
from dataplane.protocol.keys import tenant_fingerprint
from dataplane.protocol.layout import (
    A_RING_HEAD,
    H_MEMORY,
    HOT_CONTROL,
    HOT_NBYTES,
    HOT_OFFSET,
    HOT_SPACE_SEGMENT,
    HOT_WORDS,
    I64,
    RING_COUNT_BITS,
    RING_COUNT_MASK,
    RING_KIND_SHIFT,
    RING_LOOKUP,
    RING_POSITION_SHIFT,
    RING_TOUCH,
    U64,
    is_ready,
    leading,
)
from dataplane.protocol.spaces import Space

if TYPE_CHECKING:
    from dataplane.core.engines import Engine
    from dataplane.core.node import Node
    from dataplane.core.storing import Granted

_TOUCH = np.uint64(RING_TOUCH << RING_KIND_SHIFT)
_ONE = np.uint32(1)
_SHIFT32 = np.uint64(32)


class Held:
    """Leading READY blocks of a chain in one space, held until they are released. `len` of them, first one first."""

    __slots__ = ("client", "descriptors", "rows", "space")

    def __init__(self, client: int, space: int, descriptors: I64, rows: U64) -> None:
        self.client = client
        self.space = space
        """Number of the space; 0 for what is held in several."""
        self.descriptors = descriptors
        self.rows = rows
        """Hot rows [n, 8] as they are while the blocks are held."""

    def __len__(self) -> int:
        return len(self.descriptors)

    @property
    def segments(self) -> list[int]:
        numbers: list[int] = (self.rows[:, HOT_SPACE_SEGMENT] >> _SHIFT32).tolist()
        return numbers

    @property
    def offsets(self) -> list[int]:
        """Bytes from the start of each block's segment."""
        offsets: list[int] = self.rows[:, HOT_OFFSET].tolist()
        return offsets

    @property
    def sizes(self) -> list[int]:
        """Bytes of each block."""
        sizes: list[int] = self.rows[:, HOT_NBYTES].tolist()
        return sizes


class InProcess:
    """Attaches engines in a gateway's name."""

    def __init__(self, node: Node, gateway: str) -> None:
        self._node = node
        self.gateway = gateway

    def attach(
        self,
        spaces: Sequence[Space],
        *,
        group: str,
        name: str,
        now: float,
        pid: int = 0,
        started: int = 0,
        writes: bool = True,
        resume: int = 0,
        writing: Sequence[int] = (),
    ) -> Attachment:
        """Attach a peer; every space has `Space.gateway`. Raises ProtocolError.

        `pid` and `started` (clock ticks since boot, `transport.peers.started_at`) are those of the peer, 0 when they
        are not known. `resume` is the client number of the same peer before a restart, with the same pid, group and
        spaces, and `writing` the reservations that it may still be writing: what else it reserved is released.
        """
        node = self._node
        message = Attach(
            0,
            VERSION,
            group,
            [SpaceRequest(space, writes) for space in spaces],
            name,
            resume=resume,
            resume_memory=node.pool.table.memory.cells[H_MEMORY] if resume else 0,
            writing=list(writing),
        )
        engine, numbers = node.attach(message, pid, now, started, self.gateway)
        return Attachment(node, engine, numbers)

    def lost(self) -> list[Engine]:
        """Engines of this gateway without a peer: detached, or attached before a restart and not resumed."""
        return [
            engine
            for engine in self._node.engines.values()
            if not engine.connected and any(space.gateway == self.gateway for space in engine.space_list)
        ]

    def gone(self, client: int, now: float) -> None:
        """The process of a lost engine is proven gone; the bytes wait for the others of its group."""
        self._node.process_gone(client, now)

    def goodbye(self, client: int, now: float) -> None:
        """Nobody reads or writes in a lost engine's name any more, though its process may live: it ends at once."""
        self._node.goodbye(client, now)


class Attachment:
    """One engine in the name of a peer."""

    def __init__(self, node: Node, engine: Engine, spaces: list[int]) -> None:
        self._node = node
        self._engine = engine
        self._area = engine.ring.area
        self._head = int(self._area.header[A_RING_HEAD])
        self.spaces = spaces
        """Number of each space, in the order of the attach."""
        self.resumed = engine.resumed
        self.inherited = self._take_over() if engine.resumed else self._nothing()
        """What a resumed engine held before the restart; it stays held until this is released."""

    @property
    def client(self) -> int:
        """Number of the engine."""
        return self._engine.client

    @property
    def attached(self) -> bool:
        """Neither detached nor gone."""
        return self._engine.connected and self._node.engines.get(self.client) is self._engine

    # ---- storing

    def reserve(
        self, space: int, tenant: str, keys: bytes, nbytes: int, now: float, parent: bytes = b""
    ) -> Granted:
        """Room for the missing blocks of a chain (packed keys of 32 bytes) in a space. Raises ProtocolError.

        `Granted.outcomes` has an `Outcome` or the `Code` of a refusal for each key; where it is WRITE, `segments` and
        `offsets` say where. `reservation` is 0 when there is nothing to write.
        """
        self._check()
        return self._node.reserve(self.client, Reserve(0, space, tenant, keys, nbytes, parent), now)

    def commit(
        self, reservation: int, now: float, positions: Sequence[int] | None = None, checksums: bytes = b""
    ) -> int:
        """Publish what was written: the positions in the chain, or all that were to be written; the rest is aborted.

        Returns published blocks. Raises ProtocolError; then nothing was published.
        """
        self._check()
        if positions is not None and not len(positions):
            self._node.abort(self.client, Abort(0, reservation), now)
            return 0
        slots = b"" if positions is None else np.array(positions, np.uint32).tobytes()
        return self._node.commit(self.client, Commit(0, reservation, slots, checksums), now)

    def abort(self, reservation: int, now: float) -> None:
        """Give a reservation up: the peer writes there no more. Raises ProtocolError."""
        self._check()
        self._node.abort(self.client, Abort(0, reservation), now)

    # ---- reading

    def acquire(self, words: U64, space: int, want: int | None = None) -> Held:
        """Hold the leading READY blocks of a chain (packed keys [n, 4]) in a space, at most `want`.

        Raises ProtocolError when the space is not attached. Nothing counts as used yet.
        """
        self._check()
        if space not in self._engine.spaces:
            raise ProtocolError(Code.UNKNOWN_SPACE, f"space {space} is not attached", "space")
        if want is not None:
            words = words[: max(0, want)]
        if not len(words):
            return self._nothing(space)
        memory = self._node.pool.table.memory
        numbers, control, rows = memory.find_rows(words, space)
        good = (numbers >= 0) & is_ready(control)
        valid = memory.valid(numbers, rows)
        hits = leading(good if valid is None else good & valid)
        held = Held(self.client, space, numbers[:hits], rows[:hits])
        np.add.at(self._area.counters, held.descriptors, _ONE)
        return held

    def shorten(self, held: Held, blocks: int) -> None:
        """Let go all but the leading blocks."""
        rest, held.descriptors = held.descriptors[blocks:], held.descriptors[:blocks]
        held.rows = held.rows[:blocks]
        self._lower(held.client, rest)

    def release(self, held: Held) -> None:
        """Let go; a second time does nothing."""
        self.shorten(held, 0)

    def _lower(self, client: int, descriptors: I64) -> None:
        if client != self.client:
            raise ValueError(f"held by client {client}, not by {self.client}")
        # Also after a detach: what a lost peer held is held until then. Without an engine nobody looks at its area.
        np.subtract.at(self._area.counters, descriptors, _ONE)

    # ---- what it used

    def looked_up(self, tenant: str, requested: int, hits: int, now: float) -> None:
        """Count one look-up of a tenant, in blocks of the chain: once a request, however many spaces were asked."""
        requested = min(requested, RING_COUNT_MASK)
        first = RING_LOOKUP << RING_KIND_SHIFT | requested << RING_COUNT_BITS | min(hits, requested)
        self._tell(np.array([[first, tenant_fingerprint(tenant)]], np.uint64), now)

    def used(self, held: Held, now: float) -> None:
        """Held blocks are read: they are recent, and count for their tenant, hot prefixes and the trace of accesses."""
        count = len(held)
        if not count:
            return
        entries = np.empty((count, 2), np.uint64)
        positions = np.arange(count - 1, -1, -1, dtype=np.int64) << RING_POSITION_SHIFT
        entries[:, 0] = (held.descriptors[::-1] | positions).astype(np.uint64) | _TOUCH
        entries[:, 1] = held.rows[::-1, HOT_CONTROL]  # tail first, so that ancestors stay newest
        self._tell(entries, now)

    def _tell(self, entries: U64, now: float) -> None:
        """Append to the ring, which is drained first where that is needed; of more than fit the last ones."""
        if not self.attached:
            return
        ring, size = self._area.ring, self._area.ring_entries
        entries = entries[-size:]
        if self._head - self._engine.ring.tail + len(entries) > size:
            self._node.uses.drain(self._engine, now)
        first = self._head % size
        ends = min(len(entries), size - first)
        ring[first : first + ends] = entries[:ends]
        ring[: len(entries) - ends] = entries[ends:]
        self._head += len(entries)
        self._area.header[A_RING_HEAD] = self._head

    # ---- the end

    def detach(self, reason: str, now: float) -> None:
        """The peer is lost: its rights end, and its bytes wait until its process is proven gone."""
        if self.attached:
            self._node.detach(self.client, reason, now)

    def goodbye(self, now: float) -> None:
        """The peer holds and writes nothing any more."""
        if self._node.engines.get(self.client) is self._engine:
            self._node.goodbye(self.client, now)

    def process_gone(self, now: float) -> None:
        """The peer's process is proven gone."""
        if self._node.engines.get(self.client) is self._engine:
            self._node.process_gone(self.client, now)

    # ---- inside

    def _check(self) -> None:
        if not self.attached:
            raise ProtocolError(Code.NOT_ATTACHED, f"engine {self.client} is not attached any more")

    def _nothing(self, space: int = 0) -> Held:
        return Held(self.client, space, np.empty(0, np.int64), np.empty((0, HOT_WORDS), np.uint64))

    def _take_over(self) -> Held:
        """Everything that the counters say, each block as often as it is held."""
        counters = self._area.counters
        numbers: I64 = np.flatnonzero(counters)
        descriptors = np.repeat(numbers, counters[numbers])
        return Held(self.client, 0, descriptors, self._node.pool.table.memory.hot[descriptors])
