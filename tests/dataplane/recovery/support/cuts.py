"""A node on plain bytes whose stores are recorded one by one, and nodes that go on with any prefix of them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import FrameType
from typing import Any

import numpy as np

from dataplane.core.blocks.leases import LeaseTable
from dataplane.core.journal.id_journal import EngineName, IdJournal, names_bytes
from dataplane.core.journal.recovery_table import RecoveryTable, TableWriter, recovery_table_bytes
from dataplane.core.node import Node, NodeOptions
from dataplane.core.restore import Restored, SurvivingMemory, restore, surviving_segments
from dataplane.protocol.engine import VERSION, Attach, SpaceRequest
from dataplane.protocol.layout import H_MEMORY, PAGE, U64, AreaMemory, IndexMemory, index_bytes
from dataplane.protocol.states import STATE_BITS, STATE_MASK, State
from tests.dataplane import factories as make
from tests.dataplane.bench_node import RING_ENTRIES, Bench, BenchEngine, PlainMemory, TierRecorder
from tests.sizes import size

HALF = PAGE
"""Of the journal: small, so that it is compacted often."""
MEMORY = 77
SLOT = 64 << 10
CORE = "/dataplane/core/"


@dataclass
class Image:
    """What lies in memory when the process is killed."""

    index: bytes
    recovery_table: bytes
    names: bytes
    segments: dict[int, int]
    """Memfds: what outlives it, whatever else does."""
    areas: dict[int, bytearray]
    """As engines have them: they go on."""
    now: float
    dead: frozenset[int] = frozenset()
    """Clients whose processes ended with it."""

    def state(self) -> U64:
        """All control words."""
        return IndexMemory.attach(bytearray(self.index)).control


class KillBench(Bench):
    """A bench whose three memories can be copied, and that can begin with copies."""

    def __init__(
        self, image: Image | None = None, *, capacity_bytes: int = 0, max_blocks: int = 64, named_bytes: int = 0
    ) -> None:
        self.now = 1_000_000.0 if image is None else image.now
        self.fences = 0
        self.at_fence = lambda: None
        self.checks = []
        self.tiers = TierRecorder()
        self.emitted = []
        self.options = NodeOptions(
            name="bench",
            epoch="0000000000000007",
            capacity_bytes=capacity_bytes,
            segment_bytes=2 << 20,
            reservation_ttl_s=30.0,
            pin_budget_ratio=0.2,
            max_clients=1024,
            named_bytes=named_bytes,
            hint_max_s=3600.0,
        )
        self.max_blocks = max_blocks
        self.memory = PlainMemory(max_blocks)
        self.restored: Restored | None = None
        if image is None:
            self._buffers = (
                bytearray(index_bytes(max_blocks)),
                bytearray(recovery_table_bytes(max_blocks)),
                bytearray(names_bytes(HALF)),
            )
            self.index = IndexMemory(self._buffers[0], max_blocks)
            self.index.format(7, 1)
            self.index.header[H_MEMORY] = MEMORY
            recovery_table = RecoveryTable(self._buffers[1], max_blocks)
            names = IdJournal(self._buffers[2])
            recovery_table.format(MEMORY)
            names.format()
            self.node = self._node(recovery_table, names)
        else:
            self.restore(image)

    def _node(self, recovery_table: RecoveryTable, names: IdJournal) -> Node:
        recovery_table.sign(TableWriter(7, 1, 1))
        leases = LeaseTable(self._fence)
        emit = self.emitted.append
        return Node(self.options, self.index, self.memory, leases, self.now, emit, recovery_table, names)

    def load(self, image: Image) -> None:
        """Take the bytes that another bench left."""
        self._buffers = bytearray(image.index), bytearray(image.recovery_table), bytearray(image.names)
        self.memory.segments = dict(image.segments)
        self.memory.buffers = dict(image.areas)

    def restore(self, image: Image) -> None:
        """Begin with what another bench left."""
        self.load(image)
        self.index = IndexMemory.attach(self._buffers[0])
        recovery_table = RecoveryTable.attach(self._buffers[1])
        names, known = IdJournal.attach(self._buffers[2])
        self.node = self._node(recovery_table, names)
        for client, buffer in image.areas.items():
            self.memory.areas[client] = AreaMemory(buffer, self.max_blocks, RING_ENTRIES)

        def alive(engine: EngineName) -> bool:
            return engine.client not in image.dead

        here = surviving_segments(known, self.index, image.segments, self.options.named_bytes)
        surviving = SurvivingMemory(known, here, self.memory.areas.get, alive)
        self.restored = restore(self.node, surviving, self.now)
        for segment in self.node.pool.slabs.segments.values():
            if segment.base is not None:
                self.memory.create_segment(segment.number, segment.nbytes, segment.base)
        for number in self.memory.segments.keys() - self.node.pool.slabs.segments.keys():
            self.memory.retire_segment(number)
        for client in self.memory.areas.keys() - self.node.engines.keys():
            self.memory.retire_area(client)

    def _alike(self, image: Image | None = None, named_bytes: int | None = None) -> KillBench:
        named = self.options.named_bytes if named_bytes is None else named_bytes
        capacity = self.options.capacity_bytes
        return KillBench(image, capacity_bytes=capacity, max_blocks=self.max_blocks, named_bytes=named)

    def next(self, image: Image | None = None, named_bytes: int | None = None) -> KillBench:
        """The data plane after this one was killed. Whatever the cut, its accounts are consistent, and what readers had
        they still have."""
        image = image or self.image()
        after = self._alike(image, named_bytes)
        assert after.faults() == []
        controls, words = image.state(), after.index.control
        assert ((words >> STATE_BITS) >= (controls >> STATE_BITS)).all(), "an incarnation went back"
        readable = np.isin(controls & STATE_MASK, [State.READY, State.EVICTING])
        leased = np.zeros(len(words), np.bool_)
        for area in after.memory.areas.values():
            leased |= area.counters != 0
        assert (words[readable & leased] & STATE_MASK == State.READY).all(), "a held block went"
        assert not np.isin(words & STATE_MASK, [State.RESERVED, State.EVICTING]).any()
        return after

    def image(self, dead: frozenset[int] = frozenset()) -> Image:
        index, recovery_table, names = (bytes(buffer) for buffer in self._buffers)
        memfds = {number: nbytes for number, nbytes in self.memory.segments.items() if number not in self.memory.bases}
        return Image(index, recovery_table, names, memfds, dict(self.memory.buffers), self.now, dead)

    # ---- every store

    def cuts(self, work: Callable[[], object]) -> list[Image]:
        """Do something; what memory was like before it, after each of its stores, and at the end.

        Between two steps of the interpreter that changed more than one word, cuts inside are made up in the order of
        addresses, which is the order in which numpy stores.
        """
        images = [self.image()]

        def look(frame: FrameType, event: str, argument: Any) -> Any:
            if CORE not in frame.f_code.co_filename:
                return None
            frame.f_trace_opcodes = True
            last = images[-1]
            if any(
                old != new
                for old, new in zip((last.index, last.recovery_table, last.names), self._buffers, strict=True)
            ):
                images.append(self.image())
            return look

        before = sys.gettrace()
        sys.settrace(look)
        try:
            work()
        finally:
            sys.settrace(before)
        images.append(self.image())
        return list(_refined(images))

    def restoration_cuts(self, image: Image) -> list[Image]:
        """What the restoration by the next data plane stores, cut everywhere."""
        bench = self._alike()
        bench.load(image)
        return bench.cuts(lambda: bench.restore(image))

    def resume(self, engine: BenchEngine) -> BenchEngine:
        """The same process attaches to this bench with what it had."""
        known = self.node.engines[engine.client]
        spaces = [
            SpaceRequest(space, writes) for space, writes in zip(known.space_list, known.spaces.values(), strict=True)
        ]
        message = Attach(1, VERSION, known.group, spaces, resume=engine.client, resume_memory=MEMORY, writing=[])
        again, numbers = self.node.attach(message, known.pid, self.now, gateway=known.gateway)
        assert again.resumed
        assert again.client == engine.client
        return BenchEngine(self, again.client, numbers, self.memory.areas[again.client])

    def locations(self) -> dict[int, tuple[int, int]]:
        """Where the bytes of each READY block are, whatever the segment's number: (base or -segment, offset)."""
        found = {}
        for number, block in self.node.pool.table.blocks.items():
            if block.state is State.READY:
                segment = block.slot.slab.segment
                found[number] = (-segment.number if segment.base is None else segment.base, block.slot.offset)
        return found


