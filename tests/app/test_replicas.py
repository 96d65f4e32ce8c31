"""Several management planes over one database: one pushes, all serve, and what one commits the others tell."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.errors import Conflict, StoreUnavailable
from app.push.lead import Lead
from app.store import migrate, notify
from app.store.claim import LEASE_S, FileClaim
from app.store.database import Database
from app.store.notify import Notice, Told
from app.store.quotas import QuotaRow
from dataplane.protocol.control import SNAPSHOT_TYPES, Fault
from tests.app.fake_node import FakeNode
from tests.app.replica import Replica, running, until
from tests.app.silent_proxy import SilentProxy
from tests.postgres_cluster import PostgresCluster

pytestmark = [pytest.mark.anyio, pytest.mark.postgres, pytest.mark.timeout(300)]


@pytest.fixture
def url(own_cluster: PostgresCluster, own_database: str) -> str:
    return own_cluster.url(own_database)


@pytest.fixture
async def two(socket_dir: Path, url: str, node: FakeNode) -> AsyncIterator[tuple[Replica, Replica]]:
    """The first one leads."""
    pair = [Replica(socket_dir / name, url, node.control_url) for name in ("one", "other")]
    async with running(*pair):
        await until(lambda: any(replica.events("replica.leading") for replica in pair))
        pair.sort(key=lambda replica: not replica.events("replica.leading"))
        yield pair[0], pair[1]


def holds(node: FakeNode, tenant: str) -> bool:
    return any(quota.tenant == tenant for quota in node.quotas)


async def pushing(replica: Replica) -> list[str]:
    items = (await replica.get("/api/v1/replicas"))["items"]
    return [item["url"] for item in items if item["pushing"]]


async def test_any_replica_takes_changes_and_one_pushes_them(
    two: tuple[Replica, Replica], node: FakeNode
) -> None:
    first, second = two
    for replica, tenant in ((first, "a"), (second, "b")):
        answer = await replica.http.put(f"/api/v1/quotas/{tenant}?wait=10s", json={"limit_bytes": 1})
        assert answer.json()["status"]["applied"] is True
        assert holds(node, tenant)
    assert not second.events("push.ended")
    for replica in two:
        await until(partial(_knows_both, replica, first))
        pushes = await replica.get("/api/v1/pushes?type=quotas")
        assert pushes["total"] >= 2
        ready = await replica.http.get("/readyz")
        assert ready.status_code == 200
    shown = [await _cli(replica, "status") for replica in two]
    assert "replicas: 2 alive; this one pushes to nodes" in shown[0]
    assert (
        f"replicas: 2 alive; {socket.gethostname()} (pid {first.process.pid}, {first.http.base_url}"
        in shown[1]
    )
    metrics = [(await replica.http.get("/metrics")).text for replica in two]
    assert ["larder_replica_pushing 1.0" in text for text in metrics] == [True, False]


async def _cli(replica: Replica, *arguments: str) -> str:
    """What the command line says to this replica."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "app", *arguments, "--url", str(replica.http.base_url)),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    return said.decode()


async def _knows_both(replica: Replica, first: Replica) -> bool:
    items = (await replica.get("/api/v1/replicas"))["items"]
    alive = [item for item in items if item["alive"]]
    here = [item["url"] for item in alive if item["answering"]]
    return (
        len(alive) == 2
        and here == [str(replica.http.base_url)]
        and [item["url"] for item in alive if item["pushing"]] == [str(first.http.base_url)]
    )


async def test_a_follower_shows_what_a_node_refused(two: tuple[Replica, Replica], node: FakeNode) -> None:
    first, second = two
    await until(lambda: len(first.events("push.ended")) == len(SNAPSHOT_TYPES))
    node.faults = [Fault("quotas[0].limit_bytes", "bad_field", "too odd")]
    assert (await second.put_quota("odd", 1)).status_code == 201

    async def refused() -> bool:
        return [fault["message"] for fault in (await _node(second))["faults"]] == ["too odd"]

    await until(refused)
    node.faults = []
    assert (await second.put_quota("odd", 2)).status_code == 200

    async def accepted() -> bool:
        return (await _node(second))["faults"] == [] and (await _node(second))["state"] == "in_sync"

    await until(accepted)


async def _node(replica: Replica) -> dict:
    return (await replica.get("/api/v1/nodes"))["items"][0]


