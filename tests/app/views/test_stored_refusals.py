"""Refused blocks in the history: start and number."""

import time

import pytest

from app.observe.events import LarderEvent
from app.services.views.events import EVERY_S, MAX_GROUPS, OTHER, REFUSED, RefusalSums
from dataplane.protocol.events import BlocksRefused
from tests.app.command import output
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane


def refused(at: float, tenant: str = "a", reason: str = "pool_full") -> LarderEvent:
    fields = {"client": 1, "tenant": tenant, "reason": reason, "blocks": 2, "bytes": 10, "events": 1}
    return LarderEvent(REFUSED, at, 1, "n", fields)


def test_the_first_refusal_is_stored_at_once_and_later_ones_once_a_minute() -> None:
    sums, now = RefusalSums(), time.monotonic()
    sums.add(refused(1.0))
    assert [(event.at, event.fields["blocks"]) for event in sums.due(now + 1)] == [(1.0, 2)]
    for second in range(2, 50):
        sums.add(refused(float(second)))
        assert sums.due(now + second) == []
    (event,) = sums.due(now + 1 + EVERY_S)
    assert (event.at, event.fields["blocks"], event.fields["events"]) == (49.0, 96, 48)
    assert sums.due(now + 2 + 2 * EVERY_S) == []
    sums.add(refused(200.0))
    assert len(sums.due(now + 3 + 2 * EVERY_S)) == 1, "after a pause, the first is kept at once again"


def test_refusals_are_grouped_by_tenant_and_reason_within_a_bound() -> None:
    sums = RefusalSums()
    sums.add(refused(1.0, reason="over_limit"))
    for number in range(3 * MAX_GROUPS):
        sums.add(refused(1.0, f"t{number}"))
    found = sums.due(time.monotonic() + 1)
    assert len(found) == MAX_GROUPS + 1
    assert sum(event.fields["blocks"] for event in found) == 2 * (3 * MAX_GROUPS + 1)
    assert [event.fields["tenant"] for event in found].count(OTHER) == 1


@pytest.mark.anyio
async def test_refusals_of_a_node_are_in_the_history(plane: Plane, node: FakeNode) -> None:
    await plane.events_flow()
    for number in range(30):
        await node.publish(BlocksRefused(5.0 + number, 1, "acme", "over_limit", 2, 100))
    (event,) = await plane.stored_events("name=blocks.refused")
    assert (event["node"], event["fields"]["tenant"], event["fields"]["reason"]) == ("node-a", "acme", "over_limit")
    assert "over_limit" in await output(plane, "events", "list", "--name", "blocks.refused", "-o", "json")
