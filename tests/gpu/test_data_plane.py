"""Real data planes that copy for engines of a device, killed and started again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.dataplane.plane import Plane
from tests.free_port import free_port
from tests.gpu.machines import Machine, Other
from tests.lmcache.planes import url_of

OLD = list(range(1, 33))
NEW = list(range(40, 72))
Start = Callable[..., Other]


def plane(folder: Path, machine: Machine, start: Start, port: int, **arguments: object) -> Other:
    settings = {"lmcache_port": str(port), "pool_bytes": "64MiB", "dataplane__segment_bytes": "16MiB"}
    environ = {name: value for name, value in Plane(folder, settings).environ.items() if name.startswith("LARDER_")}
    other = start(machine, "plane", environ=environ, **arguments)
    assert other.hear() == {"ready": True}
    return other


def test_an_engine_outlives_a_data_plane_that_is_killed_during_its_copy(
    emulated: Machine, start: Start, socket_dir: Path
) -> None:
    port = free_port()
    first = plane(socket_dir, emulated, start, port, stop_after=100_000)
    engine = start(emulated, "engine")
    engine.hear()
    engine.ask(do="fill", seed=1)
    own = emulated.runtime.memory_used(emulated.device)
    url = url_of(Plane(socket_dir, {"lmcache_port": str(port)}))
    assert engine.ask(do="connect", url=url) == {"registered": True}
    expected = engine.ask(do="blocks", numbers=OLD)["digest"]
    engine.tell(do="store", chunks=2, blocks=OLD)
    assert first.hear() == {"stopped": True}
    first.kill()
    assert emulated.runtime.memory_used(emulated.device) == own
    plane(socket_dir, emulated, start, port)
    # The request went with its connection. The engine does not register again: what the first one kept is enough.
    assert engine.hear() == {"result": None}
    assert engine.ask(do="store", chunks=2, blocks=OLD) == {"result": True}
    assert engine.ask(do="retrieve", chunks=2, blocks=NEW) == {"result": True}
    assert engine.ask(do="blocks", numbers=NEW)["digest"] == expected


def test_handles_are_opened_again_after_a_restart(machine: Machine, start: Start, socket_dir: Path) -> None:
    port = free_port()
    first = plane(socket_dir, machine, start, port)
    engine = start(machine, "engine")
    engine.hear()
    engine.ask(do="fill", seed=1)
    engine.ask(do="connect", url=url_of(Plane(socket_dir, {"lmcache_port": str(port)})))
    assert engine.ask(do="store", chunks=2, blocks=OLD) == {"result": True}
    first.kill()
    plane(socket_dir, machine, start, port)
    engine.ask(do="reconnect")
    expected = engine.ask(do="blocks", numbers=OLD)["digest"]
    assert engine.ask(do="store", chunks=2, blocks=OLD) == {"result": True}
    assert engine.ask(do="retrieve", chunks=2, blocks=NEW) == {"result": True}
    assert engine.ask(do="blocks", numbers=NEW)["digest"] == expected