@pytest.mark.parametrize("how", ["killed", "stopped", "ended"])
async def test_another_replica_pushes_when_the_first_is_gone(
    two: tuple[Replica, Replica], node: FakeNode, how: str
) -> None:
    first, second = two
    await until(lambda: len(first.events("push.ended")) == len(SNAPSHOT_TYPES))
    number = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "ended": signal.SIGTERM}[how]
    first.signal(number)
    went = time.monotonic()
    await second.leads()
    assert (await second.put_quota("after", 7)).status_code == 201
    await node.until(lambda: holds(node, "after"), 60)
    print(f"{how}: another replica had pushed after {time.monotonic() - went:.2f} s")
    if how == "stopped":
        ended = len(first.events("push.ended"))
        first.signal(signal.SIGCONT)
        await first.until_line("replica.following")
        assert (await first.put_quota("again", 8)).status_code == 201
        await node.until(lambda: holds(node, "again"), 60)
        assert len(first.events("push.ended")) == ended
        assert await pushing(first) == [str(second.http.base_url)]


async def test_a_leader_that_is_cut_off_stops_before_another_begins(
    socket_dir: Path, own_cluster: PostgresCluster, own_database: str, node: FakeNode
) -> None:
    async with SilentProxy(own_cluster.socket_path) as proxy:
        behind = f"postgresql://larder@127.0.0.1:{proxy.port}/{own_database}"
        first = Replica(socket_dir / "first", behind, node.control_url)
        second = Replica(socket_dir / "second", own_cluster.url(own_database), node.control_url)
        async with running(first), running(second):
            await first.leads()
            await until(lambda: node.observed)
            went = datetime.now(UTC)
            proxy.silence()
            stopped = _at(await first.until_line("replica.following"))
            began = _at(await second.until_line("replica.leading"))
            assert (await second.put_quota("after", 7)).status_code == 201
            await node.until(lambda: holds(node, "after"), 60)
            print(f"cut off: stopped after {stopped - went}, another began after {began - went}")
            assert all(_at(line) < began for line in first.events("push.ended"))
            proxy.speak()
            await until(lambda: _follows(first, second))


def _at(line: dict[str, Any]) -> datetime:
    """When it was logged."""
    return datetime.fromisoformat(line["timestamp"])


async def _follows(first: Replica, second: Replica) -> bool:
    answer = await first.http.get("/api/v1/replicas")
    return answer.is_success and await pushing(first) == [str(second.http.base_url)]


async def test_streams_of_every_replica_tell_what_each_commits(two: tuple[Replica, Replica]) -> None:
    streams = [replica.facts() for replica in two]
    for stream in streams:
        await anext(stream)
    for replica, tenant in zip(two, ("a", "b"), strict=True):
        asked = time.monotonic()
        assert (await replica.put_quota(tenant, 1)).status_code == 201
        for stream in streams:
            async with asyncio.timeout(60):
                while (fact := await anext(stream))["name"] != "quota.changed":
                    pass
            assert fact["fields"]["name"] == tenant
        print(f"told by both after {time.monotonic() - asked:.3f} s")
        for stream in streams:
            async with asyncio.timeout(60):
                while (await anext(stream))["name"] != "push.acked":
                    pass
    for stream in streams:
        await stream.aclose()


async def test_replicas_that_create_the_same_records_at_once_get_clean_answers(
    two: tuple[Replica, Replica],
) -> None:
    pin = {"model": "m", "tokens": [1, 2, 3, 4], "chunk_tokens": 4}
    for number in range(10):
        for path, body in (
            (f"/api/v1/quotas/t{number}", {"limit_bytes": number + 1}),
            (f"/api/v1/pins/p{number}", pin),
        ):
            answers = await asyncio.gather(
                *(replica.http.put(path, json=body) for replica in two for _ in range(2))
            )
            statuses = [answer.status_code for answer in answers]
            assert statuses.count(201) == 1, statuses
            assert set(statuses) <= {200, 201, 409, 412, 428}, statuses


