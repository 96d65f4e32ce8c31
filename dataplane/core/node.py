"""The node: attached engines and the pool, seen as messages in, answers and events out.

`Node` is what transports call. Each method takes a decoded message and the time, answers or raises `ProtocolError`, and
leaves events for `take_events`. One thread; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dataplane.core.blocks import BlockTable
from dataplane.core.engines import Engine
from dataplane.core.intent import Intent
from dataplane.core.leases import LeaseTable
from dataplane.core.pool import Pool
from dataplane.core.ports import Memory
from dataplane.core.quotas import wrapped
from dataplane.core.rings import RingReader, replay
from dataplane.core.slabs import Slabs
from dataplane.core.storing import Granted, Storing, check_keys
from dataplane.eviction import EvictionPolicy
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.engine import VERSION, Abort, Attach, Commit, Lease, Reserve
from dataplane.protocol.events import (
    EngineAttached,
    EngineDetached,
    EngineGone,
    Event,
    NodeStats,
    ObservedDigest,
    PinDegraded,
)
from dataplane.protocol.layout import HOT_NBYTES, IndexMemory, is_ready, leading
from dataplane.protocol.states import State

MAX_GROUP_CHARACTERS = 128
MAX_ENGINE_CHARACTERS = 128
MAX_SPACES_PER_ENGINE = 1024
MAX_WAITING_EVENTS = 100_000
SETTLE_INTERVAL_S = 0.5
"""Between tries to bring tenants under their limits whose blocks are leased."""


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Numbers that the core runs under."""

    name: str
    epoch: str
    capacity_bytes: int
    segment_bytes: int
    reservation_ttl_s: float
    pin_budget_bytes: int
    max_clients: int


