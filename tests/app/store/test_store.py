"""The database: schema history, durability, and that a record, its audit entry and its generation are one."""

import asyncio
import contextlib
import itertools
import os
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from alembic import op

from app.errors import Conflict, NotFound, StoreBusy, StoreUnavailable
from app.ingest.fleet import Fleet
from app.push.desired import DesiredState
from app.push.node_requests import NodeRequests
from app.schemas.access.audit import AuditFilters
from app.schemas.base.listing import PageRequest
from app.schemas.records.pins import PinPut
from app.schemas.records.quotas import QuotaPut
from app.services.base import snapshot_sizes
from app.services.base.changes import Changes
from app.services.base.principals import Principal
from app.services.records.pin_quota import PinQuota
from app.services.records.pins import Pins
from app.services.records.prefixes import PrefixService
from app.services.records.progress import RecordProgress
from app.services.records.quotas import Quotas
from app.services.records.tokenizers import Tokenizers
from app.services.records.tokenizing import EncodeService
from app.store.access import audit
from app.store.base import identity, migrate
from app.store.base.database import Database, full_url
from app.store.records import bulk, generations, pins, quotas, snapshot_size
from app.store.records.quotas import QuotaRow
from app.store.records.snapshot_size import SnapshotSize
from dataplane.base.settings import SettingsError
from dataplane.protocol.control.snapshots import digest_of
from tests.app.command import run
from tests.app.event_bus import event_bus
from tests.app.failing_database import fails_at

pytestmark = pytest.mark.anyio
BY = Principal("request-1")


def services(database: Database) -> tuple[Quotas, Pins]:
    fleet, bus = Fleet(), event_bus()
    changes, progress = Changes(database, fleet, bus), RecordProgress(fleet, DesiredState(database))
    return Quotas(database, changes, progress, fleet), Pins(
        database,
        changes,
        progress,
        fleet,
        PrefixService(NodeRequests(fleet, 1.0)),
        Tokenizers(database, changes, progress, fleet, EncodeService()),
        PinQuota(max_pins=10_000),
    )


async def test_migrations_run_down_to_nothing_and_up_again(database: Database) -> None:
    async with database.read() as session:
        first = await identity.store_id(session)
    await migrate.downgrade(database, "base")
    async with database.engine.connect() as connection:
        tables = await connection.run_sync(lambda sync: sa.inspect(sync).get_table_names())
    assert tables == ["alembic_version"]
    await migrate.upgrade(database)
    await migrate.check(database)
    async with database.read() as session:
        assert await identity.store_id(session) != first


async def test_a_migrated_database_is_left_alone_by_the_next_start(database: Database) -> None:
    async with database.read() as session:
        first = await identity.store_id(session)
    await migrate.upgrade(database)
    async with database.read() as session:
        assert await identity.store_id(session) == first


