"""A database of an earlier release is migrated, and nothing in it is lost (see `make_database.py`)."""

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from app.store.base import migrate
from app.store.base.database import Database, full_url
from tests.app.callers import guarding, send
from tests.app.plane import Plane

pytestmark = pytest.mark.anyio
FIXTURE = Path(__file__).parent / "before_the_renames"
REVISION = "0006"
"""The schema of the fixture."""
RENAMED = {"replicas": "managers"}
"""Tables."""
EVENTS = {
    "ceiling.create": "ceiling.created",
    "join_token.create": "join_token.created",
    "node.drain": "node.drain_requested",
    "node.draining": "node.drain_started",
    "node.join": "node.enrolled",
    "node.label": "node.relabeled",
    "node.resize": "node.resize_requested",
    "rate.create": "rate.created",
    "session.login": "session.opened",
    "token.create": "token.created",
    "tokenizer.create": "tokenizer.created",
}
PARTICIPLES = {"create": "created", "update": "changed", "delete": "deleted"}
FROM_NODES = {
    "ceilings": (),
    "rates": (),
    "tokenizers": (),
    "tokens": (),
    "events": (),
    "quotas": ("status", "effective_floor_bytes"),
    "policies": ("status", "in_force"),
    "pins": ("status", "nodes", "resolved", "summary", "replicas", "replica_bytes", "replicas_wanted"),
}
"""Fields of each list that a fleet without a living node cannot have."""


@pytest.fixture(scope="module")
def before() -> Any:
    return json.loads(FIXTURE.with_suffix(".json").read_text(encoding="utf-8"))


@pytest.fixture
async def old_url(empty_database_url: str, tmp_path: Path) -> str:
    """A database of either kind as the earlier release left it."""
    dump = FIXTURE.with_suffix(".sql").read_text(encoding="utf-8")
    file = tmp_path / "dumped.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(dump)
    if full_url(empty_database_url).get_backend_name() == "sqlite":
        file.chmod(0o600)
        file.rename(tmp_path / "larder.db")
    else:
        database = Database(empty_database_url)
        await migrate.upgrade(database, REVISION)
        await database.close()
        await _copy(file, empty_database_url)
    return empty_database_url


async def _copy(file: Path, url: str) -> None:
    """Replace all rows of a Postgres database by those of an SQLite database with the same schema."""
    source, target = sa.create_engine(f"sqlite:///{file}"), create_async_engine(full_url(url))
    tables = sa.MetaData()
    tables.reflect(source)
    with source.connect() as reading:
        rows = {
            table: [dict(row) for row in reading.execute(table.select()).mappings()]
            for table in tables.sorted_tables
        }
    source.dispose()

    def write(connection: sa.Connection) -> None:
        there = sa.MetaData()
        there.reflect(connection)
        for table in reversed(there.sorted_tables):
            connection.execute(table.delete())
        for table, found in rows.items():
            connection.execute(there.tables[table.name].insert(), found)
        for table in there.sorted_tables:
            if (
                "id" in table.c
                and isinstance(table.c.id.type, sa.BigInteger)
                and table.c.id.server_default is not None
            ):
                connection.exec_driver_sql(
                    f"SELECT setval(pg_get_serial_sequence('{table.name}', 'id'), max(id)) FROM {table.name}"
                )

    async with target.begin() as connection:
        await connection.run_sync(write)
    await target.dispose()


async def _counts(url: str) -> dict[str, int]:
    engine = create_async_engine(full_url(url))

    def read(connection: sa.Connection) -> dict[str, int]:
        tables = sa.MetaData()
        tables.reflect(connection)
        count = sa.func.count()
        return {
            table.name: connection.scalar(sa.select(count).select_from(table)) or 0
            for table in tables.sorted_tables
        }

    async with engine.connect() as connection:
        counts = await connection.run_sync(read)
    await engine.dispose()
    return counts


