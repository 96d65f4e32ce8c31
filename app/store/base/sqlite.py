"""Asynchronous SQLite connection in which executing a statement and fetching all its rows is one switch of threads.

Each connection has a thread, as SQLite may wait for a lock or the disk. Drivers that switch to it for each step (create
a cursor, execute, fetch, close) take longer than a short statement, for the caller and for every other task of the
loop. SQLAlchemy's `aiosqlite` dialect uses this connection in place of the driver's (`async_creator`).
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Call = tuple[asyncio.Future[Any] | None, Callable[[], Any]]


class SqliteConnection:
    """Connection that `open` opens. A transaction begins with a statement BEGIN, or see `reads`."""

    def __init__(self, path: str, *, uri: bool = False) -> None:
        self.reads = False
        """Whether the next statement begins a read-only transaction, unless one is open."""
        self.passing = uri
        """Whether the database is read without its log; see `app.store.base.full_disk`."""
        self._path = path
        self._connection: sqlite3.Connection | None = None  # the dialect looks whether it is open
        self._stopped = False
        self._closing: asyncio.Future[None] | None = None
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        threading.Thread(target=_run, args=(self._calls,), name="sqlite", daemon=True).start()

    async def open(self) -> None:
        """Open the file. Raises sqlite3.Error."""
        await self.call(self._open)

    def call(self, do: Callable[[], T]) -> "asyncio.Future[T]":
        """Return the result of a function that the connection's thread calls, after all earlier ones."""
        if self._stopped:
            raise sqlite3.OperationalError("the connection is closed")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put((future, do))
        return future

    def cursor(self) -> "SqliteCursor":
        return SqliteCursor(self)

    def execute(self, statement: str, parameters: Sequence[Any]) -> sqlite3.Cursor:
        """Execute in the connection's thread."""
        if self.reads and not self._open_connection.in_transaction:
            self._open_connection.execute("BEGIN")
        return self._open_connection.execute(statement, parameters)

    def executemany(self, statement: str, parameters: Sequence[Sequence[Any]]) -> sqlite3.Cursor:
        """Execute for each of the parameters, in the connection's thread."""
        return self._open_connection.executemany(statement, parameters)

    async def create_function(self, *args: Any, **options: Any) -> None:
        await self.call(lambda: self._open_connection.create_function(*args, **options))

    async def commit(self) -> None:
        await self.call(lambda: self._open_connection.commit())

    async def rollback(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            await self.call(self._connection.rollback)

    async def close(self) -> None:
        """Close after all statements that run or wait. Who closes again waits for the same end."""
        self.stop()
        if self._closing is not None:
            await asyncio.shield(self._closing)

    def stop(self) -> None:
        """Begin to close, and do not wait for it. May be called without an event loop."""
        if not self._stopped:
            self._stopped = True
            with suppress(RuntimeError):
                self._closing = asyncio.get_running_loop().create_future()
            self._calls.put((self._closing, self._close))
            self._calls.put(None)

    @property
    def _open_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise sqlite3.OperationalError("the connection is closed")
        return self._connection

    def _open(self) -> None:
        self._connection = sqlite3.connect(self._path, uri=self.passing, isolation_level=None)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class SqliteCursor:
    """Result of the last statement: all its rows."""

    def __init__(self, connection: SqliteConnection) -> None:
        self._connection = connection
        self._rows: list[Any] = []
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: int | None = None
        self.arraysize = 1

    async def __aenter__(self) -> "SqliteCursor":
        return self

    async def execute(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        await self._connection.call(lambda: self._keep(self._connection.execute(statement, parameters)))

    async def executemany(self, statement: str, parameters: Sequence[Sequence[Any]]) -> None:
        await self._connection.call(lambda: self._keep(self._connection.executemany(statement, parameters)))

    async def fetchall(self) -> list[Any]:
        return self._rows

    async def close(self) -> None:
        """Do nothing: SQLite's cursor is closed as soon as its rows were fetched."""

    def _keep(self, cursor: sqlite3.Cursor) -> None:
        try:
            self.description, self.lastrowid = cursor.description, cursor.lastrowid
            self._rows = cursor.fetchall() if cursor.description else []
            self.rowcount = cursor.rowcount
        finally:
            cursor.close()  # a cursor that failed on text that is not UTF-8 would keep its snapshot


def _run(calls: "SimpleQueue[_Call | None]") -> None:
    """Make the calls of a connection until None."""
    while (call := calls.get()) is not None:
        _make(*call)
        del call  # otherwise it would keep an unused connection until the next call


def _make(future: asyncio.Future[Any] | None, do: Callable[[], Any]) -> None:
    result, error = None, None
    try:
        result = do()
    except BaseException as raised:  # noqa: BLE001 - the caller gets it
        error = raised
    if future is not None:
        with suppress(RuntimeError):  # the loop was closed: no caller waits
            future.get_loop().call_soon_threadsafe(_settle, future, result, error)
    del error  # its traceback refers to this frame


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():  # its caller was cancelled
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
