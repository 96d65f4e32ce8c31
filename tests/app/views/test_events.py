"""The history of events: storage during outages and floods, and queries."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.observe.catalogue.service import DatabaseLost, DatabaseRecovered
from app.schemas.base.listing import PageRequest
from app.schemas.views.events import EventFilters
from app.services.views.events import BATCH, QUEUE, Events
from app.store.base import migrate
from app.store.base.database import Database
from dataplane.protocol.events import GatewayNameLost, MemoryAdopted
from tests.app.command import output
from tests.app.event_bus import event_bus
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane, serving, settings_in
from tests.app.problems import fault_paths
from tests.app.waiting import until

pytestmark = pytest.mark.anyio
H = "/api/v1/events/history"
ALL = PageRequest(1000)


async def test_events_of_nodes_and_records_are_in_the_history(new_plane: Plane, new_node: FakeNode) -> None:
    await new_plane.put_quota("acme", 5)
    changed = await new_plane.stored_events("name=quota.created", 1)
    assert changed[0]["fields"] == {"tenant": "acme", "generation": 1}
    joined = await new_plane.stored_events("name=node.*&node=node-a", 1)
    assert joined[-1]["name"] == "node.joined"  # a machine that stalls loses it for a moment
    assert {event["name"] for event in joined} <= {"node.joined", "node.lost"}
    assert (await new_plane.get(f"{H}?node=nobody"))["items"] == []
    assert (await new_plane.get(f"{H}?name=push.acked"))["items"] == [], "what is normal work is not kept"
    assert (await new_plane.get(f"{H}?since={changed[0]['at'] + 1}"))["total"] == 0
    assert (await new_plane.get(f"{H}?since={changed[0]['at']}"))["total"] >= 1
    both = await new_plane.stored_events("", 2)
    assert [event["at"] for event in both] == sorted((event["at"] for event in both), reverse=True)
    page = await new_plane.get(f"{H}?limit=1")
    after = await new_plane.get(f"{H}?limit=1&cursor={page['next_cursor']}")
    assert [page["items"][0], after["items"][0]] == both[:2]


async def test_events_name_their_actor_and_their_node(new_plane: Plane, new_node: FakeNode) -> None:
    await new_plane.put_quota("acme", 5)
    changed = await new_plane.stored_events("name=quota.created", 1)
    assert (changed[0]["actor"], changed[0]["node"]) == ("local", "")
    await new_plane.http.post("/api/v1/nodes/node-a/drain", json={"on": True})
    drained = await new_plane.stored_events("name=node.drain_requested", 1)
    assert (drained[0]["actor"], drained[0]["node"]) == ("local", "node-a")
    assert {event["actor"] for event in await new_plane.stored_events("name=node.joined", 1)} == {""}
    assert {event["name"] for event in await new_plane.stored_events("actor=local", 2)} == {
        "quota.created",
        "node.drain_requested",
    }
    assert {event["actor"] for event in (await new_plane.get("/api/v1/overview"))["recent"]} == {"", "local"}


async def test_the_list_reports_missing_events(new_plane: Plane) -> None:
    retention_s = new_plane.app.parts.settings.app.events_retention_days * 86_400
    new_plane.app.parts.views.events.dropped["node.lost"] = 3
    new_plane.app.parts.ingest.intake.lost = 2
    missing = (await new_plane.get(H))["not_kept"]
    assert missing["before"] == pytest.approx(time.time() - retention_s, abs=60)
    assert "blocks.stored" in missing["names"]
    assert (missing["dropped"], missing["lost"]) == (3, 2)
    out = await output(new_plane, "events")
    assert "actor" in out
    assert "Since this manager started: 3 dropped, 2 lost." in out


async def test_an_invalid_filter_names_the_field(new_plane: Plane) -> None:
    for query, field in (
        ("since=yesterday", "since"),
        ("since=-1", "since"),
        ("sort=fields", "sort"),
        ("limit=0", "limit"),
    ):
        assert fault_paths(await new_plane.http.get(f"{H}?{query}"))[0] == field


async def test_the_history_survives_a_restart(socket_dir: Path) -> None:
    settings = settings_in(socket_dir)
    async with serving(settings) as first:
        await first.put_quota("acme", 5, wait="")
    async with serving(settings) as second:
        assert len(await second.stored_events("name=quota.created", 1)) == 1


@pytest.fixture
async def events(database_url: str) -> AsyncIterator[Events]:
    """An empty history in either database."""
    database = Database(database_url)
    await migrate.upgrade(database)
    yield Events(database, lost=lambda: 0)
    await database.close()


async def test_fields_of_a_node_are_stored_or_marked_as_omitted(events: Events) -> None:
    bus = event_bus(events.offer)
    bus.publish(GatewayNameLost(1.0, "g", "\0"), node="\0" + "n" * 500, at=1.0)
    bus.publish(GatewayNameLost(2.0, "g", "x" * 20_000), at=2.0)
    bus.publish(MemoryAdopted(3.0, 1, 1 << 62, 0, 0, float("nan")), at=3.0)
    await events.flush()
    page = await events.page(ALL, EventFilters())
    assert [event.name for event in page.items] == ["memory.adopted", "gateway.name_lost", "gateway.name_lost"]
    assert (page.items[0].fields["seconds"], page.items[0].fields["bytes"]) == (None, 1 << 62)
    assert page.items[1].fields == {"omitted_bytes": 20_027}
    assert page.items[2].node == "n" * 128


async def stopped(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait({task})


async def test_a_flood_is_bounded_and_dropped_events_are_counted(events: Events) -> None:
    bus = event_bus(events.offer)
    for number in range(QUEUE + 7):
        bus.publish(DatabaseRecovered(number))
    assert events.dropped == {"database.recovered": 7}
    task = asyncio.create_task(events.run())
    async with asyncio.timeout(60):
        while (await events.page(PageRequest(1), EventFilters())).total < QUEUE:
            await asyncio.sleep(0.05)
    await stopped(task)
    last = (await events.page(PageRequest(BATCH), EventFilters())).items[0]
    assert last.fields == {"away_s": QUEUE - 1}


async def test_events_wait_while_the_database_is_unavailable(tmp_path: Path) -> None:
    file = tmp_path / "larder.db"
    database = Database(f"sqlite+aiosqlite:///{file}")
    await migrate.upgrade(database)
    events = Events(database, lost=lambda: 0)
    bus = event_bus(events.offer)
    away = tmp_path / "away.db"
    file.rename(away)
    task = asyncio.create_task(events.run())
    bus.publish(DatabaseLost("gone"))
    await until(lambda: database.watch.away)
    away.rename(file)
    bus.publish(DatabaseRecovered(1.0))
    async with asyncio.timeout(60):
        while database.watch.away or (await events.page(ALL, EventFilters())).total < 2:
            await asyncio.sleep(0.05)
    await stopped(task)
    assert {event.name for event in (await events.page(ALL, EventFilters())).items} == {
        "database.lost",
        "database.recovered",
    }
    await database.close()


async def test_relayed_events_of_another_manager_are_not_stored(events: Events) -> None:
    bus = event_bus(events.offer)
    with bus.subscribe() as subscriber:
        bus.relay("quota.created", "", 1.0, {"tenant": "acme"})
        assert [event.name for event in subscriber.take()] == ["quota.created"]
    await events.flush()
    assert (await events.page(ALL, EventFilters())).total == 0
