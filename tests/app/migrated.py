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


async def migrated_file(url: str) -> None:
    """Put a migrated SQLite database at this URL, unless a file is there or the URL names no file."""
    parsed = full_url(url)
    file = Path(parsed.database or "")
    if parsed.get_backend_name() != "sqlite" or file.exists() or not file.parent.is_dir():
        return
    private.make_file(str(file))
    file.write_bytes(_template())
    with closing(sqlite3.connect(file)) as connection, connection:  # no two databases have these in common
        connection.execute("UPDATE store SET id = ?, secret = ?", (uuid4().hex, secrets.token_hex(32)))


@cache
def _template() -> bytes:
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as thread:
        file = Path(folder) / "larder.db"
        thread.submit(asyncio.run, _migrate(f"sqlite:///{file}")).result()
        return file.read_bytes()


async def _migrate(url: str) -> None:
    database = Database(url)
    await migrate.upgrade(database)
    await database.close()
