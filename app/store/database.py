"""One database, two kinds of transaction: `read` sees one moment, `write` is serialised and durable.

SQLite: WAL, so that readers and the writer do not wait for each other; `synchronous=FULL`, because a PUT that was
answered must survive a power failure (with NORMAL the last commits can vanish, and a generation that a node already
applied would be given out twice). Light writes are NORMAL: they are gone at most with the machine, never with a
process, and the next commit that is not light takes them along to the disk. A write begins IMMEDIATE: a transaction
that read first and writes later would fail with "database is locked" at once, whatever the busy timeout. A file that
was removed under us would still take commits, and they would be gone with us: the path must be the file that is open.
Postgres: reads are REPEATABLE READ for the same view.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine

from app.errors import LarderError, StoreBusy, StoreUnavailable
from app.store.failures import meaning
from app.store.points import Point, Points, R
from app.store.sqlite import one_visit
from app.store.watch import Kind, Watch
from dataplane.protocol.settings import SettingsError

BUSY_TIMEOUT_MS = 5_000
"""SQLite: how long a write waits for others, in this process and elsewhere, before it is refused."""
CONNECT_TIMEOUT_S = 3.0
COMMAND_TIMEOUT_S = 5.0
LOCK_TIMEOUT_MS = 4_000
"""Postgres: how long a connection may take to be made (or to become free), a statement to be answered, and a lock to be
had. Who asks over HTTP hears within seconds that the database hangs."""
_WRITE = "larder_write"
_PATIENCE = "larder_patience_ms"
_LIGHT = "larder_light"
_STEP_MS = 50
_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
}
"""Which driver a URL gets that does not say it, as most do not."""


def full_url(given: str) -> sa.URL:
    """The URL with its driver. Raises SettingsError for one that no database of ours can have."""
    expected = "expected sqlite:///PATH or postgresql://USER:PASSWORD@HOST:PORT/NAME"
    try:
        url = sa.make_url(given)
    except (ArgumentError, ValueError):  # what was given may hold a password: it is not repeated
        raise SettingsError(f"database_url: not a URL of a database; {expected}") from None
    url = url.set(drivername=_DRIVERS.get(url.drivername, url.drivername))
    if url.drivername not in _DRIVERS.values():
        raise SettingsError(f"database_url: Larder does not work with {url.drivername}; {expected}")
    fault = _fault(url)
    if fault:
        raise SettingsError(f"database_url: {fault}; {expected}")
    return url


def _fault(url: sa.URL) -> str:
    """What the driver would not understand, before it is asked: it fails late, and not in words."""
    sqlite = url.get_backend_name() == "sqlite"
    unknown = [name for name in url.query if sqlite or name not in _PARAMETERS]
    if "sslmode" in unknown:
        return "sslmode is not known to the driver: write ssl=require instead"
    if unknown:
        known = "none" if sqlite else f"those of {', '.join(_PARAMETERS)}"
        return f"expected no parameters but {known}, got {', '.join(name[:40] for name in unknown)}"
    if (ssl := url.query.get("ssl")) is not None and ssl not in _SSL:
        return f"expected ssl to be one of {', '.join(_SSL)}"
    if url.port is not None and not 0 < url.port <= 65_535:
        return f"expected a port from 1 to 65535, got {url.port}"
    if sqlite and (url.host or url.username):
        return "expected three slashes and a path after sqlite:, got a host"
    if sqlite and (not url.database or url.database == ":memory:" or url.database.startswith("file:")):
        return "expected the path of a file"
    return ""


_PARAMETERS = (
    *("host", "port", "user", "password", "passfile", "ssl", "target_session_attrs", "krbsrvname", "gsslib"),
    *("service", "servicefile"),
)
"""Of a Postgres URL, as its driver knows them; times and sizes are Larder's business."""
_SSL = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


