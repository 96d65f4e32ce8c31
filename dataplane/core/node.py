"""The node: attached engines and the pool behind one interface, with messages in and replies and events out.

Transports call `Node`. Each method takes a decoded message and the current time, returns a reply or raises
`ProtocolError`, and emits events. A single thread calls it, and no method blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from dataplane.core.blocks.blocks import Block, BlockTable
from dataplane.core.blocks.leases import LeaseTable
from dataplane.core.blocks.ports import MemorySource
from dataplane.core.blocks.slabs import SLOT_ALIGN, Slabs
from dataplane.core.engines.accesses import AccessTrace
from dataplane.core.engines.engines import Engine, OpenReservation
from dataplane.core.engines.expulsions import Expulsions
from dataplane.core.engines.lifecycle import Engines
from dataplane.core.engines.prefixes import PrefixSketches
from dataplane.core.engines.requests import RequestRecords
from dataplane.core.engines.storing import GrantResult, StoreService
from dataplane.core.engines.touching import touching
from dataplane.core.engines.uses import AccessReports
from dataplane.core.eviction.reclaimer import Reclaimer
from dataplane.core.gpu_copies.gpu_copies import GpuCopyTable
from dataplane.core.journal.id_journal import IdJournal
from dataplane.core.journal.recovery_table import B_CAPACITY, B_SEGMENT, B_SPACE, B_TENANT, RecoveryTable
from dataplane.core.operator import scopes
from dataplane.core.operator.audit import contradictions
from dataplane.core.operator.integrity import CorruptionReports
from dataplane.core.operator.intent import Intent
from dataplane.core.operator.verifying import Verifications
from dataplane.core.packed_keys import check_keys
from dataplane.core.pool.pool import Pool
from dataplane.core.pool.sweeps import Kind, SweepStart
from dataplane.core.tenants.eviction_queues import MakePolicy
from dataplane.core.tenants.tenant import Tenant
from dataplane.core.tiering.invalidations import Tombstone, tombstone_of
from dataplane.core.tiering.moves import ADD_TIER, Moves
from dataplane.core.tiering.sessions import SessionActions
from dataplane.core.tiering.tiering import Tiering
from dataplane.policies.lru import Lru
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.prefixes import MAX_TRACE_PART_BYTES
from dataplane.protocol.control.scopes import CountBlocks, Scope
from dataplane.protocol.control.sessions import ActOnSession, ListSessions, SessionActed, SessionsListed
from dataplane.protocol.engine import (
    Abort,
    Attach,
    Commit,
    LeaseRequest,
    Report,
    ReportRequest,
    RequestReported,
    Reserve,
)
from dataplane.protocol.events import AdmissionChanged, Event, IdJournalNearlyFilled, PinDegraded, SweepEnded
from dataplane.protocol.layout import HOT_KEY, IndexMemory, pack_keys
from dataplane.protocol.salts import shown
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.pool import PolicyStats, Totals
from dataplane.protocol.usage import UsageCounters

ID_JOURNAL_WARNS, ID_JOURNAL_RESTS = 0.8, 0.7
"""Fractions of the id journal's capacity. An event is published when use reaches the first; another one is published
only after use has fallen below the second."""
TRACE_BLOCKS = 1 << 20
"""Number of blocks in the access trace."""
SETTLE_INTERVAL_S = 0.5
"""Seconds between attempts to bring tenants under their limits while their blocks are leased."""


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Numeric limits and identity of a node."""

    name: str
    epoch: str
    capacity_bytes: int
    segment_bytes: int
    reservation_ttl_s: float
    pin_budget_ratio: float
    """Fraction of the capacity that guaranteed pins may hold."""
    max_clients: int
    page_bytes: int = SLOT_ALIGN
    """Page size in bytes; a segment is a whole number of pages."""
    named_bytes: int = 0
    """Size in bytes of the named segment, which the spaces of gateways share; 0 for no named segment."""
    hint_max_s: float = 0.0
    """Longest duration of hints of requests, in seconds; 0: hints have no effect."""
    gpu_copy_bytes: int = 0
    """Bytes that GPU copies may take on each device; 0 for none."""


