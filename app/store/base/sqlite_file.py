"""SQLite's file, and reads of one record in it in the thread of the caller."""

import os
import sqlite3
from functools import cache
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote
from weakref import WeakSet

import sqlalchemy as sa

from app.errors import StoreUnavailable
from app.store.base.declarative import Base


@cache
def select_by_key(model: type[Base]) -> sa.Select[Any]:
    """Return the query for one row by its primary key, which has one column. Deferred columns are left out: they are
    large, and read only where they are used."""
    (key,) = model.__table__.primary_key
    columns = [attribute.columns[0] for attribute in sa.inspect(model).column_attrs if not attribute.deferred]
    return sa.select(*columns).where(key == sa.bindparam("key"))


class DatabaseFile:
    """SQLite's file. The path must always refer to the file that was opened first."""

    def __init__(self, url: sa.URL) -> None:
        self.path = os.path.abspath(url.database or "") if url.get_backend_name() == "sqlite" else ""
        self.connections: WeakSet[Any] = WeakSet()
        """The driver's connections to the file."""
        self.closed = False
        self._opened: tuple[int, int] | None = None

    def opened(self) -> None:
        """Record that a connection has opened the file."""
        if self.path and self._opened is None:
            self._opened = self._now()

    def check_open(self) -> None:
        """Raise StoreUnavailable if the database was closed."""
        if self.closed:
            raise StoreUnavailable("the database was closed")

    def check(self) -> None:
        """Check that the path still refers to that file. Raise StoreUnavailable."""
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


class DirectReads:
    """SQLite: reads of one record in the thread of the caller. The driver's thread takes ten times as long, most of it
    for waking up. Nothing waits here: a database that is locked, or cannot be opened, is an error."""

    def __init__(self, file: DatabaseFile, dialect: sa.Dialect) -> None:
        self._file = file
        self._dialect = dialect
        self._queries: dict[type[Base], _RowQuery] = {}
        self._connection: sqlite3.Connection | None = None

    def row(self, model: type[Base], key: str) -> object:
        """Return the row of a key, or None. Raises StoreUnavailable, sqlite3.Error."""
        self._file.check_open()
        self._file.check()
        query = self._queries.get(model)
        if query is None:
            query = self._queries[model] = _RowQuery(model, self._dialect)
        if self._connection is None:
            url = f"file:{quote(self._file.path)}?mode=ro"
            self._connection = sqlite3.connect(url, uri=True, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            found = self._connection.execute(query.sql, (key,)).fetchone()
        except sqlite3.Error:
            self.close()
            raise
        return None if found is None else query.row(found)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _RowQuery:
    """`select_by_key` of a model, compiled once: SQLAlchemy takes five times as long as SQLite for executing it."""

    def __init__(self, model: type[Base], dialect: sa.Dialect) -> None:
        query = select_by_key(model)
        columns = query.selected_columns
        self.sql = str(query.compile(dialect=dialect))
        self._names = columns.keys()
        processors = [column.type.dialect_impl(dialect).result_processor(dialect, None) for column in columns]
        self._processors = [(at, process) for at, process in enumerate(processors) if process is not None]

    def row(self, values: tuple[Any, ...]) -> object:
        """Return the values of SQLite as attributes with the types of the model."""
        converted = list(values)
        for at, process in self._processors:
            converted[at] = process(converted[at])
        return SimpleNamespace(**dict(zip(self._names, converted, strict=True)))
