"""A `Node` on plain bytearrays, and engines that behave as clients do: no process, no socket, time as an argument."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest

from dataplane.core.blocks.leases import LeaseTable
from dataplane.core.engines.prefixes import Measure
from dataplane.core.engines.storing import GrantResult
from dataplane.core.node import Node, NodeOptions
from dataplane.core.operator.hot_prefixes import hot_prefix, hot_prefixes
from dataplane.policies import EvictionPolicy
from dataplane.policies.lru import Lru
from dataplane.protocol.checksums import checksum
from dataplane.protocol.codes import Code, ProtocolError, ReserveOutcome, code_of
from dataplane.protocol.control.prefixes import Prefix
from dataplane.protocol.control.snapshots import Fault, Snapshot
from dataplane.protocol.engine import (
    VERSION,
    Abort,
    Attach,
    Commit,
    HintedReserve,
    Reserve,
    SessionReserve,
    SpaceRequest,
)
from dataplane.protocol.events import Event
from dataplane.protocol.layout import (
    A_RING_HEAD,
    RING_KIND_SHIFT,
    RING_POSITION_SHIFT,
    RING_TOUCH,
    AreaMemory,
    IndexMemory,
    area_bytes,
    index_bytes,
    pack_keys,
)
from dataplane.protocol.spaces import Space
from dataplane.protocol.states import STATE_MASK, State
from dataplane.protocol.stats.pins import PinStats
from dataplane.protocol.stats.pool import PoolStats
from dataplane.protocol.stats.tenants import TenantStats
from dataplane.protocol.tiers import TierSpec
from dataplane.tiers.registry import tier_faults_of
from tests.dataplane import factories as make

RING_ENTRIES = 1024


class PlainMemory:
    """`core.ports.Memory` on bytearrays; `refuse` makes the machine say no."""

    def __init__(self, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        self.segments: dict[int, int] = {}
        self.bases: dict[int, int] = {}
        """Of segments in the named one."""
        self.areas: dict[int, AreaMemory] = {}
        self.buffers: dict[int, bytearray] = {}
        """Of areas."""
        self.refuse = False
        self.available = 1 << 40
        self.capacity_bytes = 0
        """As last reported."""
        self.digests: dict[tuple[int, int], bytes] = {}
        """By segment and offset; everything else is zeros."""

    def create_segment(self, segment: int, size_bytes: int, base: int | None = None) -> None:
        if self.refuse:
            raise MemoryError
        assert segment not in self.segments
        self.segments[segment] = size_bytes
        if base is not None:
            self.bases[segment] = base

    def retire_segment(self, segment: int) -> None:
        del self.segments[segment]
        self.bases.pop(segment, None)

    def available_bytes(self) -> int:
        return self.available

    def resize(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes

    def describe(self, stats: PoolStats) -> None:
        stats.prefaulted_bytes = sum(self.segments.values())

    def create_area(self, client: int) -> AreaMemory:
        if self.refuse:
            raise MemoryError
        buffer = self.buffers[client] = bytearray(area_bytes(self.max_blocks, RING_ENTRIES))
        area = self.areas[client] = AreaMemory(buffer, self.max_blocks, RING_ENTRIES)
        area.format()
        return area

    def retire_area(self, client: int) -> None:
        del self.areas[client], self.buffers[client]

    def digest(self, segment: int, offset: int, nbytes: int) -> bytes:
        assert offset + nbytes <= self.segments[segment]
        return self.digests.get((segment, offset), checksum(bytes(nbytes)))


@dataclass
class Stored:
    """What a store did, by outcome."""

    granted: GrantResult
    written: int = 0

    @property
    def outcomes(self) -> Counter[str]:
        names = {int(outcome): outcome.name for outcome in ReserveOutcome}
        return Counter(names.get(value) or code_of(value).name for value in self.granted.outcomes.tolist())

    @property
    def refused(self) -> set[Code]:
        known = {int(outcome) for outcome in ReserveOutcome}
        return {code_of(value) for value in self.granted.outcomes.tolist() if value not in known}


@dataclass
class BenchEngine:
    """An attached process as the data plane sees it."""

    bench: Bench
    client: int
    spaces: list[int]
    area: AreaMemory
    _leased: list[int] = field(default_factory=list)

    def reserve(
        self,
        chain: Sequence[bytes],
        nbytes: int,
        *,
        tenant: str = "",
        space: int = 0,
        parent: bytes = b"",
        ttl_s: float = 0.0,
        pin_s: float = 0.0,
        session: str = "",
    ) -> GrantResult:
        common = (1, self.spaces[space], tenant, make.packed(chain), nbytes, parent)
        message = Reserve(*common)
        if session:
            message = SessionReserve(*common, ttl_s=ttl_s, pin_s=pin_s, session=session)
        elif ttl_s or pin_s:
            message = HintedReserve(*common, ttl_s=ttl_s, pin_s=pin_s)
        return self.bench.node.reserve(self.client, message, self.bench.now)

    def commit(self, reservation: int, positions: Sequence[int] | None = None, checksums: bytes = b"") -> int:
        slots = b"" if positions is None else np.array(positions, np.uint32).tobytes()
        return self.bench.node.commit(self.client, Commit(1, reservation, slots, checksums), self.bench.now)

    def abort(self, reservation: int) -> None:
        self.bench.node.abort(self.client, Abort(1, reservation), self.bench.now)

    def store(
        self,
        chain: Sequence[bytes],
        nbytes: int,
        *,
        tenant: str = "",
        space: int = 0,
        parent: bytes = b"",
        ttl_s: float = 0.0,
        pin_s: float = 0.0,
        session: str = "",
    ) -> Stored:
        """Reserve and commit everything that was granted."""
        granted = self.reserve(
            chain, nbytes, tenant=tenant, space=space, parent=parent, ttl_s=ttl_s, pin_s=pin_s, session=session
        )
        written = self.commit(granted.reservation) if granted.reservation else 0
        return Stored(granted, written)

    def has(self, chain: Sequence[bytes], space: int = 0) -> list[bool]:
        """Which keys are READY."""
        numbers, control = self.bench.index.find(pack_keys(list(chain)), self.spaces[space])
        ready = (control & np.uint64(STATE_MASK)) == np.uint64(State.READY)
        return ((numbers >= 0) & ready).tolist()

    def lookup(self, chain: Sequence[bytes], space: int = 0) -> int:
        found = self.has(chain, space)
        return found.index(False) if False in found else len(found)

    def acquire(self, chain: Sequence[bytes], space: int = 0) -> int:
        """Hold the leading hits by raising counters, and tell the ring; returns how many."""
        hits = self.lookup(chain, space)
        numbers, control = self.bench.index.find(pack_keys(list(chain)), self.spaces[space])
        self._leased += numbers[:hits].tolist()
        np.add.at(self.area.counters, numbers[:hits], np.uint32(1))
        for position in reversed(range(hits)):
            touch = RING_TOUCH << RING_KIND_SHIFT | position << RING_POSITION_SHIFT | int(numbers[position])
            self.note(touch, int(control[position]))
        return hits

    def note(self, first: int, second: int) -> None:
        """One entry in the access ring."""
        head = int(self.area.header[A_RING_HEAD])
        self.area.ring[head % RING_ENTRIES] = (first, second)
        self.area.header[A_RING_HEAD] = head + 1

    def release(self) -> None:
        """Release every lease."""
        np.subtract.at(self.area.counters, np.array(self._leased, np.int64), np.uint32(1))
        self._leased.clear()

    def detach(self) -> None:
        """The connection closes; the process may live on."""
        self.bench.node.detach(self.client, "connection closed", self.bench.now)

    def die(self) -> None:
        """The process is proven gone."""
        self.bench.node.process_gone(self.client, self.bench.now)

    def detach_cleanly(self) -> None:
        self.bench.node.detach_cleanly(self.client, self.bench.now)


@contextmanager
def refused(code: Code, field: str | None = None, match: str | None = None) -> Iterator[None]:
    """Expect a ProtocolError with a code, and the field and a part of the message if they are given."""
    with pytest.raises(ProtocolError, match=match) as raised:
        yield
    assert raised.value.code is code
    assert field in (None, raised.value.field)


@pytest.fixture(autouse=True)
def consistent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check the benches of a test when it ends; of very many, the last ones. A `conftest` that imports this fixture
    applies it to the tests of its folder."""
    made: deque[Bench] = deque(maxlen=16)
    monkeypatch.setattr(Bench, "made", made)
    yield
    faults = [fault for bench in made for fault in bench.faults()]
    assert not faults, faults


