"""Engines that a gateway in this process attaches on behalf of peers that speak another protocol.

This module does what `dataplane.client` does in an engine's process: hold, release and use blocks. For everything that
an engine asks for by message (attach, reserve, commit, abort), gateways call `Node`. Leases are counters in the area of
the engine, and uses go through its ring, so eviction, audit, accounting and a restarted data plane need no special
case. Only the thread of the data plane calls it; no method blocks, and methods raise only ProtocolError.

The gateway tracks the processes of its peers. It calls `Node.detach` when it loses a peer, `Node.process_gone` when the
end of the peer's process is proven, and `Node.detach_cleanly` when the peer no longer reads or writes anything.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from dataplane.core.blocks.lookup_leases import LookupLeases
from dataplane.core.blocks.slabs import slot_bytes
from dataplane.core.engines.requests import MissFinding
from dataplane.core.packed_keys import check_keys
from dataplane.core.tenants.tenant import Tenant, wrapped
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.requests import RequestRecord
from dataplane.protocol.keys import tenant_fingerprint
from dataplane.protocol.layout import (
    A_RING_HEAD,
    H_MEMORY,
    HOT_CONTROL,
    HOT_OFFSET,
    HOT_SPACE_SEGMENT,
    HOT_WORDS,
    I64,
    RING_KIND_SHIFT,
    RING_POSITION_SHIFT,
    RING_TOUCH,
    U64,
)
from dataplane.protocol.short_chains import MAX_KEYS, ShortChain, leading_of
from dataplane.protocol.states import State
from dataplane.protocol.stats.pool import Totals

if TYPE_CHECKING:
    from dataplane.core.engines.engines import Engine
    from dataplane.core.node import Node

_TOUCH = RING_TOUCH << RING_KIND_SHIFT
_COUNTER = 0xFFFFFFFF
_SHIFT32 = np.uint64(32)
_fingerprint = lru_cache(maxsize=4096)(tenant_fingerprint)


@dataclass(frozen=True, slots=True)
class LeasedChain:
    """Leading READY blocks of a chain, in chain order, whose lease counters were raised in an engine's area."""

    descriptors: list[int]
    segments: list[int]
    offsets: list[int]
    """Offset of each block in bytes from the start of its segment."""

    def __len__(self) -> int:
        return len(self.descriptors)


