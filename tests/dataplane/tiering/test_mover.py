"""The mover beside a tier that fails in every way: memory is served, and the tier is used again when it is back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.events import TierLost, TierRecovered
from dataplane.protocol.layout import pack_keys
from tests.dataplane import factories as make
from tests.dataplane.tiering.mover_bench import NBYTES, POOL_BLOCKS, MoverBench


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
        run.until(lambda: not run.waits())  # a call for each
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


def test_a_tier_that_hangs_delays_nothing_and_its_memory_is_safe(run: MoverBench) -> None:
    chain = make.keys(8, "chain")
    run.store(chain)
    run.until(lambda: run.listed(chain) == 8)
    run.evict_all()
    run.until(lambda: not run.waits())
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


def test_blocks_invalidated_during_an_outage_of_the_tier_are_deleted_after_it(run: MoverBench) -> None:
    chain = make.keys(8, "chain")
    run.store(chain, "acme")
    run.until(lambda: run.listed(chain) == 8)
    run.tier.fault = "error"
    run.node.operator.invalidate(Scope(tenant="acme"), time.time())
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
    run.until(lambda: not run.waits())
    run.tier.fault = "hang"
    requests = [run.ask(chain) for chain in chains]
    joined = run.ask(chains[3])
    run.mover.step()
    run.until(lambda: run.tier.hanging == 2)
    assert run.state.loading_bytes == 16 * NBYTES
    for request in requests:
        assert request is not None
        run.tiering.loads.cancel(request)
    run.until(lambda: run.state.loading_bytes == 12 * NBYTES, "two calls have begun, and one request is left")
    assert len(run.node.engines[run.tiering.loads.client].reservations) == 3
    run.node.detach_cleanly(run.client, time.time())
    run.until(lambda: run.state.loading_bytes == 8 * NBYTES)
    assert joined is not None
    assert not run.tiering.loads.under_way(joined)
    run.tier.fault = ""
    run.tier.go_on.set()
    run.until(lambda: not run.state.loading_bytes)
    assert run.state.counters.loaded_blocks == 8
