"""A pin of the tier `gpu`, from an operator's request to GPU copies on a device, and back."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.command import output
from tests.app.plane import LOOK_S, Plane
from tests.app.real_node import governing
from tests.dataplane import factories as make
from tests.gpu.device_plane import DevicePlane
from tests.gpu.layouts import layout
from tests.gpu.machines import Machine
from tests.gpu.paged_engine import BLOCKS, KIND, PAGE_BYTES, PagedEngine

pytestmark = pytest.mark.anyio

SETTINGS = {
    "pool_bytes": "64MiB",
    "dataplane__segment_bytes": "16MiB",
    "dataplane__gpu_pool_bytes": str(8 * make.MIB),
    "dataplane__pin_budget_ratio": "0.9",
}
KEYS = make.keys(2)
PIN = {"model": "gpu", "keys": [key.hex() for key in KEYS], "tier": "gpu"}


async def until(plane: Plane, holds: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
    """The pin, once this holds of it."""
    deadline = time.monotonic() + 60
    while not holds(pin := await plane.get("/api/v1/pins/p")):
        assert time.monotonic() < deadline, f"{what}: {pin}"
        await asyncio.sleep(LOOK_S)
    return dict(pin)


def effect(pin: dict[str, Any]) -> tuple[str, str]:
    condition = pin["status"]["conditions"][-1]
    return condition["status"], condition["reason"]


@pytest.fixture
def node(socket_dir: Path, emulated: Machine) -> Iterator[DevicePlane]:
    plane = DevicePlane(socket_dir, SETTINGS).begin(emulated)
    yield plane
    plane.describe()
    plane.kill()


@pytest.fixture
def start_engine(emulated: Machine, node: DevicePlane) -> Iterator[Callable[[], PagedEngine]]:
    started: list[PagedEngine] = []

    def start() -> PagedEngine:
        started.append(PagedEngine(emulated, node.socket, layout(KIND, "float16", PAGE_BYTES, blocks=BLOCKS)))
        return started[-1]

    yield start
    for engine in started:
        engine.close()


async def test_a_pin_for_gpus_has_gpu_copies_where_an_engine_reads_it_and_loses_them_with_its_tier(
    emulated: Machine, node: DevicePlane, start_engine: Callable[[], PagedEngine], tmp_path: Path
) -> None:
    async with governing(node, tmp_path) as plane:
        put = await plane.http.put("/api/v1/pins/p?wait=30s", json=PIN)
        assert (put.status_code, put.json()["status"]["applied"]) == (201, True)
        await until(plane, lambda pin: effect(pin) == ("False", "NoGpuCopyPool"), "no engine has asked")

        def store() -> PagedEngine:
            engine = start_engine()
            engine.fill(1)
            engine.store(KEYS, range(32))
            return engine

        engine = await asyncio.to_thread(store)
        pin = await until(plane, lambda pin: pin["gpu_copies"] == 2 and effect(pin)[0] == "True", "two GPU copies")
        (on_node,) = pin["nodes"].values()
        assert (on_node["resident"], on_node["gpu_copies"]) == (2, 2)
        assert on_node["gpu_copy_bytes"] == pin["gpu_copy_bytes"] == 2 * engine.cache.chunk_bytes
        (pool,) = (await plane.node())["stats"]["gpu_copy_pools"]
        assert (pool["device"], pool["gpu_copies"], pool["wanted"]) == (emulated.device.uuid, 2, 2)
        assert (pool["capacity_bytes"], pool["copied_blocks"], pool["problem"]) == (8 * make.MIB, 2, "")
        out = await output(plane, "nodes", "gpus", "-o", "wide")
        assert [text for text in (emulated.device.uuid, "2/2", "8 MiB") if text not in out] == []
        scrape = (await plane.http.get("/metrics")).text
        assert f'device="{emulated.device.uuid}"' in scrape
        assert await plane.until_event("gpu_copy_pool.created")

        many = make.keys(12)  # of 1 MiB each

        def store_more() -> None:
            for at in range(0, len(many), 2):
                engine.store(many[at : at + 2], range(32))

        await asyncio.to_thread(store_more)
        keys = {"keys": [key.hex() for key in many], "model": "gpu", "tier": "gpu"}
        put = await plane.http.put("/api/v1/pins/p?wait=30s", json=keys, headers={"If-Match": "*"})
        assert put.status_code == 200
        pin = await until(plane, lambda pin: (pin["resident"], pin["gpu_copies"]) == (12, 8), "as many as fit")
        assert effect(pin) == ("False", "FewGpuCopies")
        (pool,) = (await plane.node())["stats"]["gpu_copy_pools"]
        assert (pool["used_bytes"], pool["wanted"]) == (pool["capacity_bytes"], 12)

        await output(plane, "pins", "set", "p", "--tier", "host", "--wait", "30s")
        pin = await until(plane, lambda pin: pin["gpu_copies"] == 0 and effect(pin)[0] == "True", "no GPU copy")
        assert (pin["tier"], pin["resident"]) == ("host", 12)
