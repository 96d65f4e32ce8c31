"""GPU copies on a device, made and read by the data plane, and granted to engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest

from dataplane.copies.copying import CopyThreads
from dataplane.copies.gpu_copies import MAX_WAITING_OF_ONE, GpuCopyReader, GpuCopyService
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.lookups import ListBlocks
from dataplane.protocol.control.records import Tier
from dataplane.protocol.engine import GpuCopiesMapped, MapGpuCopies, SpaceRequest
from dataplane.protocol.gpu_copies import MAX_EXTENTS
from dataplane.protocol.spaces import LMCACHE
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.pins import GpuCopyPoolStats
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench
from tests.dataplane.plane import RawEngine
from tests.driven.conftest import DrivenPlane
from tests.driven.engines import PER_CHUNK, Engine, done
from tests.gpu.layouts import ORDERS
from tests.gpu.machines import Machine
from tests.lmcache.planes import free_port

MakePlane = Callable[..., DrivenPlane]
MakeEngine = Callable[..., Engine]
OLD = [*range(1, 17), 20, 19, *range(21, 35)]
NEW = [*reversed(range(40, 72))]
GPU_POOL = {"dataplane__gpu_pool_bytes": str(8 * make.MIB), "dataplane__pin_budget_ratio": "0.9"}


def pin(plane: DrivenPlane, chain: list[bytes], generation: int = 1, tier: Tier = "gpu") -> None:
    with plane.manager() as manager:
        manager.push(*make.pins([make.pin("p", chain, model="driven", tier=tier)], generation))


def pool_of(stats: NodeStats) -> GpuCopyPoolStats | None:
    return stats.gpu_copy_pools[0] if stats.gpu_copy_pools else None


def wait_pool(plane: DrivenPlane, what: str, **fields: Any) -> GpuCopyPoolStats:
    def holds(stats: NodeStats) -> bool:
        pool = pool_of(stats)
        return pool is not None and all(getattr(pool, name) == value for name, value in fields.items())

    stats = plane.wait_stats(holds, what)
    pool = pool_of(stats)
    assert pool is not None
    return pool


def poison(engine: Engine, chain: list[bytes]) -> None:
    """Other bytes in the pool, under the same keys: what comes back as it was came from elsewhere."""
    with engine.client.acquire(chain) as lease:
        assert len(lease) == len(chain)
        for at in range(len(chain)):
            memory = lease.memory(at)
            assert memory.writable
            begin = int(lease.array(at).ctypes.data) - memory.address
            np.frombuffer(memory.view(), np.uint8)[begin : begin + engine.chunk_bytes] ^= 0xFF


@pytest.mark.parametrize("name", ORDERS)
def test_a_load_comes_from_gpu_copies_where_there_are_some(
    machine: Machine, make_plane: MakePlane, make_engine: MakeEngine, name: str
) -> None:
    plane = make_plane(machine, **GPU_POOL)
    engine = make_engine(machine, plane, layout=name, blocks=80)
    engine.register()
    engine.fill(1)
    keys = make.keys(2)
    done(engine.client.store_from(keys, OLD))
    expected, others = engine.blocks(OLD), engine.others(NEW)
    pin(plane, keys)
    pool = wait_pool(plane, "both blocks have GPU copies", gpu_copies=2)
    assert (pool.device, pool.readers, pool.wanted, pool.problem) == (machine.device.uuid, 1, 2, "")
    assert pool.gpu_copy_bytes == 2 * engine.chunk_bytes
    poison(engine, keys)
    load = done(engine.client.load_into(keys, NEW, event=engine.event()))
    assert load.hits == 2
    assert engine.blocks(NEW) == expected
    assert engine.others(NEW) == others
    assert wait_pool(plane, "both reads are counted", read_blocks=2).evicted_blocks == 0


def test_a_load_may_come_from_a_gpu_copy_and_from_the_pool(
    machine: Machine, make_plane: MakePlane, make_engine: MakeEngine
) -> None:
    plane = make_plane(machine, **GPU_POOL)
    engine = make_engine(machine, plane, blocks=80)
    engine.register()
    engine.fill(1)
    keys = make.keys(2)
    done(engine.client.store_from(keys, OLD))
    pin(plane, keys[1:])
    wait_pool(plane, "the second block has a GPU copy", gpu_copies=1)
    poison(engine, keys[1:])
    for skip, count in ((0, 32), (5, 29), (PER_CHUNK + 2, PER_CHUNK + 5)):
        engine.fill(1)
        expected, others = engine.blocks(OLD[skip:count]), engine.others(NEW[skip:count])
        assert done(engine.client.load_into(keys, NEW[:count], skip_blocks=skip)).hits == 2
        assert engine.blocks(NEW[skip:count]) == expected
        assert engine.others(NEW[skip:count]) == others


def test_workers_of_the_gateway_are_served_from_gpu_copies(machine: Machine, make_plane: MakePlane) -> None:
    port = free_port()
    plane = make_plane(machine, lmcache_port=str(port), **GPU_POOL)
    worker = machine.start("engine")
    try:
        assert worker.hear() == {"ready": True}
        worker.ask(do="fill", seed=1)
        assert worker.ask(do="connect", url=f"tcp://127.0.0.1:{port}") == {"registered": True}
        expected = worker.ask(do="blocks", numbers=OLD)["digest"]
        assert worker.ask(do="store", chunks=2, blocks=OLD) == {"result": True}
        with plane.manager() as manager:
            listed = manager.ask(ListBlocks("n", gateway=LMCACHE)).blocks
            assert len(listed) == 2
            record = make.pin(
                "p",
                [bytes.fromhex(each.key) for each in listed],
                model=listed[0].model,
                tenant=listed[0].tenant,
                tier="gpu",
            )
            manager.push(*make.pins([record]))
        wait_pool(plane, "both chunks have GPU copies", gpu_copies=2, readers=1)
        stats = plane.describe()
        assert stats.gateway is not None
        segment = np.memmap(f"/dev/shm/{stats.gateway.memory_name}", np.uint8, "r+")
        segment[:] ^= 0xFF
        before = worker.ask(do="blocks", numbers=NEW)["others"]
        assert worker.ask(do="retrieve", chunks=2, blocks=NEW) == {"result": True}
        assert worker.ask(do="blocks", numbers=NEW) == {"digest": expected, "others": before}
        wait_pool(plane, "both reads are counted", read_blocks=2)
    finally:
        worker.kill()
    wait_pool(plane, "the device has its memory back", readers=0, used_bytes=0)


def test_the_device_has_its_memory_back_when_the_pin_or_the_engine_goes(
    machine: Machine, make_plane: MakePlane, make_engine: MakeEngine
) -> None:
    plane = make_plane(machine, **GPU_POOL)
    engine = make_engine(machine, plane, blocks=80)
    engine.register()
    keys = make.keys(2)
    done(engine.client.store_from(keys, OLD))
    pin(plane, keys)
    wait_pool(plane, "there are GPU copies", gpu_copies=2)
    pin(plane, keys, 2, "host")
    pool = wait_pool(plane, "they are gone", gpu_copies=0, used_bytes=0)
    assert (pool.evicted_blocks, pool.copied_blocks) == (2, 2)
    pin(plane, keys, 3)
    assert wait_pool(plane, "there are new ones", gpu_copies=2).used_bytes == 2 * make.MIB
    engine.client.close()
    wait_pool(plane, "they have no readers", readers=0, gpu_copies=0, used_bytes=0)
    if machine.kind == "emulated":
        assert machine.runtime.memory_used(machine.device) == engine.kind.nbytes // 4096 * 4096 + (
            4096 if engine.kind.nbytes % 4096 else 0
        )


def test_a_device_that_has_no_room_costs_nothing_but_the_gpu_copies(
    emulated: Machine, make_plane: MakePlane, make_engine: MakeEngine
) -> None:
    settings = {**GPU_POOL, "dataplane__gpu_pool_bytes": str(1 << 50), "dataplane__segment_bytes": "16MiB"}
    plane = make_plane(emulated, **settings)
    engine = make_engine(emulated, plane, blocks=80)
    engine.register()
    engine.fill(1)
    keys = make.keys(2)
    done(engine.client.store_from(keys, OLD))
    expected = engine.blocks(OLD)
    plane.ask("fail", operation="allocate", name="cudaErrorMemoryAllocation")
    pin(plane, keys)
    pool = wait_pool(plane, "the device said no", gpu_copies=0, used_bytes=0, failed_copies=2)
    assert "cudaErrorMemoryAllocation" in pool.problem
    done(engine.client.load_into(keys, NEW))
    assert engine.blocks(NEW) == expected


def test_requests_for_gpu_copies_that_cannot_be_are_refused_with_a_reason(
    emulated: Machine, make_plane: MakePlane
) -> None:
    plane = make_plane(emulated, **GPU_POOL)
    uuid = emulated.device.uuid
    with RawEngine(plane.socket) as raw:
        code, _ = raw.refusal(MapGpuCopies(1, uuid, [], [], True))
        assert code is Code.NOT_ATTACHED
        raw.attach(SpaceRequest(make.space()))
        for message, field in (
            (MapGpuCopies(2, "", [], [], True), "device"),
            (MapGpuCopies(3, "x" * 65, [], [], True), "device"),
            (MapGpuCopies(4, "GPU\n", [], [], True), "device"),
            (MapGpuCopies(5, uuid, [1] * (MAX_EXTENTS + 1), [], True), "extents"),
            (MapGpuCopies(6, uuid, [], [1] * (MAX_EXTENTS + 1), True), "closed"),
        ):
            refused = raw.ask(message)
            assert (refused.code, refused.field) == (Code.BAD_FIELD, field)
        refused = raw.ask(MapGpuCopies(7, "0" * 32, [], [], True))
        assert (refused.code, refused.field) == (Code.DEVICE_REFUSED, "device")
        assert "not visible" in refused.message
        mapped = raw.ask(MapGpuCopies(8, "GPU-" + uuid.upper(), [0, 1, -5, 2**40], [7, -1], True))
        assert isinstance(mapped, GpuCopiesMapped)
        assert (mapped.grants, len(raw.fds)) == ([], 3)  # the index, the area and the table


def test_a_node_without_a_pool_for_gpu_copies_reports_it(emulated: Machine, make_plane: MakePlane) -> None:
    plane = make_plane(emulated)
    with RawEngine(plane.socket) as raw:
        raw.attach(SpaceRequest(make.space()))
        refused = raw.ask(MapGpuCopies(1, emulated.device.uuid, [], [], True))
    assert (refused.code, refused.field) == (Code.UNSUPPORTED, "device")
    assert "gpu_pool_bytes" in refused.message


def test_a_node_without_devices_reports_it(emulated: Machine, make_plane: MakePlane) -> None:
    plane = make_plane(emulated, no_devices=True, **GPU_POOL)
    with RawEngine(plane.socket) as raw:
        raw.attach(SpaceRequest(make.space()))
        code, _ = raw.refusal(MapGpuCopies(1, emulated.device.uuid, [], [], True))
    assert code is Code.DEVICE_REFUSED


class Never:
    """Threads that do not come to anything."""

    closing = False

    def submit(self, *_: object) -> bool:
        return True


def test_one_engine_does_not_keep_others_from_waiting_for_cuda() -> None:
    bench = Bench(64 * make.KIB)
    none: Any = None
    copies = GpuCopyService(
        bench.node.gpu_copies, bench.node.engines, none, none, cast("CopyThreads", Never()), 1, lambda: bench.now
    )
    for _ in range(MAX_WAITING_OF_ONE):
        copies.map(cast("GpuCopyReader", Waiter(1)), MapGpuCopies(1, "gpu", [], [], True))
    with pytest.raises(ProtocolError, match="try again later"):
        copies.map(cast("GpuCopyReader", Waiter(1)), MapGpuCopies(1, "gpu", [], [], True))
    copies.map(cast("GpuCopyReader", Waiter(2)), MapGpuCopies(1, "gpu", [], [], True))


@dataclass
class Waiter:
    """An engine that is not answered yet."""

    client: int
    open: bool = True
