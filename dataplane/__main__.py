"""`python -m dataplane`: run a data plane in the foreground."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from dataplane import __version__
from dataplane.base import entry_point
from dataplane.base.settings import SettingsError, without_secrets
from dataplane.holding import LISTENER
from dataplane.protocol.signals import CANNOT_ADOPT_EXIT_CODE, HANDED_OVER_EXIT_CODE, SETTINGS_EXIT_CODE
from dataplane.recovery.supervision import SupervisorConnection, SupervisorGone
from dataplane.settings import DataPlaneSettings, load


def _print_config(settings: DataPlaneSettings) -> None:
    document = {
        **msgspec.structs.asdict(without_secrets(settings.common)),
        "dataplane": {
            **msgspec.structs.asdict(without_secrets(settings.table)),
            "lmcache_shm_name": settings.lmcache_shm_name,  # its default depends on the host and the state directory
        },
    }
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


def _await_supervisor(fd: int) -> SupervisorConnection:
    """Import all modules, then wait for the supervisor's word to begin. The settings are read only after that."""
    import dataplane.run  # noqa: F401 (loaded ahead of use)
    from dataplane.base import otlp

    otlp.preload(os.environ)
    return SupervisorConnection.wait(fd)


def _environ(join_token_file: str | None) -> Mapping[str, str]:
    """Return the environment with the overrides of the command line."""
    if join_token_file is None:
        return os.environ
    return {**os.environ, "LARDER_DATAPLANE__JOIN_TOKEN_FILE": join_token_file}


def _check_memory(settings: DataPlaneSettings) -> int:
    """Print why this release, under a supervisor, cannot adopt the memory that is held with these settings. Return the
    exit code: 0 if it can, 3 if not. Raises SettingsError or OSError if it cannot start with them on this machine."""
    from dataplane.base.state_folder import check_state_folder
    from dataplane.gateways.build import check_listener
    from dataplane.holding.requests import HolderFailed, peek
    from dataplane.recovery.adoption import segment_bytes, why_not
    from dataplane.settings import check_machine

    folder = Path(settings.common.state_dir)
    check_state_folder(folder)
    try:
        memory = peek(folder)
    except HolderFailed as error:
        sys.stderr.write(f"{error}\n")
        return CANNOT_ADOPT_EXIT_CODE
    check_machine(settings, segment_bytes(memory), supervised=True)
    check_listener(settings, [fd for kind, _, fd in memory if kind == LISTENER])
    reason = why_not(settings, memory)
    if reason:
        sys.stderr.write(f"{reason}\n")
    return CANNOT_ADOPT_EXIT_CODE if reason else 0


def _report(supervisor: SupervisorConnection | None, error: BaseException) -> None:
    """Tell the supervisor why this process ends before it serves."""
    if supervisor is not None:
        supervisor.failed(str(error))


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and serve. Exit codes: 0 stopped, 1 cannot run here, 2 invalid settings, 3 cannot
    adopt."""
    # If rich is installed, structlog imports it, which costs a third of the start-up time; this process does not use
    # it. No module that is imported above this function may import structlog.
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
    # Else numpy starts a thread per core at its import, which spins, for matrices that this process does not multiply.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    parser = argparse.ArgumentParser(prog="larder dataplane", description="Run a Larder data plane.")
    parser.add_argument("--config", help="path of larder.toml (default: $LARDER_CONFIG, else ./larder.toml)")
    parser.add_argument(
        "--join-token-file", help="file with the token to join a fleet; needed only until the node has joined"
    )
    parser.add_argument("--print-config", action="store_true", help="print the settings in force as JSON and exit")
    parser.add_argument("--supervisor-fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--check-memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    supervisor = None
    if options.supervisor_fd is not None:
        try:
            supervisor = _await_supervisor(options.supervisor_fd)
        except (SupervisorGone, OSError):
            return 0
    try:
        settings = load(options.config, _environ(options.join_token_file))
    except SettingsError as error:
        _report(supervisor, error)
        sys.stderr.write(f"larder data plane: {error}\n")
        return SETTINGS_EXIT_CODE
    if options.print_config:
        _print_config(settings)
        return 0
    if options.check_memory:
        try:
            return _check_memory(settings)
        except (SettingsError, OSError) as error:
            sys.stderr.write(f"{error}\n")
            return SETTINGS_EXIT_CODE
    try:
        from dataplane.base import otlp
        from dataplane.base.log import configure
        from dataplane.run import EXPECTED_FAILURES, serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "dataplane":
            raise
        missing = f"the package {error.name!r} is not installed; a data plane needs 'larder[server]'"
        _report(supervisor, SettingsError(missing))
        sys.stderr.write(f"larder data plane: {missing}\n")
        return SETTINGS_EXIT_CODE

    log = configure(settings.table.log_level, settings.table.log_format)
    telemetry = otlp.start("data-plane", __version__, os.environ, settings.table.node or socket.gethostname())
    code = 1
    try:
        code = serve(settings, supervisor)
        return code
    except EXPECTED_FAILURES as error:
        _report(supervisor, error)
        sys.stderr.write(f"larder data plane: {error}\n")
        return SETTINGS_EXIT_CODE if isinstance(error, SettingsError) else 1
    finally:
        if telemetry is not None:  # the next data plane waits for the end of one that hands over
            telemetry.close(otlp.HAND_OVER_S if code == HANDED_OVER_EXIT_CODE else otlp.CLOSE_S)
        log.close()


if __name__ == "__main__":
    sys.exit(entry_point.run(main, "larder dataplane"))
