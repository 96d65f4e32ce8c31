"""Several managers over one database: one pushes, all serve, and each streams the commits of the others."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.errors import Conflict, StoreUnavailable
from app.push.leader_election import LeaderElection
from app.store.base import migrate, notify
from app.store.base.database import Database
from app.store.base.notify import Notice, Notification
from app.store.fleet.leader_lock import LEASE_S, FileLeaderLock
from app.store.records.quotas import QuotaRow
from dataplane.protocol.control.snapshots import Fault
from tests.app.command import run
from tests.app.fake_node import FakeNode
from tests.app.manager import Manager, running
from tests.app.silent_proxy import SilentProxy
from tests.app.waiting import until
from tests.clock import Clock
from tests.deploy.tools import prometheus
from tests.postgres_cluster import PostgresCluster

PUSHES = 3
"""Pushes to a node that joins: quotas, pins and policies."""
pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture
def url(own_cluster: PostgresCluster, own_database: str) -> str:
    return own_cluster.url(own_database)


@pytest.fixture
async def two(socket_dir: Path, url: str, new_node: FakeNode) -> AsyncIterator[tuple[Manager, Manager]]:
    """The first one leads."""
    pair = [Manager(socket_dir / name, url, new_node.control_url) for name in ("one", "other")]
    async with running(*pair):
        await until(lambda: any(manager.events("manager.promoted") for manager in pair))
        pair.sort(key=lambda manager: not manager.events("manager.promoted"))
        yield pair[0], pair[1]


def holds(node: FakeNode, tenant: str) -> bool:
    return any(quota.tenant == tenant for quota in node.quotas)


async def pushing(manager: Manager) -> list[str]:
    items = (await manager.get("/api/v1/managers"))["items"]
    return [item["url"] for item in items if item["pushing"]]


async def test_any_manager_takes_changes_and_one_pushes_them(two: tuple[Manager, Manager], new_node: FakeNode) -> None:
    first, second = two
    for manager, tenant in ((first, "a"), (second, "b")):
        answer = await manager.http.put(f"/api/v1/quotas/{tenant}?wait=30s", json={"limit_bytes": 1})
        assert answer.json()["status"]["applied"] is True
        assert holds(new_node, tenant)
    assert not second.events("push.ended")
    for manager in two:
        await until(partial(_knows_both, manager, first))
        pushes = await manager.get("/api/v1/pushes?type=quotas")
        assert pushes["total"] >= 2
        await manager.get("/healthz/fleet")
    leads = f"{socket.gethostname()} (pid {first.process.pid}, {first.http.base_url}"
    for manager, role in ((first, "this one pushes to nodes"), (second, leads)):
        await until(partial(_says, manager, f"managers: 2 alive; {role}"))
    metrics = [(await manager.http.get("/metrics")).text for manager in two]
    assert ["larder_manager_pushing 1.0" in text for text in metrics] == [True, False]
    assert [_of_nodes(text) for text in metrics] == [True, False], "sums over managers count each node once"


def _of_nodes(metrics: str) -> bool:
    """Return whether a scrape has metrics of nodes and of the fleet."""
    return "larder_node_up{node=" in metrics and "larder_desired_generation{" in metrics


async def _says(manager: Manager, line: str) -> bool:
    """Whether `larder status` has it: the first one stops pushing for a moment if its database is slow."""
    return line in await _cli(manager, "status")


async def _cli(manager: Manager, *arguments: str) -> str:
    """What the command line says to this manager."""
    url = str(manager.http.base_url)
    done = await asyncio.to_thread(run, *arguments, "--url", url, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return done.stdout


async def _knows_both(manager: Manager, first: Manager) -> bool:
    items = (await manager.get("/api/v1/managers"))["items"]
    alive = [item for item in items if item["alive"]]
    here = [item["url"] for item in alive if item["answering"]]
    return (
        len(alive) == 2
        and here == [str(manager.http.base_url)]
        and [item["url"] for item in alive if item["pushing"]] == [str(first.http.base_url)]
    )


async def test_a_follower_shows_refusals_of_nodes(two: tuple[Manager, Manager], new_node: FakeNode) -> None:
    first, second = two
    await until(lambda: len(first.events("push.ended")) >= PUSHES)
    new_node.faults = [Fault("quotas[0].limit_bytes", "bad_field", "too odd")]
    assert (await second.put_quota("odd", 1)).status_code == 201

    async def refused() -> bool:
        return [fault["message"] for fault in (await _node(second))["faults"]] == ["too odd"]

    await until(refused)
    new_node.faults = []
    assert (await second.put_quota("odd", 2)).status_code == 200

    async def accepted() -> bool:
        return (await _node(second))["faults"] == [] and (await _node(second))["state"] == "in_sync"

    await until(accepted)


async def _node(manager: Manager) -> dict:
    """The node as a manager shows it; without faults and a state before it knows it."""
    nodes = (await manager.get("/api/v1/nodes"))["items"]
    return nodes[0] if nodes else {"faults": [], "state": ""}


@pytest.mark.parametrize("how", ["killed", "stopped", "ended"])
async def test_another_manager_pushes_when_the_first_has_ended(
    two: tuple[Manager, Manager], new_node: FakeNode, how: str
) -> None:
    first, second = two
    await until(lambda: len(first.events("push.ended")) >= PUSHES)
    number = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "ended": signal.SIGTERM}[how]
    first.signal(number)
    went = time.monotonic()
    await second.leads()
    assert (await second.put_quota("after", 7)).status_code == 201
    await new_node.until(lambda: holds(new_node, "after"), 60)
    print(f"{how}: another manager had pushed after {time.monotonic() - went:.2f} s")
    if how == "stopped":
        ended = len(first.events("push.ended"))
        first.signal(signal.SIGCONT)
        await first.until_line("manager.demoted")
        assert (await first.put_quota("again", 8)).status_code == 201
        await new_node.until(lambda: holds(new_node, "again"), 60)
        assert len(first.events("push.ended")) == ended
        assert await pushing(first) == [str(second.http.base_url)]


async def test_a_leader_that_is_cut_off_stops_before_another_begins(
    socket_dir: Path, own_cluster: PostgresCluster, own_database: str, new_node: FakeNode
) -> None:
    async with SilentProxy(own_cluster.socket_path) as proxy:
        behind = f"postgresql://larder@127.0.0.1:{proxy.port}/{own_database}"
        first = Manager(socket_dir / "first", behind, new_node.control_url)
        second = Manager(socket_dir / "second", own_cluster.url(own_database), new_node.control_url)
        async with running(first), running(second):
            await first.leads()
            await until(lambda: new_node.observed)
            went = datetime.now(UTC)
            proxy.silence()
            stopped = _at(await first.until_line("manager.demoted"))
            began = _at(await second.until_line("manager.promoted"))
            assert (await second.put_quota("after", 7)).status_code == 201
            await new_node.until(lambda: holds(new_node, "after"), 60)
            print(f"cut off: stopped after {stopped - went}, another began after {began - went}")
            assert all(_at(line) < began for line in first.events("push.ended"))
            proxy.speak()
            await until(lambda: _follows(first, second))


def _at(line: dict[str, Any]) -> datetime:
    """When it was logged."""
    return datetime.fromisoformat(line["timestamp"])


async def _follows(first: Manager, second: Manager) -> bool:
    answer = await first.http.get("/api/v1/managers")
    return answer.is_success and await pushing(first) == [str(second.http.base_url)]


async def test_streams_of_every_manager_have_the_commits_of_each(two: tuple[Manager, Manager]) -> None:
    streams = [manager.stream() for manager in two]
    for stream in streams:
        await anext(stream)
    for manager, tenant in zip(two, ("a", "b"), strict=True):
        started = time.monotonic()
        assert (await manager.put_quota(tenant, 1)).status_code == 201
        for stream in streams:
            async with asyncio.timeout(60):
                while (event := await anext(stream))["name"] != "quota.created":
                    pass
            assert event["fields"]["tenant"] == tenant
        print(f"reported by both after {time.monotonic() - started:.3f} s")
        for stream in streams:
            async with asyncio.timeout(60):
                while (await anext(stream))["name"] != "push.acked":
                    pass
    for stream in streams:
        await stream.aclose()


async def test_managers_that_create_the_same_records_at_once_get_clean_answers(two: tuple[Manager, Manager]) -> None:
    pin = {"model": "m", "tokens": [1, 2, 3, 4], "chunk_tokens": 4}
    for number in range(10):
        for path, body in (
            (f"/api/v1/quotas/t{number}", {"limit_bytes": number + 1}),
            (f"/api/v1/pins/p{number}", pin),
        ):
            answers = await asyncio.gather(*(manager.http.put(path, json=body) for manager in two for _ in range(2)))
            statuses = [answer.status_code for answer in answers]
            assert statuses.count(201) == 1, statuses
            assert set(statuses) <= {200, 201, 409, 412, 428}, statuses


async def test_of_two_transactions_that_insert_the_same_record_one_conflicts(url: str) -> None:
    databases = [Database(url) for _ in range(2)]
    await migrate.upgrade(databases[0])

    async def insert(database: Database) -> None:
        async with database.write() as session:
            session.add(QuotaRow(tenant="same", note="", generation=1, selector=None, created_at=0, updated_at=0))

    results = await asyncio.gather(*(insert(database) for database in databases), return_exceptions=True)
    assert [type(result) for result in results if result is not None] == [Conflict]
    for database in databases:
        assert not database.watch.away
        await database.close()


async def test_notices_are_received_again_after_the_database_was_away(
    two: tuple[Manager, Manager], own_cluster: PostgresCluster, new_node: FakeNode
) -> None:
    await asyncio.gather(*(manager.until_line("notices.listening") for manager in two))
    own_cluster.crash()
    await asyncio.gather(*(manager.until_line("database.lost") for manager in two))
    own_cluster.run()
    await asyncio.gather(*(manager.until_line("notices.listening", after=1) for manager in two))
    for manager, tenant in zip(two, ("a", "b"), strict=True):
        stream = two[1].stream() if manager is two[0] else two[0].stream()
        await anext(stream)
        assert (await manager.put_quota(tenant, 1)).status_code == 201
        await new_node.until(lambda tenant=tenant: holds(new_node, tenant), 60)

        async def until_event(stream: AsyncIterator[dict], tenant: str) -> None:
            while (event := await anext(stream))["name"] != "quota.created" or event["fields"]["tenant"] != tenant:
                pass

        await asyncio.wait_for(until_event(stream, tenant), 60)
        await stream.aclose()


async def test_a_second_process_on_one_sqlite_file_takes_over_when_the_first_ends(
    socket_dir: Path, new_node: FakeNode
) -> None:
    database = f"sqlite:///{socket_dir / 'shared.db'}"
    first = Manager(socket_dir / "first", database, new_node.control_url)
    second = Manager(socket_dir / "second", database, new_node.control_url)
    async with running(first), running(second):
        await first.leads()
        line = await second.until_line("manager.demoted")
        assert "another manager pushes" in line["reason"]
        assert (await second.put_quota("b", 1)).status_code == 201
        await new_node.until(lambda: holds(new_node, "b"), 60)
        assert not second.events("push.ended")
        first.signal(signal.SIGKILL)
        went = time.monotonic()
        await second.leads()
        print(f"SQLite: another process leads after {time.monotonic() - went:.2f} s")
        assert (await second.put_quota("c", 1)).status_code == 201
        await new_node.until(lambda: holds(new_node, "c"), 60)


def test_a_notice_has_room_for_some_events_and_counts_the_rest() -> None:
    events = [Notification("quota.created", 1.0, {"tenant": "t" * 100, "generation": n}) for n in range(1000)]
    packed = notify.pack("o" * 16, events)
    notice = msgspec.json.decode(packed, type=Notice)
    assert len(packed) <= notify.MAX_PAYLOAD_BYTES
    assert notice.events == events[: len(notice.events)]
    assert len(notice.events) + notice.more == 1000


class Scripted:
    """A lock that answers as configured; an exception is raised."""

    def __init__(self) -> None:
        self.takes: list[float | StoreUnavailable | None] = []
        self.confirms: list[StoreUnavailable | None] = []
        self.released = False

    async def take(self) -> float | None:
        answer = self.takes.pop(0)
        if isinstance(answer, StoreUnavailable):
            raise answer
        return answer

    async def confirm(self) -> None:
        if error := self.confirms.pop(0):
            raise error

    async def release(self) -> None:
        self.released = True


async def test_the_right_to_push_ends_with_its_lease_and_comes_back_with_its_confirmation() -> None:
    claim, clock = Scripted(), Clock()
    lead = LeaderElection(claim, lambda leads, reason: None, clock)
    claim.takes = [0.0]
    await lead.step()
    assert (lead.pushing, lead.term) == (True, 1)
    clock.now += LEASE_S
    assert not lead.pushing
    claim.confirms = [None]
    await lead.step()
    assert (lead.pushing, lead.term) == (True, 1)


async def test_a_successor_waits_for_the_end_of_the_lease_before_it() -> None:
    claim, clock, turns = Scripted(), Clock(), list[bool]()
    lead = LeaderElection(claim, lambda leads, _: turns.append(leads), clock)
    claim.takes, claim.confirms = [None, 1.5], [None]
    await lead.step()
    await lead.step()
    assert (lead.pushing, lead.holds, turns) == (False, True, [False])
    clock.now += 1.5
    assert not lead.pushing
    await lead.step()
    assert (lead.pushing, turns) == (True, [False, True])


async def test_a_lost_claim_stops_pushing_at_once_and_another_term_follows() -> None:
    claim, clock = Scripted(), Clock()
    lead = LeaderElection(claim, lambda leads, reason: None, clock)
    claim.takes, claim.confirms = [0.0, StoreUnavailable("away"), 0.0], [StoreUnavailable("gone")]
    for pushing, term in ((True, 1), (False, 1), (False, 1), (True, 2)):
        await lead.step()
        assert (lead.pushing, lead.term) == (pushing, term)
    await lead.stop()
    assert (lead.pushing, claim.released) == (False, True)


async def test_a_lock_file_that_was_removed_is_no_claim(tmp_path: Path) -> None:
    claim, other = FileLeaderLock(str(tmp_path / "larder.db")), FileLeaderLock(str(tmp_path / "larder.db"))
    assert await claim.take() == 0.0
    await claim.confirm()
    assert await other.take() is None
    os.unlink(claim.path)
    with pytest.raises(StoreUnavailable, match="was removed or replaced"):
        await claim.confirm()
    assert await other.take() == 0.0
    assert await claim.take() is None
    await other.release()
    assert await claim.take() == 0.0
    await claim.release()


@pytest.mark.full
async def test_sums_over_managers_count_a_node_once(
    two: tuple[Manager, Manager], new_node: FakeNode, tmp_path: Path
) -> None:
    """A real Prometheus scrapes both managers, before and after the leader is killed."""
    first, second = two
    targets = [f"{manager.http.base_url.host}:{manager.http.base_url.port}" for manager in two]
    scrape = {"job_name": "larder", "scrape_interval": "1s", "static_configs": [{"targets": targets}]}
    with prometheus(tmp_path, {"scrape_configs": [scrape]}) as scraping:

        def settled(scraped: int, leader: str) -> bool:
            """Return whether so many managers are scraped, and nodes come from this one alone."""
            sums = ("up", "larder_manager_pushing", "larder_node_up", f'larder_nodes{{instance="{leader}"}}')
            values = [[line["value"][1] for line in scraping.query(f"sum({name})")] for name in sums]
            return values == [[str(scraped)], ["1"], ["1"], ["1"]]

        await until(lambda: settled(2, targets[0]))
        first.signal(signal.SIGKILL)
        await second.leads()
        await until(lambda: settled(1, targets[1]))
