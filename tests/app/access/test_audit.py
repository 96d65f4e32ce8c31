"""The audit log: entries of changes and refusals, and the detection of tampering."""

import asyncio
import json
import os
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from app.cli import larder as command
from app.http.problems import TYPE_PREFIX
from app.store.base.database import Database
from app.store.tables import metadata
from tests.app.callers import ADMIN, create_token, guarding, send
from tests.app.command import larder as say
from tests.app.command import run
from tests.app.plane import Plane

pytestmark = pytest.mark.anyio
TABLES = [metadata.tables["audit"], metadata.tables["audit_head"]]
TAMPERINGS = {
    "changed": ("UPDATE audit SET name = 'other' WHERE id = 3", "entry 3 "),
    "reason": ("UPDATE audit SET reason = 'x' WHERE id = 3", "entry 3 "),
    "before": ("UPDATE audit SET after = '{\"limit_bytes\": 7}' WHERE id = 3", "entry 3 "),
    "hash": (f"UPDATE audit SET hash = '{'0' * 64}' WHERE id = 3", "entry 3 "),
    "missing": ("DELETE FROM audit WHERE id = 3", "entry 3 is missing"),
    "several missing": ("DELETE FROM audit WHERE id IN (2, 3)", "entries 2 to 3 are missing"),
    "first missing": ("DELETE FROM audit WHERE id = 1", "entry 1 is missing"),
    "end missing": ("DELETE FROM audit WHERE id > 4", "missing at the end"),
    "all missing": ("DELETE FROM audit", "missing at the end"),
    "reordered": (
        "UPDATE audit SET id = 1000 WHERE id = 3; UPDATE audit SET id = 3 WHERE id = 4; "
        "UPDATE audit SET id = 4 WHERE id = 1000",
        "entry 3 ",
    ),
    "renumbered": ("DELETE FROM audit WHERE id = 3; UPDATE audit SET id = 3 WHERE id = 4", "entry 3 "),
    "added": (
        "INSERT INTO audit (id, at, actor, action, kind, name, type, generation, request_id, hash) "
        "VALUES (1000, 1.0, 'x', 'create', 'quota', 'n', '', 0, '', 'abc')",
        "entry 1000 was added",
    ),
    "added before": (
        "INSERT INTO audit (id, at, actor, action, kind, name, type, generation, request_id, hash) "
        "VALUES (-7, 1.0, 'x', 'create', 'quota', 'n', '', 0, '', 'abc')",
        "entry -7 was added",
    ),
    "head": ("UPDATE audit_head SET hash = 'abc'", "the head does not have the hash"),
    "no head": ("DELETE FROM audit_head", "audit_head must have one row, and has none"),
    "two heads": ("INSERT INTO audit_head (id, last_id, hash) VALUES (9, 6, 'abc')", "one row, and has several"),
    "infinite": ("UPDATE audit SET after = '{\"a\": 1e400}' WHERE id = 3", "entry 3 "),
    "deep": (f"UPDATE audit SET after = '{'[' * 5_000}{']' * 5_000}' WHERE id = 3", "entry 3 "),
    "deep and the head": (
        f"UPDATE audit SET before = '{'[' * 5_000}{']' * 5_000}' WHERE id = 3; DELETE FROM audit_head",
        "entry 3 ",
    ),
}
BY_DATABASE = {
    "postgresql": {
        "no number": ("UPDATE audit SET at = 'NaN' WHERE id = 3", "entry 3 "),
        "no end": ("UPDATE audit SET at = 'Infinity' WHERE id = 3", "entry 3 "),
    },
    "sqlite": {
        "no JSON": ("UPDATE audit SET before = 'not json' WHERE id = 3", "entry 3 was changed: its JSON"),
        "bytes": ("UPDATE audit SET actor = x'ff' WHERE id = 3", "entry 3 "),
        "no UTF-8": ("UPDATE audit SET actor = cast(x'ff' AS text) WHERE id = 3", "is not UTF-8"),
        "head of bytes": ("UPDATE audit_head SET hash = x'ff'", "the head was changed"),
        "head without UTF-8": ("UPDATE audit_head SET hash = cast(x'ff' AS text)", "the head cannot be read"),
        "number of a head": ("UPDATE audit_head SET last_id = 'many'", "the head was changed"),
    },
}
"""Changes that only one of the databases permits."""


