"""`larder down` says what it stopped, and what it did not and why."""

import fcntl
import os
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from app.cli.commands.machine import down as command
from app.cli.support.machine.left_memory import left_memory
from tests.app.up import Up
from tests.dataplane.named_files import created


def test_shared_memory_of_killed_data_planes_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LARDER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(command, "left_memory", partial(left_memory, tmp_path))
    left = created("left", 1 << 20, folder=tmp_path)
    left.close()
    os.utime(left.paths[0], (0, 0))
    done = CliRunner().invoke(command.down, catch_exceptions=False)
    assert "and no memory is kept\nremoved what dead data planes left: " in done.output
    assert all(str(path) in done.output and not path.exists() for path in left.paths)


def test_a_data_plane_that_cannot_be_reached_is_named_after_larder_up_was_stopped(socket_dir: Path) -> None:
    """As of a service whose engine socket this command does not know."""
    with Up(socket_dir, LARDER_APP__EMBEDDED_DATA_PLANE="false") as up:
        up.until_serving()
        with (socket_dir / "dataplane.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = up.cli("down")
            assert up.process.wait(60) == 0
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr == (
                "Error: stopped `larder up`, but its cache is not released: "
                f"a data plane runs with the state directory "
                f"{socket_dir}, and cannot be reached at {socket_dir}/engine.sock (No such file or directory): stop "
                "its service, or set LARDER_ENGINE_SOCKET as for the data plane, and run `larder down` again\n"
            )
            again = up.cli("down")
            assert (again.returncode, again.stderr) == (
                1,
                done.stderr.replace("stopped `larder up`, but its cache is not released: ", ""),
            )
        ended = up.cli("down")
        assert (ended.returncode, ended.stderr) == (0, "")
        assert "no memory is kept" in ended.stdout
