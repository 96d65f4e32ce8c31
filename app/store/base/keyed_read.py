"""Fast read of one record by its key, without the cost of a session.

Most requests concern one record. A session returns an object that can be changed and written back, at many times the
cost of the statement. For SQLite, a record is read in one statement, which sees one snapshot by itself. A thread with
its own connection answers all pending requests in one batch. Other databases are read through a session.
"""

import asyncio
import queue
import sqlite3
import threading
from collections import namedtuple
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from app.store.base.declarative import Base
from app.store.base.full_disk import FullDiskRetry

R = TypeVar("R", bound=Base)
_Answer = tuple[Any, ...] | Exception | None
_MAX_AT_ONCE = 100
_DIALECT = sqlite.dialect(paramstyle="qmark")


class KeyedRead(Generic[R]):
    """Read of a table's rows by its primary key, which has one column. Created once, next to the table."""

    def __init__(self, model: type[R]) -> None:
        self.model = model
        table = cast(sa.Table, model.__table__)
        (key,) = table.primary_key.columns
        columns = list(table.columns)
        self.sql = str(sa.select(*columns).where(key == sa.bindparam("key")).compile(dialect=_DIALECT))
        self._make: Callable[..., Any] = namedtuple(model.__name__, [column.name for column in columns])  # type: ignore[misc]
        self._read: list[tuple[int, Callable[[Any], Any]]] = []
        for place, column in enumerate(columns):
            kind = column.type.dialect_impl(_DIALECT)
            read = kind.result_processor(_DIALECT, None)
            if read is not None:
                self._read.append((place, read))

    def row(self, found: tuple[Any, ...]) -> R:
        """Return a row with the columns of the model. It belongs to no session, so nothing writes it back."""
        values = list(found)
        for place, read in self._read:
            values[place] = read(values[place])
        return cast(R, self._make(*values))


class _Asked:
    """One pending request."""

    __slots__ = ("future", "key", "loop", "sql")

    def __init__(self, sql: str, key: str) -> None:
        self.sql = sql
        self.key = key
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[tuple[Any, ...] | None] = self.loop.create_future()


class KeyedReads:
    """Reads rows of one SQLite file. The thread and its connection start with the first request."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        """Create it. `connect` is called in the thread, and again after an error."""
        self._connect = connect
        self._asked: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def get(self, point: KeyedRead[R], key: str) -> R | None:
        """Return a row by its key. Raise sqlite3.Error, or whatever `connect` raises."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="points", daemon=True)
            self._thread.start()
        asked = _Asked(point.sql, key)
        self._asked.put(asked)
        found = await asked.future
        return None if found is None else point.row(found)

    async def close(self) -> None:
        """Stop the thread after it has answered all pending requests."""
        if self._thread is not None:
            self._asked.put(None)
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        going_on = True
        while going_on:
            batch = self._batch()
            going_on = batch[-1] is not None
            answers: list[tuple[_Asked, tuple[Any, ...] | Exception | None]] = []
            for asked in batch:
                if asked is None:
                    break
                try:
                    connection = connection or self._connect()
                    answers.append((asked, connection.execute(asked.sql, (asked.key,)).fetchone()))
                except Exception as error:  # noqa: BLE001 - passed on to the caller
                    answers.append((asked, error))
                    if connection is not None:
                        connection.close()
                        connection = None
            _deliver(answers)
            if isinstance(connection, FullDiskRetry):
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def _batch(self) -> list[_Asked | None]:
        batch = [self._asked.get()]
        while batch[-1] is not None and len(batch) < _MAX_AT_ONCE:
            try:
                batch.append(self._asked.get_nowait())
            except queue.Empty:
                break
        return batch


def _deliver(answers: list[tuple[_Asked, _Answer]]) -> None:
    """Deliver answers with one wake-up per event loop."""
    for loop in {asked.loop for asked, _ in answers}:
        theirs = [each for each in answers if each[0].loop is loop]
        if not loop.is_closed():
            loop.call_soon_threadsafe(_settle, theirs)


def _settle(answers: list[tuple[_Asked, _Answer]]) -> None:
    for asked, answer in answers:
        if asked.future.done():  # the caller has stopped waiting
            continue
        if isinstance(answer, Exception):
            asked.future.set_exception(answer)
        else:
            asked.future.set_result(answer)
