"""`larder down`: stop the Larder of a state directory and release the memory of its cache."""

import os
import signal
import socket
import time
from pathlib import Path

import click

from app.cli.support.machine.exit_watchdog import BEYOND_GRACE_S
from app.cli.support.machine.left_memory import left_memory
from app.cli.support.printing.terminal import say
from app.cli.support.resources.options import Output, output_option
from app.settings import Settings, load
from dataplane.base.units import format_size
from dataplane.holding.folder import DATA_PLANE_LOCK_NAME, is_locked
from dataplane.holding.record import load_record
from dataplane.ipc.processes import has_exited, peer_of
from dataplane.protocol.signals import RELEASE_SIGNAL

POLL_S = 0.05
DATA_PLANE_ENDS_S = 20.0
UNLOCK_S = 1.0
"""Seconds in which the kernel frees the lock of a process that has ended."""


@click.command()
@click.option("--config", type=click.Path(dir_okay=False), help="Settings file; default LARDER_CONFIG, ./larder.toml.")
@output_option
def down(config: str | None, output: Output) -> None:
    """Stop the Larder of this state directory, and release its cache and what killed data planes of this user left in
    shared memory.

    Ctrl-C and SIGTERM keep the cache in memory for dataplane.keep_memory_s; this command does not.
    """
    settings = load(config)
    stopped = _stop(settings)
    try:
        amount = release_memory(settings, "released by `larder down`", quiet=True)
    except click.ClickException as error:
        if stopped:
            raise click.ClickException(f"stopped `larder up`, but its cache is not released: {error}") from None
        raise
    removed = left_memory(remove=True)
    blocks, nbytes = amount or (0, 0)
    if output.data({"stopped": stopped, "blocks": blocks, "bytes": nbytes, "left_behind_bytes": sum(removed.values())}):
        return
    if not stopped and amount is None:
        say(f"no Larder runs with the state directory {settings.state_dir}, and no memory is kept")
    else:
        released = "no blocks were cached" if amount is None else f"released {_amount(*amount)}"
        say(f"{'stopped; ' if stopped else ''}{released}")
    if removed:
        say(f"removed what dead data planes left: {format_size(sum(removed.values()))}, {', '.join(map(str, removed))}")


def release_memory(settings: Settings, reason: str, *, quiet: bool = False) -> tuple[int, int] | None:
    """Stop a data plane that has no supervisor, if one runs, and release the memory. Return its blocks and bytes, or
    None when there was no such memory. Prints them unless `quiet`. Raises ClickException."""
    from dataplane.holding.requests import HolderFailed, release

    amount = _stop_data_plane(settings)
    try:
        released = release(settings.state_dir, reason)
    except HolderFailed as error:
        raise click.ClickException(f"the kept memory cannot be released: {error}") from None
    if released is not None and released.files:
        amount = (released.blocks, released.bytes)
    if amount is not None and not quiet:
        say(f"released {_amount(*amount)} of the previous Larder")
    return amount


def _amount(blocks: int, nbytes: int) -> str:
    return f"{blocks:,} {'block' if blocks == 1 else 'blocks'} ({format_size(nbytes)})"


def _stop(settings: Settings) -> bool:
    """Stop `larder up` and wait for its end. Return whether one ran. Raises ClickException."""
    path = settings.state_dir / "up.lock"
    if not _is_locked(path):
        return False
    try:
        pid = int(path.read_text())
        pidfd = os.pidfd_open(pid)
    except (OSError, ValueError):
        raise click.ClickException(
            f"a Larder runs with the state directory {settings.state_dir}, and {path} does not name its process; "
            "stop that process with SIGTERM and run `larder down` again"
        ) from None
    try:
        if not _is_locked(path):  # it has ended, and another process may have its pid
            return True
        _signal(pidfd, signal.SIGTERM, f"larder up (process {pid})")
        within_s = 2 * settings.app.shutdown_grace_s + BEYOND_GRACE_S + DATA_PLANE_ENDS_S
        if not has_exited(pidfd, within_s) or not _wait_for_unlock(path):
            raise click.ClickException(f"process {pid} did not end within {within_s:g} s after SIGTERM")
    finally:
        os.close(pidfd)
    return True


def _stop_data_plane(settings: Settings) -> tuple[int, int] | None:
    """Stop a data plane that outlived its `larder up`. Return the blocks and bytes that it had cached, or None when
    there was no such data plane. Raises ClickException."""
    path = settings.state_dir / DATA_PLANE_LOCK_NAME
    if not _is_locked(path):
        return None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(DATA_PLANE_ENDS_S)
            connection.connect(settings.common.engine_socket)
            pidfd = peer_of(connection).pidfd
    except OSError as error:
        raise click.ClickException(
            f"a data plane runs with the state directory {settings.state_dir}, and cannot be reached at "
            f"{settings.common.engine_socket} ({error.strerror or error}): stop its service, or set "
            "LARDER_ENGINE_SOCKET as for the data plane, and run `larder down` again"
        ) from None
    try:
        _signal(pidfd, RELEASE_SIGNAL, "the data plane")
        if not has_exited(pidfd, DATA_PLANE_ENDS_S):
            raise click.ClickException(f"the data plane did not end within {DATA_PLANE_ENDS_S:g} s")
    finally:
        os.close(pidfd)
    record = load_record(str(settings.state_dir))
    return record.get("blocks", 0), record.get("bytes", 0)


def _signal(pidfd: int, number: signal.Signals, process: str) -> None:
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return
    except PermissionError:
        raise click.ClickException(f"{process} belongs to another user; run this command as that user") from None


def _wait_for_unlock(path: Path) -> bool:
    """Return whether the lock of a process that has ended is free in time."""
    deadline = time.monotonic() + UNLOCK_S
    while _is_locked(path):
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def _is_locked(path: Path) -> bool:
    """Return whether a process holds the lock file. Raises ClickException."""
    try:
        return is_locked(path)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be opened: {error.strerror}") from None