async def test_a_migration_that_fails_leaves_nothing_of_those_before_it(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = Database(empty_database_url)

    async def tables() -> list[str]:
        async with fresh.engine.connect() as connection:
            return await connection.run_sync(lambda sync: sa.inspect(sync).get_table_names())

    def broken(index: str, *more: Any) -> None:
        if index == "ix_events_name_at":  # of the newest migration
            raise RuntimeError(f"no index {index}")
        create_index(index, *more)

    create_index = op.create_index
    with monkeypatch.context() as patch:
        patch.setattr("alembic.op.create_index", broken)
        with pytest.raises(RuntimeError, match="no index ix_events_name_at"):
            await migrate.upgrade(fresh)
    assert await tables() == []
    await migrate.upgrade(fresh)
    await migrate.check(fresh)
    assert "quotas" in await tables()
    await fresh.close()


async def test_planes_that_start_together_migrate_once(empty_database_url: str, tmp_path: Path) -> None:
    environ = {**os.environ, "LARDER_DATABASE_URL": empty_database_url, "LARDER_STATE_DIR": str(tmp_path)}
    planes = [asyncio.to_thread(run, "db", "upgrade", env=environ) for _ in range(3)]
    for done in await asyncio.gather(*planes):
        assert done.returncode == 0, done.stderr
    database = Database(empty_database_url)
    async with database.read() as session:
        assert len(await identity.store_id(session)) == 32
    await database.close()


async def test_a_change_writes_record_audit_and_generation(database: Database) -> None:
    quota_service, pin_service = services(database)
    await quota_service.put("acme", QuotaPut(limit_bytes="1KiB"), BY)
    await pin_service.put("p", PinPut(model="m", tokens=[1, 2], chunk_tokens=2), BY)
    async with database.read() as session:
        assert await generations.heads(session) == {"quotas": 1, "pins": 1, "policies": 0, "tiers": 0}
        page = await audit.page(session, PageRequest(10), AuditFilters())
        rows, total = page.rows, page.total
    assert total == 2
    assert [(row.kind, row.name, row.action, row.generation, row.request_id) for row in rows] == [
        ("pin", "p", "create", 1, "request-1"),
        ("quota", "acme", "create", 1, "request-1"),
    ]
    assert rows[1].after is not None
    assert (rows[1].after["limit_bytes"], rows[1].after["mode"]) == (1024, "enforce")


async def test_nothing_of_a_change_is_stored_when_its_commit_fails(database: Database) -> None:
    quota_service, _ = services(database)
    await quota_service.put("acme", QuotaPut(limit_bytes=1), BY)
    with fails_at("commit", OSError("the disk is gone")), pytest.raises(StoreUnavailable):
        await quota_service.put("other", QuotaPut(limit_bytes=2), BY)
    async with database.read() as session:
        assert (await generations.heads(session))["quotas"] == 1
        assert (await audit.page(session, PageRequest(10), AuditFilters())).total == 1
        assert [row.tenant for row in await quotas.shares(session)] == ["acme"]


async def test_a_put_of_the_same_record_changes_nothing(database: Database) -> None:
    quota_service, _ = services(database)
    first, created = await quota_service.put("acme", QuotaPut(limit_bytes=1), BY)
    second, again = await quota_service.put("acme", QuotaPut(limit_bytes=1), BY)
    assert (created, again) == (True, False)
    assert first == second
    async with database.read() as session:
        assert (await audit.page(session, PageRequest(10), AuditFilters())).total == 1


def test_the_zone_of_an_address_in_a_database_url_is_decoded() -> None:
    assert full_url("postgresql://u@[fe80::1%25eth0]:5432/x").host == "fe80::1%eth0"


@pytest.mark.parametrize("url", ["sqlite:////tmp/a%00b.db", "postgresql://u@h%00/x", "postgresql://u@h/x%00"])
def test_a_database_url_with_a_nul_character_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="database_url: expected no NUL character"):
        full_url(url)


async def test_a_refused_delete_uses_up_no_generation(database: Database) -> None:
    quota_service, _ = services(database)
    with pytest.raises(NotFound):
        await quota_service.delete("acme", BY)
    async with database.read() as session:
        assert (await generations.heads(session))["quotas"] == 0


