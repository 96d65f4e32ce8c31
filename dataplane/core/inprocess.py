"""Engines that a gateway of this process attaches, in the name of processes that speak another protocol.

What `dataplane.client` does in a process of its own, by calls instead of messages: attach, reserve, commit, hold and
let go. Leases are counters in the area of the engine and uses go through its ring, so eviction, audit, accounting and
a restarted data plane see nothing unusual. One thread, the data plane's; nothing here waits, and nothing but
ProtocolError is raised.

Whose process a peer is, the gateway knows: it says `detach` when a peer is lost, `process_gone` when its end is proven,
and `goodbye` when it reads and writes nothing any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from dataplane.core.quotas import wrapped
from dataplane.core.storing import check_keys
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.engine import Abort, Attach, Commit, Reserve
from dataplane.protocol.keys import tenant_fingerprint
from dataplane.protocol.layout import (
    A_RING_HEAD,
    HOT_CONTROL,
    HOT_OFFSET,
    HOT_SPACE_SEGMENT,
    HOT_WORDS,
    I64,
    RING_KIND_SHIFT,
    RING_POSITION_SHIFT,
    RING_TOUCH,
    U64,
    is_ready,
    leading,
)
from dataplane.protocol.short_chains import MOST_KEYS, Found, leading_of

if TYPE_CHECKING:
    from dataplane.core.engines import Engine
    from dataplane.core.node import Node
    from dataplane.core.storing import Granted

_TOUCH = RING_TOUCH << RING_KIND_SHIFT
_COUNTER = 0xFFFFFFFF
_ONE = np.uint32(1)
_SHIFT32 = np.uint64(32)
_fingerprint = lru_cache(maxsize=4096)(tenant_fingerprint)


@dataclass(frozen=True, slots=True)
class Held:
    """Leading READY blocks of a chain, first one first, whose counters were raised in an engine's area."""

    descriptors: list[int]
    segments: list[int]
    offsets: list[int]
    """Bytes from the start of each block's segment."""

    def __len__(self) -> int:
        return len(self.descriptors)