@asynccontextmanager
async def connected(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection, the first of an engine. Raises SettingsError for a parameter of the URL that cannot be, which
    drivers find out late."""
    try:
        connection = await engine.connect()
    except (TypeError, ValueError, OverflowError) as error:
        kind = type(error).__name__  # its words may hold a password
        raise SettingsError(f"database_url: the driver does not take a parameter of it ({kind})") from None
    try:
        yield connection
    finally:
        await connection.close()


@dataclass
class _Step:
    """How far a transaction got."""

    committing: bool = False


class Database:
    """The engine and its transactions. Opens connections on first use."""

    def __init__(self, given: str) -> None:
        """Raises SettingsError."""
        self.url = full_url(given)
        self.watch = Watch()
        self.origin = os.urandom(8).hex()
        """Who we are among the processes that share the database."""
        self._file = _File(self.url)
        try:
            self.engine = _engine(self.url, self._file)
        except (ArgumentError, TypeError, ValueError) as error:
            raise SettingsError(f"database_url: the driver does not take it: {error}") from None
        self._errors: tuple[type[Exception], ...] = (SQLAlchemyError, OSError, *_driver_errors(self.url))
        self._points = Points(self._connect_to_read) if self._file.path else None
        self._writer = self.engine.execution_options(**{_WRITE: True})
        self._light = self.engine.execution_options(**{_WRITE: True, _LIGHT: True})
        # SQLite lets waiting writers sleep and try again, which takes turns badly; within a process we queue.
        self._turn = asyncio.Lock() if self.engine.dialect.name == "sqlite" else None
        if self.engine.dialect.name == "postgresql":
            self._reader = self.engine.execution_options(isolation_level="REPEATABLE READ")
        else:
            self._reader = self.engine

    @property
    def path(self) -> str:
        """SQLite's file; empty when there is none."""
        return self._file.path

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncSession]:
        """A session whose statements all see the same moment; nothing is written. Raises StoreUnavailable."""
        async with self._told("read"), AsyncSession(self._reader, expire_on_commit=False) as session:
            try:
                yield session
            except TimeoutError:  # the connection hangs: it must not be asked to roll back, nor be used again
                with suppress(SQLAlchemyError, OSError):
                    await session.invalidate()
                raise

    async def row(self, point: Point[R], key: str) -> R | None:
        """One record by its key, to be looked at and not changed. Raises StoreUnavailable."""
        if self._points is None:
            async with self.read() as session:
                return await session.get(point.model, key)
        async with self._told("read"):
            self._file.check()
            return await self._points.get(point, key)

    def _connect_to_read(self) -> sqlite3.Connection:
        self._file.check()  # before SQLite makes an empty file of that name
        connection = sqlite3.connect(self._file.path, isolation_level=None, check_same_thread=False)
        connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        connection.execute("PRAGMA query_only=ON")
        self._file.opened()
        return connection

    @asynccontextmanager
    async def write(self, *, light: bool = False) -> AsyncIterator[AsyncSession]:
        """A transaction: commits at the end of the block, or nothing happened at all; where nobody can know that,
        StoreUnavailable says so. Raises Conflict when another transaction made the same record first. A `light` one is
        for what nodes tell again, and for histories: it does not wait for the disk, and others hardly for it."""
        writer = self._light if light else self._writer
        async with (
            self._told("write") as step,
            self._in_turn() as patience_ms,
            AsyncSession(writer, expire_on_commit=False, info={"origin": self.origin}) as session,
        ):
            try:
                await session.begin()
                if patience_ms < BUSY_TIMEOUT_MS:
                    await session.connection(execution_options={_PATIENCE: patience_ms})
                yield session
                await session.flush()
                self._file.check()
                step.committing = True
                await session.commit()
            except BaseException as error:
                with suppress(SQLAlchemyError, OSError):  # what went wrong first is what is told
                    await (session.invalidate() if isinstance(error, TimeoutError) else session.rollback())
                raise

    @asynccontextmanager
    async def _told(self, kind: Kind) -> AsyncIterator[_Step]:
        """Drivers' errors as ours, and the watch kept up to date."""
        step, began = _Step(), time.monotonic()
        try:
            yield step
        except self._errors as error:
            failure = meaning(error, committing=step.committing)
            if failure is None:
                raise
            self._watched(kind, failure, error)
            raise failure from error
        except StoreUnavailable as failure:
            self._watched(kind, failure, failure)
            raise
        else:
            self.watch.worked(kind, began)

    def _watched(self, kind: Kind, failure: LarderError, cause: Exception) -> None:
        if isinstance(failure, StoreUnavailable) and not isinstance(failure, StoreBusy):
            said = str(getattr(cause, "orig", None) or cause).partition("\n")[0]
            self.watch.failed(kind, said.rpartition(">: ")[2][:200] or failure.message)

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[int]:
        """Hold the turn; gives the milliseconds that are left for waiting for other processes."""
        if self._turn is None:
            yield BUSY_TIMEOUT_MS
            return
        asked = time.monotonic()
        try:
            async with asyncio.timeout(BUSY_TIMEOUT_MS / 1000):
                await self._turn.acquire()
        except TimeoutError:
            raise StoreBusy("the database is busy with other changes; try again") from None
        try:
            # In steps, so that a turn that came soon leaves the connection's setting as it is.
            waited_ms = int((time.monotonic() - asked) * 1000) // _STEP_MS * _STEP_MS
            yield max(BUSY_TIMEOUT_MS - waited_ms, _STEP_MS)
        finally:
            self._turn.release()

    async def ping(self) -> None:
        """Raises StoreUnavailable when the database does not answer."""
        async with self.read() as session:
            await session.execute(sa.text("SELECT 1"))

    def apart(self, **settings: Any) -> AsyncEngine:
        """An engine for one connection that is nobody else's, and whose statements may take their time. The caller
        disposes of it. `settings` are those of the driver's connect."""
        if self.engine.dialect.name != "postgresql":
            return _engine(self.url, self._file)
        connect = {"timeout": CONNECT_TIMEOUT_S, **settings}
        return create_async_engine(self.url, poolclass=sa.NullPool, connect_args=connect)

    async def close(self) -> None:
        if self._points is not None:
            await self._points.close()
        await self.engine.dispose()


