"""A data plane with an emulated device: `python -m tests.restart.support.device_plane`. It continues with handed-over
memory as the real one does. A test tells it when its copies stop through `pace.sock` in its state directory, with one
JSON line each.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataplane.compose import DataPlane
from dataplane.holding.connection import HolderConnection
from dataplane.observe.log import configure
from dataplane.settings import load
from tests.driven.roles import PlanesTurn
from tests.gpu.machines import Machine
from tests.gpu.role_parts import run_command
from tests.restart.support.relay import Relay

DEVICE = "EMULATED_UUID"
"""Names the device, in the environment."""
PACE = "pace.sock"


@dataclass
class DeviceRelay(Relay):
    """Its supervisor is the test; `ask` tells the one that runs."""

    module: str = "tests.restart.support.device_plane"
    uuid: str = ""

    @property
    def environ(self) -> dict[str, str]:
        return {**super().environ, DEVICE: self.uuid}

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.folder / PACE))
            with connection.makefile("rw") as file:
                file.write(json.dumps({"do": do, **arguments}) + "\n")
                file.flush()
                answer: dict[str, Any] = json.loads(file.readline())
                return answer

    def mappings(self, name: str) -> int:
        """Shared files with this in their name that it maps."""
        return sum(name in line for line in Path(f"/proc/{self.pid}/maps").read_text().splitlines())


def listen(turn: PlanesTurn, path: Path) -> None:
    """Do what is asked for ever, one connection a request."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rw") as file, suppress(OSError):
                file.write(json.dumps(run_command(turn, file.readline())) + "\n")

    threading.Thread(target=serve, daemon=True).start()


def main() -> int:
    log = configure()
    machine = Machine("emulated", os.environ[DEVICE])
    settings = load()
    listen(PlanesTurn(machine), Path(settings.common.state_dir) / PACE)
    plane = DataPlane(
        settings, holder=HolderConnection(Path(settings.common.state_dir)), find_devices=lambda: machine.runtime
    )
    signal.signal(signal.SIGTERM, lambda *_: plane.stop())
    plane.run()
    log.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
