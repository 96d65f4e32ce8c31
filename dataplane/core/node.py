"""The node: attached engines and the pool, seen as messages in, answers and events out.

`Node` is what transports call. Each method takes a decoded message and the time, answers or raises `ProtocolError`, and
leaves events for `take_events`. One thread; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dataplane.core import scopes
from dataplane.core.accesses import Accesses
from dataplane.core.audit import contradictions
from dataplane.core.blocks import BlockTable
from dataplane.core.books import B_CAPACITY, B_CLIENT, B_SEGMENT, B_SPACE, B_TENANT, Books
from dataplane.core.engines import (
    Engine,
    Reservation,
    check_gateway,
    check_newcomer,
    live_names,
    name_of_engine,
    resumable,
)
from dataplane.core.integrity import Integrity
from dataplane.core.intent import Intent
from dataplane.core.leases import LeaseTable
from dataplane.core.listing import list_blocks
from dataplane.core.lookups import look_up
from dataplane.core.names import EngineEnd, Names, SpaceName
from dataplane.core.pool import Pool
from dataplane.core.ports import Memory
from dataplane.core.prefixes import Measure, Prefixes
from dataplane.core.replicas import Replicas
from dataplane.core.rings import RingReader
from dataplane.core.room import Room
from dataplane.core.shelves import MakePolicy
from dataplane.core.slabs import SLOT_ALIGN, Slabs
from dataplane.core.stats import Counts, node_stats
from dataplane.core.storing import Granted, Storing, check_keys
from dataplane.core.sweeps import Begun, Kind
from dataplane.core.uses import Uses
from dataplane.core.verifying import Verifying
from dataplane.eviction.lru import Lru
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control import (
    MAX_TRACE_PART_BYTES,
    CachedBlock,
    Count,
    ListBlocks,
    Lookup,
    Prefix,
    Scope,
    SpaceHits,
)
from dataplane.protocol.engine import VERSION, Abort, Attach, Commit, Lease, Report, Reserve
from dataplane.protocol.events import (
    AdmissionChanged,
    EngineAttached,
    EngineDetached,
    EngineGone,
    Event,
    GatewayStats,
    NodeStats,
    PinDegraded,
    SweepDone,
)
from dataplane.protocol.layout import AreaMemory, IndexMemory, is_ready, leading
from dataplane.protocol.usage import UsageCounters

MAX_ENGINE_CHARACTERS = 128
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
    pin_budget_ratio: float
    """Share of the capacity that guaranteed pins may hold."""
    max_clients: int
    trace_blocks: int = 1 << 20
    """Blocks in the access trace."""
    page_bytes: int = SLOT_ALIGN
    """Segments are whole pages of this size."""
    named_bytes: int = 0
    """Size of the named segment, which gateways' spaces share; 0: there is none."""


