"""A data plane in a process of its own that has the devices of a machine."""

from __future__ import annotations

from typing import Any

from tests.dataplane.plane import Plane
from tests.gpu.machines import Machine, Other


class DevicePlane(Plane):
    """It stops in the middle of a copy when it is asked to."""

    other: Other
    machine: Machine

    def begin(self, machine: Machine, **arguments: Any) -> DevicePlane:
        environ = {name: value for name, value in self.environ.items() if name.startswith("LARDER_")}
        self.machine = machine
        self.other = machine.start("commanded_plane", environ=environ, **arguments)
        self.process = self.other.process
        assert self.other.hear() == {"ready": True}
        return self

    def kill(self) -> None:
        if self.other.process.poll() is None:
            self.other.kill()
        else:
            self.other.end()
