"""Statements that are compiled once in a process: SQLAlchemy compiles each for each engine, a fifth of the CPU time of
a plane, and tests make thousands of engines. Import this to share the compiled statements."""

from collections import defaultdict
from typing import Any

from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.dialects.sqlite.aiosqlite import SQLiteDialect_aiosqlite
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import Engine
from sqlalchemy.util import LRUCache

SHARED = (PGDialect_asyncpg, SQLiteDialect_aiosqlite, SQLiteDialect_pysqlite)
"""Dialects whose objects are all the same to a statement: one driver and one release of the server."""
_compiled: defaultdict[type[Any], LRUCache[Any, Any]] = defaultdict(lambda: LRUCache(5000))
_made = Engine.__init__


def _make(engine: Engine, pool: Any, dialect: Any, url: Any, hide_parameters: bool = False, **named: Any) -> None:
    """SQLAlchemy reads the names of the positional parameters."""
    _made(engine, pool, dialect, url, hide_parameters=hide_parameters, **named)
    if type(dialect) in SHARED:
        engine.update_execution_options(compiled_cache=_compiled[type(dialect)])


def _same(dialect: object, other: object) -> bool:
    return type(dialect) is type(other)


def _hash(dialect: object) -> int:
    return hash(type(dialect))


Engine.__init__ = _make  # type: ignore[method-assign, assignment]
for kind in SHARED:
    kind.__eq__ = _same  # type: ignore[method-assign]
    kind.__hash__ = _hash  # type: ignore[method-assign, assignment]
