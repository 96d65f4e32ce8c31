"""Files, folders and sockets have their own modes, whatever the umask of the process that starts Larder."""

import json
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataplane.settings import load
from tests import forked
from tests.app.up import Up
from tests.forked import AnyProcess, Forked

OTHER_UID = 65_534
MODES = {stat.S_IFDIR: {0o700}, stat.S_IFREG: {0o600}, stat.S_IFSOCK: {0o600, 0o700}}
"""By type of file. Whether the owner may execute a socket is of no effect."""


def _reached_by_another_user(paths: list[Path]) -> str:
    """Return the sockets that a process of another user can connect to, or why it fails for another reason."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:  # this user's Python may not be executable by another one
        try:
            os.setgroups([])
            os.setresgid(OTHER_UID, OTHER_UID, OTHER_UID)
            os.setresuid(OTHER_UID, OTHER_UID, OTHER_UID)
            for path in paths:
                for kind in (socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
                    try:
                        socket.socket(socket.AF_UNIX, kind).connect(str(path))
                        os.write(writer, f"{path} ".encode())
                    except PermissionError:
                        pass
                    except OSError as error:
                        os.write(writer, f"{path}: {error} ".encode())
            os.write(writer, b"tried")
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        found = file.read()
    os.waitpid(pid, 0)
    return found


class UpWithUmask(Up):
    """A `larder up` that a shell with another umask starts."""

    def __init__(self, folder: Path, umask: int, /, **environ: str) -> None:
        self._umask = umask
        super().__init__(folder, **environ)

    def _start(self, options: dict[str, Any]) -> AnyProcess:
        return Forked("app", "up", umask=self._umask, **options)

    def run(self, *arguments: str) -> str:
        done = forked.run("app", *arguments, env=self.environ, umask=self._umask)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.mark.parametrize("umask", [0o000, pytest.param(0o077, marks=pytest.mark.full)])
def test_every_file_has_its_mode_whatever_the_umask(
    socket_dir: Path, umask: int, require: Callable[[object, str], None]
) -> None:
    require(os.geteuid() == 0, "another user is needed")
    state, runtime = socket_dir / "s", socket_dir / "r"
    state.mkdir()
    for folder in (socket_dir, state):
        folder.chmod(0o755)
    with UpWithUmask(
        state,
        umask,
        LARDER_APP__STANDBY="true",
        LARDER_APP__JOIN_URL=f"ipc://{state}/j.sock",
        LARDER_ENGINE_SOCKET=str(runtime / "engine" / "e.sock"),
        LARDER_KV_EVENTS_URL=f"ipc://{runtime}/kv/k.sock",
        LARDER_DATAPLANE__KV_EVENTS_REPLAY_URL=f"ipc://{runtime}/kv/r.sock",
        LARDER_DATAPLANE__DISK_TIER_DIRECTORIES=str(socket_dir / "d" / "tier"),
        LARDER_DATAPLANE__DISK_TIER_BYTES="512MiB",
        XDG_CONFIG_HOME=str(socket_dir / "c"),
        HOME=str(socket_dir / "h"),
    ) as up:
        up.until_ready()
        up.run("quotas", "set", "a", "--limit", "1GiB", "--wait", "30s")
        (token,) = [json.loads(up.run("tokens", "create", "one", "--role", "admin", "--json"))["token"]]
        up.environ["LARDER_TOKEN"] = token
        up.run("db", "backup", str(socket_dir / "b.tar"))
        sockets = []
        for path in (socket_dir, *sorted(socket_dir.rglob("*"))):
            status = path.lstat()
            if path not in (socket_dir, state):
                assert stat.S_IMODE(status.st_mode) in MODES[stat.S_IFMT(status.st_mode)], (path, oct(status.st_mode))
            if stat.S_ISSOCK(status.st_mode):
                sockets.append(path)
        names = {path.name for path in sockets}
        assert {"control.sock", "events.sock", "e.sock", "j.sock", "k.sock", "r.sock"} <= names
        shared = Path("/dev/shm") / load(environ=up.environ).lmcache_shm_name
        assert not shared.exists() or stat.S_IMODE(shared.stat().st_mode) == 0o600
        assert _reached_by_another_user(sockets) == "tried"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as own:
            own.connect(str(state / "control.sock"))
