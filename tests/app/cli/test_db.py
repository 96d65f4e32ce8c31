"""`larder db`: upgrade, check and backup, on both databases and on damaged ones."""

import os
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from app.cli import larder
from app.errors import Conflict, StoreUnavailable
from app.store.base import backup as copies
from app.store.base.database import full_url
from app.store.base.migrate import head
from tests.app.migrated import migrated_folder
from tests.postgres_databases import Server, database_on

Db = Callable[..., Result]


@pytest.fixture
def run(empty_database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Db:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LARDER_DATABASE_URL", empty_database_url)
    monkeypatch.setenv("LARDER_STATE_DIR", str(tmp_path))
    return db


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An upgraded SQLite database."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LARDER_STATE_DIR", str(tmp_path))
    migrated_folder(tmp_path)
    return tmp_path / "larder.db"


def db(*arguments: str) -> Result:
    return CliRunner().invoke(larder, ["db", *arguments], catch_exceptions=False)


def extracted(archive: Path, folder: Path, member: str = "larder.db") -> Path:
    with tarfile.open(archive) as tar:
        tar.extract(member, folder / "extracted", filter="data")
    return folder / "extracted" / member


def test_an_upgraded_database_is_in_order(run: Db) -> None:
    upgraded = run("upgrade")
    assert (upgraded.exit_code, f"at revision {head()}" in upgraded.output) == (0, True)
    assert run("upgrade").exit_code == 0
    checked = run("check")
    assert checked.exit_code == 0, checked.output
    assert "as they should be" in checked.output


def test_a_database_without_a_schema_is_reported_as_to_be_upgraded(run: Db, socket_dir: Path) -> None:
    sqlite3.connect(socket_dir / "larder.db").execute("PRAGMA user_version=1").close()
    checked = run("check")
    assert checked.exit_code == 1
    assert "larder db upgrade" in checked.output


def test_a_check_does_not_create_a_missing_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LARDER_STATE_DIR", str(tmp_path))
    checked = db("check")
    assert checked.exit_code == 1
    assert "there is no database" in checked.output
    assert not (tmp_path / "larder.db").exists()


@pytest.mark.parametrize(("encoding", "stores_all"), [("LATIN1", False), ("SQL_ASCII", True)])
def test_a_database_that_cannot_store_every_name_is_refused(
    encoding: str, stores_all: bool, postgres_server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LARDER_STATE_DIR", str(tmp_path))
    with database_on(postgres_server, f"template0 ENCODING '{encoding}' LOCALE 'C'") as name:
        monkeypatch.setenv("LARDER_DATABASE_URL", postgres_server(name))
        upgraded, checked = db("upgrade"), db("check")
    for result in (upgraded, checked):
        assert result.exit_code == int(not stores_all), result.output
        assert (f"has the encoding {encoding}, expected UTF8" in result.output) == (not stores_all)


def execute(file: Path, statement: str) -> None:
    connection = sqlite3.connect(file)
    connection.executescript(statement)
    connection.close()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE alembic_version SET version_num='9999'", "a newer Larder wrote it"),
        ("DROP INDEX ix_events_at", "the tables differ from the models"),
        ("ALTER TABLE rates ADD COLUMN odd TEXT", "the tables differ from the models"),
        ("CREATE TABLE stranger (x)", "'stranger' that is not Larder's"),
        ("PRAGMA journal_mode=DELETE", ""),
    ],
)
def test_faults_of_a_database_are_reported(file: Path, statement: str, message: str) -> None:
    execute(file, statement)
    checked = db("check")
    assert message in checked.output
    assert checked.exit_code == int(bool(message))


def test_a_newer_schema_is_not_upgraded(file: Path) -> None:
    execute(file, "UPDATE alembic_version SET version_num='9999'")
    upgraded = db("upgrade")
    assert upgraded.exit_code == 1
    assert "cannot be upgraded: the schema is at revision 9999" in upgraded.output
    assert "a newer Larder wrote it" in upgraded.output


def test_an_incomplete_file_is_reported(file: Path) -> None:
    with file.open("r+b") as damaged:
        damaged.seek(4096 * 3)
        damaged.write(os.urandom(4096 * 4))
    assert db("check").exit_code == 1


def test_a_file_that_is_not_a_database_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LARDER_STATE_DIR", str(tmp_path))
    (tmp_path / "larder.db").write_bytes(b"not a database at all" * 1000)
    checked = db("check")
    assert checked.exit_code == 1
    assert "Traceback" not in checked.output


