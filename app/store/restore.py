"""Restore of a backup of an SQLite database: checked and migrated beside the database, then put in its place.

The restored database continues under the identity of the old one, and nodes refuse generations older than the one in
force. Its generations therefore begin far above those of the backup and of the replaced database.
"""

import asyncio
import getpass
import os
import shutil
import sqlite3
import tarfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import zmq
from sqlalchemy.exc import SQLAlchemyError

from app.errors import Conflict, StoreUnavailable
from app.observe.catalogue import name_of
from app.observe.catalogue.service import BackupRestored
from app.observe.events import fields_of
from app.store import condition
from app.store.access import audit
from app.store.access.audit import AuditRow
from app.store.base import migrate
from app.store.base.backup import BESIDE, KEY_MEMBER, NEXT_KEY_MEMBER, POSTGRES_MEMBER, SQLITE_MEMBER, new_file
from app.store.base.database import Database
from app.store.views import events
from app.store.views.events import EventRow
from dataplane.protocol.control.snapshots import SNAPSHOT_TYPES

GENERATIONS_AHEAD = 1_000_000
"""Generations that nodes may have applied since the backup, at most."""
MAX_NUMBER = 1 << 50
"""Largest generation and number of an audit entry in a backup: far above any that Larder counts to."""
_IS_NUMBER = f"typeof({{0}}) = 'integer' AND {{0}} BETWEEN 0 AND {MAX_NUMBER}"
ACTOR = "local"
"""Actor of a restore: a user of this machine."""
_SQLITE = b"SQLite format 3\0"
POSTGRES_STEPS = (
    f"stop every Larder on it, and run 'tar -xf FILE', 'pg_restore --clean --if-exists --single-transaction "
    f"--dbname=DATABASE {POSTGRES_MEMBER}', 'larder db upgrade', and in psql 'UPDATE generations SET generation = "
    f"generation + {GENERATIONS_AHEAD}'; {KEY_MEMBER}, if FILE has it, belongs in the state directory"
)


@dataclass(frozen=True)
class DatabaseRestore:
    """Result of a restore."""

    database: str
    """Path of the database."""
    from_revision: str
    """Revision of the schema in the backup."""
    revision: str
    """Revision of the schema now."""
    kept: list[str]
    """Paths under which the replaced database and the replaced keys are kept."""
    key: str
    """Path of the restored manager key; empty if the backup has none."""


def restore(source: Path, target: Path, key: Path, *, force: bool) -> DatabaseRestore:
    """Put the database of a backup in the place of `target`, and its manager key in the place of `key`.

    The caller makes sure that nothing uses them. Raises Conflict if something would be replaced and `force` is not set,
    and StoreUnavailable if the backup cannot be used; nothing has changed then.
    """
    if target.exists() and not force:
        raise Conflict(f"{target} exists: --force replaces it and renames the old file")
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with new_file(target) as part:
        keys = _unpack(source, part)
        new_keys = {path: keys[name] for name, path in _key_paths(key).items() if name in keys}
        replaced = [path for path, secret in new_keys.items() if _differs(path, secret)]
        if replaced and not force:
            raise Conflict(
                f"{replaced[0]} differs from the key in the backup: --force replaces it and renames the old file"
            )
        try:
            from_revision = asyncio.run(_prepared(part))
            _advance(part, target)
            asyncio.run(_record(part, str(source.absolute()), from_revision))
        except (sqlite3.Error, SQLAlchemyError) as error:
            reason = getattr(error, "orig", error)
            raise StoreUnavailable(f"the database of the backup is damaged or cannot be migrated: {reason}") from None
        suffix = f".replaced-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        try:
            moved = [moved for path in replaced if (moved := _set_aside(path, suffix))]
            for path, secret in new_keys.items():
                _write_key(path, secret)
            moved += [_set_aside_database(target, suffix)] if target.exists() else []
            with part.open("rb") as written:
                os.fsync(written.fileno())
            part.replace(target)
            _sync_folder(target.parent)
        except OSError as error:
            raise StoreUnavailable(f"the restore failed: {error.filename}: {error.strerror}") from error
    restored_key = str(key) if KEY_MEMBER in keys else ""
    return DatabaseRestore(str(target), from_revision, migrate.head(), moved, restored_key)


def _key_paths(key: Path) -> dict[str, Path]:
    return {KEY_MEMBER: key, NEXT_KEY_MEMBER: key.with_name(f"{key.name}.next")}


def _unpack(source: Path, part: Path) -> dict[str, bytes]:
    """Write the database of a backup to a file, and return the keys of the backup by name. A plain SQLite file is a
    backup without keys. Raises StoreUnavailable."""
    try:
        with source.open("rb") as file:
            if file.read(len(_SQLITE)) == _SQLITE:
                shutil.copyfile(source, part)
                return {}
        with tarfile.open(source, "r:") as tar:
            members = {member.name: member for member in tar if member.isfile()}
            if POSTGRES_MEMBER in members:
                raise StoreUnavailable(f"{source} is a backup of a Postgres database: {POSTGRES_STEPS}")
            if SQLITE_MEMBER not in members:
                raise StoreUnavailable(f"{source} is not a backup of Larder: it has no {SQLITE_MEMBER}")
            content = tar.extractfile(members[SQLITE_MEMBER])
            assert content is not None, "it is a file"
            with content, part.open("wb") as out:
                shutil.copyfileobj(content, out)
            key_files = {
                name: tar.extractfile(members[name]) for name in (KEY_MEMBER, NEXT_KEY_MEMBER) if name in members
            }
            keys = {name: file.read() for name, file in key_files.items() if file is not None}
    except tarfile.TarError as error:
        raise StoreUnavailable(f"{source} is not a backup of Larder: {error}") from None
    except OSError as error:
        raise StoreUnavailable(f"{source} cannot be read: {error.strerror}") from None
    for name, secret in keys.items():
        try:
            zmq.curve_public(secret.strip())
        except (ValueError, zmq.ZMQError):
            raise StoreUnavailable(f"{source}: {name}: expected a CURVE secret key, 40 characters in Z85") from None
    return keys


