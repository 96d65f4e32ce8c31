"""One database, two kinds of transaction: `read` sees one moment, `write` is serialised and durable.

SQLite: WAL, so that readers and the writer do not wait for each other; `synchronous=FULL`, because a PUT that was
answered must survive a power failure (with NORMAL the last commits can vanish, and a generation that a node already
applied would be given out twice). A write begins IMMEDIATE: a transaction that read first and writes later would fail
with "database is locked" at once, whatever the busy timeout. Postgres: reads are REPEATABLE READ for the same view.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from app.errors import StoreUnavailable

BUSY_TIMEOUT_MS = 10_000
_WRITE = "larder_write"


class Database:
    """The engine and its transactions. Opens connections on first use."""

    def __init__(self, url: str) -> None:
        self.engine = _engine(url)
        self._writer = self.engine.execution_options(**{_WRITE: True})
        # SQLite lets waiting writers sleep and try again, which takes turns badly; within a process we queue.
        self._turn: AbstractAsyncContextManager[object] = nullcontext()
        if self.engine.dialect.name == "sqlite":
            self._turn = asyncio.Lock()
        if self.engine.dialect.name == "postgresql":
            self._reader = self.engine.execution_options(isolation_level="REPEATABLE READ")
        else:
            self._reader = self.engine

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncSession]:
        """A session whose statements all see the same moment; nothing is written."""
        async with _translated(), AsyncSession(self._reader, expire_on_commit=False) as session:
            yield session

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncSession]:
        """A transaction: commits at the end of the block, or nothing happened at all."""
        async with (
            _translated(),
            self._turn,
            AsyncSession(self._writer, expire_on_commit=False) as session,
            session.begin(),
        ):
            yield session

    async def ping(self) -> None:
        """Raises StoreUnavailable when the database does not answer."""
        async with self.read() as session:
            await session.execute(sa.text("SELECT 1"))

    async def close(self) -> None:
        await self.engine.dispose()


@asynccontextmanager
async def _translated() -> AsyncIterator[None]:
    try:
        yield
    except OperationalError as error:
        raise StoreUnavailable("the database did not answer; try again") from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise StoreUnavailable("the database closed the connection; try again") from error
        raise
    except OSError as error:
        raise StoreUnavailable("the database cannot be reached; try again") from error


def _engine(url: str) -> AsyncEngine:
    if sa.make_url(url).get_backend_name() != "sqlite":
        return create_async_engine(url, pool_pre_ping=True, pool_size=8, max_overflow=8)
    engine = create_async_engine(url, pool_size=8, max_overflow=8)
    sa.event.listen(engine.sync_engine, "connect", _on_sqlite_connect)
    sa.event.listen(engine.sync_engine, "begin", _on_sqlite_begin)
    return engine


def _on_sqlite_connect(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves: the driver would say it too late
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _on_sqlite_begin(connection: sa.Connection) -> None:
    write = connection.get_execution_options().get(_WRITE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
