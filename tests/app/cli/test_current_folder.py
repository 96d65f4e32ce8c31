"""Larder runs no code from the folder in which a command is given: root may run it where others may write."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.settings import load
from tests.app.up import Up
from tests.forked import AnyProcess

LARDER = str(Path(sys.executable).with_name("larder"))
TRAPS = ("msgspec", "structlog", "numpy", "zmq", "app", "dataplane", "click", "uvicorn", "typing", "struct")


def lay_traps(folder: Path) -> Path:
    """Write modules that append their names to a file, whose path is returned."""
    ran = folder / "ran"
    for name in TRAPS:
        (folder / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write('{name} ')\n")
    return ran


class UpInFolder(Up):
    folder: Path

    def _start(self, options: dict[str, Any]) -> AnyProcess:
        return subprocess.Popen([LARDER, "up"], cwd=self.folder, **options)


def test_commands_run_no_code_from_the_current_folder(tmp_path: Path) -> None:
    ran = lay_traps(tmp_path)
    environ = {**os.environ, "LARDER_STATE_DIR": str(tmp_path / "state")}
    for arguments in (["doctor"], ["dataplane", "--print-config"], ["replay", "--help"], ["demo", "--help"]):
        done = subprocess.run(
            [LARDER, *arguments], cwd=tmp_path, env=environ, capture_output=True, timeout=60, check=False
        )
        assert done.stdout, done.stderr
    assert not ran.exists(), ran.read_text()


def test_settings_are_read_in_a_folder_that_this_user_cannot_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `sudo -u larder` in the home directory of an administrator."""
    state, home = tmp_path / "state", tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("LARDER_STATE_DIR", str(state))
    monkeypatch.chdir(home)
    home.chmod(0)
    user = os.geteuid()
    if user == 0:  # root may search every folder
        os.seteuid(65_534)
    try:
        assert load().state_dir == state
    finally:
        os.seteuid(user)
        home.chmod(0o700)


@pytest.mark.full
def test_a_larder_that_starts_restarts_and_stops_runs_no_code_from_the_current_folder(
    tmp_path: Path, socket_dir: Path
) -> None:
    ran = lay_traps(tmp_path)
    UpInFolder.folder = tmp_path
    up = UpInFolder(socket_dir, None, LARDER_DATAPLANE__KEEP_MEMORY_S="60", LARDER_APP__STANDBY="true")
    try:
        up.until_ready()
        restarted = subprocess.run(
            [LARDER, "restart"], cwd=tmp_path, env=up.environ, capture_output=True, timeout=60, check=False
        )
        assert restarted.returncode == 0, restarted.stderr
        up.process.terminate()
        assert up.process.wait(60) == 0
    finally:
        up.end()
        subprocess.run([LARDER, "down"], cwd=tmp_path, env=up.environ, capture_output=True, timeout=60, check=False)
    assert not ran.exists(), ran.read_text()
