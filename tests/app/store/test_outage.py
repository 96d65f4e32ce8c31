"""The database goes away at any moment: no request waits long, no change is half done, and all continues afterwards."""

import asyncio
import contextlib
import os
import resource
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from app.errors import StoreUnavailable
from app.store.base import migrate
from app.store.base.database import Database
from app.store.base.failures import UNKNOWN_OUTCOME
from app.store.records.quotas import QuotaRow
from tests.app.fake_node import FakeNode
from tests.app.manager import Manager, running
from tests.app.plane import serving, settings_in
from tests.app.silent_proxy import SilentProxy
from tests.app.up import Up
from tests.app.waiting import until
from tests.otlp_receiver import silent_collector
from tests.postgres_cluster import PostgresCluster

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]
WRITERS = 8
STOP_S = 90.0
"""Operators are promised 5 s, because orchestrators kill what has not ended some seconds after SIGTERM. The bounds of
its parts add up to that on an idle machine; a part that waits for the frozen database does not end at all."""


@pytest.mark.full
async def test_every_acknowledged_change_survives_crashes_of_the_database_under_load(
    socket_dir: Path, own_cluster: PostgresCluster, own_database: str, new_node: FakeNode
) -> None:
    """Writers raise a number of their own and remember which writes were acknowledged, and which may have happened."""
    url = own_cluster.url(own_database)
    managers = [Manager(socket_dir / name, url, new_node.control_url) for name in ("one", "other")]
    acknowledged: dict[str, int] = {}
    possible: dict[str, set[int]] = {}
    statuses: dict[int, int] = {}
    stop = asyncio.Event()

    async def write(number: int) -> None:
        tenant, limit = f"t{number}", 0
        while not stop.is_set():
            limit += 1
            response = await managers[limit % 2].put_quota(tenant, limit)
            statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
            if response.is_success:
                acknowledged[tenant] = limit
                possible[tenant] = set()
                continue
            assert response.status_code == 503, response.text
            assert response.headers["content-type"] == "application/problem+json"
            assert response.headers["retry-after"]
            assert response.json()["type"].endswith(":store-unavailable"), response.text
            possible.setdefault(tenant, set()).add(limit)
            await asyncio.sleep(0.05)

    async with running(*managers):
        writers = [asyncio.create_task(write(number)) for number in range(WRITERS)]
        grown = partial(_grown, acknowledged, writers)
        for _ in range(3):
            await until(grown(), 60)
            refused = statuses.get(503, 0)
            own_cluster.crash()
            await until(partial(_more_than, statuses, refused))
            own_cluster.run()
        await until(grown(), 60)
        stop.set()
        await asyncio.gather(*writers)
        items = (await managers[0].get("/api/v1/quotas?limit=100"))["items"]
        stored = {item["tenant"]: item["limit_bytes"] for item in items}
        for tenant, limit in acknowledged.items():
            assert stored[tenant] in {limit, *possible.get(tenant, ())}, tenant

        async def each_change_has_one_entry_and_one_generation() -> bool:
            audited = (await managers[1].get("/api/v1/audit?kind=quota&limit=1"))["total"]
            desired = (await managers[0].get("/api/v1/nodes"))["items"][0]["desired"]
            print(f"generation {desired['quotas']}, {audited} entries")
            return bool(desired["quotas"] == audited)

        await until(each_change_has_one_entry_and_one_generation)
        await new_node.until(lambda: {quota.tenant: quota.limit_bytes for quota in new_node.quotas} == stored, 60)
        for manager in managers:
            assert not manager.events("request.crashed")
            assert not manager.events("task.failed")
            assert 1 <= len(manager.events("database.lost")) <= 3
            assert len(manager.events("database.lost")) == len(manager.events("database.recovered"))
    print(statuses)


def _grown(numbers: dict[str, int], writers: list[asyncio.Task[None]]) -> Callable[[], bool]:
    """Whether each writer got on since now. Raises what ended a writer."""
    before = dict(numbers)

    def grown() -> bool:
        for writer in writers:
            if writer.done():
                writer.result()
        return len(numbers) == WRITERS and all(numbers[name] > before.get(name, 0) + 2 for name in numbers)

    return grown


def _more_than(statuses: dict[int, int], refused: int) -> bool:
    return statuses.get(503, 0) > refused