async def test_of_two_transactions_that_insert_the_same_record_one_conflicts(url: str) -> None:
    databases = [Database(url) for _ in range(2)]
    await migrate.upgrade(databases[0])

    async def insert(database: Database) -> None:
        async with database.write() as session:
            session.add(
                QuotaRow(tenant="same", note="", generation=1, selector=None, created_at=0, updated_at=0)
            )

    results = await asyncio.gather(*(insert(database) for database in databases), return_exceptions=True)
    assert [type(result) for result in results if result is not None] == [Conflict]
    for database in databases:
        assert not database.watch.away
        await database.close()


async def test_notices_are_heard_again_after_the_database_was_away(
    two: tuple[Replica, Replica], own_cluster: PostgresCluster, node: FakeNode
) -> None:
    await asyncio.gather(*(replica.until_line("notices.listening") for replica in two))
    own_cluster.crash()
    await asyncio.gather(*(replica.until_line("database.away") for replica in two))
    own_cluster.run()
    await asyncio.gather(*(replica.until_line("notices.listening", after=1) for replica in two))
    for replica, tenant in zip(two, ("a", "b"), strict=True):
        stream = two[1].facts() if replica is two[0] else two[0].facts()
        await anext(stream)
        assert (await replica.put_quota(tenant, 1)).status_code == 201
        await node.until(lambda tenant=tenant: holds(node, tenant), 60)

        async def told(stream: AsyncIterator[dict], tenant: str) -> None:
            while (fact := await anext(stream))["name"] != "quota.changed" or fact["fields"][
                "name"
            ] != tenant:
                pass

        await asyncio.wait_for(told(stream, tenant), 60)
        await stream.aclose()


async def test_a_second_process_on_one_sqlite_file_takes_over_when_the_first_ends(
    socket_dir: Path, node: FakeNode
) -> None:
    database = f"sqlite:///{socket_dir / 'shared.db'}"
    first = Replica(socket_dir / "first", database, node.control_url)
    second = Replica(socket_dir / "second", database, node.control_url)
    async with running(first), running(second):
        await first.leads()
        line = await second.until_line("replica.following")
        assert "another replica pushes" in line["reason"]
        assert (await second.put_quota("b", 1)).status_code == 201
        await node.until(lambda: holds(node, "b"), 60)
        assert not second.events("push.ended")
        first.signal(signal.SIGKILL)
        went = time.monotonic()
        await second.leads()
        print(f"SQLite: another process leads after {time.monotonic() - went:.2f} s")
        assert (await second.put_quota("c", 1)).status_code == 201
        await node.until(lambda: holds(node, "c"), 60)


def test_a_notice_has_room_for_some_facts_and_counts_the_rest() -> None:
    facts = [Told("quota.changed", 1.0, {"name": "t" * 100, "generation": n}) for n in range(1000)]
    packed = notify.pack("o" * 16, facts)
    notice = msgspec.json.decode(packed, type=Notice)
    assert len(packed) <= notify.MAX_PAYLOAD_BYTES
    assert notice.facts == facts[: len(notice.facts)]
    assert len(notice.facts) + notice.more == 1000


class Scripted:
    """A claim that answers as told; an exception is raised."""

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


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_the_right_to_push_ends_with_its_lease_and_comes_back_with_its_confirmation() -> None:
    claim, clock = Scripted(), Clock()
    lead = Lead(claim, clock)
    claim.takes = [0.0]
    await lead.step()
    assert (lead.pushing, lead.term) == (True, 1)
    clock.now += LEASE_S
    assert not lead.pushing
    claim.confirms = [None]
    await lead.step()
    assert (lead.pushing, lead.term) == (True, 1)


async def test_a_successor_waits_for_the_end_of_the_lease_before_it() -> None:
    claim, clock = Scripted(), Clock()
    lead = Lead(claim, clock)
    turns: list[bool] = []
    lead.turned = lambda pushing, _: turns.append(pushing)
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
    lead = Lead(claim, clock)
    claim.takes, claim.confirms = [0.0, StoreUnavailable("away"), 0.0], [StoreUnavailable("gone")]
    for pushing, term in ((True, 1), (False, 1), (False, 1), (True, 2)):
        await lead.step()
        assert (lead.pushing, lead.term) == (pushing, term)
    await lead.stop()
    assert (lead.pushing, claim.released) == (False, True)


async def test_a_lock_file_that_was_removed_is_no_claim(tmp_path: Path) -> None:
    claim, other = FileClaim(str(tmp_path / "larder.db")), FileClaim(str(tmp_path / "larder.db"))
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
