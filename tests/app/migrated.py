"""Migrated databases without the migrations: running them costs 0.15 s of CPU, a copy of their result 2 ms."""

import asyncio
import secrets
import sqlite3
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache
from pathlib import Path
from uuid import uuid4

from app.store.base import migrate, private
from app.store.base.database import Database, full_url


def migrated_file(url: str) -> None:
    """Put a migrated SQLite database at this URL, unless a file is there or the URL names no file."""
    parsed = full_url(url)
    file = Path(parsed.database or "")
    if parsed.get_backend_name() != "sqlite" or file.exists() or not file.parent.is_dir():
        return
    private.make_file(str(file))
    file.write_bytes(_template())
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(new_identity())


def migrated_folder(folder: Path) -> None:
    """Put a migrated database where a Larder with this state directory has its own, unless there is one."""
    migrated_file(f"sqlite+aiosqlite:///{folder / 'larder.db'}")


def new_identity() -> str:
    """Return the statement that gives a copied database what no two databases have in common."""
    return f"UPDATE store SET id = '{uuid4().hex}', secret = '{secrets.token_hex(32)}'"


def migrate_apart(url: str) -> None:
    """Run the migrations in another thread: that of the test may have a running loop."""

    async def migrated() -> None:
        database = Database(url)
        await migrate.upgrade(database)
        await database.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, migrated()).result()


@cache
def _template() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "larder.db"
        migrate_apart(f"sqlite:///{file}")
        return file.read_bytes()
