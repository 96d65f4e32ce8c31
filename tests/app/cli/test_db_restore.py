"""`larder db restore`: puts a backup in place, and never loses what was there."""

import asyncio
import io
import json
import os
import sqlite3
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from app.cli import larder
from app.push.keys import key_pair
from app.store.base import migrate
from app.store.base.database import Database
from app.store.base.migrate import head
from tests.app.migrated import migrated_folder
from tests.app.up import Up


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory with an upgraded database and a manager key."""
    folder = tmp_path / "state"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LARDER_STATE_DIR", str(folder))
    folder.mkdir(mode=0o700)
    migrated_folder(folder)
    key_pair(folder)
    return folder


def run(*arguments: str, code: int = 0) -> str:
    result: Result = CliRunner().invoke(larder, ["db", *arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def execute(file: Path, statement: str) -> list[tuple]:
    connection = sqlite3.connect(file, isolation_level=None)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_backup_is_restored_with_its_key_on_an_empty_machine(state: Path, tmp_path: Path) -> None:
    assert "the manager key" in run("backup", "b.tar")
    assert os.stat("b.tar").st_mode & 0o777 == 0o600
    secret = (state / "manager.key").read_bytes()
    state.rename(tmp_path / "old")
    output = run("restore", "b.tar")
    assert f"{state}/larder.db: restored, at revision {head()}" in output
    assert (state / "manager.key").read_bytes() == secret
    assert {f"{path.stat().st_mode & 0o777:o}" for path in state.iterdir()} == {"600"}
    assert "as they should be" in run("check")


def test_nothing_is_replaced_without_force_and_replaced_files_are_kept(state: Path) -> None:
    run("backup", "b.tar")
    execute(state / "larder.db", "UPDATE store SET created_at = 7")
    (state / "manager.key").unlink()
    other = key_pair(state)
    before = {name: (state / name).read_bytes() for name in ("larder.db", "manager.key")}
    assert "--force replaces it" in run("restore", "b.tar", code=1)
    assert {name: (state / name).read_bytes() for name in before} == before
    assert names(state) == {"larder.db", "manager.key", "up.lock", "larder.db-pushing"}
    output = run("restore", "b.tar", "--force")
    assert key_pair(state) != other
    assert execute(state / "larder.db", "SELECT count(*) FROM store WHERE created_at = 7") == [(0,)]
    (moved,) = state.glob("larder.db.replaced-*Z")
    (moved_key,) = state.glob("manager.key.replaced-*")
    assert f"kept: {moved}\n" in output
    assert execute(moved, "SELECT created_at FROM store") == [(7,)]
    assert moved_key.read_bytes() == before["manager.key"]


def test_a_restore_is_audited_and_an_event(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "jane")
    run("backup", "b.tar")
    run("restore", "b.tar", "--force")
    file = state / "larder.db"
    ((name, actor, fields),) = execute(file, "SELECT name, actor, fields FROM events")
    assert (name, actor, json.loads(fields)["revision"]) == ("backup.restored", "local", head())
    ((action, kind, after),) = execute(file, "SELECT action, kind, after FROM audit")
    assert (action, kind, json.loads(after)["user"]) == ("restore", "backup", "jane")
    assert json.loads(after)["file"] == str((state.parent / "b.tar").resolve())
    assert names(state) >= {"larder.db", "manager.key"}
    assert not (state / "larder.db-wal").exists()
    assert "as they should be" in run("check"), "the chain of the audit log holds"


def test_generations_continue_above_those_that_nodes_have_applied(state: Path) -> None:
    run("backup", "b.tar")
    execute(state / "larder.db", "UPDATE generations SET generation = 40 WHERE type = 'quotas'")
    newest = execute(state / "larder.db", "SELECT max(generation) FROM generations")[0][0]
    run("restore", "b.tar", "--force")
    found = dict(execute(state / "larder.db", "SELECT type, generation FROM generations"))
    assert set(found) >= {"quotas", "pins", "policies"}
    assert all(found[kind] > newest for kind in ("quotas", "pins", "policies"))


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE alembic_version SET version_num = '9999'", "a newer Larder wrote it"),
        ("DROP TABLE alembic_version", "does not have Larder's schema"),
        ("DROP INDEX ix_events_at", "the tables differ from the models"),
        (
            "INSERT INTO alembic_version VALUES ('0017')",
            f"alembic_version.version_num: expected one row with a revision, got ['{head()}', '0017']",
        ),
        ("UPDATE alembic_version SET version_num = '0017'", "cannot be migrated: table series already exists"),
        (
            "UPDATE generations SET generation = 9223372036854775807",
            f"generations.generation: expected a whole number from 0 to {1 << 50}, got 9223372036854775807",
        ),
        (
            "UPDATE generations SET generation = 'many'",
            f"generations.generation: expected a whole number from 0 to {1 << 50}, got 'many'",
        ),
        ("UPDATE audit_head SET last_id = 'last'", "audit_head.last_id: expected a whole number from 0 to"),
    ],
)
def test_a_backup_that_cannot_be_used_changes_nothing(state: Path, statement: str, message: str) -> None:
    copy = Path("plain.db")
    copy.write_bytes((state / "larder.db").read_bytes())
    execute(copy, statement)
    before = (state / "larder.db").read_bytes()
    assert message in run("restore", str(copy), "--force", code=1)
    assert (state / "larder.db").read_bytes() == before
    assert not list(state.glob("*.replaced-*"))
    assert not list(state.glob(".*"))


@pytest.mark.parametrize("member", ["manager.key", "manager.key.next"])
def test_a_backup_with_an_invalid_key_changes_nothing(state: Path, member: str) -> None:
    with tarfile.open("b.tar", "w") as tar:
        tar.add(state / "larder.db", "larder.db")
        garbage = tarfile.TarInfo(member)
        garbage.size = 7
        tar.addfile(garbage, io.BytesIO(b"garbage"))
    before = {name: (state / name).read_bytes() for name in names(state)}
    output = run("restore", "b.tar", "--force", code=1)
    assert output == f"Error: b.tar: {member}: expected a CURVE secret key, 40 characters in Z85\n"
    assert {name: (state / name).read_bytes() for name in before} == before
    assert names(state) - set(before) <= {"up.lock", "larder.db-pushing"}


@pytest.mark.parametrize("generation", ["9223372036854775807", "'many'"])
def test_a_database_with_damaged_generations_can_be_replaced(state: Path, generation: str) -> None:
    run("backup", "b.tar")
    execute(state / "larder.db", f"UPDATE generations SET generation = {generation}")
    run("restore", "b.tar", "--force")
    assert "as they should be" in run("check")


def test_a_damaged_backup_is_refused(state: Path) -> None:
    data = bytearray((state / "larder.db").read_bytes())
    data[4096 * 3 : 4096 * 7] = os.urandom(4096 * 4)
    Path("damaged.db").write_bytes(data)
    assert "damaged" in run("restore", "damaged.db", "--force", code=1)
    Path("text").write_text("no backup")
    assert "not a backup of Larder" in run("restore", "text", "--force", code=1)
    with tarfile.open("empty.tar", "w"):
        pass
    assert "no larder.db" in run("restore", "empty.tar", "--force", code=1)


def test_an_older_backup_is_migrated(state: Path) -> None:
    database = Database(f"sqlite:///{state}/larder.db")
    asyncio.run(migrate.downgrade(database, "0017"))
    run("backup", "old.tar")
    output = run("restore", "old.tar", "--force")
    assert f"at revision {head()}, migrated from 0017" in output
    assert "as they should be" in run("check")


def test_a_postgres_database_gets_the_command_to_run(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("backup", "b.tar")
    monkeypatch.setenv("LARDER_DATABASE_URL", "postgresql://user:sesame@127.0.0.1:1/larder")
    output = run("restore", "b.tar", code=1)
    assert "pg_restore --clean" in output
    assert "sesame" not in output


def test_a_running_larder_is_not_restored_under_its_feet(socket_dir: Path, tmp_path: Path) -> None:
    running = Up(socket_dir, LARDER_APP__EMBEDDED_DATA_PLANE="false")
    try:
        running.until_serving()
        copy = tmp_path / "b.tar"
        assert running.cli("db", "backup", str(copy)).returncode == 0
        refused = running.cli("db", "restore", str(copy), "--force")
        assert (refused.returncode, "another Larder runs with the state directory" in refused.stderr) == (1, True)
        running.environ["LARDER_DATABASE_URL"] = f"sqlite:///{socket_dir}/larder.db"
        running.environ["LARDER_STATE_DIR"] = str(tmp_path / "other")
        refused = running.cli("db", "restore", str(copy), "--force")
        assert (refused.returncode, "a Larder uses" in refused.stderr) == (1, True)
    finally:
        running.environ["LARDER_STATE_DIR"] = str(socket_dir)
        running.end()