async def test_eight_writers_at_once_all_get_through_in_order(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes' worth of engines, so that the database itself must order them."""
    monkeypatch.setattr("app.store.base.database.BUSY_TIMEOUT_MS", 60_000)
    planes = [Database(database_url) for _ in range(2)]
    await migrate.upgrade(planes[0])
    writers = [services(planes[number % 2])[0] for number in range(8)]

    async def write(number: int) -> list[int]:
        answers = []
        for limit in range(10):
            answer, _ = await writers[number].put(f"t{number}", QuotaPut(limit_bytes=limit), BY)
            answers.append(answer.generation)
        return answers

    got = await asyncio.gather(*(write(number) for number in range(8)))
    assert sorted(generation for one in got for generation in one) == list(range(1, 81))
    for plane in planes:
        await plane.close()


@pytest.mark.parametrize("fails", [False, True], ids=["successes", "failures"])
async def test_a_writer_waits_as_long_as_others_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Each write takes a minute of the loop's time, and a writer is refused after 100 s without a success."""
    monkeypatch.setattr("app.store.base.database.BUSY_TIMEOUT_MS", 100_000)
    monkeypatch.setattr("app.store.base.database.MAX_TURN_S", 300.0)
    loop, minutes = asyncio.get_running_loop(), itertools.count(1)
    clock, passed = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: clock() + passed[0])
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'larder.db'}")
    await migrate.upgrade(database)

    async def write() -> None:
        async with database.write() as session:
            await session.execute(sa.text("SELECT 1"))
            passed[0] = 60.0 * next(minutes)
            if fails:
                raise NotFound("any error")

    answers = await asyncio.gather(*(write() for _ in range(10)), return_exceptions=True)
    first = [NotFound] * 2 if fails else [type(None)] * 5
    assert [type(answer) for answer in answers[: len(first)]] == first
    assert [type(answer) for answer in answers[-4:]] == [StoreBusy] * 4
    await database.close()