async def filled(plane: Plane) -> None:
    for number in range(6):
        await plane.put_quota(f"t{number}", 1 + number, wait="")


async def execute(database: Database, statements: str) -> None:
    async with database.write() as session:
        for statement in statements.split("; "):
            await session.execute(sa.text(statement))


async def verified(plane: Plane, expect: str = "") -> dict[str, Any]:
    return await plane.get(f"/api/v1/audit/verify?expect={expect}")


async def test_every_way_to_tamper_is_found_and_named(socket_dir: Path, database_url: str) -> None:
    async with guarding(socket_dir, database_url) as plane:
        await filled(plane)
        well = await verified(plane)
        assert (well["intact"], well["fault"]) == (True, "")
        database = plane.app.parts.database
        async with database.read() as session:
            stored = {table: (await session.execute(sa.select(table))).mappings().all() for table in TABLES}
        for name, (statements, entries) in {**TAMPERINGS, **BY_DATABASE[database.engine.dialect.name]}.items():
            await execute(database, statements)
            found = await verified(plane)
            assert not found["intact"], name
            assert entries in found["fault"], (name, found)
            async with database.write() as session:
                for table, rows in stored.items():
                    await session.execute(sa.delete(table))
                    await session.execute(sa.insert(table), [dict(row) for row in rows])
            assert (await verified(plane))["intact"], name


UNREADABLE = [
    "before = 'not json'",
    "actor = x'ff'",
    "actor = cast(x'ff' AS text)",
    "at = 'long ago'",
    "at = 9e999",
    "decision = 'perhaps'",
    f"after = '{'[' * 5_000}{']' * 5_000}'",
    'after = \'{"a": "\\ud800"}\'',
]


async def test_an_unreadable_entry_is_shown_as_one_and_the_rest_is_returned(new_guarded: Plane) -> None:
    await filled(new_guarded)
    database = new_guarded.app.parts.database
    columns = ", ".join(column.name for column in TABLES[0].columns)
    await execute(database, "CREATE TABLE kept AS SELECT * FROM audit WHERE id = 3")
    for change in UNREADABLE:
        await execute(database, f"UPDATE audit SET {change} WHERE id = 3")
        items = {item["id"]: item for item in (await new_guarded.get("/api/v1/audit?limit=1000"))["items"]}
        assert sorted(items) == list(range(1, len(items) + 1))
        assert [number for number, item in items.items() if item["decision"] == "unreadable"] == [3], change
        assert items[3]["reason"]
        second = await new_guarded.http.get("/api/v1/audit?limit=2")
        assert second.json()["next_cursor"]
        lines = (await new_guarded.http.get("/api/v1/audit/export")).text.splitlines()
        entries = [json.loads(line) for line in lines]
        assert [entry["id"] for entry in entries] == sorted(items)
        assert entries[2] == items[3]
        assert not (await verified(new_guarded))["intact"]
        code, out, err = await say(new_guarded, "audit", "list", token=ADMIN)
        assert code == 0, err
        assert "unreadable: " in out
        restored = f"INSERT INTO audit ({columns}) SELECT {columns} FROM kept"
        await execute(database, f"DELETE FROM audit WHERE id = 3; {restored}")
        assert (await verified(new_guarded))["intact"], change


