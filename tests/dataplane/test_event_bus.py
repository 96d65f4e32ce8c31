"""The event bus of a data plane: bounded, sums up block traffic, and drops it before anything else."""

from collections import Counter

from dataplane.observe.bus import MAX_QUEUED, MAX_SUMS, RESERVED, EventFanout
from dataplane.protocol.events import BlocksEvicted, BlocksRefused, BlocksStored, Event, PinExpired, PoolResized


def listening(per_s: float) -> tuple[EventFanout, list[Event]]:
    bus, got = EventFanout(Counter(), per_s), list[Event]()
    bus.subscribe(got.append)
    return bus, got


def stored(at: float, tenant: str = "a", client: int = 1) -> BlocksStored:
    return BlocksStored(at, client, "m", tenant, 2, 100)


def test_traffic_beyond_the_rate_is_summed_up_and_no_block_is_lost() -> None:
    bus, got = listening(3)
    for number in range(100):
        at = 1 + number / 1000
        bus.publish([stored(at, client=number % 2), BlocksRefused(at, 1, "a", "pool_full", 1, 10)])
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
    bus.publish([stored(1.0), stored(1.1), stored(1.2, "b"), BlocksEvicted(1.2, "a", "room", 1, 5)])
    bus.publish([BlocksEvicted(1.3, "a", "limit", 1, 5), BlocksEvicted(1.4, "a", "room", 1, 5)])
    bus.deliver()
    assert got == [
        BlocksStored(1.1, 1, "m", "a", 4, 200, 2),
        BlocksStored(1.2, 1, "m", "b", 2, 100),
        BlocksEvicted(1.4, "a", "room", 2, 10, 2),
        BlocksEvicted(1.3, "a", "limit", 1, 5),
    ]


def test_the_next_second_begins_with_single_events_again() -> None:
    bus, got = listening(1)
    bus.publish([stored(1.0), stored(1.5), stored(2.5)])
    bus.deliver(2.5)
    assert [event.at for event in got if isinstance(event, BlocksStored)] == [1.0, 1.5, 2.5]


def test_many_tenants_do_not_make_the_sums_grow_without_bound() -> None:
    bus, got = listening(0)
    for number in range(2 * MAX_SUMS + 1):
        bus.publish([stored(1.0, f"t{number}")])
    bus.deliver()
    assert len(got) == 2 * MAX_SUMS + 1


def test_changes_are_never_sampled() -> None:
    bus, got = listening(0)
    bus.publish([PinExpired(1.0, f"p{number}", "a") for number in range(1000)])
    bus.deliver(1.0)
    assert len(got) == 1000


def test_a_full_bus_drops_traffic_before_refusals_and_those_before_changes_and_counts_by_name() -> None:
    bus, got = listening(float("inf"))
    bus.publish(stored(1.0) for _ in range(MAX_QUEUED))
    assert bus.dropped == {"blocks.stored": RESERVED}
    bus.publish(BlocksRefused(1.0, 1, "a", "pool_full", 1, 10) for _ in range(RESERVED // 2 + 2))
    assert bus.dropped == {"blocks.stored": RESERVED, "blocks.refused": 2}
    bus.publish(PoolResized(1.0, 1) for _ in range(RESERVED // 2 + 3))
    assert bus.dropped == {"blocks.stored": RESERVED, "blocks.refused": 2, "pool.resized": 3}
    bus.deliver()
    assert len(got) == MAX_QUEUED
