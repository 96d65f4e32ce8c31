"""`machine` and `emulated`, a data plane that has its devices, and engines beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dataplane.plane import Plane
from tests.driven.engines import Engine, Process, make
from tests.gpu.machine_fixtures import emulated, machine
from tests.gpu.machines import Machine

__all__ = ["machine", "emulated"]


class DrivenPlane(Plane):
    """A data plane of a machine, which can be made to stop in the middle of a copy, or to fail one."""

    other: Process
    machine: Machine

    def begin(self, machine: Machine, **arguments: Any) -> DrivenPlane:
        environ = {name: value for name, value in self.environ.items() if name.startswith("LARDER_")}
        self.machine = machine
        self.other = Process("plane", {"kind": machine.kind, "uuid": machine.uuid, "environ": environ, **arguments})
        assert self.other.hear() == {"ready": True}
        return self

    @property
    def pid(self) -> int:
        return self.other.pid

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        return self.other.ask(do=do, **arguments)

    def kill(self) -> None:
        end(self.other)


def end(other: Process) -> None:
    """Kill it if it lives, and close its pipes."""
    if other.process.poll() is None:
        other.kill()
    else:
        other.end()


@pytest.fixture
def make_plane(socket_dir: Path) -> Iterator[Callable[..., DrivenPlane]]:
    """`make_plane(machine, pool_bytes="8MiB")`: one that runs, in the same folder as those before it; its accounts are
    consistent at the end."""
    made: list[DrivenPlane] = []

    def new(machine: Machine, no_devices: bool = False, **settings: str) -> DrivenPlane:
        options = {"pool_bytes": "64MiB", "dataplane__segment_bytes": "16MiB", **settings}
        made.append(DrivenPlane(socket_dir, options).begin(machine, no_devices=no_devices))
        return made[-1]

    yield new
    for each in made:
        if each.other.process.poll() is None:
            each.describe()
        each.kill()


@pytest.fixture
def make_engine() -> Iterator[Callable[..., Engine]]:
    """An engine in this process."""
    made: list[Engine] = []

    def new(machine: Machine, plane: Plane, timeout_s: float = 30.0, **arguments: Any) -> Engine:
        made.append(make(machine, plane.socket, arguments, timeout_s=timeout_s))
        return made[-1]

    yield new
    for each in made:
        if each.machine.kind == "emulated":
            each.machine.emulator.pace.resume()
        each.close()


@pytest.fixture
def plane(emulated: Machine, make_plane: Callable[..., DrivenPlane]) -> DrivenPlane:
    """A data plane of the emulated machine."""
    return make_plane(emulated)


@pytest.fixture
def engine(emulated: Machine, plane: DrivenPlane, make_engine: Callable[..., Engine]) -> Engine:
    """An engine of the emulated machine, with a registered cache."""
    made = make_engine(emulated, plane, blocks=80)
    made.register()
    return made


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    """Other processes of a machine; none is left."""
    started: list[Process] = []

    def begin(machine: Machine, role: str, plane: Plane, **arguments: Any) -> Process:
        started.append(Process(role, {"kind": machine.kind, "uuid": machine.uuid, "socket": plane.socket, **arguments}))
        assert started[-1].hear() == {"ready": True}
        return started[-1]

    yield begin
    for other in started:
        end(other)