class Node:
    """One data plane's decisions."""

    def __init__(
        self,
        options: NodeOptions,
        index: IndexMemory,
        memory: Memory,
        leases: LeaseTable,
        now: float,
        policy: MakePolicy = Lru,
        books: Books | None = None,
        names: Names | None = None,
    ) -> None:
        self.options = options
        self.started_at = now
        self._events: list[Event] = []
        self.counts = Counts()
        self._memory = memory
        self._leases = leases
        self.pool = Pool(
            BlockTable(index, books, names),
            Slabs(options.capacity_bytes, options.segment_bytes, options.page_bytes, options.named_bytes),
            leases,
            memory,
            policy,
            options.pin_budget_ratio,
            self.emit,
        )
        self.room = Room(self.pool)
        self.pool.usage.pass_to(now)
        self.storing = Storing(self.pool, self.room, options.reservation_ttl_s, self.counts.refused)
        self.intent = Intent(self.pool, self.room)
        self.integrity = Integrity(self.pool, memory, self.counts.refused, now)
        self.verifying = Verifying(self.pool, self.integrity, self.emit)
        self.engines: dict[int, Engine] = {}
        self.replicas = Replicas(self.pool, self.engines, self.emit)
        self.lets_in: list[str] = []
        """Public keys of management planes that may connect, to be told with the rest."""
        self.adopted_blocks = 0
        """Blocks that were here when this process began."""
        self.prefixes = Prefixes()
        self.accesses = Accesses(now, options.trace_blocks)
        self.uses = Uses(self.pool, self.engines, self.prefixes, self.accesses)
        self.storing.on_asked = self.uses.asked
        self._gate_closed = False
        table = self.pool.table
        table.names.live = partial(live_names, self.pool, self.engines)
        self._next_client = table.books.highest(B_CLIENT) + 1
        self.pool.slabs.never_below(table.books.highest(B_SEGMENT))
        self.pool.spaces.never_below(table.books.highest(B_SPACE))
        self.pool.tenants.never_below(table.books.highest(B_TENANT))
        self._settle_at = now
        self.gateway_stats: Callable[[float], GatewayStats | None] = lambda now: None
        """What the gateway of this node says of itself, where there is one."""

    # ---- events

    def emit(self, event: Event) -> None:
        """Leave an event for the bus; drops and counts when nobody takes them."""
        if len(self._events) >= MAX_WAITING_EVENTS:
            self.counts.events_dropped += 1
            return
        self._events.append(event)

    def take_events(self) -> list[Event]:
        """Events since the last call, oldest first."""
        events, self._events = self._events, []
        return events

    # ---- engines come and go

    def attach(
        self, message: Attach, pid: int, now: float, started: int = 0, gateway: str = ""
    ) -> tuple[Engine, list[int]]:
        """Take a process in; its area is in the lease scan when this returns. Answers its spaces' numbers.

        `Engine.resumed` says whether it goes on with the attachment that the message names. `started` is when the
        process started, in clock ticks since boot. `gateway` attaches in the name of its own engines.
        """
        if message.version != VERSION:
            raise ProtocolError(
                Code.VERSION_MISMATCH, f"this data plane speaks {VERSION}, got {message.version}", "version"
            )
        check_gateway(message, gateway)
        before = resumable(self.engines.get(message.resume), message, pid, self.pool, gateway)
        if before is not None:
            return self._resume(before, message, now)
        if self.storing.draining:
            raise ProtocolError(
                Code.DRAINING, "an operator drains this node: it takes no new engines; attach to another one"
            )
        check_newcomer(message, pid, self.engines, self.pool, self.options.max_clients, gateway)
        client = self._next_client
        try:
            area = self._memory.create_area(client)
        except MemoryError:
            raise ProtocolError(
                Code.OUT_OF_MEMORY, "the machine refused memory for the engine's area"
            ) from None
        self._next_client += 1
        self.pool.table.books.gave(B_CLIENT, client)
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
            started=started,
            gateway=gateway,
        )
        self._write_down(engine, numbers)
        self._leases.add(client, area)
        self.engines[client] = engine
        models = sorted({request.space.model for request in message.spaces})
        self.emit(EngineAttached(now, client, pid, engine.group, engine.name, models))
        return engine, numbers

    def _write_down(self, engine: Engine, numbers: Sequence[int]) -> None:
        """An engine and its spaces have a record before it can touch anything."""
        table, spaces = self.pool.table, self.pool.spaces.by_number
        for number in numbers:
            if (SpaceName, number) not in table.names.known:
                table.books.gave(B_SPACE, number)
                table.names.append(SpaceName(number, spaces[number]))
        table.names.append(name_of_engine(engine))

    def _resume(self, engine: Engine, message: Attach, now: float) -> tuple[Engine, list[int]]:
        """The process goes on with what it had. What it says it is not writing any more is released."""
        engine.connected = engine.resumed = True
        engine.waits_for.clear()
        self.pool.usage.pass_to(now)
        for number in engine.expired.keys() - set(message.writing):
            self.storing.release_quarantined(engine.expired.pop(number))
        models = sorted({space.model for space in engine.space_list})
        self.emit(EngineAttached(now, engine.client, engine.pid, engine.group, engine.name, models))
        return engine, list(engine.spaces)

    def adopt_engine(self, engine: Engine, area: AreaMemory) -> None:
        """An engine that attached to the data plane before this one: its counters are in the lease scan from now on."""
        self._leases.add(engine.client, area)
        self.engines[engine.client] = engine

    def detach(self, client: int, reason: str, now: float) -> None:
        """The connection closed without a goodbye: rights end, bytes wait until the processes are proven gone."""
        engine = self.engines.get(client)
        if engine is None or not engine.connected:
            return
        self.uses.drain(engine, now)
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
        self.uses.drain(engine, now)
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
        self.pool.usage.pass_to(now)
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
        self.pool.table.names.append(EngineEnd(engine.client))
        self._leases.remove(engine.client)
        self.integrity.forget(engine.client)
        self.replicas.forget(engine.client)
        self.accesses.forget(engine.client)
        self._memory.retire_area(engine.client)
        del self.engines[engine.client]
        self.counts.ring_gone(engine.ring)
        for other in list(self.engines.values()):
            if engine.client in other.waits_for:
                other.waits_for.discard(engine.client)
                self._reap(other, now)
        self.emit(EngineGone(now, engine.client, engine.pid, engine.group, blocks, size))

    # ---- requests of engines

    def reserve(self, client: int, message: Reserve, now: float) -> Granted:
        engine = self.engines[client]
        self.uses.drain(engine, now)
        return self.storing.reserve(engine, message, now)

    def commit(self, client: int, message: Commit, now: float) -> int:
        self.pool.usage.pass_to(now)
        return self.storing.commit(self.engines[client], message, now)

    def abort(self, client: int, message: Abort, now: float) -> None:
        self.pool.usage.pass_to(now)
        self.storing.abort(self.engines[client], message.reservation, now)

    def lease(self, client: int, message: Lease) -> list[int]:
        """Leading READY blocks of a chain, leased in the client's own area."""
        engine = self.engines[client]
        if message.space not in engine.spaces:
            raise ProtocolError(Code.UNKNOWN_SPACE, f"space {message.space} is not attached", "space")
        words = check_keys(message.keys)
        memory = self.pool.table.memory
        numbers, control, rows = memory.find_rows(words, message.space)
        good = (numbers >= 0) & is_ready(control)
        valid = memory.valid(numbers, rows)
        hits = leading(good if valid is None else good & valid)
        descriptors: list[int] = numbers[:hits].tolist()
        self._leases.raise_for(client, descriptors)
        return descriptors

    def report(self, client: int, message: Report, now: float) -> int:
        """Look at blocks that an engine found corrupt; how many were and are gone."""
        self.pool.usage.pass_to(now)
        return self.integrity.report(client, self.engines[client].spaces, message, now)

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
        self.pool.usage.pass_to(now)
        self.uses.drain_in_turn(now)
        for engine in self.engines.values():
            if engine.reservations:
                self.storing.expire(engine, now)
        self.intent.expire_pins(now)
        for sweep in self.pool.sweeps.step():
            self.emit(SweepDone(now, sweep.number, sweep.kind, sweep.blocks))
        self.verifying.step(now)
        self.pool.bury(now)
        policy = self.intent.policy
        if policy.high_watermark < 1.0:
            self.room.keep_below(policy.high_watermark, policy.low_watermark, now)
        if now >= self._settle_at:
            self._settle_at = now + SETTLE_INTERVAL_S
            self._settle(now)
        self.pool.promote_pins(now)
        self.replicas.step(now)
        for pin in self.pool.pins.take_degraded():
            self.emit(PinDegraded(now, pin.name, pin.degraded))

    def _settle(self, now: float) -> None:
        """What need not happen at every tick."""
        self.intent.settle(now)
        self.pool.tenants.prune()
        self.pool.segments.forget_spaces(
            {space for engine in self.engines.values() for space in engine.spaces}, now
        )
        admission = self.pool.admission
        closed = admission is not None and admission.closed(now)
        if closed is not self._gate_closed:
            self._gate_closed = closed
            idle_s = admission.victim_idle_s(now) if admission is not None else None
            self.emit(AdmissionChanged(now, closed, idle_s or 0.0))

    # ---- an operator's actions

    def invalidate(self, scope: Scope, now: float) -> Begun:
        """Make blocks unreadable from now on. Raises ProtocolError."""
        return scopes.sweep(self.pool, "invalidate", scope, self._open_reservations(), now)

    def drain(self, *, on: bool) -> None:
        """Take nothing new in, neither engines nor blocks, or take it again. What is here is served as before."""
        self.storing.draining = on

    def demote(self, scope: Scope, now: float) -> Begun:
        """Make blocks the first victims. Raises ProtocolError."""
        return scopes.sweep(self.pool, "demote", scope, self._open_reservations(), now)

    def clear(self, now: float, *, permanent: bool) -> Begun:
        """Make everything unreadable from now on, also under permanent pins when told so."""
        return scopes.clear(self.pool, self._open_reservations(), now, permanent=permanent)

    def clear_gateway(self, gateway: str, now: float, *, force: bool) -> Begun:
        """Make everything of a gateway's spaces unreadable from now on. Without `force` what is
        leased or being written stays."""
        if force:
            return scopes.clear_gateway(self.pool, gateway, (), self._open_reservations(), now)
        held = self._leases.held_by_anybody(self.pool.table.max_blocks)
        spared = [block for number, block in self.pool.table.blocks.items() if held[number]]
        return scopes.clear_gateway(self.pool, gateway, spared, (), now)

    def count(self, message: Count) -> tuple[int, int]:
        """Blocks and bytes that a sweep would be about. Raises ProtocolError."""
        kind: Kind = "invalidate" if message.kind == "clear" else message.kind
        return scopes.count(self.pool, kind, message.scope, permanent=message.permanent)

    def look_up(self, message: Lookup) -> tuple[list[SpaceHits], int]:
        """What engines would find of a chain, and what to ask for next (0: nothing). Raises ProtocolError."""
        return look_up(self.pool, message)

    def list_blocks(self, message: ListBlocks) -> tuple[list[CachedBlock], int]:
        """What is cached, and what to ask for next (0: nothing). Raises ProtocolError."""
        return list_blocks(self.pool, self._leases, message)

    def _open_reservations(self) -> list[Reservation]:
        return [each for engine in self.engines.values() for each in engine.reservations.values()]

    def hot_prefixes(self, by: Measure, salt: str | None, limit: int, now: float) -> list[Prefix]:
        """Hot prefixes of the last hour. Raises ProtocolError."""
        return scopes.hot_prefixes(self.pool, self.prefixes, by, salt, limit, now)

    def hot_prefix(self, label: str, now: float) -> Prefix:
        """One of them, with its keys. Raises ProtocolError."""
        return scopes.hot_prefix(self.pool, self.prefixes, label, now)

    def trace(self, since: float, after: int) -> tuple[bytes, int]:
        """Recorded accesses as JSON lines, and what to ask for next (0: nothing)."""
        return self.accesses.part(since, after, MAX_TRACE_PART_BYTES, self.pool.spaces.models())

    def read_usage(self, noted: float, after: int, now: float) -> tuple[list[UsageCounters], int]:
        """What tenants used, account by account, and what to ask for next (0: nothing). With it the reader says until
        when it has noted everything."""
        usage = self.pool.usage
        usage.pass_to(now)
        if not after:
            usage.close_idle(noted)
        return usage.part(after)

    def resize(self, capacity_bytes: int, now: float) -> None:
        """Let the pool grow, and the pin budget with it. Raises ProtocolError; then nothing changed."""
        self.pool.resize(capacity_bytes, now)
        self.intent.share_out()
        self.options = replace(self.options, capacity_bytes=self.pool.slabs.capacity_bytes)
        self.pool.table.books.gave(B_CAPACITY, self.options.capacity_bytes)

    # ---- state

    def stats(self, now: float) -> NodeStats:
        """The node as it is."""
        return node_stats(self, now)

    def check(self) -> list[str]:
        """Contradictions between the books; empty when all is well. O(blocks): for audits, not for every day."""
        return [*contradictions(self.pool), *self.replicas.faults()]
