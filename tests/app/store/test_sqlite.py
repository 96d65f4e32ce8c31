"""SQLite's driver: a statement is one visit of its thread, and transactions that only read see one moment and end."""

import asyncio
import gc
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
import sqlalchemy as sa

from app.store.base.database import Database
from app.store.base.sqlite import SqliteConnection

pytestmark = pytest.mark.anyio
COUNT = sa.text("SELECT count(*) FROM t")


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """With a table of one row."""
    opened = Database(f"sqlite:///{tmp_path / 'x.db'}")
    async with opened.write() as session:
        await session.execute(sa.text("CREATE TABLE t (n INTEGER PRIMARY KEY)"))
        await session.execute(sa.text("INSERT INTO t VALUES (1)"))
    yield opened
    await opened.close()


async def insert(database: Database, number: int) -> None:
    async with database.write() as session:
        await session.execute(sa.text("INSERT INTO t VALUES (:n)"), {"n": number})


async def test_a_read_sees_one_moment_and_the_next_one_sees_later_commits(database: Database) -> None:
    async with database.read() as session:
        assert await session.scalar(COUNT) == 1
        await insert(database, 2)
        assert await session.scalar(COUNT) == 1
    async with database.read() as session:
        assert await session.scalar(COUNT) == 2


async def test_a_read_is_one_visit_for_each_statement_and_one_for_its_end(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    visits = 0
    call = SqliteConnection.call

    def counted(self: SqliteConnection, do: Callable[[], Any]) -> Any:
        nonlocal visits
        visits += 1
        return call(self, do)

    monkeypatch.setattr(SqliteConnection, "call", counted)
    for statements in (0, 1, 3):
        visits = 0
        async with database.read() as session:
            for _ in range(statements):
                await session.execute(COUNT)
        assert visits == statements + bool(statements)


async def test_reads_leave_no_transaction_behind(database: Database) -> None:
    async def read(fails: bool) -> None:
        async with database.read() as session:
            await session.execute(COUNT)
            if fails:
                await session.execute(sa.text("SELECT no FROM such"))

    await asyncio.gather(*(read(False) for _ in range(20)))
    failed = await asyncio.gather(*(read(True) for _ in range(5)), return_exceptions=True)
    assert all(isinstance(error, Exception) for error in failed)
    await insert(database, 2)
    with closing(sqlite3.connect(database.path)) as connection:
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert busy == 0, "a reader still looks at an old moment"


async def test_the_result_of_a_statement_is_complete(database: Database) -> None:
    async with database.write() as session:
        given = [{"n": number} for number in range(2, 5)]
        result: Any = await session.execute(sa.text("INSERT INTO t VALUES (:n)"), given)
        assert result.rowcount == 3
        found = (await session.execute(sa.text("SELECT n FROM t ORDER BY n"))).all()
        assert [row.n for row in found] == [1, 2, 3, 4]
        returned = await session.execute(sa.text("DELETE FROM t WHERE n > 2 RETURNING n"))
        assert sorted(returned.scalars()) == [3, 4]


async def test_changes_wait_for_the_disk_and_light_ones_do_not(database: Database) -> None:
    async def synchronous(light: bool) -> int:
        async with database.write(light=light) as session:
            await session.execute(sa.text("INSERT INTO t DEFAULT VALUES"))
            return int(await session.scalar(sa.text("PRAGMA synchronous")) or 0)

    full, normal = 2, 1
    modes = [False, True, True, False, False, True, *[False, True] * 8]  # over all connections of the pool
    assert [await synchronous(light) for light in modes] == [normal if light else full for light in modes]
    async with database.read() as session:
        assert await session.scalar(COUNT) == 1 + len(modes)


async def test_a_read_that_is_cancelled_until_it_ends_leaves_no_task_behind(empty_database_url: str) -> None:
    """A cancel scope cancels its tasks at each of their awaits, as when the client of a stream leaves."""
    database = Database(empty_database_url)
    logged: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context["message"]))

    async def read(began: asyncio.Event) -> None:
        async with database.read() as session:
            await session.scalar(sa.text("SELECT 1"))
            began.set()
            while True:
                await session.scalar(sa.text("SELECT 1"))

    for cycles in range(10):
        began = asyncio.Event()
        async with asyncio.timeout(60), anyio.create_task_group() as tasks:
            tasks.start_soon(read, began)
            await began.wait()
            for _ in range(cycles):
                await asyncio.sleep(0)
            tasks.cancel_scope.cancel()
    await database.close()
    gc.collect()
    assert logged == []


async def test_close_also_closes_a_connection_that_is_still_in_use(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'y.db'}")
    connection = await database.engine.connect()
    raw = await connection.get_raw_connection()
    driver: Any = raw.driver_connection
    await database.close()
    with pytest.raises(sqlite3.OperationalError, match="the connection is closed"):
        await driver.cursor().execute("SELECT 1")
    await connection.close()


async def test_close_waits_for_a_connection_that_a_cancelled_read_still_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, may_open = threading.Event(), threading.Event()
    opened: list[SqliteConnection] = []
    open_file = SqliteConnection._open

    def held(self: SqliteConnection) -> None:
        opening.set()
        assert may_open.wait(60)
        open_file(self)
        opened.append(self)

    monkeypatch.setattr(SqliteConnection, "_open", held)
    database = Database(f"sqlite:///{tmp_path / 'z.db'}")
    read = asyncio.create_task(database.ping())
    assert await asyncio.to_thread(opening.wait, 60)
    read.cancel()
    await asyncio.wait({read})
    closing = asyncio.create_task(database.close())
    await asyncio.sleep(0)
    assert not opened
    may_open.set()
    await closing
    (connection,) = opened
    with pytest.raises(sqlite3.OperationalError, match="the connection is closed"):
        connection.execute("SELECT 1", ())


def test_a_statement_that_outlives_its_loop_ends_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytest reports what a thread raises; the driver's thread answers a loop that is closed."""
    executing, may_execute = threading.Event(), threading.Event()
    execute = SqliteConnection.execute

    def held(self: SqliteConnection, *args: Any) -> Any:
        executing.set()
        assert may_execute.wait(60)
        return execute(self, *args)

    async def leave() -> None:
        monkeypatch.setattr(SqliteConnection, "execute", held)
        connection = SqliteConnection(str(tmp_path / "z.db"))
        await connection.open()
        statement = asyncio.create_task(connection.cursor().execute("SELECT 1"))
        assert await asyncio.to_thread(executing.wait, 60)
        statement.cancel()
        connection.stop()

    earlier = threading.enumerate()
    asyncio.run(leave())
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "sqlite" and thread not in earlier]
    may_execute.set()
    thread.join(60)
    assert not thread.is_alive()
