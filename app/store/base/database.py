"""One database with two kinds of transaction: `read` sees one snapshot, `write` is serialised and durable.

SQLite uses WAL mode, so that readers and the writer do not block each other. It uses `synchronous=FULL`, because a
change that was acknowledged must survive a power failure. (With NORMAL the last commits can be lost, and a generation
that a node has already applied would be assigned twice.) Light writes use NORMAL: they are lost only if the machine
fails, never if a process does, and the next full commit flushes them to disk. A write begins with BEGIN IMMEDIATE,
because a transaction that reads first and writes later would fail at once with "database is locked", whatever the busy
timeout. If the database file is removed while it is open, it still accepts commits, which are lost when the process
ends; therefore the path must still refer to the open file.

Postgres reads use REPEATABLE READ for the same view.
"""

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, cast
from urllib.parse import unquote

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DisconnectionError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine

from app.errors import LarderError, StoreBusy, StoreUnavailable
from app.observe.histogram import LatencyHistogram
from app.store.base import full_disk
from app.store.base.declarative import Base
from app.store.base.failures import FULL, meaning
from app.store.base.sqlite import SqliteConnection
from app.store.base.sqlite_file import DatabaseFile, DirectReads, select_by_key
from app.store.base.watch import DatabaseWatch, Kind
from dataplane.base import tracing
from dataplane.base.redaction import without_password
from dataplane.base.settings import SettingsError

BUSY_TIMEOUT_MS = 5_000
"""Milliseconds that a write waits for others of this process while none of them succeeds, before it is refused. SQLite:
also the milliseconds that it waits for writers elsewhere."""
MAX_TURN_S = 30.0
"""Seconds that a write waits for others of this process at most."""
WAL_RETRY_S = 0.02
CONNECT_TIMEOUT_S = 3.0
COMMAND_TIMEOUT_S = 5.0
LOCK_TIMEOUT_MS = 4_000
CLOSE_TIMEOUT_S = 0.5
"""Postgres: bounds on connecting (or waiting for a free connection), on a statement, on waiting for a lock, and on
closing a connection. They make an HTTP caller learn within seconds that the database hangs. SQLite: the last one."""
R = TypeVar("R", bound=Base)
_WRITE = "larder_write"
_LOCK_TIMEOUT = "larder_lock_timeout_ms"
_LIGHT = "larder_light"
_SINGLE = "larder_single"
_PASSED = "larder_passed"
_STEP_MS = 50
_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgres": "postgresql+asyncpg", "postgresql": "postgresql+asyncpg"}
"""Driver for each URL scheme that names none, as most do."""


def full_url(given: str) -> sa.URL:
    """Return the URL with its driver. Raise SettingsError if Larder cannot use such a database."""
    expected = "expected sqlite:///PATH or postgresql://USER:PASSWORD@HOST:PORT/NAME"
    try:
        url = sa.make_url(given)
    except (ArgumentError, ValueError):  # do not repeat the URL: it may contain a password
        raise SettingsError(f"database_url: not a URL of a database; {expected}") from None
    url = url.set(drivername=_DRIVERS.get(url.drivername, url.drivername), host=url.host and unquote(url.host))
    if url.drivername not in _DRIVERS.values():
        raise SettingsError(f"database_url: Larder does not support {url.drivername}; {expected}")
    fault = _fault(url)
    if not fault and given.count("@") > 1 and url.get_backend_name() != "sqlite":  # the rest would be taken for a host
        fault = "expected one @, before the host: write any other one, as in a password, as %40"
    if fault:
        raise SettingsError(f"database_url: {fault}; {expected}")
    return url


def _fault(url: sa.URL) -> str:
    """Return what the driver would reject in a URL; empty if nothing. The driver itself reports it late and poorly."""
    sqlite = url.get_backend_name() == "sqlite"
    unknown = [name for name in url.query if sqlite or name not in _PARAMETERS]
    if "sslmode" in unknown:
        return "sslmode is not known to the driver: write ssl=require instead"
    if unknown:
        known = "none" if sqlite else f"those of {', '.join(_PARAMETERS)}"
        got = ", ".join(name[:40] for name in unknown)
        if "password" in url.query:  # they may be the rest of it
            got = "others: write & in a password as %26"
        return f"expected no parameters but {known}, got {got}"
    if (ssl := url.query.get("ssl")) is not None and ssl not in _SSL:
        return f"expected ssl to be one of {', '.join(_SSL)}"
    if url.port is not None and not 0 < url.port <= 65_535:
        return f"expected a port from 1 to 65535, got {url.port}"
    texts = (url.username, url.password, url.host, url.database, *url.query.values())
    if any("\0" in "".join(text or "") for text in texts):
        return "expected no NUL character"
    if sqlite and (url.host or url.username):
        return "expected three slashes and a path after sqlite:, got a host"
    if sqlite and (not url.database or url.database == ":memory:" or url.database.startswith("file:")):
        return "expected the path of a file"
    return ""


