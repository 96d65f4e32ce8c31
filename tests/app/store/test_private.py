"""Larder's files are for their owner alone, whatever the umask; files that others can read are reported and kept."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from app.cli.commands.machine.db import db
from tests.app.doctor import examined
from tests.app.plane import serving, settings_in
from tests.app.up import Up

_CRASH = """
import logging, os
import structlog
from dataplane.base.log import configure

log = configure("info", os.environ["STYLE"])

def crash(token):
    return 1 // 0

try:
    crash("larder_0123_" + "5ecret" * 4)
except ZeroDivisionError as error:
    structlog.get_logger().exception("request.crashed", exc_info=error)
    logging.getLogger("library").error("crashed", exc_info=error)
log.close()
"""


@pytest.mark.parametrize("style", ["console", "json"])
def test_a_crash_in_the_log_shows_where_and_no_value_of_a_variable(style: str) -> None:
    environ = {**os.environ, "STYLE": style, "FORCE_COLOR": "1"}
    done = subprocess.run([sys.executable, "-c", _CRASH], env=environ, capture_output=True, text=True, check=True)
    assert done.stderr.count("ZeroDivisionError") >= 2
    assert "in crash" in done.stderr
    assert "5ecret5ecret" not in done.stderr


@pytest.fixture
def open_umask() -> Iterator[None]:
    """New files are readable by others, unless their mode is set."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """Of the folder, and of every folder and file in it."""
    found = [folder, *folder.rglob("*")]
    return {
        str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode)
        for path in found
        if path.is_dir() or path.is_file()
    }


def test_a_running_larder_leaves_nothing_that_others_can_read(socket_dir: Path, open_umask: None) -> None:
    folder = socket_dir / "state"
    with Up(folder) as up:
        up.until_ready()
        assert up.cli("quotas", "set", "acme", "1MiB").returncode == 0
        assert up.cli("db", "backup", str(folder / "copy.db")).returncode == 0
        seen = modes(folder)
        assert {"larder.db", "larder.db-wal", "larder.db-shm", "copy.db", "up.lock"} <= set(seen)
        assert {name: f"{mode:o}" for name, mode in seen.items() if mode & 0o077} == {}


@pytest.mark.anyio
async def test_files_that_others_can_read_are_reported_at_the_start_and_stay_as_they_are(
    socket_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(settings_in(socket_dir)):
        pass
    assert "files.readable_by_others" not in capsys.readouterr().out
    file = socket_dir / "larder.db"
    file.chmod(0o644)
    async with serving(settings_in(socket_dir)) as plane:
        await plane.put_quota("acme", 1, wait="")
    (line, *_) = [line for line in capsys.readouterr().out.splitlines() if "files.readable_by_others" in line]
    assert f"path={file}" in line
    assert f"fix='chmod 600 {file}'" in line
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_doctor_warns_of_a_database_that_others_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LARDER_STATE_DIR", str(state))
    monkeypatch.setenv("LARDER_HTTP_PORT", "0")
    monkeypatch.setenv("LARDER_POOL_BYTES", "4MiB")
    assert CliRunner().invoke(db, ["upgrade"]).exit_code == 0
    code, found = examined()
    assert (code, "database files" in found) == (0, False)
    (state / "larder.db").chmod(0o640)
    code, found = examined()
    assert (code, found["database files"]["state"]) == (0, "warning")
    assert "larder.db has mode 640" in found["database files"]["message"]
    assert found["database files"]["fix"] == f"chmod 600 {state / 'larder.db'}"