async def test_each_row_exists_after_the_migration(old_url: str) -> None:
    before = await _counts(old_url)
    assert all(before.values()), "the fixture has rows in all tables"
    database = Database(old_url)
    await migrate.upgrade(database)
    await migrate.check(database)
    await database.close()
    after = await _counts(old_url)
    renamed = {RENAMED.get(table, table): count for table, count in before.items()}
    renamed["generations"] += 1  # of tiers, which are newer
    assert {table: after[table] for table in renamed} == renamed


@pytest.fixture
async def upgraded(old_url: str, socket_dir: Path) -> AsyncIterator[Plane]:
    """A management plane on that database. No node of the fixture lives any more."""
    days = {"events_retention_days": 36_500, "usage_retention_days": 36_500}
    async with guarding(socket_dir, old_url, **days) as plane:
        yield plane


def _renamed(event: dict[str, Any]) -> dict[str, Any]:
    """The name and the fields that an event of the earlier release has now."""
    name, fields = EVENTS.get(event["name"], event["name"]), dict(event["fields"])
    noun = name.partition(".")[0]
    if "action" in fields:
        name = f"{noun}.{PARTICIPLES[fields.pop('action')]}"
    if "name" in fields:
        called = fields.pop("name")
        if noun not in ("node", "session"):
            fields["tenant" if noun in ("quota", "ceiling") else noun] = called
    return {"name": name, "fields": fields}


async def test_the_api_shows_the_same_as_before(upgraded: Plane, before: Any) -> None:
    for name, without in FROM_NODES.items():
        shown = before[name]
        if name == "events":
            shown = [event | _renamed(event) for event in shown]
        known = [{key: item[key] for key in item if key not in without} for item in shown]
        answer = await upgraded.get("/api/v1/events/history" if name == "events" else f"/api/v1/{name}")
        now = [{key: item[key] for key in known[0] if key in item} for item in answer["items"]]
        assert not [item for item in known if item not in now], name
    assert (await upgraded.get("/api/v1/pushes"))["total"] >= before["pushes"]


async def test_the_audit_continues_from_earlier_entries(upgraded: Plane, before: Any) -> None:
    then = before["audit/verify"]
    await upgraded.put_quota("new", 1, wait="0s")
    verified = await upgraded.get("/api/v1/audit/verify")
    assert (verified["intact"], verified["fault"]) == (True, "")
    assert verified["entries"] == then["entries"] + 1
    hashes = [entry["hash"] for entry in (await upgraded.get("/api/v1/audit"))["items"]]
    assert then["head_hash"] in hashes


async def test_its_tokens_and_sessions_still_authenticate(upgraded: Plane, before: Any) -> None:
    for caller, role in (("viewer", "viewer"), ("operator", "operator"), ("admin", "admin")):
        who = (await send(upgraded, before["callers"][caller], "GET", "/api/v1/whoami")).json()
        assert (who["role"], who["tenants"]) == (role, ["acme"] if role == "operator" else None)
    for name in ("operator", "admin"):
        cookie = {"Cookie": f"larder_session={before['callers'][f'session of {name}']}"}
        who = (await send(upgraded, "", "GET", "/api/v1/whoami", headers=cookie)).json()
        assert (who["session"], who["role"]) == (True, name)
    forged = before["callers"]["viewer"][:-1] + "x"
    assert (await send(upgraded, forged, "GET", "/api/v1/whoami")).status_code == 401


async def test_its_records_can_be_changed_on(upgraded: Plane, before: Any) -> None:
    then = max(quota["generation"] for quota in before["quotas"])
    changed = await upgraded.put_quota("acme", 1 << 30, wait="0s")
    assert changed["generation"] == then + 1
    pin = await upgraded.http.patch(
        "/api/v1/pins/by-text?wait=0s", json={"tier": "gpu"}, headers={"If-Match": "*"}
    )
    assert pin.is_success, pin.text
    assert pin.json()["origin"]["tokenizer"]["name"] == "words"
