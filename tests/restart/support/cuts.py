"""A node on plain bytes whose stores are recorded one by one, and nodes that go on with any prefix of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from types import FrameType
from typing import Any

import numpy as np

from dataplane.core.blocks.leases import LeaseTable
from dataplane.core.journal.id_journal import EngineName, IdJournal, names_bytes
from dataplane.core.journal.recovery_table import RecoveryTable, TableWriter, recovery_table_bytes
from dataplane.core.node import Node, NodeOptions
from dataplane.core.restore import Restored, SurvivingMemory, restore, segments_here
from dataplane.protocol.engine import VERSION, Attach, SpaceRequest
from dataplane.protocol.layout import H_MEMORY, PAGE, U64, AreaMemory, IndexMemory, area_bytes, index_bytes
from dataplane.protocol.states import STATE_MASK, State
from tests.dataplane.bench_node import RING_ENTRIES, Bench, BenchEngine, PlainMemory

HALF = PAGE
"""Of the journal: small, so that it is compacted often."""
MEMORY = 77
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
        self,
        image: Image | None = None,
        *,
        capacity_bytes: int = 0,
        max_blocks: int = 64,
        named_bytes: int = 0,
        **options: Any,
    ) -> None:
        self.now = 1_000_000.0 if image is None else image.now
        self.fences = 0
        self.checks = []
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
        self.memory: KillMemory = KillMemory(max_blocks)
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
        return Node(self.options, self.index, self.memory, leases, self.now, recovery_table=recovery_table, names=names)

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

        here = segments_here(known, self.index, image.segments, self.options.named_bytes)
        surviving = SurvivingMemory(known, here, self.memory.areas.get, alive)
        self.restored = restore(self.node, surviving, self.now)
        for segment in self.node.pool.slabs.segments.values():
            if segment.base is not None:
                self.memory.create_segment(segment.number, segment.nbytes, segment.base)
        for number in self.memory.segments.keys() - self.node.pool.slabs.segments.keys():
            self.memory.retire_segment(number)
        for client in self.memory.areas.keys() - self.node.engines.keys():
            self.memory.retire_area(client)

    def image(self, dead: frozenset[int] = frozenset()) -> Image:
        index, recovery_table, names = (bytes(buffer) for buffer in self._buffers)
        memfds = {each: size for each, size in self.memory.segments.items() if each not in self.memory.bases}
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

    def ready(self) -> dict[int, int]:
        """Control words of READY blocks that are in the index, by descriptor."""
        flat = self.index.entries.reshape(-1)
        listed = {(entry & 0xFFFFFFFF) - 1 for entry in flat[flat != 0].tolist()}
        return {
            number: word
            for number, word in enumerate(self.index.control.tolist())
            if word & STATE_MASK == State.READY and number in listed
        }


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


@dataclass
class KillMemory(PlainMemory):
    """`PlainMemory` that keeps the areas' bytes."""

    buffers: dict[int, bytearray] = field(default_factory=dict)

    def __init__(self, max_blocks: int) -> None:
        super().__init__(max_blocks)
        self.buffers = {}

    def create_area(self, client: int) -> AreaMemory:
        buffer = self.buffers[client] = bytearray(area_bytes(self.max_blocks, RING_ENTRIES))
        area = self.areas[client] = AreaMemory(buffer, self.max_blocks, RING_ENTRIES)
        area.format()
        return area

    def retire_area(self, client: int) -> None:
        super().retire_area(client)
        self.buffers.pop(client, None)


def restoration_cuts(image: Image, capacity_bytes: int, named_bytes: int = 0) -> list[Image]:
    """What a restoration stores, cut everywhere."""
    bench = KillBench(capacity_bytes=capacity_bytes, named_bytes=named_bytes)
    bench.load(image)
    return bench.cuts(lambda: bench.restore(image))
