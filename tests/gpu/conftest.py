"""`machine`: the twin, and a GPU where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dataplane.devices.runtime import DeviceError
from tests.gpu.machines import Machine, Other


@pytest.fixture(params=["twin", pytest.param("cuda", marks=pytest.mark.gpu)])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    try:
        made = Machine(request.param)
    except DeviceError as error:
        pytest.skip(f"no GPU: {error}")
    yield made
    made.close()


@pytest.fixture
def twin() -> Iterator[Machine]:
    """The twin alone: what has to be provoked."""
    made = Machine("twin")
    yield made
    made.twin.pace.go_on()
    made.close()


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Iterator[Callable[..., Other]]:
    """Starts other processes of a machine; none is left."""
    started: list[Other] = []

    def begin(machine: Machine, role: str, **arguments: object) -> Other:
        started.append(machine.start(role, **arguments))
        return started[-1]

    yield begin
    for other in started:
        if other.process.poll() is None:
            other.kill()