_PARAMETERS = (
    *("host", "port", "user", "password", "passfile", "ssl", "target_session_attrs", "krbsrvname", "gsslib"),
    *("service", "servicefile"),
)
"""Parameters of a Postgres URL that the driver knows. Larder sets time-outs and pool sizes itself."""
_SSL = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


@asynccontextmanager
async def connected(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Open the first connection of an engine. Raise SettingsError for a URL parameter that the driver rejects."""
    try:
        connection = await engine.connect()
    except (TypeError, ValueError, OverflowError) as error:
        kind = type(error).__name__  # the message may contain a password
        raise SettingsError(f"database_url: the driver rejects one of its parameters ({kind})") from None
    try:
        yield connection
    finally:
        await connection.close()


@dataclass
class _Step:
    """Progress of a transaction."""

    began: float
    """When it began; of a write, after it had waited for those before it. Monotonic."""
    committing: bool = False


class Database:
    """The engine and its transactions. Connections are opened on first use."""

    def __init__(
        self, given: str, on_change: Callable[[bool, str, float], None] = lambda away, reason, seconds: None
    ) -> None:
        """Create the engine. `on_change` is called when availability changes; see `DatabaseWatch`. Raise
        SettingsError."""
        self.url = full_url(given)
        self.shown = without_password(given)
        """URL for display."""
        self.watch = DatabaseWatch(on_change)
        self.seconds = {operation: LatencyHistogram() for operation in ("read", "write", "commit")}
        """Durations of transactions, and of the commits of changes, whether they succeeded or not."""
        self.origin = os.urandom(8).hex()
        """Identity of this process among the processes that share the database."""
        self._file = DatabaseFile(self.url)
        try:
            self.engine = _engine(self.url, self._file)
        except (ArgumentError, TypeError, ValueError) as error:
            kind = type(error).__name__  # the message may contain a password
            raise SettingsError(f"database_url: the driver rejects it ({kind})") from None
        _filter_log(self.engine)
        self.errors: tuple[type[Exception], ...] = (SQLAlchemyError, OSError, *_driver_errors(self.url))
        """What the driver and SQLAlchemy raise."""
        self._writer = self.engine.execution_options(**{_WRITE: True})
        self._light = self.engine.execution_options(**{_WRITE: True, _LIGHT: True})
        self._single = self.engine.execution_options(**{_SINGLE: True})
        self._direct = DirectReads(self._file, self.engine.dialect) if self._file.path else None
        # Within a process, writers queue for this lock. SQLite makes waiting writers sleep and retry, which is unfair;
        # in Postgres, a writer that waits for a row holds a connection, and its time limits run.
        self._turn = asyncio.Lock()
        self._waits: set[asyncio.Timeout] = set()
        """Limits of the writes that wait for their turn. Each write that succeeds extends them."""
        if self.engine.dialect.name == "postgresql":
            self._reader = self.engine.execution_options(isolation_level="REPEATABLE READ")
        else:
            self._reader = self.engine

    @property
    def path(self) -> str:
        """Path of the SQLite file; empty for other databases."""
        return self._file.path

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncSession]:
        """Open a read-only session whose statements all see the same snapshot. Raise StoreUnavailable."""
        with self._translated("read"):
            async with AsyncSession(self._reader, expire_on_commit=False) as session, _discarded_if_hung(session):
                yield session

    async def row(self, model: type[R], key: str) -> R | None:
        """Return one record by its key, for reading only: most requests ask for one, and a session would take twice as
        long. Raise StoreUnavailable."""
        with self._translated("read"):
            if self._direct is not None:
                with suppress(sqlite3.Error):  # the driver's thread may wait, and reports what is wrong
                    return cast("R | None", self._direct.row(model, key))
            async with self._single.connect() as connection, _discarded_if_hung(connection):
                found = (await connection.execute(select_by_key(model), {"key": key})).one_or_none()
        return cast("R | None", found)

    @asynccontextmanager
    async def write(self, *, light: bool = False) -> AsyncIterator[AsyncSession]:
        """Open a transaction that commits at the end of the block, or has no effect at all.

        If the outcome is unknown, StoreUnavailable says so. Raises Conflict when another transaction created the same
        record first. A `light` transaction does not wait for the disk, and hardly delays others. It is for data that
        nodes report again, and for history.
        """
        writer = self._light if light else self._writer
        with self._translated("write") as step:
            async with (
                self._in_turn(light) as lock_timeout_ms,
                AsyncSession(writer, expire_on_commit=False, info={"origin": self.origin}) as session,
            ):
                step.began = time.monotonic()
                try:
                    await session.begin()
                    if lock_timeout_ms < BUSY_TIMEOUT_MS:
                        await session.connection(execution_options={_LOCK_TIMEOUT: lock_timeout_ms})
                    yield session
                    await session.flush()
                    self._file.check()
                    step.committing = True
                    with self.seconds["commit"].timed():
                        await session.commit()
                except BaseException as error:
                    with suppress(SQLAlchemyError, OSError):  # report the first error
                        await (session.invalidate() if isinstance(error, TimeoutError) else session.rollback())
                    raise

    @contextmanager
    def _translated(self, kind: Kind) -> Iterator[_Step]:
        """Translate driver errors into Larder's errors, and keep the watch up to date."""
        began = time.monotonic()
        step = _Step(began)
        attributes = {"db.system.name": self.engine.dialect.name}
        try:
            with tracing.child(f"database.{kind}", kind="client", attributes=attributes):
                yield step
        except self.errors as error:
            failure = meaning(error, committing=step.committing)
            if failure is None:
                raise
            self._watched(kind, failure, error, step.began)
            raise failure from error
        except StoreUnavailable as failure:
            self._watched(kind, failure, failure, step.began)
            raise
        else:
            self.watch.worked(kind, step.began)
        finally:
            self.seconds[kind].observe(time.monotonic() - began)

    def _watched(self, kind: Kind, failure: LarderError, cause: Exception, began: float) -> None:
        if self._file.closed:  # a transaction that outlives the database says nothing of it
            return
        if isinstance(failure, StoreUnavailable) and not isinstance(failure, StoreBusy):
            message = str(getattr(cause, "orig", None) or cause).partition("\n")[0]
            self.watch.failed(kind, message.rpartition(">: ")[2][:200] or failure.message, began)

    @asynccontextmanager
    async def _in_turn(self, light: bool) -> AsyncIterator[int]:
        """Hold the writers' lock, unless light writes can run beside others. Yield the milliseconds that are left for
        waiting for other processes."""
        postgres = self.engine.dialect.name == "postgresql"
        if postgres and light:
            yield BUSY_TIMEOUT_MS
            return
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(MAX_TURN_S), asyncio.timeout(BUSY_TIMEOUT_MS / 1000) as limit:
                self._waits.add(limit)
                try:
                    await self._turn.acquire()
                finally:
                    self._waits.discard(limit)
        except TimeoutError:
            raise StoreBusy("the database is busy with other changes; try again") from None
        try:
            # Rounded, so that after a short wait the connection's setting stays unchanged.
            waited_ms = BUSY_TIMEOUT_MS - int(((limit.when() or 0.0) - loop.time()) * 1000)
            waited_ms = waited_ms // _STEP_MS * _STEP_MS
            yield BUSY_TIMEOUT_MS if postgres else max(BUSY_TIMEOUT_MS - waited_ms, _STEP_MS)
            for waiting in self._waits:  # the database is busy, but works
                if not waiting.expired():
                    waiting.reschedule(loop.time() + BUSY_TIMEOUT_MS / 1000)
        finally:
            self._turn.release()

    async def ping(self) -> None:
        """Check that the database answers. Raise StoreUnavailable."""
        async with self.read() as session:
            await session.execute(sa.text("SELECT 1"))

    def apart(self, **settings: Any) -> AsyncEngine:
        """Return an engine for one dedicated connection without the time limit on statements.

        The caller disposes of it. `settings` are passed to the driver's connect function.
        """
        if self.engine.dialect.name != "postgresql":
            return _engine(self.url, self._file)
        connect = {"timeout": CONNECT_TIMEOUT_S, **settings}
        engine = create_async_engine(self.url, poolclass=sa.NullPool, connect_args=connect, hide_parameters=True)
        _filter_log(engine)
        return engine

    async def close(self) -> None:
        """Close all connections, also those that a cancelled task left behind. Nothing opens a new one afterwards."""
        self._file.closed = True
        if self._direct is not None:
            self._direct.close()
        await self.engine.dispose()
        closing = [asyncio.create_task(connection.close()) for connection in self._file.connections]
        if closing:
            done, hanging = await asyncio.wait(closing, timeout=CLOSE_TIMEOUT_S)
            for task in hanging:
                task.cancel()
            for task in done:
                task.exception()  # a connection that broke is closed, too


@asynccontextmanager
async def _discarded_if_hung(resource: AsyncSession | AsyncConnection) -> AsyncIterator[None]:
    """Discard a connection that hangs instead of rolling it back."""
    try:
        yield
    except TimeoutError:
        with suppress(SQLAlchemyError, OSError):
            await resource.invalidate()
        raise


def _filter_log(engine: AsyncEngine) -> None:
    logger = engine.pool.logger
    assert isinstance(logger, logging.Logger)
    logger.addFilter(_is_no_cancellation)


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """Return whether the pool reports a failure. It reports a close that a stop cancels, too, with a traceback."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


@cache
def _postgres_connection() -> type[Any]:
    import asyncpg

    class Connection(asyncpg.Connection):  # type: ignore[misc]
        """Ends within CLOSE_TIMEOUT_S. SQLAlchemy waits longer for a connection whose statement was cancelled, and a
        stop would wait with it."""

        async def close(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - asyncpg's signature
            await super().close(timeout=min(timeout or CLOSE_TIMEOUT_S, CLOSE_TIMEOUT_S))

    return Connection


def _driver_errors(url: sa.URL) -> tuple[type[Exception], ...]:
    """Return the driver's own exceptions, which occur where SQLAlchemy does not wrap them."""
    if url.get_backend_name() != "postgresql":
        return (sqlite3.Error,)
    import asyncpg

    return (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


def _engine(url: sa.URL, file: DatabaseFile) -> AsyncEngine:
    if url.get_backend_name() != "sqlite":
        engine = create_async_engine(
            url,
            pool_pre_ping=True,
            pool_size=8,
            max_overflow=8,
            pool_timeout=CONNECT_TIMEOUT_S,
            hide_parameters=True,
            connect_args={
                "timeout": CONNECT_TIMEOUT_S,
                "command_timeout": COMMAND_TIMEOUT_S,
                "connection_class": _postgres_connection(),
                "server_settings": {"lock_timeout": str(LOCK_TIMEOUT_MS)},
            },
        )
        sa.event.listen(engine.sync_engine, "do_connect", lambda *_: file.check_open())
        return engine

    async def connect() -> SqliteConnection:
        file.check_open()
        file.check()  # before SQLite creates an empty file
        passing = full_disk.is_stuck(file.path)
        connection = SqliteConnection(full_disk.url_of(file.path) if passing else file.path, uri=passing)
        file.connections.add(connection)
        try:
            await connection.open()
        except BaseException:
            connection.stop()
            raise
        return connection

    # Last in, first out: each connection has a thread, and few threads cost less.
    engine = create_async_engine(
        url, async_creator=connect, pool_size=8, max_overflow=8, pool_use_lifo=True, hide_parameters=True
    )

    def on_connect(connection: Any, _record: object) -> None:
        _prepare_sqlite(connection)
        file.opened()

    def on_checkout(connection: Any, record: Any, _proxy: object) -> None:
        if connection.driver_connection.passing and record.info.get(_PASSED):
            raise DisconnectionError  # makes the pool reconnect: there may be room now
        record.info[_PASSED] = True

    def on_begin(connection: sa.Connection) -> None:
        file.check()
        _begin_sqlite(connection)

    sa.event.listen(engine.sync_engine, "connect", on_connect)
    sa.event.listen(engine.sync_engine, "begin", on_begin)
    sa.event.listen(engine.sync_engine, "checkout", on_checkout)
    return engine


def _prepare_sqlite(connection: Any) -> None:
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    _use_wal(cursor)
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _use_wal(cursor: Any) -> None:
    """Switch the journal to WAL. SQLite does not wait for processes that switch a new database at the same time."""
    deadline = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        sa.util.await_only(asyncio.sleep(WAL_RETRY_S))


def _begin_sqlite(connection: sa.Connection) -> None:
    options = connection.get_execution_options()
    driver: Any = connection.connection.driver_connection
    writes = options.get(_WRITE, False)
    driver.reads = not writes and not options.get(_SINGLE, False)  # one statement sees one snapshot
    if not writes:
        return
    if driver.passing:
        raise StoreUnavailable(FULL)
    lock_timeout_ms = options.get(_LOCK_TIMEOUT, BUSY_TIMEOUT_MS)
    if connection.info.get(_LOCK_TIMEOUT, BUSY_TIMEOUT_MS) != lock_timeout_ms:
        connection.info[_LOCK_TIMEOUT] = lock_timeout_ms
        connection.exec_driver_sql(f"PRAGMA busy_timeout={lock_timeout_ms}")
    light = options.get(_LIGHT, False)
    if connection.info.get(_LIGHT, False) != light:
        connection.info[_LIGHT] = light
        connection.exec_driver_sql(f"PRAGMA synchronous={'NORMAL' if light else 'FULL'}")
    connection.exec_driver_sql("BEGIN IMMEDIATE")
