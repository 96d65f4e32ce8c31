"""Condition of a database: revision of the schema, agreement of tables and models, integrity of the file."""

import socket
import time
from dataclasses import dataclass, field

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy.exc import SQLAlchemyError

from app.errors import StoreUnavailable
from app.store.base import migrate
from app.store.base.database import Database, connected
from app.store.base.failures import meaning
from app.store.tables import metadata

MAX_FAULTS = 100


@dataclass(frozen=True)
class DatabaseCondition:
    """Findings. `faults` are messages; empty if there are none."""

    dialect: str
    revision: str
    """Revision of the schema; empty if no migration was ever run."""
    head: str
    """Newest revision that this release knows."""
    clock_ahead_s: float
    """Seconds by which the database's clock is ahead of this machine's."""
    faults: list[str] = field(default_factory=list)

    @property
    def at_head(self) -> bool:
        return self.revision == self.head

    @property
    def of_newer_release(self) -> bool:
        return migrate.is_newer(self.revision)


async def look(database: Database, *, whole: bool) -> DatabaseCondition:
    """Return the condition of a database. Raise StoreUnavailable, SettingsError.

    With `whole`, also compare the tables with the models, and read the entire file of an SQLite database.
    """
    engine = database.apart()
    try:
        async with connected(engine) as connection:
            return await connection.run_sync(_look, whole)
    except (OSError, TimeoutError, SQLAlchemyError) as error:
        raise StoreUnavailable(_sentence(error)) from error
    finally:
        await engine.dispose()


def _sentence(error: Exception) -> str:
    """Describe an error without text that a driver may quote from the URL."""
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, (FileNotFoundError, ConnectionError)):
        return (
            f"the database does not answer: nothing listens at its address ({type(cause).__name__}); is it started, "
            "and is LARDER_DATABASE_URL right?"
        )
    if isinstance(cause, socket.gaierror):
        return f"the database does not answer: its host is not known ({cause.strerror}); see LARDER_DATABASE_URL"
    if isinstance(cause, TimeoutError):
        return "the database does not answer: nothing came from its address in time"
    stored_meaning = meaning(error)
    return (
        stored_meaning.message
        if stored_meaning is not None
        else f"the database does not answer: {type(cause).__name__}"
    )


def _look(connection: sa.Connection, whole: bool) -> DatabaseCondition:
    context = MigrationContext.configure(connection, opts={"compare_server_default": True})
    revision = context.get_current_revision() or ""
    clock = "strftime('%s','now')" if connection.dialect.name == "sqlite" else "EXTRACT(EPOCH FROM clock_timestamp())"
    before = time.time()
    database_time = float(connection.scalar(sa.text(f"SELECT {clock}")) or 0)
    ahead_s = database_time - (before + time.time()) / 2 if connection.dialect.name != "sqlite" else 0.0
    condition = DatabaseCondition(connection.dialect.name, revision, migrate.head(), ahead_s)
    if encoding_fault := migrate.encoding_fault(connection):
        condition.faults.append(encoding_fault)
    if not condition.at_head:
        condition.faults.append(_behind(condition))
    if not whole:
        return condition
    if connection.dialect.name == "sqlite":
        condition.faults.extend(_file_faults(connection))
    if condition.at_head:
        condition.faults.extend(
            f"the tables differ from the models: {difference}" for difference in _differences(context)
        )
    return condition


def _behind(condition: DatabaseCondition) -> str:
    if condition.of_newer_release:
        return migrate.newer(condition.revision)
    at = f"at revision {condition.revision}" if condition.revision else "empty"
    return f"the schema is {at}, expected {condition.head}: run 'larder db upgrade'"


def _file_faults(connection: sa.Connection) -> list[str]:
    faults = [
        f"PRAGMA integrity_check: {row[0]}"
        for row in connection.execute(sa.text(f"PRAGMA integrity_check({MAX_FAULTS})"))
        if row[0] != "ok"
    ]
    faults += [
        f"PRAGMA foreign_key_check: row {row[1]} of {row[0]} names nothing in {row[2]}"
        for row in connection.execute(sa.text("PRAGMA foreign_key_check")).fetchmany(MAX_FAULTS)
    ]
    mode = connection.scalar(sa.text("PRAGMA journal_mode"))
    if mode != "wal":
        faults.append(f"the journal is in mode {mode}, expected wal: another program changed it")
    known_tables = set(metadata.tables) | {"alembic_version"}
    table_names = sa.inspect(connection).get_table_names()
    faults += [f"there is a table {name!r} that is not Larder's" for name in table_names if name not in known_tables]
    return faults


def _differences(context: MigrationContext) -> list[str]:
    return [str(difference)[:200] for difference in compare_metadata(context, metadata)[:MAX_FAULTS]]