@pytest.mark.full
async def test_a_database_that_hangs_is_a_503_within_seconds_and_one_line(
    socket_dir: Path, own_cluster: PostgresCluster, own_database: str, new_node: FakeNode
) -> None:
    manager = Manager(socket_dir / "one", own_cluster.url(own_database), new_node.control_url)
    async with running(manager):
        await until(lambda: new_node.observed)
        assert (await manager.put_quota("a", 1)).status_code == 201
        await new_node.until(lambda: [quota.tenant for quota in new_node.quotas] == ["a"], 60)
        own_cluster.freeze()
        try:
            for path in ("/healthz", "/api/v1/quotas", "/readyz", "/healthz/fleet"):
                started = time.monotonic()
                answer = await manager.http.get(path)
                took = time.monotonic() - started
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
                print(f"{path}: 503 after {took:.1f} s")
            answer = await manager.http.put("/api/v1/quotas/b", json={"limit_bytes": 1})
            assert answer.status_code == 503
            assert [quota.tenant for quota in new_node.quotas] == ["a"]
        finally:
            own_cluster.thaw()
        await manager.until_line("database.recovered")

        async def accepted() -> bool:
            return (await manager.put_quota("b", 1)).is_success

        await until(accepted)
        await new_node.until(lambda: len(new_node.quotas) == 2, 60)
        assert len(manager.events("database.lost")) == 1
        assert not manager.events("task.failed")


async def test_a_commit_with_a_lost_answer_is_reported_as_uncertain(
    own_cluster: PostgresCluster, own_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.store.base.database.COMMAND_TIMEOUT_S", 3.0)
    async with SilentProxy(own_cluster.socket_path) as proxy:
        database = Database(f"postgresql://larder@127.0.0.1:{proxy.port}/{own_database}")
        await migrate.upgrade(database)

        async def change() -> None:
            async with database.write() as session:
                session.add(_quota("acme"))
                await session.flush()
                proxy.silence()

        with pytest.raises(StoreUnavailable) as caught:
            await change()
        assert caught.value.message == UNKNOWN_OUTCOME
        assert database.watch.away
        direct = Database(own_cluster.url(own_database))

        async def there() -> bool:
            async with direct.read() as session:
                return list((await session.scalars(sa.select(QuotaRow.tenant))).all()) == ["acme"]

        assert not await there()
        proxy.speak()
        await until(there)
        await direct.close()
        await database.close()


async def test_a_connection_that_is_lost_before_the_commit_is_no_question(
    own_cluster: PostgresCluster, own_database: str
) -> None:
    database = Database(own_cluster.url(own_database))
    await migrate.upgrade(database)

    async def change() -> None:
        async with database.write() as session:
            session.add(_quota("acme"))
            await session.flush()
            own_cluster.crash()
            own_cluster.run()
            await session.execute(sa.text("SELECT 1"))

    with pytest.raises(StoreUnavailable) as caught:
        await change()
    assert caught.value.message != UNKNOWN_OUTCOME
    async with database.read() as session:
        assert (await session.scalars(sa.select(QuotaRow))).all() == []
    async with database.write() as session:
        session.add(_quota("acme"))
    assert not database.watch.away
    await database.close()


def _quota(tenant: str) -> QuotaRow:
    return QuotaRow(tenant=tenant, note="", generation=1, selector=None, created_at=0, updated_at=0)


async def test_a_full_disk_refuses_changes_and_leaves_the_database_as_it_is(
    socket_dir: Path, new_node: FakeNode
) -> None:
    manager = Manager(socket_dir / "one", f"sqlite:///{socket_dir / 'larder.db'}", new_node.control_url)
    async with running(manager):
        assert (await manager.put_quota("a", 1)).status_code == 201
        pid = manager.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, before[1]))
        answer = await manager.http.put("/api/v1/quotas/b", json={"limit_bytes": 1})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["type"].endswith(":store-unavailable")
        items = (await manager.get("/api/v1/quotas"))["items"]
        assert [item["tenant"] for item in items] == ["a"]
        # A node that lost everything gets it back all the same: reading works.
        await new_node.restart(forget=True)
        await new_node.until(lambda: "quotas" in new_node.observed, 60)
        assert [quota.tenant for quota in new_node.quotas] == ["a"]
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
        await manager.until_line("database.recovered")
        assert (await manager.put_quota("b", 1)).status_code == 201
        await new_node.until(lambda: len(new_node.quotas) == 2, 60)
        # A write that fits into what is allocated succeeds meanwhile, and the next one is lost again.
        assert len(manager.events("database.lost")) == len(manager.events("database.recovered"))
        assert not manager.events("task.failed")

        async def written() -> bool:
            pushes = (await manager.get("/api/v1/pushes?type=quotas&limit=100"))["items"]
            return ("joined", 1) in [(push["reason"], push["generation"]) for push in pushes]

        await until(written)