async def test_a_remembered_hash_finds_a_journal_that_was_rewritten_whole(new_guarded: Plane) -> None:
    await filled(new_guarded)
    head = (await verified(new_guarded))["head_hash"]
    await new_guarded.put_quota("later", 5, wait="")
    assert (await verified(new_guarded, head))["intact"]
    assert not (await verified(new_guarded, "0" * 64))["intact"]
    assert (await new_guarded.http.get("/api/v1/audit/verify?expect=abc")).status_code == 422
    newest = "last_id = 2, hash = (SELECT hash FROM audit WHERE id = 2)"
    cut = f"DELETE FROM audit WHERE id > 2; UPDATE audit_head SET {newest}"
    await execute(new_guarded.app.parts.database, cut)
    assert (await verified(new_guarded))["intact"], "who has the database can cut it"
    assert "remembered hash" in (await verified(new_guarded, head))["fault"]


async def test_writers_at_once_make_one_chain_without_gaps(socket_dir: Path, database_url: str) -> None:
    other_dir = socket_dir / "other"
    other_dir.mkdir()
    async with guarding(socket_dir, database_url) as plane, guarding(other_dir, database_url) as other:
        token = await create_token(plane, "viewer")
        jobs: list[Any] = []
        for number in range(6):  # more of them take longer on a busy machine than a change waits for the others
            jobs.append(plane.put_quota(f"a{number}", 1, wait=""))
            jobs.append(other.put_quota(f"b{number}", 1, wait=""))
            jobs.append(send(plane, token, "PUT", f"/api/v1/quotas/c{number}", json={"limit_bytes": 1}))
        await asyncio.gather(*jobs)
        found = await verified(other)
        entries = (await other.get("/api/v1/audit?limit=1000"))["items"]
        assert found["intact"], found
        assert sorted(entry["id"] for entry in entries) == list(range(1, found["entries"] + 1))
        assert sum(entry["decision"] == "denied" for entry in entries) == 6


async def test_an_export_can_be_checked_without_larder(new_guarded: Plane) -> None:
    await filled(new_guarded)
    text = (await new_guarded.http.get("/api/v1/audit/export")).text
    previous = ""
    for line in text.splitlines():
        entry = json.loads(line)
        expected = entry.pop("hash")
        canonical = json.dumps(entry, sort_keys=True, separators=(",", ":"))
        previous = sha256(f"{previous}\n{canonical}".encode()).hexdigest()
        assert previous == expected
    assert previous == (await verified(new_guarded))["head_hash"]


async def test_the_command_line_lists_exports_and_verifies(socket_dir: Path) -> None:
    async with guarding(socket_dir) as plane:
        await filled(plane)
        head = (await verified(plane))["head_hash"]
        (socket_dir / "export").write_text((await plane.http.get("/api/v1/audit/export")).text)
        database = plane.app.parts.settings.common.database_url
        good = await larder("audit", "verify", "--database", database, "--expect", head)
        assert (good.returncode, head in good.stdout) == (0, True), good.stderr
        proposed = good.stdout.split()[-5:]
        assert proposed == ["larder", "audit", "verify", "--expect", head]
        assert (await larder("audit", "verify", "--file", str(socket_dir / "export"))).returncode == 0
        await execute(plane.app.parts.database, "UPDATE audit SET actor = 'nobody' WHERE id = 4")
        bad = await larder("audit", "verify", "--database", database)
        assert (bad.returncode, "entry 4 " in bad.stderr) == (3, True), bad.stderr
    missing = await larder("audit", "verify", "--database", f"sqlite:///{socket_dir}/no/such.db")
    assert (missing.returncode, "Traceback" in missing.stderr) == (1, False)


async def test_a_file_that_was_made_unreadable_is_not_intact(socket_dir: Path) -> None:
    async with guarding(socket_dir) as plane:
        await filled(plane)
        lines = (await plane.http.get("/api/v1/audit/export")).content.splitlines(keepends=True)
    deep = b'"after":' + b"[" * 100_000 + b"]" * 100_000
    for what, line in {
        "no UTF-8": lines[2].replace(b"admin", b"\xff"),
        "no JSON": b"{\n",
        "no entry": b"{}\n",
        "infinite": lines[2].replace(b'"at":', b'"at":1e400,"was":'),
        "deep": lines[2].replace(b'"after":', deep + b',"was":'),
    }.items():
        (socket_dir / "export").write_bytes(b"".join([*lines[:2], line, *lines[3:]]))
        found = CliRunner().invoke(command, ["audit", "verify", "--file", str(socket_dir / "export")])
        assert (found.exit_code, found.stdout) == (3, ""), (what, found.stderr[-500:])
        assert found.stderr.startswith(("not intact: entry 3 ", "not intact: line 3 ")), (what, found.stderr[-500:])