class InProcess:
    """Interface of the core for gateways."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._noted: dict[int, None] = {}
        """Engines that used blocks since the last `settle`, by client number."""
        self.unsettled = 0
        """Number of blocks that these engines used."""

    @property
    def memory_identity(self) -> int:
        """Identity of the core's memory, which decides whether engines can be resumed after a restart."""
        return int(self.node.pool.table.memory.cells[H_MEMORY])

    @property
    def lookups(self) -> LookupLeases:
        """What the look-ups of all gateways hold."""
        return self.node.pool.lookups

    @property
    def totals(self) -> Totals:
        """The totals of the node."""
        return self.node.totals

    def lost(self, gateway: str) -> list[Engine]:
        """Return the engines of a gateway that have no peer: they detached, or attached before a restart and have not
        resumed."""
        return [engine for engine in self.node.engines.values() if engine.gateway == gateway and not engine.connected]

    def next_ranges(self, space: int, keys: bytes, nbytes: int) -> list[tuple[int, int]]:
        """Return the ranges (base, bytes) of the named segment that a store would begin to use. Raise
        ProtocolError."""
        pool = self.node.pool
        declared = pool.spaces.by_number.get(space)
        if declared is None:
            return []
        size, spaces = slot_bytes(nbytes, declared.block_bytes), len(pool.spaces.by_number)
        words = check_keys(keys)
        if not pool.slabs.next_ranges(space, size, len(words), spaces):
            return []
        missing = sum(block is None for block in pool.table.find(words, space))
        return pool.slabs.next_ranges(space, size, missing, spaces) if missing else []

    # ---- reading

    def hold(self, client: int, space: int, keys: bytes, *, most: int | None = None) -> LeasedChain:
        """Lease the leading READY blocks of a chain, at most `most`, in the engine's own area. Raise ProtocolError.

        The blocks count as used once `use` is called, and the call as a look-up once `looked_up` is.
        """
        engine = self._attached(client)
        declared = self.node.pool.spaces.by_number.get(space)
        if declared is None or declared.gateway != engine.gateway:
            raise ProtocolError(
                Code.UNKNOWN_SPACE, f"space {space} does not belong to the {engine.gateway} gateway", "space"
            )
        words = check_keys(keys)
        chain = self._leading(words if most is None else words[: max(0, most)], space)
        _count(engine, chain.numbers, 1)
        return LeasedChain(chain.numbers, chain.segments, chain.offsets)

    def _leading(self, words: U64, space: int) -> ShortChain:
        """Return the leading READY blocks of a chain."""
        memory = self.node.pool.table.memory
        if len(words) <= MAX_KEYS:
            chain = leading_of(memory, words, space)
            if chain is not None:
                return chain
        numbers, rows = memory.leading_ready(words, space)
        return ShortChain(
            numbers.tolist(),
            rows[:, HOT_CONTROL].tolist(),
            (rows[:, HOT_SPACE_SEGMENT] >> _SHIFT32).tolist(),
            rows[:, HOT_OFFSET].tolist(),
        )

    def release(self, client: int, descriptors: Sequence[int]) -> None:
        """Lower counters that `hold` raised. Do nothing when the engine is gone, because its counters are gone too."""
        engine = self.node.engines.get(client)
        if engine is not None:
            _count(engine, descriptors, -1)

    def held(self, client: int) -> list[int]:
        """Return the descriptors that an engine leases, each repeated by the value of its counter."""
        engine = self.node.engines.get(client)
        if engine is None:
            return []
        counters = engine.ring.area.counters
        numbers: I64 = np.flatnonzero(counters)
        descriptors: list[int] = np.repeat(numbers, counters[numbers]).tolist()
        return descriptors

    def held_by_tenant(self, client: int) -> list[list[int]]:
        """Return the descriptors of `held`, in one list for each tenant."""
        blocks = self.node.pool.table.blocks
        by_tenant: dict[Tenant, list[int]] = {}
        for number in self.held(client):
            by_tenant.setdefault(blocks[number].tenant, []).append(number)
        return list(by_tenant.values())

    # ---- usage

    def looked_up(self, tenant: str, space: int, requested: int, hits: int, now: float) -> None:
        """Count a look-up of a tenant in blocks. Count its tokens only in the leading space (rank, stage and group
        0)."""
        pool = self.node.pool
        pool.usage.pass_to(now)
        pool.tenants.looked_up(_fingerprint(tenant), requested, hits, space if pool.spaces.leads(space) else 0)
        totals = pool.totals
        totals.requested_blocks = wrapped(totals.requested_blocks + requested)
        totals.hit_blocks = wrapped(totals.hit_blocks + hits)

    def why_missing(self, spaces: Collection[int], key: bytes) -> MissFinding:
        """Return why a block is missing in one of these spaces: reason, cause and time as in `RequestReported`."""
        return self.node.requests.why_missing(spaces, key)

    def keep_request(self, client: int, space: int, record: RequestRecord) -> None:
        """Keep the record of a request of a peer, whose `model` is that of the space."""
        declared = self.node.pool.spaces.by_number.get(space)
        record.model = "" if declared is None else declared.model
        self.node.requests.keep(client, record)

    def use(self, client: int, descriptors: Sequence[int], now: float) -> None:
        """Record a read of blocks that the engine holds, in chain order, as `touch` does. The read also counts for
        their tenant, the hot prefixes and the access trace."""
        engine = self._attached(client)
        memory = self.node.pool.table.memory
        cells, first = memory.cells, memory.first_hot + HOT_CONTROL
        self._note(engine, descriptors, [cells[first + HOT_WORDS * number] for number in descriptors], now)

    def touch(self, descriptors: Sequence[int], now: float) -> None:
        """Record that a request had blocks in its engine's own memory, in chain order. The blocks become recent, and
        count as hit for their pins, their reuse and the tiers that store blocks at their first hit."""
        blocks = self.node.pool.table.blocks
        leased = [blocks[number] for number in reversed(descriptors) if number in blocks]
        self.node.pool.use([block for block in leased if block.state is State.READY], now)

    def _note(self, engine: Engine, numbers: Sequence[int], controls: Sequence[int], now: float) -> None:
        """Append uses to the engine's ring, tail first, so that ancestors stay newest. Drain a full ring first."""
        reader = engine.ring
        area, size = reader.area, reader.area.ring_entries
        numbers, controls = numbers[:size], controls[:size]
        count = len(numbers)
        head = int(area.header[A_RING_HEAD])
        if head - reader.tail + count > size:
            self.node.uses.drain(engine, now)
        if count <= MAX_KEYS:
            ring = area.ring.data
            for position in range(count - 1, -1, -1):
                at = (head + count - 1 - position) % size
                ring[at, 0] = numbers[position] | position << RING_POSITION_SHIFT | _TOUCH
                ring[at, 1] = controls[position]
        else:
            rows = np.arange(head, head + count) % size
            positions = np.arange(count - 1, -1, -1, dtype=np.int64) << RING_POSITION_SHIFT
            area.ring[rows, 0] = (np.array(numbers[::-1], np.int64) | positions).astype(np.uint64) | np.uint64(_TOUCH)
            area.ring[rows, 1] = np.array(controls[::-1], np.uint64)
        area.header[A_RING_HEAD] = head + count
        self._noted[engine.client] = None
        self.unsettled += count

    def settle(self, now: float) -> None:
        """Drain the rings of the engines that used blocks since the last call.

        Frequent calls process a few uses each, whereas a tick would process all of them at once.
        """
        noted, self._noted, self.unsettled = self._noted, {}, 0
        for client in noted:
            engine = self.node.engines.get(client)
            if engine is not None:
                self.node.uses.drain(engine, now)

    def _attached(self, client: int) -> Engine:
        engine = self.node.engines.connected(client)
        if not engine.gateway:
            raise ProtocolError(Code.NOT_ATTACHED, f"engine {client} is of no gateway")
        return engine


def _count(engine: Engine, numbers: Sequence[int], step: int) -> None:
    """Add 1 or -1 to lease counters, modulo their size."""
    counters = engine.ring.area.counters
    if len(numbers) > MAX_KEYS:
        np.add.at(counters, np.array(numbers, np.int64), np.uint32(step & _COUNTER))
        return
    cells = counters.data
    for number in numbers:
        cells[number] = cells[number] + step & _COUNTER