def _refined(images: list[Image]) -> Iterator[Image]:
    for first, second in pairwise(images):
        yield first
        for name in ("index", "recovery_table", "names"):
            old = np.frombuffer(getattr(first, name), np.uint64)
            new = np.frombuffer(getattr(second, name), np.uint64)
            changed = np.flatnonzero(old != new)
            if len(changed) < 2:
                continue
            for last in sorted({1, len(changed) // 2, len(changed) - 1}):
                words = old.copy()
                words[changed[:last]] = new[changed[:last]]
                parts = {each: getattr(first, each) for each in ("index", "recovery_table", "names")}
                parts[name] = words.tobytes()
                yield Image(**parts, segments=second.segments, areas=second.areas, now=second.now)
    yield images[-1]


def listed(index: IndexMemory, *states: State) -> set[int]:
    """Descriptors in the index with one of these states."""
    numbers = {(entry & 0xFFFFFFFF) - 1 for entry in index.entries.reshape(-1).tolist() if entry}
    control = index.control.tolist()
    return {number for number in numbers if control[number] & STATE_MASK in states}


def survivors(image: Image) -> set[int]:
    """Descriptors that the next data plane must have."""
    return listed(IndexMemory.attach(bytearray(image.index)), State.READY, State.EVICTING)


def check_all(
    made: KillBench,
    engines: Sequence[BenchEngine],
    work: Callable[[], object],
    then: Callable[[KillBench], None] = lambda after: None,
) -> None:
    """Cut the work everywhere. After each cut, what was READY is there, at its place; and the same engines store and
    read on, in a usual run after one cut of four."""
    before = made.locations()
    images = made.cuts(work)
    assert len(images) > 5, "the work stores something"
    stay = dict(before.items() & made.locations().items())
    controls = made.image().state()

    def check(image: Image, engines: Sequence[BenchEngine]) -> None:
        after = made.next(image)
        assert survivors(image) == listed(after.index, State.READY), "a READY block was lost, or one appeared"
        now, there = after.locations(), image.state()
        for block, location in stay.items():
            if there[block] == controls[block]:
                assert now[block] == location, "a READY block lies somewhere else"
        then(after)
        for engine in engines:
            again = after.resume(engine)
            assert not after.node.engines[engine.client].expired, "what it does not write any more is released"
            chain = make.keys(3, ("afterwards", engine.client))
            stored = again.store(chain, SLOT)
            assert after.faults() == []
            assert again.lookup(chain) == 3 or stored.refused

    gc.disable()  # a node is megabytes, and a circle: it is collected while it is young, without a look at all else
    try:
        for number, image in enumerate(images):
            check(image, engines if number % size(1, 4) == 0 else ())
            gc.collect(0)
    finally:
        gc.enable()
