"""Event queues of the management plane: bounds, and the order of drops."""

from collections import Counter

from app.observe.catalogue.fleet import NodeLost
from app.observe.events import BACKLOG, EventQueue, LarderEvent
from dataplane.protocol.events import BlocksStored
from tests.app.event_bus import event_bus

TRAFFIC = BlocksStored(1.0, 1, "m", "a", 2, 100)


def event(name: str, seq: int) -> LarderEvent:
    return LarderEvent(name, 1.0, seq, "", {})


def pushed(names: list[str], limit: int, *, keep_oldest: bool) -> tuple[list[int], Counter[str]]:
    dropped: Counter[str] = Counter()
    queue = EventQueue(limit, dropped, keep_oldest=keep_oldest)
    for seq, name in enumerate(names):
        queue.push(event(name, seq))
    assert len(queue) <= limit
    return [each.seq for each in queue.take()], dropped


def test_traffic_is_dropped_before_changes() -> None:
    names = ["quota.changed", "blocks.stored", "quota.changed", "blocks.stored", "node.lost"]
    for keep_oldest in (False, True):
        assert pushed(names, 4, keep_oldest=keep_oldest) == ([0, 2, 3, 4], {"blocks.stored": 1})
        assert pushed(names, 3, keep_oldest=keep_oldest) == ([0, 2, 4], {"blocks.stored": 2})


def test_refusals_are_dropped_after_other_traffic_and_before_changes() -> None:
    names = ["blocks.refused", "quota.changed", "blocks.stored", "node.lost", "blocks.evicted"]
    for keep_oldest in (False, True):
        assert pushed(names, 3, keep_oldest=keep_oldest)[0] == [0, 1, 3]
        assert pushed(names, 2, keep_oldest=keep_oldest)[1] == {
            "blocks.refused": 1,
            "blocks.stored": 1,
            "blocks.evicted": 1,
        }


def test_traffic_that_finds_a_queue_full_of_changes_is_dropped_itself() -> None:
    names = ["quota.changed"] * 3 + ["blocks.evicted"] * 2
    assert pushed(names, 3, keep_oldest=False) == ([0, 1, 2], {"blocks.evicted": 2})


def test_without_traffic_a_stream_loses_the_oldest_and_the_history_the_newest() -> None:
    names = ["quota.changed"] * 3 + ["pin.changed"] * 2
    assert pushed(names, 3, keep_oldest=False) == ([2, 3, 4], {"quota.changed": 2})
    assert pushed(names, 3, keep_oldest=True) == ([0, 1, 2], {"pin.changed": 2})


def test_names_of_other_releases_are_counted_together() -> None:
    assert pushed(["moon.rose", "sun.set"], 0, keep_oldest=False)[1] == {"other": 2}


def test_drained_events_can_be_put_back() -> None:
    queue = EventQueue(5, Counter(), keep_oldest=True)
    for seq in range(4):
        queue.push(event("node.lost", seq))
    taken = queue.take(2)
    queue.put_back(taken)
    assert [each.seq for each in queue.take()] == [0, 1, 2, 3]


def test_a_slow_stream_keeps_the_changes_of_a_busy_node() -> None:
    bus = event_bus()
    with bus.subscribe() as slow:
        bus.publish(NodeLost(), node="a")
        for _ in range(10 * BACKLOG):
            bus.publish(TRAFFIC, node="a", at=1.0)
        names = [each.name for each in slow.take()]
    assert names == ["node.lost"] + ["blocks.stored"] * (BACKLOG - 1)
    assert bus.dropped == {"blocks.stored": 9 * BACKLOG + 1}