async def test_a_refusal_stays_one_when_the_journal_takes_no_entry(socket_dir: Path, database_url: str) -> None:
    async with guarding(socket_dir, database_url) as plane:
        token = await create_token(plane, "reader")
        for statement in (
            "DELETE FROM audit_head",
            "INSERT INTO audit_head (id, last_id, hash) VALUES (1, 0, '')",  # its next number is taken
            "ALTER TABLE audit_head RENAME TO gone",
        ):
            await execute(plane.app.parts.database, statement)
            for caller, status, code in (
                (token, 403, f"{TYPE_PREFIX}forbidden"),
                ("wrong", 401, f"{TYPE_PREFIX}unauthorized"),
            ):
                refused = await send(plane, caller, "PUT", "/api/v1/quotas/x", json={"limit_bytes": 1})
                assert (refused.status_code, refused.json()["type"]) == (status, code), (statement, refused.text)
                assert refused.headers["x-request-id"]
            change = await plane.http.put("/api/v1/quotas/x", json={"limit_bytes": 1})
            assert (change.is_error, change.json()["status"]) == (True, change.status_code), statement
        await execute(plane.app.parts.database, "ALTER TABLE gone RENAME TO audit_head")


async def larder(*arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(run, *arguments, env=dict(os.environ))


async def test_entries_are_found_by_their_text(new_guarded: Plane) -> None:
    token = await create_token(new_guarded, "reader")
    await filled(new_guarded)
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01", "x-request-id": "req-1"}
    refused = await send(new_guarded, token, "PUT", "/api/v1/quotas/x", json={"limit_bytes": 1}, headers=headers)
    assert refused.status_code == 403
    denied = await new_guarded.get("/api/v1/audit?decision=denied")
    assert denied["total"] == 1
    entry = denied["items"][0]
    assert (entry["actor"], entry["action"], entry["kind"]) == ("reader", "PUT", "request")
    assert (entry["name"], entry["request_id"], entry["trace_id"]) == ("/api/v1/quotas/x", "req-1", trace)
    assert (entry["source"], "operator" in entry["reason"]) == ("127.0.0.1", True)
    for query, total in (
        ("actor=admin&kind=quota", 6),
        ("name=t3", 1),
        ("action=create&kind=token&name=reader", 1),
        (f"since={entry['at']}", 1),
        ("until=5", 0),
        ("actor=nobody", 0),
    ):
        assert (await new_guarded.get(f"/api/v1/audit?{query}"))["total"] == total, query
    assert (await new_guarded.http.get("/api/v1/audit?decision=maybe")).status_code == 422


async def test_repeated_refusals_of_one_caller_hide_no_others(new_guarded: Plane) -> None:
    noisy, quiet = await create_token(new_guarded, "noisy"), await create_token(new_guarded, "quiet")
    for number in range(75):
        await send(new_guarded, noisy, "PUT", f"/api/v1/quotas/x{number}", json={"limit_bytes": 1})
    for _ in range(3):
        await send(new_guarded, quiet, "DELETE", "/api/v1/quotas/y")
    await new_guarded.app.parts.access.token_uses.write(0.0, all_of_them=True)
    denied = (await new_guarded.get("/api/v1/audit?decision=denied&limit=200"))["items"]
    entries = [entry["after"] or {} for entry in denied if entry["actor"] == "quiet"]
    of_noisy = [entry for entry in denied if entry["actor"] == "noisy"]
    assert 20 <= len(of_noisy) <= 40, "20 of each minute, and a minute may end meanwhile"
    assert sum(after.get("again", 1) for after in entries) == 3
