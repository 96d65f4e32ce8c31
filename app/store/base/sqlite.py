"""SQLite driver that needs one thread switch per statement.

The driver runs SQLite in its own thread and switches to it for each step: create a cursor, execute, fetch, close. Four
switches cost more than a short statement, for the caller and for every other task of the loop. Here, executing a
statement and fetching all its rows is one switch (SQLAlchemy fetches all rows at once anyway). A read-only transaction
begins in the switch of its first statement.
"""

import asyncio
import sqlite3
from collections import deque
from typing import Any, NamedTuple

from sqlalchemy.dialects.sqlite.aiosqlite import AsyncAdapt_aiosqlite_connection, AsyncAdapt_aiosqlite_cursor
from sqlalchemy.util import EMPTY_DICT


class _Result(NamedTuple):
    """Result of a statement that has run."""

    rows: list[Any]
    description: Any
    rowcount: int
    lastrowid: int | None

    def fetchall(self) -> "_Result":
        """Return itself: `aiosqlite.Connection.execute_fetchall` passes it to the event loop."""
        return self

    def close(self) -> None:
        """Do nothing: the cursor is closed already."""


class SqliteConnection(sqlite3.Connection):
    """SQLite's connection, used in the driver's thread. Statements return their whole result."""

    reads = False
    """The next statement begins a read-only transaction, unless one is open."""

    def execute(self, statement: str, parameters: Any = ()) -> _Result:  # type: ignore[override]
        if self.reads and not self.in_transaction:
            super().execute("BEGIN")
        cursor = super().execute(statement, parameters)
        try:
            rows = cursor.fetchall() if cursor.description else []
            return _Result(rows, cursor.description, cursor.rowcount, cursor.lastrowid)
        finally:
            cursor.close()  # a cursor that failed on text that is not UTF-8 would keep its snapshot


class OneVisitCursor(AsyncAdapt_aiosqlite_cursor):
    """Holds the result of a statement."""

    __slots__ = ()
    _awaitable_cursor_close = False

    def __init__(self, adapt_connection: Any) -> None:
        self._adapt_connection = adapt_connection
        self._connection = adapt_connection._connection
        self._cursor: Any = _Result([], None, -1, None)
        self._rows = deque()
        self._soft_closed_memoized = EMPTY_DICT

    async def _execute_async(self, operation: Any, parameters: Any) -> Any:
        connection: Any = self._connection
        async with self._adapt_connection._execute_mutex:
            self._cursor = await connection.execute_fetchall(operation, parameters)
            self._rows = deque(self._cursor.rows)
            return self

    async def _executemany_async(self, operation: Any, seq_of_parameters: Any) -> Any:
        connection: Any = self._connection
        async with self._adapt_connection._execute_mutex:
            ran = await connection.executemany(operation, seq_of_parameters)
            self._cursor = _Result([], None, ran.rowcount, ran.lastrowid)
            return self


class OneVisitConnection(AsyncAdapt_aiosqlite_connection):
    """Adapter with these cursors."""

    _cursor_cls = OneVisitCursor
    sqlite: SqliteConnection
    passing = False
    """Whether the database is read without its log; see `app.store.base.full_disk`."""

    def rollback(self) -> None:
        if self.sqlite.in_transaction:
            super().rollback()

    def _terminate_graceful_close(self) -> Any:
        """Return an awaitable for the close. A coroutine that closes would need a task; if its caller is cancelled
        before the task begins, the driver's thread ends first, and the task waits for ever."""
        driver: Any = self._connection
        return driver.stop() if driver._running else asyncio.sleep(0)


def connect(dialect: Any, *arguments: Any, **named: Any) -> OneVisitConnection:
    """Open a connection."""
    opened: list[SqliteConnection] = []

    def open_one(*given: Any, **options: Any) -> SqliteConnection:
        opened.append(SqliteConnection(*given, **options))
        return opened[0]

    adapter = dialect.connect(*arguments, **named, factory=open_one, isolation_level=None)
    connection = OneVisitConnection(adapter.dbapi, adapter.driver_connection)
    (connection.sqlite,) = opened
    return connection