def _driver_errors(url: sa.URL) -> tuple[type[Exception], ...]:
    """What the driver raises when nobody wraps it."""
    if url.get_backend_name() != "postgresql":
        return (sqlite3.Error,)
    import asyncpg

    return (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


class _File:
    """SQLite's file: what was opened first is what the path must name from then on."""

    def __init__(self, url: sa.URL) -> None:
        name = url.database if url.get_backend_name() == "sqlite" else None
        known = name is not None and name != ":memory:" and not name.startswith("file:")
        self.path = os.path.abspath(name) if known and name else ""
        self._opened: tuple[int, int] | None = None

    def opened(self) -> None:
        """A connection has opened it."""
        if self.path and self._opened is None:
            self._opened = self._now()

    def check(self) -> None:
        """Raises StoreUnavailable."""
        if self._opened is not None and self._now() != self._opened:
            raise StoreUnavailable(
                f"the database file {self.path} was removed or replaced while it was open: put it back, or start again"
            )

    def _now(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino


def _engine(url: sa.URL, file: _File) -> AsyncEngine:
    if url.get_backend_name() != "sqlite":
        return create_async_engine(
            url,
            pool_pre_ping=True,
            pool_size=8,
            max_overflow=8,
            pool_timeout=CONNECT_TIMEOUT_S,
            connect_args={
                "timeout": CONNECT_TIMEOUT_S,
                "command_timeout": COMMAND_TIMEOUT_S,
                "server_settings": {"lock_timeout": str(LOCK_TIMEOUT_MS)},
            },
        )
    engine = create_async_engine(url, pool_size=8, max_overflow=8)

    def on_do_connect(dialect: Any, _record: object, arguments: Any, named: Any) -> Any:
        file.check()  # before SQLite makes an empty file of that name
        return one_visit(dialect.connect(*arguments, **named))

    def on_connect(connection: Any, _record: object) -> None:
        _prepare_sqlite(connection)
        file.opened()

    def on_begin(connection: sa.Connection) -> None:
        file.check()
        _begin_sqlite(connection)

    sa.event.listen(engine.sync_engine, "do_connect", on_do_connect)
    sa.event.listen(engine.sync_engine, "connect", on_connect)
    sa.event.listen(engine.sync_engine, "begin", on_begin)
    return engine


def _prepare_sqlite(connection: Any) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves: the driver would say it too late
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    options = connection.get_execution_options()
    if not options.get(_WRITE, False):
        adapter: Any = connection.connection.dbapi_connection
        adapter.begin_reading()
        return
    patience_ms = options.get(_PATIENCE, BUSY_TIMEOUT_MS)
    if connection.info.get(_PATIENCE, BUSY_TIMEOUT_MS) != patience_ms:
        connection.info[_PATIENCE] = patience_ms
        connection.exec_driver_sql(f"PRAGMA busy_timeout={patience_ms}")
    light = options.get(_LIGHT, False)
    if connection.info.get(_LIGHT, False) != light:
        connection.info[_LIGHT] = light
        connection.exec_driver_sql(f"PRAGMA synchronous={'NORMAL' if light else 'FULL'}")
    connection.exec_driver_sql("BEGIN IMMEDIATE")