class Node:
    """The decisions of one data plane."""

    def __init__(
        self,
        options: NodeOptions,
        index: IndexMemory,
        memory: MemorySource,
        leases: LeaseTable,
        now: float,
        emit: Callable[[Event], None],
        recovery_table: RecoveryTable,
        names: IdJournal,
        policy: MakePolicy = Lru,
    ) -> None:
        self.options = options
        self.started_at = now
        self.emit = emit
        self.pool = Pool(
            BlockTable(index, recovery_table, names),
            Slabs(options.capacity_bytes, options.segment_bytes, options.page_bytes, options.named_bytes),
            leases,
            memory,
            policy,
            options.pin_budget_ratio,
            emit,
        )
        self.pool.hints.max_s = options.hint_max_s
        self.room = Reclaimer(self.pool)
        self.pool.usage.pass_to(now)
        self.tiering: Tiering | None = None
        """Tiers behind memory, or None without any."""
        self.prefixes = PrefixSketches()
        self.accesses = AccessTrace(now, TRACE_BLOCKS)
        self.uses = AccessReports(self.pool, self.prefixes, self.accesses)
        self.storing = StoreService(self.pool, self.room, options.reservation_ttl_s, self.uses.store_requested)
        self.intent = Intent(self.pool, self.room)
        self.integrity = CorruptionReports(self.pool, memory, self.storing.count_refused, now)
        self.verifying = Verifications(self.pool, self.integrity, emit)
        self.engines = Engines(self.pool, self.storing, memory, options.max_clients, emit)
        self.gpu_copies = GpuCopyTable(self.pool, self.engines, emit, options.gpu_copy_bytes)
        self.expulsions = Expulsions(self.pool, self.engines, emit)
        self.requests = RequestRecords(self.pool)
        self._gate_closed = self._id_journal_fills = False
        assigned = self.pool.table.recovery_table
        self.pool.slabs.never_below(assigned.highest(B_SEGMENT))
        self.pool.spaces.never_below(assigned.highest(B_SPACE))
        self.pool.tenants.never_below(assigned.highest(B_TENANT))
        self._settle_at = now

    def use_tiers(self, tiering: Tiering) -> None:
        """Use the tiers of `tiering`, which may change later. Call it once."""
        self.tiering = self.pool.tiers = tiering

    # ---- lifecycle of engines

    def attach(
        self, message: Attach, pid: int, now: float, started: int = 0, gateway: str = ""
    ) -> tuple[Engine, list[int]]:
        """Attach a process and return its engine and the numbers of its spaces. Raise ProtocolError on refusal.

        The engine's area is in the lease scan when this method returns. `Engine.resumed` says whether the process
        continues the attachment that the message names. `started` is the start time of the process in clock ticks since
        boot. `gateway` names the gateway that attaches the engine on behalf of a peer.
        """
        return self.engines.attach(message, pid, now, started, gateway)

    def detach(self, client: int, reason: str, now: float) -> None:
        """Handle a connection that closed without a detach message.

        The engine loses its rights at once. Its bytes stay until every process of its group is proven gone.
        """
        engine = self.engines.get(client)
        if engine is not None and engine.connected:
            self._end_requests(engine, now)
            self._forget(self.engines.disconnected(engine, reason, now))

    def detach_cleanly(self, client: int, now: float) -> None:
        """Handle a process that declares that it no longer holds or maps anything."""
        engine = self.engines.get(client)
        if engine is not None:
            self._end_requests(engine, now)
            self._forget(self.engines.detached(engine, now))

    def process_gone(self, client: int, now: float) -> None:
        """Handle the proven end of a process, which its pidfd reports."""
        engine = self.engines.get(client)
        if engine is None:
            return
        self.pool.usage.pass_to(now)
        self.detach(client, "process exited", now)
        self._forget(self.engines.process_ended(engine, now))

    def _end_requests(self, engine: Engine, now: float) -> None:
        self.uses.drain(engine, now)
        if self.tiering is not None:
            self.tiering.loads.engine_gone(engine.client)

    def _forget(self, clients: Iterable[int]) -> None:
        for client in clients:
            self.integrity.forget(client)
            self.gpu_copies.forget(client)
            self.accesses.forget(client)

    # ---- requests of engines

    def reserve(self, client: int, message: Reserve, now: float) -> GrantResult:
        """Reserve room for the missing blocks of a chain in a space of the engine. Raise ProtocolError.

        `GrantResult.outcomes` has a `ReserveOutcome` or the `Code` of a refusal for each key. `segments` and `offsets`
        give the place of each block whose outcome is WRITE. `reservation` is 0 when there is nothing to write.
        """
        engine = self.engines.connected(client)
        self.uses.drain(engine, now)
        return self.storing.reserve(engine, message, now)

    def commit(self, client: int, message: Commit, now: float) -> int:
        """Publish blocks of a reservation and abort the rest; return the number of published blocks. Raise
        ProtocolError."""
        engine = self.engines.connected(client)
        self.pool.usage.pass_to(now)
        return self.storing.commit(engine, message, now)

    def abort(self, client: int, message: Abort, now: float) -> None:
        """Abort a reservation to which the engine no longer writes. Raise ProtocolError."""
        engine = self.engines.connected(client)
        self.pool.usage.pass_to(now)
        self.storing.abort(engine, message.reservation, now)

    def lease(self, client: int, message: LeaseRequest) -> list[int]:
        """Lease the leading READY blocks of a chain in the client's own area and return their descriptors."""
        engine = self.engines[client]
        if message.space not in engine.spaces:
            raise ProtocolError(Code.UNKNOWN_SPACE, f"space {message.space} is not attached", "space")
        words = check_keys(message.keys)
        descriptors: list[int] = self.pool.table.memory.leading_ready(words, message.space)[0].tolist()
        self.pool.leases.raise_for(client, descriptors)
        return descriptors

    def report(self, client: int, message: Report, now: float) -> int:
        """Verify blocks that an engine reports as corrupt; return the number of corrupt blocks dropped."""
        self.pool.usage.pass_to(now)
        return self.integrity.report(client, self.engines[client].spaces, message, now)

    def report_request(self, client: int, message: ReportRequest, now: float) -> RequestReported:
        """Keep the record of an engine's request and return why its first missing tokens were missing. Raise
        ProtocolError."""
        self.pool.usage.pass_to(now)
        return self.requests.report(self.engines.connected(client), message, now)

    def segments_for(self, client: int, segments: list[int]) -> list[tuple[int, int, bool]]:
        """Return (segment, bytes, writable) for the wanted segments that an engine may map; skip the others."""
        engine = self.engines[client]
        grants = []
        for number in segments:
            segment = self.pool.slabs.segments.get(number)
            if segment is not None and segment.space in engine.spaces:
                grants.append((number, segment.nbytes, engine.spaces[segment.space]))
        return grants

    # ---- periodic work

    def tick(self, now: float) -> None:
        """Drain rings, expire reservations and pins, advance sweeps and enforce limits. Call it a few times a
        second."""
        self.pool.usage.pass_to(now)
        self.uses.drain_in_turn(self.engines, now)
        self.engines.expire(now)
        self.intent.expire_pins(now)
        for sweep in self.pool.sweeps.step():
            self.emit(SweepEnded(now, sweep.number, sweep.kind, sweep.blocks))
        self.verifying.step(now)
        self.pool.table.names.compact_some()
        self.pool.end_hints(now)
        self.pool.reap(now)
        policy = self.intent.policy
        if policy.high_watermark < 1.0:
            self.room.keep_below(policy.high_watermark, policy.low_watermark, now)
        if now >= self._settle_at:
            self._settle_at = now + SETTLE_INTERVAL_S
            self._settle(now)
        if self.pool.changes is not None:
            self.pool.changes.spaces(self.pool.spaces.version)
        self.pool.promote_pins(now)
        if self.tiering is not None:
            self.tiering.tick(now)
        self.gpu_copies.step(now)
        for pin in self.pool.pins.take_degraded():
            self.emit(PinDegraded(now, pin.name, shown(pin.tenant), pin.degraded))

    def _settle(self, now: float) -> None:
        """Do the periodic work that does not have to run at every tick."""
        self.intent.settle(now)
        self.pool.tenants.prune()
        self.pool.segments.forget_spaces({space for engine in self.engines.values() for space in engine.spaces}, now)
        self._watch_id_journal(now)
        admission = self.pool.admission
        closed = admission is not None and admission.closed(now)
        if closed is not self._gate_closed:
            self._gate_closed = closed
            idle_s = admission.victim_idle_s(now) if admission is not None else None
            self.emit(AdmissionChanged(now, closed, idle_s or 0.0))

    def _watch_id_journal(self, now: float) -> None:
        journal = self.pool.table.names
        used, capacity = journal.used_bytes, journal.capacity_bytes
        if used >= ID_JOURNAL_WARNS * capacity and not self._id_journal_fills:
            self._id_journal_fills = True
            self.emit(IdJournalNearlyFilled(now, used, capacity))
        elif used < ID_JOURNAL_RESTS * capacity:
            self._id_journal_fills = False

    # ---- requests of operators

    def invalidate(self, scope: Scope, now: float) -> SweepStart:
        """Make the blocks of a scope unreadable from now on. Acknowledge it after `when_recorded`. Raise
        ProtocolError."""
        begun = self._sweep("invalidate", scope, now)
        self._invalidate_in_tiers(tombstone_of(self.pool, scope, begun.before))
        return begun

    def demote(self, scope: Scope, now: float) -> SweepStart:
        """Make the blocks of a scope the first victims of eviction. Raise ProtocolError."""
        return self._sweep("demote", scope, now)

    def _sweep(self, kind: Kind, scope: Scope, now: float) -> SweepStart:
        scopes.check_narrow(scope)
        keys = scopes.keys_of(scope)
        tenant, spaces = scopes.named(self.pool, scope)
        begun = self.pool.sweeps.start(kind, tenant, spaces, keys, self.pool.pins.permanent, now)
        if kind == "invalidate":
            self._never_publish(begun, self._open_reservations(), tenant, spaces, keys)
        return begun

    def clear(self, now: float, *, permanent: bool) -> SweepStart:
        """Make every block unreadable from now on. Skip blocks under permanent pins unless `permanent` is set."""
        excluded: Collection[Block] = () if permanent else self.pool.pins.permanent
        begun = self.pool.sweeps.start("invalidate", None, None, (), excluded, now)
        self._never_publish(begun, self._open_reservations())
        self._invalidate_in_tiers(tombstone_of(self.pool, Scope(), begun.before, excluded))
        return begun

    def clear_gateway(self, gateway: str, now: float, *, force: bool) -> SweepStart:
        """Make every block of a gateway's spaces unreadable from now on, except those under permanent pins. Without
        `force`, keep blocks that are leased or being written."""
        pool = self.pool
        excluded = list(pool.pins.permanent)
        if not force:
            leased = pool.leases.held_by_any(pool.table.space_of)
            excluded += [block for number, block in pool.table.blocks.items() if leased[number]]
        spaces = frozenset(pool.spaces.of_gateway(gateway))
        begun = pool.sweeps.start("invalidate", None, spaces, (), excluded, now)
        self._never_publish(begun, self._open_reservations() if force else (), spaces=spaces)
        self._invalidate_in_tiers(tombstone_of(pool, Scope(), begun.before, excluded).within(pool, gateway))
        return begun

    def count_blocks(self, message: CountBlocks) -> tuple[int, int]:
        """Return the number of blocks and bytes that a sweep would cover; a scope without fields covers everything.
        Raise ProtocolError."""
        kind: Kind = "invalidate" if message.kind == "clear" else message.kind
        keys = scopes.keys_of(message.scope)
        tenant, spaces = scopes.named(self.pool, message.scope)
        excluded: Collection[Block] = () if message.permanent else self.pool.pins.permanent
        numbers = self.pool.sweeps.covered(kind, tenant, spaces, keys, excluded)
        return len(numbers), self.pool.sweeps.stored_bytes(numbers)

    def act_on_session(self, message: ActOnSession, now: float) -> SessionActed:
        """Release, retain or prefetch the blocks of a session. Raise ProtocolError."""
        self.pool.usage.pass_to(now)
        for engine in self.engines.values():  # a use before this request must not end a demotion by it
            self.uses.drain(engine, now)
        return SessionActions(self.pool, self.tiering).act(message, now)

    def list_sessions(self, message: ListSessions, now: float) -> SessionsListed:
        """Return the next sessions. Raise ProtocolError."""
        return SessionActions(self.pool, self.tiering).page(message, now)

    def moves(self, tier: str = "") -> Moves:
        """Return the moves between memory and tiers. Raise ProtocolError if the node has no tiers, for the field that
        names a `tier`, or else the number of a move."""
        if self.tiering is None:
            message = f"this node has no tiers. {ADD_TIER}"
            raise ProtocolError(Code.UNKNOWN_TIER, message, "tier" if tier else "number")
        return self.tiering.moves

    def _open_reservations(self) -> list[OpenReservation]:
        return [reservation for engine in self.engines.values() for reservation in engine.reservations.values()]

    def _invalidate_in_tiers(self, tombstone: Tombstone) -> None:
        if self.tiering is not None:
            self.tiering.catalog.invalidate(tombstone)

    def _never_publish(
        self,
        begun: SweepStart,
        reservations: Iterable[OpenReservation],
        tenant: Tenant | None = None,
        spaces: frozenset[int] | None = None,
        keys: Sequence[bytes] = (),
    ) -> None:
        """Mark open reservations in the scope of a sweep as invalid, so that their blocks are not published."""
        writing = [
            reservation
            for reservation in reservations
            if reservation.timestamp < begun.before
            and (tenant is None or reservation.tenant is tenant)
            and (spaces is None or reservation.space in spaces)
        ]
        if keys and writing:
            descendant_keys = self.pool.table.memory.hot[begun.numbers, HOT_KEY : HOT_KEY + 4]
            writing = touching(writing, np.concatenate((pack_keys(list(keys)), descendant_keys)))
        for reservation in writing:
            reservation.invalid = True

    def when_recorded(self, call: Callable[[], None]) -> None:
        """Call back when all invalidations so far are recorded for tiers, at once or later."""
        if self.tiering is None:
            call()
        else:
            self.tiering.catalog.when_recorded(call)

    def drain(self, *, on: bool) -> None:
        """Refuse new engines and blocks, or accept them again. Existing engines and blocks are served as before."""
        self.storing.draining = on

    def trace(self, since: float, after: int) -> tuple[bytes, int]:
        """Return recorded accesses as JSON lines and the cursor of the next part, 0 at the end."""
        return self.accesses.part(since, after, MAX_TRACE_PART_BYTES, self.pool.spaces)

    def read_usage(self, noted: float, after: int, now: float) -> tuple[list[UsageCounters], int]:
        """Return usage counters by account and the cursor of the next part, 0 at the end.

        `noted` is the Unix time up to which the reader has recorded all usage; idle accounts before it are closed.
        """
        usage = self.pool.usage
        usage.pass_to(now)
        if not after:
            usage.close_idle(noted, self.pool.tenants.by_salt.values())
        return usage.part(after)

    def resize(self, capacity_bytes: int, now: float) -> None:
        """Grow the pool and its pin budget. Raise ProtocolError and change nothing when the size is refused."""
        self.pool.resize(capacity_bytes, now)
        self.intent.share_out()
        self.options = replace(self.options, capacity_bytes=self.pool.slabs.capacity_bytes)
        self.pool.table.recovery_table.assigned(B_CAPACITY, self.options.capacity_bytes)

    # ---- state

    @property
    def totals(self) -> Totals:
        """Counts since the process started."""
        return self.pool.totals

    @property
    def max_blocks(self) -> int:
        """Number of block descriptors."""
        return self.pool.table.max_blocks

    @property
    def next_start_is_cold(self) -> bool:
        """Whether the id journal lacks room for what a restart needs to know."""
        return self.pool.table.names.overflowed

    def stats(self, now: float) -> NodeStats:
        """Return the statistics of the core; `dataplane.report` adds those of the parts around it."""
        pool = self.pool
        for engine in self.engines.values():
            self.engines.read_operations(engine, now)
        pool.measure_lookups()
        tenants, others = pool.tenants.stats(now)
        leased = pool.leases.leased(pool.table.space_of)
        self.gpu_copies.count()
        directory = None if self.tiering is None else self.tiering.catalog.directory
        return NodeStats(
            at=now,
            node=self.options.name,
            epoch=self.options.epoch,
            draining=self.storing.draining,
            uptime_s=now - self.started_at,
            armed=self.intent.armed,
            pool=pool.stats(),
            totals=pool.totals,
            refused=dict(self.storing.refused_blocks),
            tenants=tenants,
            other_tenants=others,
            pins=[pin.stats(len(pool.spaces.of_model(pin.model))) for pin in pool.pins.by_name.values()],
            engines=[engine.stats(leased.get(engine.client, 0), self.engines) for engine in self.engines.values()],
            observed=dict(self.intent.observed),
            policy=self._policy_stats(now),
            spaces=pool.space_stats(),
            sweeps=pool.sweeps.stats(len(pool.dead)),
            tier_directory_blocks=0 if directory is None else directory.listed(),
            tier_directory_unlisted=0 if directory is None else directory.unlisted(),
            gpu_copy_pools=self.gpu_copies.stats(),
            gpu_copy_pool_bytes=self.gpu_copies.capacity_bytes,
            id_journal_bytes=pool.table.names.used_bytes,
            id_journal_capacity_bytes=pool.table.names.capacity_bytes,
            operations=self.engines.operations.stats(),
            evicted={reason: msgspec.structs.replace(evicted) for reason, evicted in pool.evicted.items()},
            evicted_idle=pool.evicted_idle.stats(),
            block_lifetime=pool.lifetimes.stats(),
            reuse_gap=pool.reuse_gaps.stats(),
        )

    def _policy_stats(self, now: float) -> PolicyStats:
        spec, admission = self.intent.policy, self.pool.admission
        return PolicyStats(
            algorithm=spec.algorithm,
            admission=spec.admission,
            admission_idle_s=spec.admission_idle_s,
            gate_closed=admission is not None and admission.closed(now),
            victim_idle_s=None if admission is None else admission.victim_idle_s(now),
            admitted_blocks=0 if admission is None else admission.admitted,
            declined_blocks=0 if admission is None else admission.declined,
            high_watermark=spec.high_watermark,
            low_watermark=spec.low_watermark,
        )

    def check(self) -> list[str]:
        """Return the contradictions between the data structures; empty when they agree. O(blocks): for audits only."""
        return [*contradictions(self.pool), *self.gpu_copies.faults()]
