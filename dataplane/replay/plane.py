"""The data plane that a replay drives: its own, or one that is already running."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from dataplane.base import settings
from dataplane.base.child_command import module_command
from dataplane.base.parent_death import ending_with
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.control.records import PolicySpec
from dataplane.replay.control import ControlError, ControlLink

START_S = 30.0
STOP_S = 10.0
_ASK_S = 1.0
_LOG_LINES = 12


class PlaneError(Exception):
    """There is no data plane to replay against. The message says why."""


class Plane(msgspec.Struct, frozen=True):
    """Addresses of a data plane."""

    engine_socket: str
    control_url: str | None
    """URL of the control socket. None if it is unknown: the replay then runs without a check of the accounting."""
    pid: int | None = None


def _short_folder() -> Path:
    """Create a private folder with a path short enough for socket names: a Unix socket's path has at most 107 bytes."""
    folder = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="larder-", dir=folder if len(os.fsencode(folder)) < 70 else "/tmp"))


@contextmanager
def own(
    pool_bytes: int, max_blocks: int = 0, policy: PolicySpec | None = None, disk_tier_bytes: int = 0
) -> Iterator[Plane]:
    """Run a data plane process with an empty pool and its own state. It is stopped at the end in any case.

    `max_blocks` is the number of blocks that it can index; 0 leaves the choice to the data plane. `policy` is applied
    before the first block is stored; None keeps the default policy. `disk_tier_bytes` is the size of a disk tier behind
    the pool; 0 for none. Settings of the environment or of a `larder.toml`
    do not affect it. Raises PlaneError when it does not start.
    """
    folder = _short_folder()
    try:
        config = folder / "larder.toml"
        config.touch()
        plane = Plane(str(folder / "engine.sock"), f"ipc://{folder}/control.sock")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(settings.PREFIX)}
        chosen = {
            settings.CONFIG_VARIABLE: str(config),
            "LARDER_STATE_DIR": str(folder),
            "LARDER_DATAPLANE__KEEP_MEMORY_S": "0",
            "LARDER_LMCACHE_PORT": "0",
            "LARDER_ENGINE_SOCKET": plane.engine_socket,
            "LARDER_CONTROL_URL": f"ipc://{folder}/control.sock",
            "LARDER_EVENTS_URL": f"ipc://{folder}/events.sock",
            "LARDER_POOL_BYTES": str(pool_bytes),
            "LARDER_DATAPLANE__MAX_BLOCKS": str(max_blocks),
        }
        if disk_tier_bytes:
            chosen["LARDER_DATAPLANE__DISK_TIER_DIRECTORIES"] = str(folder / "tier")
            chosen["LARDER_DATAPLANE__DISK_TIER_BYTES"] = str(disk_tier_bytes)
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                module_command("dataplane"),
                env=inherited | chosen,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches only the replay, which then stops it
                preexec_fn=ending_with(os.getpid(), signal.SIGTERM),
            )
        try:
            _wait_until_up(process, plane, folder / "log")
            if policy is not None:
                _put_in_force(policy, plane)
            yield msgspec.structs.replace(plane, pid=process.pid)
        finally:
            _stop(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def running(engine_socket: str) -> Plane:
    """Return a data plane that is already running.

    Its control socket is the one in the settings, or else the one beside its engine socket, provided that the data
    plane there confirms that it serves this engine socket.
    """
    for url in _control_urls(engine_socket):
        try:
            with ControlLink(url) as link:
                welcome = link.hello(_ASK_S)
        except (ControlError, ProtocolError):
            continue
        if os.path.realpath(welcome.engine_socket) == os.path.realpath(engine_socket):
            return Plane(engine_socket, url, welcome.pid)
    return Plane(engine_socket, None)


def _control_urls(engine_socket: str) -> Iterator[str]:
    with suppress(settings.SettingsError):  # the replay also works with invalid settings
        yield settings.read("replay", _NoSettings)[0].control_url
    beside = Path(engine_socket).absolute().parent / "control.sock"
    if beside.exists():
        yield f"ipc://{beside}"


class _NoSettings(msgspec.Struct):
    """The replay reads only the shared settings."""


def _wait_until_up(process: subprocess.Popen[bytes], plane: Plane, log: Path) -> None:
    assert plane.control_url is not None
    try:
        with ControlLink(plane.control_url) as link:
            link.hello(START_S, lambda: process.poll() is None)
    except (ControlError, ProtocolError) as error:
        output = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        raise PlaneError("\n".join([f"the data plane did not start: {error}", *output])) from None


def _put_in_force(policy: PolicySpec, plane: Plane) -> None:
    assert plane.control_url is not None
    try:
        with ControlLink(plane.control_url) as link:
            link.put_in_force(policy, START_S)
    except (ControlError, ProtocolError) as error:
        raise PlaneError(str(error)) from None


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM, then SIGKILL after a time-out."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait(STOP_S)