async def test_answers_of_nodes_are_written_down_when_the_database_takes_changes_again(
    socket_dir: Path, new_node: FakeNode
) -> None:
    settings = settings_in(socket_dir)
    async with serving(settings) as plane:
        await plane.until_state("in_sync")
        await plane.put_quota("a")
        path = plane.app.parts.database.path

        async def total() -> int:
            return (await plane.get("/api/v1/pushes?type=quotas"))["total"]

        async def all_written() -> bool:
            return await total() == len(_snapshots(new_node))

        await until(all_written)
        before = await total()
        connected = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        with contextlib.closing(connected) as other:
            await asyncio.to_thread(other.execute, "BEGIN IMMEDIATE")  # one of the plane's may have to end first
            answer = await plane.http.put("/api/v1/quotas/b", json={"limit_bytes": 1})
            assert answer.status_code == 503
            for number in range(3):
                new_node.drift("quotas")
                await new_node.until(lambda number=number: len(_snapshots(new_node)) > before + number, 60)
            assert await total() == before
        await until(all_written)
        assert await total() >= before + 3


def _snapshots(node: FakeNode) -> list[Any]:
    return [snapshot for snapshot in node.received if snapshot.type == "quotas"]


async def test_waiting_answers_beyond_the_bound_are_dropped_oldest_first(
    socket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.ingest.fleet import Fleet, FleetNode
    from app.push.node_journal import NodeJournal
    from app.store.base.notify import Notification
    from app.store.fleet import pushes
    from app.store.fleet.pushes import PushRow

    monkeypatch.setattr("app.push.node_journal.MAX_WAITING", 5)
    database = Database(f"sqlite:///{socket_dir / 'larder.db'}")
    await migrate.upgrade(database)
    journal, node = NodeJournal(database, 100), FleetNode("n", "ipc://n")
    for number in range(8):
        row = PushRow(
            type="quotas", node="n", generation=number, digest="", state="acked", reason="change", attempt=1,
            size_bytes=0, bodies=0, sent_at=float(number), answered_at=None, applied_s=None, faults=[],
        )  # fmt: skip
        journal.record_push(node, "quotas", row, Notification("push.acked", 0.0, {}))
    await journal.flush()
    await journal.load(Fleet(), 0.0)
    async with database.read() as session:
        rows, total = await pushes.newest(session, kind=None, node=None, state=None, limit=10)
    assert ([row.generation for row in rows], total) == ([7, 6, 5, 4, 3], 5)
    await database.close()


async def test_sigterm_ends_both_planes_although_database_and_collector_hang(
    socket_dir: Path, own_cluster: PostgresCluster, own_database: str
) -> None:
    with contextlib.ExitStack() as ending:
        settings = {"LARDER_DATABASE_URL": own_cluster.url(own_database), "OTEL_BSP_SCHEDULE_DELAY": "100"}
        collector = ending.enter_context(silent_collector())
        up = ending.enter_context(Up(socket_dir, OTEL_EXPORTER_OTLP_ENDPOINT=collector, **settings))
        up.until_ready()
        pid = up.node()["pid"]
        for _ in range(3):
            stream = httpx.stream("GET", up.url + "/api/v1/events", trust_env=False, verify=False, timeout=60)
            next(ending.enter_context(stream).iter_bytes())
        own_cluster.freeze()
        ending.callback(own_cluster.thaw)
        change = partial(httpx.put, up.url + "/api/v1/quotas/a", json={"limit_bytes": 1}, trust_env=False, verify=False)
        changing = asyncio.gather(asyncio.to_thread(change, timeout=60), return_exceptions=True)
        await asyncio.sleep(0.5)
        began = time.monotonic()
        up.process.terminate()
        code = await asyncio.to_thread(up.process.wait, STOP_S)
        took = time.monotonic() - began
        print(f"both planes ended {took:.1f} s after SIGTERM")
        await changing
        errors = up.end()
    assert code == 0
    assert not Path(f"/proc/{pid}").exists()
    assert "Traceback" not in errors
    assert "dataplane.killed" not in errors


@pytest.mark.parametrize("writable", [True, False])
async def test_a_database_that_cannot_be_used_is_distinguished_at_the_start(
    socket_dir: Path, new_node: FakeNode, writable: bool
) -> None:
    """One sentence and exit code 1, not a loop of tracebacks."""
    folder = socket_dir / "data"
    folder.mkdir()
    path = folder / "larder.db"
    path.write_text("this is no database") if writable else path.mkdir()
    manager = Manager(socket_dir / "one", f"sqlite:///{path}", new_node.control_url)
    with pytest.raises(AssertionError, match="ended"):
        await manager.start()
    await manager.end()
    assert manager.process.returncode == 1
    text = " ".join(str(line.get("text", "")) for line in manager.lines)
    assert "cannot be used" in text
    assert "Traceback" not in text
    assert os.path.exists(path)