class Node:
    """One data plane's decisions."""

    def __init__(
        self,
        options: NodeOptions,
        index: IndexMemory,
        memory: Memory,
        leases: LeaseTable,
        policy: Callable[[], EvictionPolicy],
        now: float,
    ) -> None:
        self.options = options
        self.started_at = now
        self._events: list[Event] = []
        self._events_dropped = 0
        self._memory = memory
        self._leases = leases
        self._refused: dict[str, int] = {}
        self.pool = Pool(
            BlockTable(index),
            Slabs(options.capacity_bytes, options.segment_bytes),
            leases,
            memory,
            policy,
            options.pin_budget_bytes,
            self.emit,
        )
        self.storing = Storing(self.pool, options.reservation_ttl_s, self._count_refused)
        self.intent = Intent(self.pool)
        self.engines: dict[int, Engine] = {}
        self._next_client = 1
        self._settle_at = now

    # ---- events

    def emit(self, event: Event) -> None:
        """Leave an event for the bus; drops and counts when nobody takes them."""
        if len(self._events) >= MAX_WAITING_EVENTS:
            self._events_dropped += 1
            return
        self._events.append(event)

    def take_events(self) -> list[Event]:
        """Events since the last call, oldest first."""
        events, self._events = self._events, []
        return events

    def _count_refused(self, code: Code, blocks: int) -> None:
        name = code.name.lower()
        self._refused[name] = self._refused.get(name, 0) + blocks

    # ---- engines come and go

    def attach(self, message: Attach, pid: int, now: float) -> tuple[Engine, list[int]]:
        """Take a process in; its area is in the lease scan when this returns. Answers its spaces' numbers."""
        if message.version != VERSION:
            raise ProtocolError(
                Code.VERSION_MISMATCH, f"this data plane speaks {VERSION}, got {message.version}", "version"
            )
        if len(self.engines) >= self.options.max_clients:
            raise ProtocolError(
                Code.TOO_MANY_CLIENTS, f"at most {self.options.max_clients} engines are served"
            )
        share = max(64, self.options.max_clients // 2)
        if sum(engine.pid == pid for engine in self.engines.values()) >= share:
            raise ProtocolError(
                Code.TOO_MANY_CLIENTS,
                f"at most {share} attachments of one process are served, lost ones included",
            )
        if not 1 <= len(message.group) <= MAX_GROUP_CHARACTERS or not message.group.isprintable():
            raise ProtocolError(
                Code.BAD_GROUP, f"expected 1 to {MAX_GROUP_CHARACTERS} printable characters", "group"
            )
        self._check_spaces(message)
        client = self._next_client
        try:
            area = self._memory.create_area(client)
        except MemoryError:
            raise ProtocolError(
                Code.OUT_OF_MEMORY, "the machine refused memory for the engine's area"
            ) from None
        self._next_client += 1
        numbers = [self.pool.spaces.number(request.space) for request in message.spaces]
        engine = Engine(
            client=client,
            pid=pid,
            group=message.group,
            name=message.engine[:MAX_ENGINE_CHARACTERS],
            attached_at=now,
            spaces={number: request.writes for number, request in zip(numbers, message.spaces, strict=True)},
            space_list=[request.space for request in message.spaces],
            ring=RingReader(area),
        )
        self._leases.add(client, area)
        self.engines[client] = engine
        models = sorted({request.space.model for request in message.spaces})
        self.emit(EngineAttached(now, client, pid, engine.group, engine.name, models))
        return engine, numbers

    def _check_spaces(self, message: Attach) -> None:
        if not 1 <= len(message.spaces) <= MAX_SPACES_PER_ENGINE:
            raise ProtocolError(
                Code.BAD_SPACE,
                f"expected 1 to {MAX_SPACES_PER_ENGINE} spaces, got {len(message.spaces)}",
                "spaces",
            )
        for at, request in enumerate(message.spaces):
            self.pool.spaces.check(request.space, f"spaces[{at}].space")
        identities = {request.space.identity() for request in message.spaces}
        if len(identities) != len(message.spaces):
            raise ProtocolError(Code.BAD_SPACE, "expected each space once", "spaces")

    def detach(self, client: int, reason: str, now: float) -> None:
        """The connection closed without a goodbye: rights end, bytes wait until the processes are proven gone."""
        engine = self.engines.get(client)
        if engine is None or not engine.connected:
            return
        self._drain(engine, now)
        engine.connected = False
        engine.waits_for = {
            other.client for other in self.engines.values() if other.group == engine.group and other.alive
        }
        blocks = self.storing.lose_owner(engine)
        self.emit(EngineDetached(now, client, engine.pid, engine.group, reason, blocks))
        self._reap(engine, now)

    def goodbye(self, client: int, now: float) -> None:
        """The process says that it holds and maps nothing any more."""
        engine = self.engines.get(client)
        if engine is None:
            return
        self._drain(engine, now)
        for number in [*engine.reservations, *engine.expired]:
            self.storing.abort(engine, number, now)
        engine.connected = False
        self.emit(EngineDetached(now, client, engine.pid, engine.group, "goodbye", 0))
        self._forget(engine, now)

    def process_gone(self, client: int, now: float) -> None:
        """The process is proven gone (its pidfd says so)."""
        engine = self.engines.get(client)
        if engine is None:
            return
        engine.alive = False
        if engine.connected:
            self.detach(client, "process exited", now)
        for other in list(self.engines.values()):
            other.waits_for.discard(client)
            self._reap(other, now)

    def _reap(self, engine: Engine, now: float) -> None:
        # One end may bring another: an engine that was forgotten meanwhile is not forgotten twice.
        if not engine.connected and not engine.alive and engine.client in self.engines:
            engine.waits_for.discard(engine.client)
            if not engine.waits_for:
                self._forget(engine, now)

    def _forget(self, engine: Engine, now: float) -> None:
        blocks, size = self.storing.release_all(engine)
        self._leases.remove(engine.client)
        self._memory.retire_area(engine.client)
        del self.engines[engine.client]
        for other in list(self.engines.values()):
            if engine.client in other.waits_for:
                other.waits_for.discard(engine.client)
                self._reap(other, now)
        self.emit(EngineGone(now, engine.client, engine.pid, engine.group, blocks, size))

    # ---- requests of engines

    def reserve(self, client: int, message: Reserve, now: float) -> Granted:
        engine = self.engines[client]
        self._drain(engine, now)
        return self.storing.reserve(engine, message, now)

    def commit(self, client: int, message: Commit, now: float) -> int:
        return self.storing.commit(self.engines[client], message, now)

    def abort(self, client: int, message: Abort, now: float) -> None:
        self.storing.abort(self.engines[client], message.reservation, now)

    def lease(self, client: int, message: Lease) -> list[int]:
        """Leading READY blocks of a chain, leased in the client's own area."""
        engine = self.engines[client]
        if message.space not in engine.spaces:
            raise ProtocolError(Code.UNKNOWN_SPACE, f"space {message.space} is not attached", "space")
        words = check_keys(message.keys)
        numbers, control = self.pool.table.memory.find(words, message.space)
        hits = leading((numbers >= 0) & is_ready(control))
        descriptors: list[int] = numbers[:hits].tolist()
        self._leases.raise_for(client, descriptors)
        return descriptors

    def segments_for(self, client: int, wanted: list[int]) -> list[tuple[int, int, bool]]:
        """(segment, bytes, writable) for segments that an engine may map; others are left out."""
        engine = self.engines[client]
        grants = []
        for number in wanted:
            segment = self.pool.slabs.segments.get(number)
            if segment is not None and segment.space in engine.spaces:
                grants.append((number, segment.nbytes, engine.spaces[segment.space]))
        return grants

    # ---- time passes

    def tick(self, now: float) -> None:
        """Drain rings, end deadlines, settle limits. Called a few times a second."""
        for engine in self.engines.values():
            self._drain(engine, now)
            if engine.reservations:
                self.storing.expire(engine, now)
        self.intent.expire_pins(now)
        if now >= self._settle_at:
            self._settle_at = now + SETTLE_INTERVAL_S
            self.intent.settle(now)
            self.pool.tenants.prune()
            self.pool.forget_spaces(
                {space for engine in self.engines.values() for space in engine.spaces}, now
            )
        self.pool.promote_pins()
        for pin in self.pool.pins.take_degraded():
            self.emit(PinDegraded(now, pin.name, pin.resident - pin.guaranteed))

    def _drain(self, engine: Engine, now: float) -> None:
        pool = self.pool
        sums = replay(engine.ring, pool.table, pool.tenants, lambda number: pool.touch_number(number, now))
        totals = pool.totals
        totals.bytes_out = wrapped(totals.bytes_out + sums.bytes_out)
        totals.requested_blocks = wrapped(totals.requested_blocks + sums.requested)
        totals.hit_blocks = wrapped(totals.hit_blocks + sums.hits)

    # ---- state

    def stats(self, now: float) -> NodeStats:
        """The node as it is."""
        pool = self.pool
        pool.totals.ring_dropped = sum(engine.ring.dropped for engine in self.engines.values())
        pool.totals.events_dropped = self._events_dropped
        tenants, others = pool.tenants.stats()
        return NodeStats(
            at=now,
            node=self.options.name,
            epoch=self.options.epoch,
            uptime_s=now - self.started_at,
            armed=self.intent.armed,
            pool=pool.stats(),
            totals=pool.totals,
            refused=dict(self._refused),
            tenants=tenants,
            other_tenants=others,
            pins=[pin.stats(len(pool.spaces.of_model(pin.model))) for pin in pool.pins.by_name.values()],
            engines=[engine.stats() for engine in self.engines.values()],
            observed={
                kind: ObservedDigest(held.generation, held.digest, held.store)
                for kind, held in self.intent.observed.items()
            },
        )

    def check(self) -> list[str]:
        """Contradictions between the books; empty when all is well. O(blocks): for audits, not for every day."""
        pool = self.pool
        blocks = list(pool.table.blocks.values())
        faults = []
        charges = sum(block.charge for block in blocks)
        by_tenant = sum(tenant.bytes for tenant in pool.tenants.by_salt.values())
        if not charges == by_tenant == pool.used_bytes:
            faults.append(f"bytes: blocks {charges}, tenants {by_tenant}, pool {pool.used_bytes}")
        taken = {(block.slot.slab.segment.number, block.slot.offset) for block in blocks}
        if len(taken) != len(blocks):
            faults.append("two blocks share a slot")
        evictable = sum(block.state is State.READY and not block.guaranteed for block in blocks)
        if evictable != len(pool.order.all):
            faults.append(f"order holds {len(pool.order.all)} blocks, {evictable} are evictable")
        control = pool.table.memory.control
        live = np.flatnonzero(control & np.uint64(0xFF))
        if len(live) != len(blocks):
            faults.append(f"{len(live)} descriptors are not FREE, {len(blocks)} blocks are known")
        described = int(pool.table.memory.hot[live, HOT_NBYTES].sum())
        known = sum(block.nbytes for block in blocks)
        unpadded = pool.used_bytes - pool.padding_bytes
        if not described == known == unpadded:
            faults.append(
                f"block bytes: descriptors {described}, blocks {known}, pool without padding {unpadded}"
            )
        entries = int(np.count_nonzero(pool.table.memory.entries))
        listed = sum(block.entry is not None for block in blocks)
        if entries != listed:
            faults.append(f"index holds {entries} entries, {listed} blocks are listed")
        return faults
