"""Backup of a management plane in use: a tar archive with a consistent copy of the database (SQLite's online backup, or
`pg_dump` for Postgres) and the manager key, without which nodes of other machines would not trust a restored manager.
"""

import os
import shutil
import sqlite3
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import sqlalchemy as sa

from app.errors import Conflict, StoreUnavailable

SQLITE_MEMBER = "larder.db"
POSTGRES_MEMBER = "larder.dump"
"""Names of the copy of the database in the archive; an archive has one of them."""
KEY_MEMBER, NEXT_KEY_MEMBER = "manager.key", "manager.key.next"
"""Names of the manager key, and of the one that will replace it, in the archive."""
PAGES = 1024
"""Pages copied per step; writers can proceed between steps."""
BESIDE = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite keeps beside a database file."""


def backup(url: sa.URL, target: Path, *, force: bool, keys: Sequence[Path] = ()) -> int:
    """Copy the database of a full URL, and the manager key, to an archive. Return its size in bytes.

    `keys` are the files of the manager key and of the next one; those that do not exist are left out. The archive
    appears complete or not at all, readable only by its owner. Raises Conflict when it exists and `force` is not set,
    and StoreUnavailable when the copy fails.
    """
    if url.get_backend_name() == "sqlite":
        _check_apart(Path(url.database or ""), target)
    if target.is_dir():
        raise Conflict(f"{target} is a folder: expected the name of a file")
    if target.exists() and not force:
        raise Conflict(f"{target} is there already; --force replaces it")
    if not target.parent.is_dir():
        raise Conflict(f"{target.parent} is not a folder")
    with new_file(target) as part:
        with new_file(target) as copy:
            if url.get_backend_name() == "sqlite":
                member = SQLITE_MEMBER
                _copy_sqlite(url, copy)
            else:
                member = POSTGRES_MEMBER
                _dump_postgres(url, copy)
            try:
                _pack(part, [(copy, member), *zip(keys, (KEY_MEMBER, NEXT_KEY_MEMBER), strict=False)])
            except OSError as error:
                raise StoreUnavailable(f"the backup failed: {error.strerror}") from error
        with part.open("rb") as written:
            os.fsync(written.fileno())
        size = part.stat().st_size
        if force:
            part.replace(target)
        else:
            try:
                os.link(part, target)  # unlike a rename, never overwrites a new file
            except FileExistsError:
                raise Conflict(f"{target} is there already; --force replaces it") from None
    return size


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Create an empty file beside the target that only its owner can read, and remove it at the end unless it was
    renamed. Raises Conflict."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise Conflict(f"{target.parent} cannot be written to: {error.strerror}") from None
    os.close(handle)
    try:
        yield Path(name)
    finally:
        for suffix in ("", *BESIDE):
            Path(name + suffix).unlink(missing_ok=True)


def _pack(archive: Path, members: Sequence[tuple[Path, str]]) -> None:
    """Write the files that exist to the archive, with mode 0600. Raises OSError."""
    with tarfile.open(archive, "w") as tar:
        for path, name in members:
            if path.exists():
                about = tar.gettarinfo(path, name)
                about.mode, about.uid, about.gid, about.uname, about.gname = 0o600, 0, 0, "", ""
                with path.open("rb") as content:
                    tar.addfile(about, content)


def _check_apart(source: Path, target: Path) -> None:
    """Check that the target is not a file of the database itself. Raise Conflict.

    If such a file were replaced, processes that have it open would continue with an unlinked file.
    """
    for suffix in ("", *BESIDE):
        own = Path(os.path.realpath(source) + suffix)
        if os.path.realpath(target) == str(own) or (own.exists() and target.exists() and os.path.samefile(own, target)):
            raise Conflict(f"{target} belongs to the database itself ({source}): name another file for the copy")


def _copy_sqlite(url: sa.URL, part: Path) -> None:
    source = Path(url.database or "")
    if not source.is_file():
        raise StoreUnavailable(f"there is no database at {source}")
    try:
        with (
            closing(sqlite3.connect(f"file:{quote(str(source.absolute()))}?mode=ro", uri=True)) as connection,
            closing(sqlite3.connect(part)) as copy,
        ):
            connection.backup(copy, pages=PAGES, sleep=0.01)
            copy.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
            (verdict,) = copy.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.Error as error:
        raise StoreUnavailable(f"the copy failed: {error}") from None
    if verdict != "ok":
        raise StoreUnavailable(f"the copy is not whole ({verdict}): is the database? Ask 'larder db check'")


def _dump_postgres(url: sa.URL, part: Path) -> None:
    program = shutil.which("pg_dump")
    if program is None:
        raise StoreUnavailable(
            "pg_dump is not installed here: install PostgreSQL's client programs, or copy the database where they are"
        )
    names = (
        ("PGHOST", url.query.get("host") or url.host),
        ("PGPORT", url.query.get("port") or url.port),
        ("PGUSER", url.username),
        ("PGPASSWORD", url.password),
        ("PGDATABASE", url.database),
    )
    environ = {**os.environ, **{name: str(value) for name, value in names if value is not None}}
    # The password is passed in the environment, because all users can see arguments.
    done = subprocess.run(
        [program, "--format=custom", f"--file={part}", "--no-password"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise StoreUnavailable(f"pg_dump failed: {lines[-1]}")
