"""The mover beside a tier that fails in every way: memory is served, and the tier is used again when it is back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from dataplane.core.blocks.leases import LeaseTable
from dataplane.core.node import Node, NodeOptions
from dataplane.core.tiering.load_queue import LoadRequest
from dataplane.core.tiering.tier_state import TierState
from dataplane.core.tiering.tiering import Tiering
from dataplane.core.tiering.tombstones import Tombstone
from dataplane.io.loop import Loop
from dataplane.memory.memory import NodeMemory
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.engine import VERSION, Attach, Commit, Reserve, SpaceRequest
from dataplane.protocol.events import Event, TierLost, TierRecovered
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.tier_directory import TierDirectory, buckets_for, directory_bytes, space_word
from dataplane.protocol.tiers import TierSpec
from dataplane.tiering.mover import Mover
from tests.dataplane import factories as make
from tests.dataplane.tiering.faulty_tier import FaultyTier

NBYTES = 4096
POOL_BLOCKS = 512


class MoverBench:
    """A node with real memory and a faulty tier, in this process; `until` turns its loop."""

    def __init__(self, **spec: object) -> None:
        self.memory = NodeMemory(4096)
        self.memory.index.format(7, 1)
        options = NodeOptions(
            name="bench",
            epoch="0000000000000007",
            capacity_bytes=POOL_BLOCKS * NBYTES,
            segment_bytes=2 << 20,
            reservation_ttl_s=30.0,
            pin_budget_ratio=0.2,
            max_clients=64,
        )
        self.node = Node(options, self.memory.index, self.memory, LeaseTable(lambda: None), time.time())
        self.loop = Loop()
        self.tier = FaultyTier()
        fields = {"name": "t", "type": "faulty", "budget_bytes": 1 << 30, **spec}
        self.state = TierState(0, TierSpec(**fields), self.tier.stored_size)  # type: ignore[arg-type]
        buckets = buckets_for(4096)
        self.directory = TierDirectory.make(memoryview(bytearray(directory_bytes(buckets))), buckets)
        mover, _ = self.node.attach(Attach(0, VERSION, "m", []), 1, time.time(), gateway="tiers")
        self.tiering = Tiering(self.node, mover.client, self.directory, [])
        self.node.use_tiers(self.tiering)
        self.tombstones: list[Tombstone] = []
        self.tiering.on_tombstone = self.tombstones.append
        self.events: list[Event] = []
        self.mover = Mover(
            self.loop, self.memory, self.tiering, time.time, self.events.append, lambda run: self.tombstones.clear()
        )
        self.tiering.add_tier(self.state)
        self.run = self.mover.add(self.state, self.tier)
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

    def until(self, holds: Callable[[], object], what: str = "it comes") -> None:
        deadline = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < deadline, what
            self.loop._turn()
            self.node.tick(time.time())

    def close(self) -> None:
        self.tier.fault = ""
        self.tier.go_on.set()
        assert self.mover.close()
        self.loop.close()
        self.memory.close()


@pytest.fixture
def run() -> Iterator[MoverBench]:
    bench = MoverBench()
    yield bench
    bench.close()


def test_blocks_go_to_the_tier_and_come_back_with_their_bytes(run: MoverBench) -> None:
    chain = make.keys(16, "chain")
    run.store(chain)
    run.until(lambda: run.listed(chain) == 16)
    run.evict_all()
    assert run.ready(chain) == 0
    run.ask(chain)
    run.until(lambda: run.ready(chain) == 16)
    assert [run.content(key) for key in chain] == chain
    assert run.node.check() == []
    durations = run.run.rates.histogram()
    assert sum(durations.counts) >= 1
    assert durations.total > 0


@pytest.mark.parametrize("fault", ["error", "crash", "failed"])
def test_a_tier_that_fails_is_taken_out_of_service_and_is_back_after_a_probe(run: MoverBench, fault: str) -> None:
    chain = make.keys(16, "chain")
    run.store(chain)
    run.until(lambda: run.listed(chain) == 16)
    run.tier.fault = fault
    for number in range(4):
        assert run.store(make.keys(16, number)) == 16, "memory is served"
        run.until(lambda: not run.state.waiting_blocks and not run.state.spilling_bytes)  # a call for each
    run.until(lambda: not run.state.serves)
    run.mover.step()
    assert len(run.directory.leading(pack_keys(chain), run.word).tiers) == 0, "engines do not wait for it"
    assert run.mover.stats()[0].reason
    run.tier.fault = ""
    run.until(lambda: run.state.serves)
    lost, recovered = run.events
    assert isinstance(lost, TierLost)
    assert isinstance(recovered, TierRecovered)
    assert (lost.tier, bool(lost.reason), recovered.tier) == ("t", True, "t")
    run.evict_all()
    run.ask(chain)
    run.until(lambda: run.ready(chain) == 16)
    assert run.node.check() == []


def test_a_tier_that_hangs_delays_nothing_and_its_memory_is_safe(run: MoverBench) -> None:
    chain = make.keys(8, "chain")
    run.store(chain)
    run.until(lambda: run.listed(chain) == 8)
    run.evict_all()
    run.until(lambda: not run.state.waiting and not run.state.spilling_bytes)
    run.tier.fault = "hang"
    run.ask(chain)
    run.until(lambda: run.tier.hanging)
    reserved = run.node.pool.reserved_bytes
    assert reserved == 8 * NBYTES
    for number in range(POOL_BLOCKS // 8):
        assert run.store(make.keys(8, ("during", number))) == 8, "stores go on"
    assert run.node.pool.reserved_bytes == reserved, "no other block gets the memory that is loaded into"
    run.tier.fault = ""
    run.tier.go_on.set()
    run.until(lambda: run.ready(chain) == 8)
    assert run.node.check() == []


def test_blocks_invalidated_during_an_outage_of_the_tier_are_deleted_after_it(run: MoverBench) -> None:
    chain = make.keys(8, "chain")
    run.store(chain, "acme")
    run.until(lambda: run.listed(chain) == 8)
    run.tier.fault = "error"
    run.node.invalidate(Scope(tenant="acme"), time.time())
    run.until(lambda: not run.state.serves)
    assert len(run.tombstones) == 1
    assert len(run.tier.stored) == 8
    run.tier.fault = ""
    run.until(lambda: not run.tier.stored)
    run.until(lambda: not run.tombstones)


def test_a_stop_waits_a_bounded_time_for_a_tier_that_hangs() -> None:
    bench = MoverBench()
    bench.store(make.keys(8, "chain"))
    bench.tier.fault = "hang"
    bench.until(lambda: bench.tier.hanging)
    assert not bench.mover.close(), "its threads are left"
    bench.tier.go_on.set()
    for thread in threading.enumerate():
        if thread.name.startswith("larder-tier-t"):
            thread.join(60)
    assert not bench.tier.closed
    bench.loop.close()
    bench.memory.close()


def test_loads_that_no_request_needs_any_more_free_their_room(run: MoverBench) -> None:
    chains = [make.keys(4, name) for name in ("a", "b", "c", "d")]
    for chain in chains:
        run.store(chain)
    run.until(lambda: all(run.listed(chain) == 4 for chain in chains))
    run.evict_all()
    run.until(lambda: not run.state.waiting_blocks and not run.state.spilling_bytes)
    run.tier.fault = "hang"
    requests = [run.ask(chain) for chain in chains]
    joined = run.ask(chains[3])
    run.mover.step()
    run.until(lambda: run.tier.hanging == 2)
    assert run.state.loading_bytes == 16 * NBYTES
    for request in requests:
        assert request is not None
        run.tiering.loads.cancel(request)
    assert run.state.loading_bytes == 12 * NBYTES, "two calls have begun, and one request is left"
    assert len(run.node.engines[run.tiering.client].reservations) == 3
    run.node.detach_cleanly(run.client, time.time())
    assert run.state.loading_bytes == 8 * NBYTES
    assert joined is not None
    assert not run.tiering.loads.under_way(joined)
    run.tier.fault = ""
    run.tier.go_on.set()
    run.until(lambda: not run.state.loading_bytes)
    assert run.state.counters.loaded_blocks == 8
    assert run.node.check() == []