async def _prepared(part: Path) -> str:
    """Check the integrity of a database and migrate it to the newest schema. Return the revision that it had. Raises
    StoreUnavailable, sqlite3.Error, SQLAlchemyError."""
    with closing(sqlite3.connect(part)) as connection:
        (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if verdict != "ok":
            raise StoreUnavailable(f"the database of the backup is damaged: {verdict}")
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        revisions = (
            [row[0] for row in connection.execute("SELECT version_num FROM alembic_version LIMIT 2")]
            if "alembic_version" in tables
            else []
        )
        if not revisions or "store" not in tables:
            raise StoreUnavailable("the backup is not a backup of Larder: its database does not have Larder's schema")
        if len(revisions) > 1 or not isinstance(revisions[0], str) or not revisions[0]:
            raise StoreUnavailable(
                "the database of the backup is damaged: alembic_version.version_num: expected one row with a revision, "
                f"got {revisions}"
            )
        for table, column in (("generations", "generation"), ("audit_head", "last_id")):
            if table in tables:
                _check_numbers(connection, table, column)
    (revision,) = revisions
    if migrate.is_newer(revision):
        raise StoreUnavailable(f"the backup cannot be restored: {migrate.newer(revision)}; start that release")
    database = Database(f"sqlite:///{quote(str(part))}")
    try:
        await migrate.upgrade(database)
        database_condition = await condition.look(database, whole=True)
    finally:
        await database.close()
    if database_condition.faults:
        raise StoreUnavailable(f"the database of the backup is damaged: {database_condition.faults[0]}")
    return str(revision)


def _check_numbers(connection: sqlite3.Connection, table: str, column: str) -> None:
    """Raise StoreUnavailable if a column has another value than a number: SQLite stores values of any type."""
    invalid = connection.execute(f"SELECT {column} FROM {table} WHERE NOT ({_IS_NUMBER.format(column)})").fetchone()
    if invalid is not None:
        raise StoreUnavailable(
            f"the database of the backup is damaged: {table}.{column}: expected a whole number from 0 to {MAX_NUMBER}, "
            f"got {invalid[0]!r:.80}"
        )


def _advance(part: Path, target: Path) -> None:
    """Raise the generations of the restored database above those that nodes may have applied."""
    replaced: dict[str, int] = {}
    if target.exists():
        try:
            uri = f"file:{quote(str(target.absolute()))}?mode=ro"
            with closing(sqlite3.connect(uri, uri=True)) as connection:
                condition = _IS_NUMBER.format("generation")
                replaced = dict(connection.execute(f"SELECT type, generation FROM generations WHERE {condition}"))
        except sqlite3.Error:  # damaged, as other values are: perhaps the reason for the restore
            replaced = {}
    with closing(sqlite3.connect(part, isolation_level=None)) as connection:
        restored = dict(connection.execute("SELECT type, generation FROM generations"))
        for kind in SNAPSHOT_TYPES:
            generation = max(restored.get(kind, 0), replaced.get(kind, 0)) + GENERATIONS_AHEAD
            connection.execute(
                "INSERT INTO generations (type, generation, changed_at) VALUES (?, ?, ?) ON CONFLICT (type) DO "
                "UPDATE SET generation = excluded.generation, changed_at = excluded.changed_at",
                (str(kind), generation, time.time()),
            )


async def _record(part: Path, source: str, from_revision: str) -> None:
    """Record the restore in the restored database: an audit entry and an event. Raises StoreUnavailable."""
    now = time.time()
    event = BackupRestored(source, from_revision, migrate.head())
    database = Database(f"sqlite:///{quote(str(part))}")
    try:
        async with database.write() as session:
            await events.append(
                session, [EventRow(at=now, name=name_of(event), node="", actor=ACTOR, fields=fields_of(event))]
            )
            entry = AuditRow(
                at=now, actor=ACTOR, action="restore", kind="backup", name=source[-256:], type="", generation=0,
                before=None, after={**fields_of(event), "user": _user()}, request_id="",
            )  # fmt: skip
            await audit.append(session, [entry])
    finally:
        await database.close()
    with closing(sqlite3.connect(part, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it


def _user() -> str:
    """Return the name of the user who runs this command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return str(os.getuid())


def _differs(path: Path, secret: bytes) -> bool:
    try:
        return path.read_bytes().strip() != secret.strip()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise Conflict(f"{path} cannot be read: {error.strerror}") from None


def _set_aside(path: Path, suffix: str) -> str:
    """Rename a file. Return its new path."""
    return str(path.rename(f"{path}{suffix}"))


def _set_aside_database(target: Path, suffix: str) -> str:
    """Rename a database with the files that SQLite keeps beside it. Return its new path."""
    moved = _set_aside(target, suffix)
    for log_suffix in BESIDE:
        log = Path(f"{target}{log_suffix}")
        if log.exists():
            log.rename(f"{moved}{log_suffix}")
    return moved


def _write_key(path: Path, secret: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with new_file(path) as part:
        part.write_bytes(secret)
        part.replace(path)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
