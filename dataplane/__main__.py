"""`python -m dataplane`: run a data plane in the foreground."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping

import msgspec

from dataplane.protocol.barrier import UnsupportedMachine
from dataplane.protocol.settings import SettingsError, without_secrets
from dataplane.settings import Settings, load
from dataplane.transport.handover import Handover, SupervisorGone, wait


def _print_config(settings: Settings) -> None:
    document = {
        **msgspec.structs.asdict(without_secrets(settings.common)),
        "dataplane": msgspec.structs.asdict(settings.table),
    }
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


def _await_supervisor(fd: int) -> Handover:
    """Import everything, then wait until there is something to do: settings are read after that."""
    import dataplane.compose
    import dataplane.observe.log  # noqa: F401 (both only to have them)

    return wait(fd)


def _environ(join_token_file: str | None) -> Mapping[str, str]:
    """The environment, with what the command line says in it."""
    if join_token_file is None:
        return os.environ
    return {**os.environ, "LARDER_DATAPLANE__JOIN_TOKEN_FILE": join_token_file}


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and serve. Exit codes: 0 stopped, 1 cannot run here, 2 wrong settings."""
    # structlog takes rich, which costs a quarter of the start, wherever it is installed; this process never draws.
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
    parser = argparse.ArgumentParser(prog="larder dataplane", description="Run a Larder data plane.")
    parser.add_argument("--config", help="path of larder.toml (default: $LARDER_CONFIG, else ./larder.toml)")
    parser.add_argument(
        "--join-token-file", help="file with the token that lets this node into a fleet; needed once"
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print the settings in force as JSON and exit"
    )
    parser.add_argument("--supervisor-fd", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    handover = None
    if options.supervisor_fd is not None:
        try:
            handover = _await_supervisor(options.supervisor_fd)
        except (SupervisorGone, OSError):
            return 0
    try:
        settings = load(options.config, _environ(options.join_token_file))
    except SettingsError as error:
        sys.stderr.write(f"larder data plane: {error}\n")
        return 2
    if options.print_config:
        _print_config(settings)
        return 0
    from zmq import ZMQError

    from dataplane.compose import serve
    from dataplane.membership import JoinFailed
    from dataplane.observe.log import configure
    from dataplane.state import StateInUse
    from dataplane.transport.engine import SocketInUse

    log = configure()
    try:
        return serve(settings, handover)
    except SettingsError as error:
        sys.stderr.write(f"larder data plane: {error}\n")
        return 2
    except (UnsupportedMachine, JoinFailed, SocketInUse, StateInUse, ZMQError, OSError, MemoryError) as error:
        sys.stderr.write(f"larder data plane: {error}\n")
        return 1
    finally:
        log.close()


if __name__ == "__main__":
    sys.exit(main())