async def test_writers_behind_a_foreign_lock_are_all_refused_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.store.base.database.BUSY_TIMEOUT_MS", 2000)
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'larder.db'}")
    await migrate.upgrade(database)
    quota_service, _ = services(database)

    async def write(number: int) -> object:
        await asyncio.sleep(number * 0.06)
        put = quota_service.put(f"t{number}", QuotaPut(limit_bytes=1), BY)
        (answer,) = await asyncio.gather(put, return_exceptions=True)
        return answer

    with contextlib.closing(sqlite3.connect(tmp_path / "larder.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        answers = await asyncio.gather(*(write(number) for number in range(24)))
    assert all(isinstance(answer, StoreUnavailable) for answer in answers), answers
    _, created = await quota_service.put("later", QuotaPut(limit_bytes=1), BY)
    assert created
    async with database.read() as session:
        assert (await session.execute(sa.text("PRAGMA busy_timeout"))).scalar() == 2000
    await database.close()


async def test_a_change_is_not_committed_to_a_file_that_was_removed(tmp_path: Path) -> None:
    path = tmp_path / "larder.db"
    database = Database(f"sqlite+aiosqlite:///{path}")
    await migrate.upgrade(database)

    async def change() -> None:
        async with database.write() as session:
            await generations.advance(session, "quotas", 1, 0.0)
            path.unlink()

    with pytest.raises(StoreUnavailable, match="was removed or replaced"):
        await change()
    await database.close()


async def test_a_snapshot_shows_one_commit(database: Database) -> None:
    quota_service, _ = services(database)
    desired = DesiredState(database)
    await quota_service.put("b", QuotaPut(limit_bytes=1), BY)
    await quota_service.put("a", QuotaPut(limit_bytes=2), BY)
    await desired.refresh()
    built = desired.built("quotas", {})
    assert built.generation == 2
    assert built.digest == digest_of(built.body)


@pytest.fixture
async def other(database: Database, database_url: str) -> AsyncIterator[Database]:
    """The database of `database`, opened by another manager."""
    opened = Database(database_url)
    yield opened
    await opened.close()


async def test_two_managers_do_not_do_more_per_change_with_more_records(
    database: Database, other: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers = [(services(each)[0], DesiredState(each)) for each in (database, other)]
    work, limits = Counter[str](), itertools.count()
    columns, weight = bulk.columns, snapshot_size.weight

    async def counted_columns(*given: Any) -> Any:
        found = await columns(*given)
        work["rows"] += len(found)
        return found

    async def counted_weight(*given: Any, **named: Any) -> SnapshotSize:
        found = await weight(*given, **named)
        work["summed"] += found.records
        return found

    def count_statement(*_: object) -> None:
        work["statements"] += 1

    monkeypatch.setattr(bulk, "columns", counted_columns)
    monkeypatch.setattr(snapshot_size, "weight", counted_weight)
    for each in (database, other):
        sa.event.listen(each.engine.sync_engine, "before_cursor_execute", count_statement)

    async def work_of(count: int) -> Counter[str]:
        """Count the work of changes by both managers in turn, which both then load."""
        work.clear()
        for number in range(count):
            await managers[number % 2][0].put(f"t{number}", QuotaPut(limit_bytes=next(limits)), BY)
            for _, desired in managers:
                await desired.refresh()
        return work.copy()

    await work_of(4)
    few = await work_of(4)
    await work_of(60)
    assert await work_of(4) == few


async def test_managers_load_and_measure_each_others_changes(
    database: Database, other: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_sizes, "MAX_RECORDS", 3)
    managers = [(*services(each), DesiredState(each)) for each in (database, other)]

    async def check() -> None:
        fresh = DesiredState(database)
        for desired in (fresh, *(each[2] for each in managers)):
            await desired.refresh()
            for kind in ("quotas", "pins"):
                built, again = desired.built(kind, {}), fresh.built(kind, {})
                assert (built, built.body) == (again, again.body)

    await check()
    pin = PinPut(model="m", tokens=[1, 2], chunk_tokens=2)
    for number in range(8):  # twice as many changes as records fit, by each manager
        quota_service, pin_service, _ = managers[number % 2]
        await quota_service.put(f"t{number % 3}", QuotaPut(limit_bytes=number), BY)
        await pin_service.put(f"p{number % 3}", msgspec.structs.replace(pin, note=str(number)), BY)
        await check()
    with pytest.raises(Conflict, match="at most 3 quotas"):
        await managers[0][0].put("more", QuotaPut(limit_bytes=1), BY)
    await managers[1][0].delete("t1", BY)
    await managers[1][1].delete("p1", BY)
    await check()
    await managers[0][0].put("more", QuotaPut(limit_bytes=1), BY)
    await managers[1][0].delete("t2", BY)
    await managers[1][0].put("t2", QuotaPut(limit_bytes=7), BY)  # as many records as before
    await check()


async def test_a_body_is_stored_while_a_pin_refers_to_it(database: Database) -> None:
    _, pin_service = services(database)
    one, other = (PinPut(model="m", tokens=[1, 2], chunk_tokens=2), PinPut(model="m", tokens=[3, 4], chunk_tokens=2))
    digest = (await pin_service.put("p", one, BY))[0].keys_digest
    await pin_service.put("q", one, BY)
    await pin_service.put("p", other, BY)
    async with database.read() as session:
        assert list(await pins.bodies(session, [digest])) == [digest]
    await pin_service.delete("q", BY)
    async with database.read() as session:
        assert await pins.bodies(session, [digest]) == {}


async def test_sqlite_keeps_acknowledged_commits(database: Database) -> None:
    if database.engine.dialect.name != "sqlite":
        pytest.skip("pragmas are SQLite's")
    async with database.engine.connect() as connection:
        values = [
            (await connection.exec_driver_sql(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        ]
    assert values == ["wal", 2, 1, 5_000]


async def test_records_of_the_release_before_mean_the_same_after_the_upgrade(database: Database) -> None:
    quota_service, pin_service = services(database)
    await quota_service.put("acme", QuotaPut(limit_bytes=5), BY)
    await pin_service.put("p", PinPut(model="m", tokens=[1, 2], chunk_tokens=2), BY)
    before, after = DesiredState(database), DesiredState(database)
    await before.refresh()
    await migrate.downgrade(database, "0017")
    await database.engine.dispose()
    await migrate.upgrade(database)
    await after.refresh()
    assert after.desired({}) == before.desired({})
    assert (await quota_service.get("acme", BY)).weight == 1.0


async def test_a_closed_database_opens_no_connection_again(database: Database) -> None:
    await database.close()
    for use in (database.read, database.write):
        with pytest.raises(StoreUnavailable, match="closed"):
            async with use() as session:
                await session.execute(sa.text("SELECT 1"))
    with pytest.raises(StoreUnavailable, match="closed"):
        await database.row(QuotaRow, "acme")
