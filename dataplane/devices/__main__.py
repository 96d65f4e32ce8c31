"""`python -m dataplane.devices`: check this machine's GPUs, and print one JSON line per check.

`larder doctor` shows the result. Exit codes: 0 if checks ran, 1 if there is no device.
"""

from __future__ import annotations

import argparse
import sys

import msgspec

from dataplane.base.child_command import module_command
from dataplane.devices.errors import advice_for
from dataplane.devices.find import FindRuntime, find
from dataplane.devices.report import SeenDevice, examine, export
from dataplane.devices.runtime import DeviceError


def main(find: FindRuntime = find, module: str = "dataplane.devices") -> int:
    """Check the devices that `find` finds. `module` runs this function in another process."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description="Look at this machine's GPUs.")
    parser.add_argument("--export", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        runtime = find()
        if options.export:
            export(runtime)
            return 0
        for seen in examine(runtime, module_command(module, "--export")):
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
