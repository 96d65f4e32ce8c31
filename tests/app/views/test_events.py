"""The history of events: what is kept, through outages and floods, and how it is asked for."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.observe.events import EventBus
from app.schemas.base.listing import PageRequest
from app.schemas.views.events import EventFilters
from app.services.views.events import BATCH, QUEUE, Events
from app.store.base import migrate
from app.store.base.database import Database
from tests.app.command import larder
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane, serving, settings_in

pytestmark = pytest.mark.anyio
H = "/api/v1/events/history"
ALL = PageRequest(1000)


async def kept(plane: Plane, query: str, count: int) -> list[dict[str, Any]]:
    """The history once it has this many."""
    async with asyncio.timeout(10):
        while True:
            items = (await plane.get(f"{H}?{query}"))["items"]
            if len(items) >= count:
                return list(items)
            await asyncio.sleep(0.05)


async def test_what_happened_to_nodes_and_records_can_be_asked_for_later(
    plane: Plane, node: FakeNode
) -> None:
    await plane.put_quota("acme", 5)
    changed = await kept(plane, "name=quota.changed", 1)
    assert changed[0]["fields"] == {"name": "acme", "action": "create", "generation": 1}
    joined = await kept(plane, "name=node.*&node=node-a", 1)
    assert [event["name"] for event in joined] == ["node.joined"]
    assert (await plane.get(f"{H}?node=nobody"))["items"] == []
    assert (await plane.get(f"{H}?name=push.acked"))["items"] == [], "what is normal work is not kept"
    assert (await plane.get(f"{H}?since={changed[0]['at'] + 1}"))["total"] == 0
    assert (await plane.get(f"{H}?since={changed[0]['at']}"))["total"] >= 1
    both = await kept(plane, "", 2)
    assert [event["at"] for event in both] == sorted((event["at"] for event in both), reverse=True)
    page = await plane.get(f"{H}?limit=1")
    after = await plane.get(f"{H}?limit=1&cursor={page['next_cursor']}")
    assert [page["items"][0], after["items"][0]] == both[:2]


async def test_events_name_their_actor_and_their_node(plane: Plane, node: FakeNode) -> None:
    await plane.put_quota("acme", 5)
    changed = await kept(plane, "name=quota.changed", 1)
    assert (changed[0]["actor"], changed[0]["node"]) == ("local", "")
    await plane.http.post("/api/v1/nodes/node-a/drain", json={"on": True})
    drained = await kept(plane, "name=node.drain", 1)
    assert (drained[0]["actor"], drained[0]["node"]) == ("local", "node-a")
    assert [event["actor"] for event in await kept(plane, "name=node.joined", 1)] == [""]
    assert {event["name"] for event in await kept(plane, "actor=local", 2)} == {"quota.changed", "node.drain"}
    assert {event["actor"] for event in (await plane.get("/api/v1/overview"))["recent"]} == {"", "local"}


async def test_the_list_says_what_is_not_kept(plane: Plane) -> None:
    retention_s = plane.app.parts.settings.app.events_retention_days * 86_400
    plane.app.parts.events.dropped = 3
    plane.app.parts.ingest.lost = 2
    told = (await plane.get(H))["not_kept"]
    assert told["before"] == pytest.approx(time.time() - retention_s, abs=60)
    assert "blocks.stored" in told["names"]
    assert (told["dropped"], told["lost"]) == (3, 2)
    code, out, _ = await larder(plane, "events")
    assert (code, "actor" in out) == (0, True)
    assert "3 dropped and 2 lost since this manager started" in out


async def test_a_filter_that_cannot_be_is_told(plane: Plane) -> None:
    for query, field in (
        ("since=yesterday", "since"),
        ("since=-1", "since"),
        ("sort=fields", "sort"),
        ("limit=0", "limit"),
    ):
        wrong = await plane.http.get(f"{H}?{query}")
        assert (wrong.status_code, wrong.json()["errors"][0]["path"]) == (422, field)


async def test_the_history_is_there_after_a_restart(socket_dir: Path) -> None:
    settings = settings_in(socket_dir)
    async with serving(settings) as first:
        await first.put_quota("acme", 5, wait="")
    async with serving(settings) as second:
        assert len(await kept(second, "name=quota.changed", 1)) == 1


@pytest.fixture
async def events(database_url: str) -> AsyncIterator[Events]:
    """An empty history in either database."""
    database = Database(database_url)
    await migrate.upgrade(database)
    yield Events(database)
    await database.close()


async def test_whatever_a_node_puts_in_a_fact_is_kept_or_said_to_be_left_out(events: Events) -> None:
    bus = EventBus()
    bus.keep = events.offer
    bus.publish("odd\0name", "n" * 500, text="\0", at=1.0)
    bus.publish("big", text="x" * 20_000, at=2.0)
    bus.publish("number", value=float("nan"), large=1 << 62, at=3.0)
    await events.flush()
    page = await events.page(ALL, EventFilters())
    assert [event.name for event in page.items] == ["number", "big", "oddname"]
    assert page.items[0].fields == {"value": None, "large": 1 << 62}
    assert page.items[1].fields == {"left_out_bytes": 20_011}
    assert len(page.items[2].node) == 128


async def stopped(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait({task})


async def test_a_flood_is_bounded_and_counted_and_what_was_taken_is_written(events: Events) -> None:
    bus = EventBus()
    bus.keep = events.offer
    for number in range(QUEUE + 7):
        bus.publish("x", n=number)
    assert events.dropped == 7
    task = asyncio.create_task(events.run())
    async with asyncio.timeout(30):
        while (await events.page(PageRequest(1), EventFilters())).total < QUEUE:
            await asyncio.sleep(0.05)
    await stopped(task)
    last = (await events.page(PageRequest(BATCH), EventFilters())).items[0]
    assert last.fields == {"n": QUEUE - 1}


async def test_facts_wait_while_the_database_is_away(tmp_path: Path) -> None:
    file = tmp_path / "larder.db"
    database = Database(f"sqlite+aiosqlite:///{file}")
    await migrate.upgrade(database)
    events = Events(database)
    bus = EventBus()
    bus.keep = events.offer
    away = tmp_path / "away.db"
    file.rename(away)
    task = asyncio.create_task(events.run())
    bus.publish("while.away")
    async with asyncio.timeout(10):
        while not database.watch.away:
            await asyncio.sleep(0.02)
    away.rename(file)
    bus.publish("once.back")
    async with asyncio.timeout(10):
        while database.watch.away or (await events.page(ALL, EventFilters())).total < 2:
            await asyncio.sleep(0.05)
    await stopped(task)
    assert {event.name for event in (await events.page(ALL, EventFilters())).items} == {
        "while.away",
        "once.back",
    }
    await database.close()


async def test_what_another_management_plane_tells_is_that_ones_to_keep(events: Events) -> None:
    bus = EventBus()
    bus.keep = events.offer
    with bus.subscribe() as subscriber:
        bus.relay("quota.changed", "", 1.0, {"name": "acme"})
        assert [event.name for event in subscriber.take()] == ["quota.changed"]
    await events.flush()
    assert (await events.page(ALL, EventFilters())).total == 0
