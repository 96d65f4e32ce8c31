"""`python -m dataplane`: run a data plane in the foreground."""

from __future__ import annotations

import argparse
import sys

import msgspec

from dataplane.protocol.barrier import UnsupportedMachine
from dataplane.protocol.settings import SettingsError
from dataplane.settings import Settings, load


def _print_config(settings: Settings) -> None:
    document = {
        **msgspec.structs.asdict(settings.common),
        "dataplane": msgspec.structs.asdict(settings.table),
    }
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and serve. Exit codes: 0 stopped, 1 cannot run here, 2 wrong settings."""
    parser = argparse.ArgumentParser(prog="python -m dataplane", description="Run a Larder data plane.")
    parser.add_argument("--config", help="path of larder.toml (default: $LARDER_CONFIG, else ./larder.toml)")
    parser.add_argument(
        "--print-config", action="store_true", help="print the settings in force as JSON and exit"
    )
    options = parser.parse_args(arguments)
    try:
        settings = load(options.config)
    except SettingsError as error:
        sys.stderr.write(f"larder data plane: {error}\n")
        return 2
    if options.print_config:
        _print_config(settings)
        return 0
    from zmq import ZMQError

    from dataplane.compose import StateInUse, serve
    from dataplane.observe.log import configure
    from dataplane.transport.engine import SocketInUse

    log = configure()
    try:
        return serve(settings)
    except (UnsupportedMachine, SocketInUse, StateInUse, ZMQError, OSError, MemoryError) as error:
        sys.stderr.write(f"larder data plane: {error}\n")
        return 1
    finally:
        log.close()


if __name__ == "__main__":
    sys.exit(main())