class InProcess:
    """The core, for gateways."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._noted: dict[int, None] = {}
        """Engines that used something since the last `settle`."""
        self.unsettled = 0
        """Blocks that they used."""

    @property
    def engines(self) -> Mapping[int, Engine]:
        """All engines of the node, by client number."""
        return self._node.engines

    def lost(self, gateway: str) -> list[Engine]:
        """Engines of a gateway without a peer: detached, or attached before a restart and not resumed since."""
        return [
            engine
            for engine in self._node.engines.values()
            if engine.gateway == gateway and not engine.connected
        ]

    # ---- they come and go

    def attach(
        self, message: Attach, pid: int, now: float, started: int = 0, gateway: str = ""
    ) -> tuple[Engine, list[int]]:
        """Take a peer of a gateway in; answers its spaces' numbers. Raises ProtocolError.

        Every space has this `Space.gateway`. Without any the engine writes nothing; all of them may hold blocks of
        every space of the gateway. `pid` and `started` (clock ticks since boot) are those of the peer, 0 where they are
        not known. `message.resume`, `resume_memory` and `writing` work as on the socket, also without a pid: then the
        gateway vouches for its being the same peer.
        """
        return self._node.attach(message, pid, now, started, gateway)

    def detach(self, client: int, reason: str, now: float) -> None:
        """The peer is lost: its rights end, and its bytes wait until its process is proven gone."""
        self._node.detach(client, reason, now)

    def goodbye(self, client: int, now: float) -> None:
        """The peer reads and writes nothing any more."""
        self._node.goodbye(client, now)

    def process_gone(self, client: int, now: float) -> None:
        """The peer's process is proven gone."""
        self._node.process_gone(client, now)

    # ---- storing

    def reserve(self, client: int, message: Reserve, now: float) -> Granted:
        """Room for the missing blocks of a chain in a space of the engine. Raises ProtocolError.

        `Granted.outcomes` has an `Outcome` or the `Code` of a refusal for each key; where it is WRITE, `segments`
        and `offsets` say where. `reservation` is 0 when there is nothing to write.
        """
        self._attached(client)
        return self._node.reserve(client, message, now)

    def commit(self, client: int, message: Commit, now: float) -> int:
        """Publish blocks of a reservation and abort the rest; returns published blocks. Raises ProtocolError."""
        self._attached(client)
        return self._node.commit(client, message, now)

    def abort(self, client: int, message: Abort, now: float) -> None:
        """Give a reservation up: the peer writes there no more. Raises ProtocolError."""
        self._attached(client)
        self._node.abort(client, message, now)

    # ---- reading

    def hold(
        self,
        client: int,
        space: int,
        keys: bytes,
        tenant: str,
        now: float,
        *,
        asked: bool,
        used: bool = True,
        most: int | None = None,
    ) -> Held:
        """Lease the leading READY blocks of a chain, `most` at most, in the engine's own area. Raises ProtocolError.

        `asked`: it counts as a look-up of the tenant. `used`: what is held counts as used at once (else see `use`).
        """
        engine = self._attached(client)
        declared = self._node.pool.spaces.by_number.get(space)
        if declared is None or declared.gateway != engine.gateway:
            raise ProtocolError(
                Code.UNKNOWN_SPACE, f"space {space} is none of the {engine.gateway} gateway", "space"
            )
        words = check_keys(keys)
        found = self._leading(words if most is None else words[: max(0, most)], space)
        _raise(engine, found.numbers)
        if asked:
            self.looked_up(tenant, space, len(words), len(found.numbers), now)
        if used and found.numbers:
            self._note(engine, found.numbers, found.controls, now)
        return Held(found.numbers, found.segments, found.offsets)

    def _leading(self, words: U64, space: int) -> Found:
        """The leading READY blocks of a chain."""
        memory = self._node.pool.table.memory
        if len(words) <= MOST_KEYS:
            found = leading_of(memory, words, space)
            if found is not None:
                return found
        numbers, control, rows = memory.find_rows(words, space)
        good = (numbers >= 0) & is_ready(control)
        valid = memory.valid(numbers, rows)
        hits = leading(good if valid is None else good & valid) if len(words) else 0
        rows = rows[:hits]
        return Found(
            numbers[:hits].tolist(),
            rows[:, HOT_CONTROL].tolist(),
            (rows[:, HOT_SPACE_SEGMENT] >> _SHIFT32).tolist(),
            rows[:, HOT_OFFSET].tolist(),
        )

    def let_go(self, client: int, descriptors: Sequence[int]) -> None:
        """Lower counters that `hold` raised. An engine that is gone by now has none: nothing happens."""
        engine = self._node.engines.get(client)
        if engine is not None:
            _lower(engine, descriptors)

    def held(self, client: int) -> list[int]:
        """Descriptors whose counters are up in an engine's area, each as often as it is."""
        engine = self._node.engines.get(client)
        if engine is None:
            return []
        counters = engine.ring.area.counters
        numbers: I64 = np.flatnonzero(counters)
        held: list[int] = np.repeat(numbers, counters[numbers]).tolist()
        return held

    # ---- what it used

    def looked_up(self, tenant: str, space: int, requested: int, hits: int, now: float) -> None:
        """Count a look-up of a tenant, in blocks; its tokens count when the space leads (rank, stage and group 0)."""
        pool = self._node.pool
        pool.usage.pass_to(now)
        pool.tenants.looked_up(
            _fingerprint(tenant), requested, hits, space if pool.spaces.leads(space) else 0
        )
        totals = pool.totals
        totals.requested_blocks = wrapped(totals.requested_blocks + requested)
        totals.hit_blocks = wrapped(totals.hit_blocks + hits)

    def use(self, client: int, descriptors: Sequence[int], now: float) -> None:
        """Blocks of a chain, first one first, that the engine holds are read: they are recent, and count for their
        tenant, hot prefixes and the trace of accesses."""
        engine = self._attached(client)
        memory = self._node.pool.table.memory
        cells, first = memory.cells, memory.first_hot + HOT_CONTROL
        self._note(engine, descriptors, [cells[first + HOT_WORDS * number] for number in descriptors], now)

    def _note(self, engine: Engine, numbers: Sequence[int], controls: Sequence[int], now: float) -> None:
        """Append to the engine's ring, tail first, so that ancestors stay newest. It is drained when it has no room."""
        reader = engine.ring
        area, size = reader.area, reader.area.ring_entries
        numbers, controls = numbers[:size], controls[:size]
        count = len(numbers)
        head = int(area.header[A_RING_HEAD])
        if head - reader.tail + count > size:
            self._node.uses.drain(engine, now)
        if count <= MOST_KEYS:
            ring = area.ring.data
            for position in range(count - 1, -1, -1):
                at = (head + count - 1 - position) % size
                ring[at, 0] = numbers[position] | position << RING_POSITION_SHIFT | _TOUCH
                ring[at, 1] = controls[position]
        else:
            rows = np.arange(head, head + count) % size
            positions = np.arange(count - 1, -1, -1, dtype=np.int64) << RING_POSITION_SHIFT
            area.ring[rows, 0] = (np.array(numbers[::-1], np.int64) | positions).astype(
                np.uint64
            ) | np.uint64(_TOUCH)
            area.ring[rows, 1] = np.array(controls[::-1], np.uint64)
        area.header[A_RING_HEAD] = head + count
        self._noted[engine.client] = None
        self.unsettled += count

    def settle(self, now: float) -> None:
        """Take note now of what engines of gateways used: often and of little, where a tick has it all at once."""
        noted, self._noted, self.unsettled = self._noted, {}, 0
        for client in noted:
            engine = self._node.engines.get(client)
            if engine is not None:
                self._node.uses.drain(engine, now)

    # ---- what the gateway may ask for

    def clear_gateway(self, gateway: str, now: float, *, force: bool) -> int:
        """Make every block of a gateway's spaces unreadable, but what permanent pins want; the sweep's number.

        Without `force` what is leased or being written now stays; with it, leased bytes stay until they are let go.
        """
        return self._node.clear_gateway(gateway, now, force=force).sweep

    def _attached(self, client: int) -> Engine:
        engine = self._node.engines.get(client)
        if engine is None or not engine.connected or not engine.gateway:
            raise ProtocolError(Code.NOT_ATTACHED, f"no engine {client} of a gateway is attached (any more)")
        return engine


def _raise(engine: Engine, numbers: Sequence[int]) -> None:
    counters = engine.ring.area.counters
    if len(numbers) > MOST_KEYS:
        np.add.at(counters, np.array(numbers, np.int64), _ONE)
        return
    cells = counters.data
    for number in numbers:
        cells[number] = cells[number] + 1 & _COUNTER


def _lower(engine: Engine, numbers: Sequence[int]) -> None:
    counters = engine.ring.area.counters
    if len(numbers) > MOST_KEYS:
        np.subtract.at(counters, np.array(numbers, np.int64), _ONE)
        return
    cells = counters.data
    for number in numbers:
        cells[number] = cells[number] - 1 & _COUNTER
