"""Nodes with real memory and a loop in this process, for tests of what runs between the core and tiers."""

from __future__ import annotations

import time
from collections.abc import Callable

from dataplane.core.blocks.leases import LeaseTable
from dataplane.core.node import Node, NodeOptions
from dataplane.core.tiering.catalog import Catalog, SpaceRecords
from dataplane.core.tiering.invalidations import Tombstone
from dataplane.core.tiering.jobs import LoadRequest
from dataplane.core.tiering.tier_state import TierState
from dataplane.core.tiering.tiering import Tiering
from dataplane.io.loop import Loop
from dataplane.memory.memory import NodeMemory
from dataplane.observe.trace import BatchSpans
from dataplane.protocol.engine import VERSION, Attach, Commit, Reserve, SpaceRequest
from dataplane.protocol.events import Event
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.tier_directory import TierDirectory, buckets_for, directory_bytes, space_word
from dataplane.protocol.tiers import TierSpec
from dataplane.tiering.background import Background
from dataplane.tiering.mover import Mover
from dataplane.tiering.wake import Wake
from tests.dataplane import factories as make
from tests.dataplane.tiering.faulty_tier import FaultyTier

NBYTES = 4096
POOL_BLOCKS = 512


class LoopBench:
    """A node with real memory and a loop, in this process; `until` turns the loop."""

    def __init__(self, capacity_bytes: int) -> None:
        self.memory = NodeMemory(4096)
        self.memory.index.format(7, 1)
        options = NodeOptions(
            name="bench",
            epoch="0000000000000007",
            capacity_bytes=capacity_bytes,
            segment_bytes=2 << 20,
            reservation_ttl_s=30.0,
            pin_budget_ratio=0.2,
            max_clients=64,
        )
        private, leases = make.private_memory(4096), LeaseTable(lambda: None)
        self.node = Node(options, self.memory.index, self.memory, leases, time.time(), lambda event: None, *private)
        self.loop = Loop()

    def until(self, holds: Callable[[], object], what: str = "it comes") -> None:
        deadline = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < deadline, what
            self.loop._turn()
            self.node.tick(time.time())

    def close(self) -> None:
        faults = self.node.check()
        self.loop.close()
        self.memory.close()
        assert faults == []


class MoverBench(LoopBench):
    """A node with a faulty tier."""

    def __init__(self, **spec: object) -> None:
        super().__init__(POOL_BLOCKS * NBYTES)
        self.tier = FaultyTier()
        fields = {"name": "t", "type": "faulty", "budget_bytes": 1 << 30, **spec}
        record = TierSpec(**fields)  # type: ignore[arg-type]
        self.tombstones: list[Tombstone] = []
        self.state = TierState(0, record, self.tier.stored_size, tombstones=lambda: self.tombstones)
        buckets = buckets_for(4096)
        self.directory = TierDirectory.make(memoryview(bytearray(directory_bytes(buckets))), buckets)
        mover, _ = self.node.attach(Attach(0, VERSION, "m", []), 1, time.time(), gateway="tiers")
        wake = Wake(self.loop, BatchSpans(time.time))
        node = self.node
        add = self.tombstones.append
        catalog = Catalog(node.pool, self.directory, SpaceRecords(), add, lambda call: call(), wake.set, 0)
        self.tiering = Tiering(catalog, node.storing, node.room, mover, node.emit)
        node.use_tiers(self.tiering)
        self.events: list[Event] = []
        self.mover = Mover(
            self.loop, Background(self.loop), self.memory, self.tiering, wake, time.time, self.events.append
        )
        self.run = self.mover.add(self.state, self.tier, self.tombstones.clear)
        self.mover.opened(self.run)
        space = make.space(block_bytes=NBYTES)
        self.word = space_word(space.identity())
        engine, spaces = self.node.attach(Attach(0, VERSION, "e", [SpaceRequest(space)]), 2, time.time())
        self.client, self.space = engine.client, spaces[0]

    def store(self, chain: list[bytes], tenant: str = "") -> int:
        message = Reserve(0, self.space, tenant, make.packed(chain), NBYTES)
        granted = self.node.reserve(self.client, message, time.time())
        for at in range(len(chain)):
            segment, offset = int(granted.segments[at]), int(granted.offsets[at])
            if segment:
                file = self.memory.segments[segment]
                memoryview(file.map())[offset : offset + 32] = chain[at]
        if not granted.reservation:
            return 0
        return self.node.commit(self.client, Commit(0, granted.reservation), time.time())

    def content(self, key: bytes) -> bytes:
        (block,) = self.node.pool.table.find(pack_keys([key]), self.space)
        assert block is not None
        file = self.memory.segments[block.slot.slab.segment.number]
        return bytes(memoryview(file.map())[block.slot.offset : block.slot.offset + 32])

    def waits(self) -> bool:
        """Return whether blocks wait to be copied from memory to the tier, or are being copied."""
        return bool(self.tiering.table.waiting(self.state)[0] or self.state.spilling_bytes)

    def ready(self, chain: list[bytes]) -> int:
        return len(self.node.pool.table.memory.leading_ready(pack_keys(chain), self.space)[0])

    def listed(self, chain: list[bytes]) -> int:
        return int((self.directory.find(pack_keys(chain), self.word).tiers != 0).sum())

    def ask(self, chain: list[bytes], wait_s: float = 60.0) -> LoadRequest | None:
        now = time.time()
        return self.tiering.loads.request(self.client, self.space, make.packed(chain), now + wait_s)

    def evict_all(self) -> None:
        for number in range(POOL_BLOCKS // 64):
            self.store(make.keys(64, ("filler", number, time.monotonic_ns())))

    def close(self) -> None:
        self.tier.fault = ""
        self.tier.go_on.set()
        assert self.mover.close()
        super().close()
