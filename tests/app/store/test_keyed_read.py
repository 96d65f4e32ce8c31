"""One record by its key: what a session would give, seen at once, and clear errors when the file is away."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest

from app.errors import StoreUnavailable
from app.store.base import migrate
from app.store.base.database import Database
from app.store.base.declarative import Base
from app.store.records.pins import PinRow
from app.store.records.quotas import QuotaRow
from app.store.records.tokenizers import TokenizerRow

pytestmark = pytest.mark.anyio


def record(tenant: str, **fields: object) -> QuotaRow:
    return QuotaRow(tenant=tenant, note="", generation=1, created_at=1.5, updated_at=2.5, **fields)


async def test_a_record_has_every_column_as_a_session_has_it(database: Database) -> None:
    async with database.write() as session:
        session.add(record("acme", limit_bytes=1 << 40, weight=0.5, selector={"zone": "ä"}))
    async with database.read() as session:
        known = await session.get(QuotaRow, "acme")
    found = await database.row(QuotaRow, "acme")
    assert found is not None
    for column in QuotaRow.__table__.columns:
        assert getattr(found, column.name) == getattr(known, column.name), column.name
    assert await database.row(QuotaRow, "nobody") is None
    assert await database.row(PinRow, "nothing") is None


async def test_the_file_of_a_tokenizer_is_not_read_with_its_record(database: Database) -> None:
    async with database.write() as session:
        tokenizer = TokenizerRow(name="t", model="m", digest="d", file=b"x" * 4096, add_special_tokens=True, revision=1)
        tokenizer.note, tokenizer.created_at, tokenizer.updated_at = "n", 1.5, 2.5
        session.add(tokenizer)
    row = await database.row(TokenizerRow, "t")
    assert row is not None
    columns = {column.name for column in TokenizerRow.__table__.columns}
    assert {name for name in columns if not hasattr(row, name)} == {"file"}
    assert (row.model, row.add_special_tokens, row.note) == ("m", True, "n")


async def test_commits_are_seen_at_once(database: Database) -> None:
    async with database.write() as session:
        session.add(record("acme"))
    for number in range(20):
        async with database.write() as session:
            row = await session.get(QuotaRow, "acme")
            assert row is not None
            row.generation = number
        found = await database.row(QuotaRow, "acme")
        assert found is not None
        assert found.generation == number


async def test_simultaneous_callers_each_get_their_own_answer(database: Database) -> None:
    async with database.write() as session:
        session.add_all([record(f"t{number}") for number in range(100)])
    keys = [f"t{number}" for number in range(110)]
    found = await asyncio.gather(*(database.row(QuotaRow, key) for key in keys))
    assert [None if row is None else row.tenant for row in found] == keys[:100] + [None] * 10
    waiting = asyncio.create_task(database.row(QuotaRow, "t1"))
    await asyncio.sleep(0)
    waiting.cancel()  # somebody's request is over before the answer comes
    assert await database.row(QuotaRow, "t2") is not None


async def test_a_file_that_is_away_is_unavailable_and_back_when_it_is_back(tmp_path: Path) -> None:
    file = tmp_path / "larder.db"
    database = Database(f"sqlite:///{file}")
    async with database.write() as session:
        await (await session.connection()).run_sync(Base.metadata.create_all)
        session.add(record("acme"))
    assert await database.row(QuotaRow, "acme") is not None
    file.rename(tmp_path / "aside")
    with pytest.raises(StoreUnavailable, match="removed or replaced"):
        await database.row(QuotaRow, "acme")
    assert database.watch.away
    (tmp_path / "aside").rename(file)
    assert await database.row(QuotaRow, "acme") is not None
    assert not database.watch.away
    await database.close()


async def test_a_damaged_file_is_unavailable(tmp_path: Path) -> None:
    file = tmp_path / "larder.db"
    file.write_bytes(b"this is no database at all, and longer than a header of one" * 20)
    database = Database(f"sqlite:///{file}")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="not a database"):
            await database.row(QuotaRow, "acme")
    file.unlink()
    await database.close()


async def test_a_record_is_read_once_another_process_unlocks_the_database(tmp_path: Path) -> None:
    """It waits in the driver's thread, not in the event loop."""
    path = tmp_path / "larder.db"
    database = Database(f"sqlite:///{path}")
    await migrate.upgrade(database)
    async with database.write() as session:
        session.add(record("acme"))
    assert (await database.row(QuotaRow, "acme")) is not None
    await database.close()
    database = Database(f"sqlite:///{path}")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        reading = asyncio.create_task(database.row(QuotaRow, "acme"))
        done, _ = await asyncio.wait({reading}, timeout=0.3)
        assert not done
    found = await reading
    assert found is not None
    assert found.tenant == "acme"
    await database.close()
