"""Real data planes that copy for engines of a device, killed and started again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.free_port import free_port
from tests.gpu.device_plane import DevicePlane
from tests.gpu.machines import Machine, Start
from tests.lmcache.planes import url_of

OLD = list(range(1, 33))
NEW = list(range(40, 72))


@pytest.fixture
def plane(socket_dir: Path) -> Iterator[DevicePlane]:
    """A data plane that has not started."""
    settings = {"lmcache_port": str(free_port()), "pool_bytes": "64MiB", "dataplane__segment_bytes": "16MiB"}
    plane = DevicePlane(socket_dir, settings)
    yield plane
    plane.kill()


def test_an_engine_outlives_a_data_plane_that_is_killed_during_its_copy(
    emulated: Machine, start: Start, plane: DevicePlane
) -> None:
    plane.begin(emulated).other.ask(do="stop_after", nbytes=100_000)
    engine = start(emulated, "engine")
    engine.ask(do="fill", seed=1)
    own = emulated.runtime.memory_used(emulated.device)
    assert engine.ask(do="connect", url=url_of(plane)) == {"registered": True}
    expected = engine.ask(do="blocks", numbers=OLD)["digest"]
    engine.tell(do="store", chunks=2, blocks=OLD)
    assert plane.other.ask(do="stopped") == {"stopped": True}
    plane.kill()
    assert emulated.runtime.memory_used(emulated.device) == own
    plane.begin(emulated)
    # The request went with its connection. The engine does not register again: what the first one kept is enough.
    assert engine.hear() == {"result": None}
    assert engine.ask(do="store", chunks=2, blocks=OLD) == {"result": True}
    assert engine.ask(do="retrieve", chunks=2, blocks=NEW) == {"result": True}
    assert engine.ask(do="blocks", numbers=NEW)["digest"] == expected


def test_handles_are_opened_again_after_a_restart(machine: Machine, start: Start, plane: DevicePlane) -> None:
    plane.begin(machine)
    engine = start(machine, "engine")
    engine.ask(do="fill", seed=1)
    engine.ask(do="connect", url=url_of(plane))
    assert engine.ask(do="store", chunks=2, blocks=OLD) == {"result": True}
    plane.kill()
    plane.begin(machine)
    engine.ask(do="reconnect")
    expected = engine.ask(do="blocks", numbers=OLD)["digest"]
    assert engine.ask(do="store", chunks=2, blocks=OLD) == {"result": True}
    assert engine.ask(do="retrieve", chunks=2, blocks=NEW) == {"result": True}
    assert engine.ask(do="blocks", numbers=NEW)["digest"] == expected
