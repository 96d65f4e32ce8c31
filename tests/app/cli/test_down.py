"""`larder down` says what it stopped, and what it did not and why."""

import fcntl
import os
from pathlib import Path

from dataplane.memory.named import NamedFile
from tests.app.command import run
from tests.app.up import Up
from tests.run_marks import shm_name


def test_what_dead_data_planes_left_in_shared_memory_is_removed(socket_dir: Path) -> None:
    left = NamedFile.create(shm_name("left"), 1 << 20, os.getpid(), 1)
    left.close()
    done = run("down", env={"LARDER_STATE_DIR": str(socket_dir)})
    assert (done.returncode, done.stderr) == (0, "")
    assert "and no memory is kept\nremoved what dead data planes left: " in done.stdout
    assert all(str(path) in done.stdout and not path.exists() for path in left.paths)


def test_a_data_plane_that_cannot_be_reached_is_named_after_larder_up_was_stopped(socket_dir: Path) -> None:
    """As of a service whose engine socket this command does not know."""
    up = Up(socket_dir, LARDER_APP__EMBEDDED_DATA_PLANE="false")
    try:
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
    finally:
        up.end()
