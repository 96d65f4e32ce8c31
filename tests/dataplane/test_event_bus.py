"""The event bus of a data plane: bounded, sums up block traffic, and drops it before anything else."""

from collections.abc import Iterable
from unittest.mock import Mock

from dataplane.base.process_figures import ProcessFigures
from dataplane.observe.bus import MAX_QUEUED, MAX_SUMS, RESERVED, EventFanout
from dataplane.protocol.events import BlocksEvicted, BlocksRefused, BlocksStored, Event, PinExpired, PoolResized
from dataplane.protocol.stats.processes import CacheStart
from dataplane.report import NodeReport
from tests.dataplane.bench_node import Bench


def listening(per_s: float) -> tuple[EventFanout, list[Event]]:
    bus, got = EventFanout(per_s), list[Event]()
    bus.subscribe(got.append)
    return bus, got


def publish(bus: EventFanout, events: Iterable[Event]) -> None:
    for event in events:
        bus.publish(event)


def stored(at: float, tenant: str = "a", client: int = 1) -> BlocksStored:
    return BlocksStored(at, client, "m", tenant, 2, 100)


def test_traffic_beyond_the_rate_is_summed_up_and_no_block_is_lost() -> None:
    bus, got = listening(3)
    for number in range(100):
        at = 1 + number / 1000
        publish(bus, [stored(at, client=number % 2), BlocksRefused(at, 1, "a", "pool_full", 1, 10)])
        bus.deliver(at)
    assert len(got) == 3
    bus.deliver(1.99)
    assert len(got) == 3, "the second has not ended"
    bus.deliver(2.1)
    assert len(got) == 5
    sums = [event for event in got if isinstance(event, BlocksStored | BlocksRefused)]
    assert sum(event.blocks for event in sums) == 300
    assert sum(event.bytes for event in sums) == 11_000
    assert sum(event.events for event in sums) == 200
    assert got[-1] == BlocksStored(1.099, 0, "m", "a", 196, 9800, 98), "of several clients"
    assert not bus.dropped


def test_tenants_reasons_and_kinds_have_sums_of_their_own() -> None:
    bus, got = listening(0)
    publish(bus, [stored(1.0), stored(1.1), stored(1.2, "b"), BlocksEvicted(1.2, "a", "room", 1, 5)])
    publish(bus, [BlocksEvicted(1.3, "a", "limit", 1, 5), BlocksEvicted(1.4, "a", "room", 1, 5)])
    bus.deliver()
    assert got == [
        BlocksStored(1.1, 1, "m", "a", 4, 200, 2),
        BlocksStored(1.2, 1, "m", "b", 2, 100),
        BlocksEvicted(1.4, "a", "room", 2, 10, 2),
        BlocksEvicted(1.3, "a", "limit", 1, 5),
    ]


def test_the_next_second_begins_with_single_events_again() -> None:
    bus, got = listening(1)
    publish(bus, [stored(1.0), stored(1.5), stored(2.5)])
    bus.deliver(2.5)
    assert [event.at for event in got if isinstance(event, BlocksStored)] == [1.0, 1.5, 2.5]


def test_many_tenants_do_not_make_the_sums_grow_without_bound() -> None:
    bus, got = listening(0)
    for number in range(2 * MAX_SUMS + 1):
        publish(bus, [stored(1.0, f"t{number}")])
    bus.deliver()
    assert len(got) == 2 * MAX_SUMS + 1


def test_changes_are_never_sampled() -> None:
    bus, got = listening(0)
    publish(bus, [PinExpired(1.0, f"p{number}", "a") for number in range(1000)])
    bus.deliver(1.0)
    assert len(got) == 1000


def test_a_full_bus_drops_traffic_before_refusals_and_those_before_changes_and_counts_by_name() -> None:
    bus, got = listening(float("inf"))
    publish(bus, [stored(1.0) for _ in range(MAX_QUEUED)])
    assert bus.dropped == {"blocks.stored": RESERVED}
    publish(bus, [BlocksRefused(1.0, 1, "a", "pool_full", 1, 10) for _ in range(RESERVED // 2 + 2)])
    assert bus.dropped == {"blocks.stored": RESERVED, "blocks.refused": 2}
    publish(bus, [PoolResized(1.0, 1) for _ in range(RESERVED // 2 + 3)])
    assert bus.dropped == {"blocks.stored": RESERVED, "blocks.refused": 2, "pool.resized": 3}
    bus.deliver()
    assert len(got) == MAX_QUEUED


def test_dropped_events_are_reported_by_name() -> None:
    bus, _ = listening(float("inf"))
    publish(bus, [stored(1.0) for _ in range(MAX_QUEUED - RESERVED + 2)])
    tiers = Mock(stats=list, load_seconds=dict)
    report = NodeReport(
        Bench(4096).node, CacheStart(), bus, Mock(), ProcessFigures(), Mock(), tiers, None, None, None
    ).stats(1.0)
    assert report.events_dropped == {"blocks.stored": 2}
    assert report.totals.events_dropped == 2