class TierRecorder:
    """Takes records of tiers, and opens nothing."""

    names_of_settings: Set[str] = frozenset(("disk",))

    def __init__(self) -> None:
        self.applied: list[list[TierSpec]] = []

    def check(self, spec: TierSpec) -> Sequence[tuple[str, str]]:
        return tier_faults_of(spec)

    def apply(self, specs: Sequence[TierSpec], now: float) -> None:
        self.applied.append(list(specs))


class Bench:
    """A node, its clock and its memory."""

    made: ClassVar[deque[Bench] | None] = None
    """Benches that are checked when the test ends."""

    def __init__(
        self,
        capacity_bytes: int,
        *,
        segment_bytes: int = 2 * make.MIB,
        max_blocks: int = 4096,
        pin_budget_bytes: int | None = None,
        ttl_s: float = 30.0,
        max_clients: int = 1024,
        policy: Callable[[], EvictionPolicy] = Lru,
        named_bytes: int = 0,
        hint_max_s: float = 0.0,
    ) -> None:
        self.now = 1_000_000.0
        self.memory = PlainMemory(max_blocks)
        self.index = IndexMemory(bytearray(index_bytes(max_blocks)), max_blocks)
        self.index.format(7, 1)
        self.fences = 0
        self.at_fence: Callable[[], object] = lambda: None
        """What other processes do at the moment of a barrier."""
        options = NodeOptions(
            name="bench",
            epoch="0000000000000007",
            capacity_bytes=capacity_bytes,
            segment_bytes=segment_bytes,
            reservation_ttl_s=ttl_s,
            pin_budget_ratio=0.2 if pin_budget_bytes is None else (pin_budget_bytes + 0.5) / capacity_bytes,
            max_clients=max_clients,
            named_bytes=named_bytes,
            hint_max_s=hint_max_s,
        )
        leases = LeaseTable(self._fence)
        self.emitted: list[Event] = []
        """Events since the last `take_events`, oldest first."""
        private = make.private_memory(max_blocks)
        self.node = Node(options, self.index, self.memory, leases, self.now, self.emitted.append, *private, policy)
        self.tiers = TierRecorder()
        self.checks: list[Callable[[], list[str]]] = []
        """More checks that `faults` makes."""
        if Bench.made is not None:
            Bench.made.append(self)

    def _fence(self) -> None:
        self.fences += 1
        self.at_fence()

    def attach(
        self, *spaces: Space | SpaceRequest, group: str | None = None, pid: int = 100, gateway: str = ""
    ) -> BenchEngine:
        missing = [each if isinstance(each, SpaceRequest) else SpaceRequest(each) for each in spaces or (make.space(),)]
        name = group or f"group-{len(self.memory.areas)}-{pid}"
        engine, numbers = self.node.attach(Attach(1, VERSION, name, missing), pid, self.now, gateway=gateway)
        return BenchEngine(self, engine.client, numbers, self.memory.areas[engine.client])

    def apply(self, snapshot: Snapshot, bodies: dict[str, bytes] | None = None) -> list[Fault]:
        return self.node.intent.apply(snapshot, bodies or {}, self.tiers, self.now)

    def pass_time(self, seconds: float, times: int = 1) -> None:
        for _ in range(times):
            self.now += seconds
            self.node.tick(self.now)

    def take_events(self) -> list[Event]:
        events = list(self.emitted)
        self.emitted.clear()
        return events

    def events(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.take_events() if isinstance(event, kind)]

    def tenant(self, name: str) -> TenantStats:
        return next(each for each in self.node.stats(self.now).tenants if each.tenant == name)

    def pin(self, name: str) -> PinStats:
        return next(each for each in self.node.stats(self.now).pins if each.name == name)

    def hot_prefixes(self, by: Measure, salt: str | None = None, limit: int = 50) -> list[Prefix]:
        return hot_prefixes(self.node.pool, self.node.prefixes, by, salt, limit, self.now)

    def hot_prefix(self, label: str) -> Prefix:
        return hot_prefix(self.node.pool, self.node.prefixes, label, self.now)

    def refused(self) -> dict[str, int]:
        return self.node.stats(self.now).refused

    @property
    def pool(self) -> PoolStats:
        return self.node.stats(self.now).pool

    def faults(self) -> list[str]:
        """Contradictions: the node's own, and those that only a test can see."""
        found = self.node.check()
        segments = {segment.number: segment.nbytes for segment in self.node.pool.slabs.segments.values()}
        if segments != self.memory.segments:
            found.append(f"segments: book {segments}, memory {self.memory.segments}")
        if sum(segments.values()) > self.node.options.capacity_bytes:
            found.append("more memory than the capacity")
        bases = {each.number: each.base for each in self.node.pool.slabs.segments.values() if each.base is not None}
        if bases != self.memory.bases:
            found.append(f"ranges: book {bases}, memory {self.memory.bases}")
        found += self.node.pool.slabs.ranges.faults()
        taken = sorted((base, segments[number]) for number, base in bases.items())
        if any(base + nbytes > after for (base, nbytes), (after, _) in itertools.pairwise(taken)):
            found.append("segments overlap in the named one")
        free = sum(nbytes for _, nbytes in self.node.pool.slabs.ranges.free)
        if free + sum(nbytes for _, nbytes in taken) != self.node.options.named_bytes:
            found.append(f"named: {free} bytes are free, {taken} are taken")
        for each in self.node.pool.slabs.segments.values():
            if (each.base is not None) != self.node.pool.spaces.named(each.space):
                found.append(f"segment {each.number} is where its space has none")
        extents = sorted(
            (block.slot.slab.segment.number, block.slot.offset, block.nbytes)
            for block in self.node.pool.table.blocks.values()
        )
        for (segment, offset, nbytes), (other, start, _) in itertools.pairwise(extents):
            if segment == other and offset + nbytes > start:
                found.append(f"blocks overlap in segment {segment} at {start}")
        for segment, offset, nbytes in extents:
            if offset + nbytes > segments.get(segment, 0):
                found.append(f"a block beyond segment {segment}")
        if set(self.memory.areas) != set(self.node.engines):
            found.append("areas and engines differ")
        pool = self.node.pool
        pinned = sum(block.charge for block in pool.pins.guaranteed)
        if pinned != pool.pins.pinned_bytes or pinned > pool.pins.budget_bytes:
            found.append(f"pinned: blocks {pinned}, book {pool.pins.pinned_bytes}, budget {pool.pins.budget_bytes}")
        states = Counter(block.state for block in pool.table.blocks.values())
        for state, size in ((State.RESERVED, pool.reserved_bytes), (State.QUARANTINED, pool.quarantined_bytes)):
            real = sum(block.charge for block in pool.table.blocks.values() if block.state is state)
            if real != size:
                found.append(f"{state.name}: blocks {real}, book {size}")
        if states[State.EVICTING]:
            found.append("a block stays EVICTING between two steps")
        return found + [fault for check in self.checks for fault in check()]
