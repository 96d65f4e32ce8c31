"""`python -m dataplane.devices`: check this machine's GPUs, and print one JSON line per check.

`larder doctor` shows the result. `--emulated` checks the emulated device instead. Exit codes: 0 if checks ran, 1 if
there is no device.
"""

from __future__ import annotations

import argparse
import sys

import msgspec

from dataplane.base.child_command import module_command
from dataplane.devices.emulator.device import EmulatedDevice
from dataplane.devices.errors import advice_for
from dataplane.devices.find import find
from dataplane.devices.report import SeenDevice, examine, export
from dataplane.devices.runtime import DeviceError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m dataplane.devices", description="Look at this machine's GPUs.")
    parser.add_argument("--emulated", action="store_true", help="look at the emulated device on host memory")
    parser.add_argument("--export", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    try:
        runtime = EmulatedDevice() if options.emulated else find()
        if options.export:
            export(runtime)
            return 0
        command = module_command("dataplane.devices", "--export", *(["--emulated"] if options.emulated else []))
        for seen in examine(runtime, command):
            _print(seen)
    except DeviceError as error:
        _print(SeenDevice("CUDA", "warning", f"{error.what}: {error.name}", error.advice or advice_for(error.name)))
        return 1
    return 0


def _print(seen: SeenDevice) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(seen) + b"\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
