"""`machine`: the emulated device, and a GPU where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gpu.machine_fixtures import emulated, machine
from tests.gpu.machines import Machine, Other
from tests.gpu.pool import AlignedPool, Gateway

__all__ = ["machine", "emulated"]


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Iterator[Callable[..., Other]]:
    """Starts other processes of a machine, which are ready; none is left."""
    started: list[Other] = []

    def begin(machine: Machine, role: str, **arguments: object) -> Other:
        started.append(machine.start(role, **arguments))
        assert started[-1].hear() == {"ready": True}
        return started[-1]

    yield begin
    for other in started:
        if other.process.poll() is None:
            other.kill()


@pytest.fixture
def make_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Gateway]]:
    """A gateway with the devices of a machine; its accounts are consistent at the end, and nothing is open."""
    made: list[Gateway] = []

    def new(machine: Machine, pool: type = AlignedPool) -> Gateway:
        made.append(Gateway(tmp_path / f"gateway-{len(made)}", machine, monkeypatch, pool))
        return made[-1]

    yield new
    for each in made:
        each.unregister_all()
    faults = [fault for each in made for fault in each.bench.faults()]
    for each in made:
        each.close()
    assert not faults
    assert all(each.is_unpinned() for each in made)


@pytest.fixture
def gateway(machine: Machine, make_gateway: Callable[..., Gateway]) -> Gateway:
    return make_gateway(machine)


@pytest.fixture
def emulated_gateway(emulated: Machine, make_gateway: Callable[..., Gateway]) -> Gateway:
    return make_gateway(emulated)
