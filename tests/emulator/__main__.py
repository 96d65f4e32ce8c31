"""`python -m tests.emulator`: what `python -m dataplane.devices` prints, of the emulated device."""

import sys

from dataplane.devices.__main__ import main
from tests.emulator.device import EmulatedDevice

if __name__ == "__main__":
    sys.exit(main(EmulatedDevice, "tests.emulator"))
