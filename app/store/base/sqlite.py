"""SQLite driver that needs one thread switch per statement.

The driver runs SQLite in its own thread and switches to it for each step: create a cursor, execute, fetch, close. Four
switches cost more than a short statement, for the caller and for every other task of the loop. Here, executing a
statement and fetching all its rows is one switch (SQLAlchemy fetches all rows at once anyway). A read-only transaction
begins in the switch of its first statement, and the caller does not wait for its end.
"""

import sqlite3
from collections import deque
from functools import partial
from typing import Any

from sqlalchemy.dialects.sqlite.aiosqlite import AsyncAdapt_aiosqlite_connection, AsyncAdapt_aiosqlite_cursor
from sqlalchemy.util import EMPTY_DICT


class _Done:
    """Result of a statement that has run."""

    arraysize = 1

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self.description = cursor.description
        try:
            self.rows = cursor.fetchall() if cursor.description else []
            self.rowcount = cursor.rowcount
            self.lastrowid = cursor.lastrowid
        finally:
            cursor.close()  # a cursor that failed on text that is not UTF-8 would keep its snapshot

    def close(self) -> None:
        """Do nothing: the cursor is closed already."""


def _execute(connection: sqlite3.Connection, begin: bool, statement: str, parameters: Any) -> _Done:
    if begin:
        connection.execute("BEGIN")
    return _Done(connection.execute(statement, () if parameters is None else parameters))


def _executemany(connection: sqlite3.Connection, begin: bool, statement: str, parameters: Any) -> _Done:
    if begin:
        connection.execute("BEGIN")
    return _Done(connection.executemany(statement, parameters))


def _end(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.rollback()


class OneVisitCursor(AsyncAdapt_aiosqlite_cursor):
    """Holds the result of a statement."""

    __slots__ = ()
    _awaitable_cursor_close = False

    def __init__(self, adapt_connection: Any) -> None:
        self._adapt_connection = adapt_connection
        self._connection = adapt_connection._connection
        self._cursor: Any = None
        self._rows = deque()
        self._soft_closed_memoized = EMPTY_DICT

    @property
    def description(self) -> Any:
        return None if self._cursor is None else self._cursor.description

    @property
    def rowcount(self) -> int:
        return -1 if self._cursor is None else int(self._cursor.rowcount)

    async def _execute_async(self, operation: Any, parameters: Any) -> Any:
        return await self._visit(_execute, operation, parameters)

    async def _executemany_async(self, operation: Any, seq_of_parameters: Any) -> Any:
        return await self._visit(_executemany, operation, seq_of_parameters)

    async def _visit(self, run: Any, operation: Any, parameters: Any) -> Any:
        adapter: Any = self._adapt_connection
        connection: Any = self._connection
        async with adapter._execute_mutex:
            begin = adapter.takes_begin()
            self._cursor = await connection._execute(run, connection._conn, begin, operation, parameters)
            self._rows = deque(self._cursor.rows)
            return self


class OneVisitConnection(AsyncAdapt_aiosqlite_connection):
    """Adapter with these cursors and with read-only transactions."""

    __slots__ = ("_begun", "_reads", "passing")
    _cursor_cls = OneVisitCursor

    def __init__(self, dbapi: Any, connection: Any) -> None:
        super().__init__(dbapi, connection)
        self._reads = self._begun = False
        self.passing = False
        """Whether the database is read without its log; see `app.store.base.full_disk`."""

    def begin_reading(self) -> None:
        """Begin a read-only transaction with the next statement."""
        self._reads, self._begun = True, False

    def takes_begin(self) -> bool:
        """Return whether a read-only transaction begins with this statement."""
        begins, self._begun = self._reads and not self._begun, True
        return begins

    def rollback(self) -> None:
        if not self._end_reading():
            super().rollback()

    def commit(self) -> None:
        if not self._end_reading():
            super().commit()

    def _end_reading(self) -> bool:
        """End a read-only transaction. Return whether there is nothing else to do.

        That is the case if nothing was begun, or if the transaction only read. Its end needs no waiting, because later
        work on this connection comes after it.
        """
        begun, self._begun = self._begun, False
        reads, self._reads = self._reads, False
        if begun and reads:
            connection: Any = self._connection
            connection._tx.put_nowait((None, partial(_end, connection._conn)))
        return reads or not begun


def one_visit(connection: Any) -> OneVisitConnection:
    """Wrap an open connection."""
    return OneVisitConnection(connection.dbapi, connection._connection)