def test_a_copy_is_whole_while_the_database_is_written_to(file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    command = [sys.executable, "-c", _WRITER, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout.readline() == b"writing\n"
            assert db("backup", str(copy)).exit_code == 0
        finally:
            writer.kill()
    assert copy.stat().st_mode & 0o777 == 0o600
    connection = sqlite3.connect(extracted(copy, tmp_path))
    (count, total) = connection.execute("SELECT count(*), sum(odd) FROM pairs").fetchone()
    connection.close()
    assert count % 2 == 0, "a transaction wrote two rows"
    assert total == 0
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


_WRITER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("CREATE TABLE pairs (odd)")
for n in range(10**9):
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO pairs VALUES (1)")
    db.execute("INSERT INTO pairs VALUES (-1)")
    db.execute("COMMIT")
    if n == 20:
        print("writing", flush=True)
"""


def test_an_existing_file_is_replaced_only_by_force(file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    copy.write_text("precious")
    refused = db("backup", str(copy))
    assert (refused.exit_code, copy.read_text()) == (1, "precious")
    assert "--force" in refused.output
    assert db("backup", str(copy), "--force").exit_code == 0
    assert extracted(copy, tmp_path).read_bytes().startswith(b"SQLite format 3")


def test_a_copy_that_cannot_be_made_leaves_nothing(file: Path, tmp_path: Path) -> None:
    for target in (tmp_path, tmp_path / "nowhere" / "copy.db"):
        with pytest.raises(Conflict):
            copies.backup(full_url(f"sqlite:///{file}"), target, force=True)
    with pytest.raises(StoreUnavailable, match="there is no database"):
        copies.backup(full_url(f"sqlite:///{tmp_path}/none.db"), tmp_path / "copy.db", force=False)
    assert not (tmp_path / "copy.db").exists()


def test_a_backup_of_postgres_is_one_of_pg_dump(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = full_url(postgres_url)
    try:
        copies.backup(url, tmp_path / "copy.dump", force=False)
    except StoreUnavailable as error:  # an older pg_dump than the server
        assert "pg_dump failed" in str(error)  # noqa: PT017
    else:
        dump = extracted(tmp_path / "copy.dump", tmp_path, "larder.dump")
        assert dump.read_bytes().startswith(b"PGDMP")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(StoreUnavailable, match="pg_dump is not installed"):
        copies.backup(url, tmp_path / "other.dump", force=False)
    assert not (tmp_path / "other.dump").exists()


@pytest.mark.parametrize("name", ["a b", "100%25", "%3F", "a?b=c", "#1&y", "ü€", "a@b@c", "it's:", "trailing/"])
def test_the_database_is_in_the_state_directory_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LARDER_STATE_DIR", name)
    if name != "a?b=c":  # one is migrated by its upgrade
        folder = tmp_path / "made"
        folder.mkdir(mode=0o700)
        migrated_folder(folder)
        folder.rename(tmp_path / name)
    for arguments in (["upgrade"], ["check"], ["backup", "copy"], ["restore", "--force", "copy"], ["check"]):
        result = db(*arguments)
        assert result.exit_code == 0, result.output
    assert (tmp_path / name / "larder.db").stat().st_size
    assert {each.name for each in tmp_path.iterdir()} == {"copy", name.rstrip("/")}


def test_no_error_repeats_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LARDER_DATABASE_URL", "postgresql://user:sesame@127.0.0.1:1/larder")
    for arguments in (["upgrade"], ["check"], ["backup", str(tmp_path / "x")]):
        result = db(*arguments)
        assert result.exit_code == 1
        assert "sesame" not in result.output


@pytest.mark.parametrize("name", ["larder.db", "link.db", "second.db", "larder.db-wal", "larder.db-shm"])
def test_a_database_is_never_replaced_by_a_copy_of_itself(file: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "link.db").symlink_to("larder.db")
    os.link(file, tmp_path / "second.db")
    before = (file.stat().st_ino, file.read_bytes())
    refused = db("backup", str(tmp_path / name), "--force")
    assert (refused.exit_code, "belongs to the database itself" in refused.output) == (1, True)
    assert (file.stat().st_ino, file.read_bytes()) == before
    assert (tmp_path / "link.db").is_symlink()
    assert list(tmp_path.glob(".*")) == []
