"""What an engine reads from GPU copies on its device, and what it does when the data plane refuses, fails or lies."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataplane.client import Client, ClientEvent, Space, attach
from dataplane.client.gpu import PagedCache
from dataplane.devices.copying import CopyLane, methods_for
from dataplane.devices.runtime import DeviceError, Handle
from dataplane.protocol.codes import Code
from dataplane.protocol.engine import Detach, ExtentGrant, GpuCopiesMapped
from dataplane.protocol.gpu_copies import R_MAGIC, R_VERSION, UNIT_BYTES, location_of
from dataplane.protocol.layout import HOT_CONTROL
from tests.dataplane.broken_plane import memory
from tests.dataplane.plane import wait_for
from tests.gpu.gpu_copy_plane import IDENTITY, GpuCopyPlane, table_of
from tests.gpu.layouts import ITEM_BYTES, ORDERS, TOKENS, layout
from tests.gpu.machines import Bytes, Machine, Other
from tests.gpu.paged_memory import NEW, OLD, PagedMemory

KEYS = [bytes([at]) * 32 for at in (1, 2, 3, 4)]
KIND = "keys and values first, NHD"
Start = Callable[..., Other]
MakePlane = Callable[..., GpuCopyPlane]
MakeEngine = Callable[..., "Engine"]


class Engine:
    """A client and paged caches of this process, and the blocks of a plane with their GPU copies."""

    def __init__(self, plane: GpuCopyPlane, machine: Machine, **options: Any) -> None:
        self.plane, self.machine = plane, machine
        self.events: list[ClientEvent] = []
        self.client: Client = attach(plane.socket, [Space(model="gpu")], timeout_s=2, on_event=self.events.append)
        self.caches: list[PagedCache] = []
        self.memory: list[PagedMemory] = []
        self.use(**options)

    def use(self, *arguments: Any, **options: Any) -> None:
        """Use one more paged cache from now on."""
        self.paged_memory, self.cache = self.paged(*arguments, **options)
        self.kind, self.address = self.paged_memory.kind, self.paged_memory.address
        self.fill, self.holds = self.paged_memory.fill, self.paged_memory.holds
        self.poisoned = self.paged_memory.poisoned

    def paged(
        self, name: str = KIND, dtype: str = "float16", page_bytes: int = 16 << 10, **options: Any
    ) -> tuple[PagedMemory, PagedCache]:
        """One more paged cache."""
        kind = layout(name, dtype, page_bytes, blocks=80)
        paged_memory = PagedMemory(self.machine, kind)
        self.memory.append(paged_memory)
        cache = PagedCache(
            self.client,
            self.machine.runtime,
            self.machine.device,
            kind.planes(),
            [paged_memory.address] * len(kind.offsets),
            blocks=kind.blocks,
            tokens_per_block=TOKENS,
            **{"gpu_copies": True, **options},
        )
        self.caches.append(cache)
        return paged_memory, cache

    @property
    def heard(self) -> list[str]:
        return [event.name for event in self.events]

    def chunks(self, content: Bytes, old: list[int], count: int) -> Bytes:
        """The bytes of some chunks, as a store makes them."""
        self.machine.upload(self.address, content)
        group = self.cache.group
        at, pool = self.machine.host(group.chunk_bytes * count)
        lane = CopyLane(
            self.machine.runtime, self.machine.device, methods_for(self.machine.runtime, self.machine.device)
        )
        for number in range(count):
            runs = group.runs(old[number * 16 : number * 16 + 16], base=self.address)
            lane.copy(runs, at + number * group.chunk_bytes, to_device=False)
        lane.synchronize()
        lane.close()
        return pool.copy()

    def make_gpu_copies(self, content: Bytes, extent: int, with_gpu_copies: list[int], begin: int = 0) -> None:
        """The plane has a block for each key, of `content`, and those at some positions have a GPU copy."""
        self.hear()
        size = self.cache.chunk_bytes
        data = self.chunks(content, OLD, 3)
        self.write(extent, data, begin)
        for at in range(3):
            self.plane.block(KEYS[at], at, size)
            if at in with_gpu_copies:
                self.plane.make_gpu_copies(at, extent, begin + at * size)

    def hear(self) -> None:
        """What was asked until now is answered: the plane answers in order."""
        self.client.reserve([KEYS[3]], 4096)

    def write(self, extent: int, data: Bytes, begin: int = 0) -> None:
        grant = self.plane.extents[extent]
        opened = self.machine.runtime.open(Handle(grant.handle, grant.offset, grant.nbytes, self.machine.device.uuid))
        self.machine.upload(opened.address + grant.offset + begin, data)
        opened.close()

    def load(self, blocks: list[int] = NEW, keys: int = 3, first: int = 0) -> tuple[bool, int]:
        """Whether it went well, and how many chunks came from GPU copies."""
        load = self.cache.load(self.client.acquire(KEYS[:keys]), blocks, first=first)
        return load.finish(), load.gpu_copies

    def has_reported_a_fault(self) -> bool:
        """After one more call."""
        self.load([], keys=1)
        return "fault" in self.heard

    def opened(self) -> int:
        """Allocations of others that this process has mapped; only the emulated device."""
        return len(self.machine.emulator._opened)

    def close(self) -> None:
        for cache in self.caches:
            cache.close()
        self.client.close()
        for each in self.memory:
            each.free()


GpuCopySetup = tuple[GpuCopyPlane, Engine, Bytes]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads wait for extents, on a busy machine too."""
    monkeypatch.setattr("dataplane.client.gpu_copies.EXTENT_TIMEOUT_S", 2.0)


@pytest.fixture
def make_plane(socket_dir: Path) -> Iterator[MakePlane]:
    made: list[GpuCopyPlane] = []

    def new(**options: Any) -> GpuCopyPlane:
        folder = socket_dir / str(len(made))
        folder.mkdir()
        made.append(GpuCopyPlane(folder, **options))
        return made[-1]

    yield new
    for each in made:
        each.close()


@pytest.fixture
def make_engine() -> Iterator[MakeEngine]:
    made: list[Engine] = []

    def new(plane: GpuCopyPlane, machine: Machine, **options: Any) -> Engine:
        made.append(Engine(plane, machine, **options))
        return made[-1]

    yield new
    for each in made:
        if each.machine.kind == "emulated":
            each.machine.emulator.pace.resume()
        each.close()


@pytest.fixture
def exporter(start: Start) -> Callable[..., Other]:
    """A process that owns memory which is an extent, as a data plane does."""

    def new(machine: Machine, page_bytes: int = 16 << 10) -> Other:
        other = start(machine, "engine", page_bytes=page_bytes)
        other.hear()
        return other

    return new


@pytest.fixture
def with_gpu_copies(
    emulated: Machine, make_plane: MakePlane, make_engine: MakeEngine, exporter: Callable[..., Other]
) -> GpuCopySetup:
    """Three blocks, all with a GPU copy in extent 5."""
    plane = make_plane()
    plane.export(5, emulated, exporter(emulated))
    plane.list_extents()
    engine = make_engine(plane, emulated)
    content = engine.fill(1)
    engine.make_gpu_copies(content, 5, [0, 1, 2])
    engine.fill(2)
    return plane, engine, content


# ---- what is read


@pytest.mark.parametrize(
    "page_bytes", [16 << 10, *(pytest.param(size, marks=pytest.mark.full) for size in (32 << 10, 64 << 10))]
)
@pytest.mark.parametrize("dtype", ITEM_BYTES)
def test_chunks_come_out_of_gpu_copies_in_every_layout(
    machine: Machine,
    make_plane: MakePlane,
    make_engine: MakeEngine,
    exporter: Callable[..., Other],
    dtype: str,
    page_bytes: int,
) -> None:
    plane = make_plane()
    plane.export(5, machine, exporter(machine, page_bytes))
    plane.list_extents()
    engine = make_engine(plane, machine)
    for number, name in enumerate(ORDERS):
        engine.use(name, dtype, page_bytes)
        engine.hear()
        content = engine.fill(number)
        data = engine.chunks(content, OLD, 1)
        engine.write(5, data)
        key, at = (number + 100).to_bytes(4, "little") * 8, number
        plane.publish(key, offset=0, nbytes=engine.cache.chunk_bytes, at=at)
        plane.make_gpu_copies(at, 5, 0)
        engine.fill(99)
        load = engine.cache.load(engine.client.acquire([key]), NEW[:16])
        assert (load.finish(), load.gpu_copies) == (True, 1)
        assert engine.holds(content, OLD[:16], NEW[:16])
        engine.cache.close()
    assert len(plane.gpu_copy_requests) <= 2 * len(ORDERS)


def test_blocks_without_a_gpu_copy_come_from_the_pool_in_the_same_load(
    machine: Machine, make_plane: MakePlane, make_engine: MakeEngine, exporter: Callable[..., Other]
) -> None:
    plane = make_plane()
    plane.export(3, machine, exporter(machine), offset=UNIT_BYTES)
    plane.list_extents()
    engine = make_engine(plane, machine)
    content = engine.fill(1)
    engine.make_gpu_copies(content, 3, [0, 2], begin=3 * UNIT_BYTES)
    engine.fill(2)
    assert engine.load() == (True, 2)
    for at in (0, 2):
        assert engine.holds(content, OLD[at * 16 : at * 16 + 16], NEW[at * 16 : at * 16 + 16])
    assert engine.poisoned(NEW[16:32])
    assert [(each.extents, each.closed, each.table) for each in plane.gpu_copy_requests] == [
        ([], [], True),
        ([3], [], False),
    ]


def test_a_load_from_gpu_copies_begins_and_ends_within_chunks(with_gpu_copies: GpuCopySetup) -> None:
    _, engine, content = with_gpu_copies
    before = engine.machine.download(engine.address, engine.kind.nbytes)
    for low, high in ((5, 37), (0, 1), (16, 32), (47, 48), (17, 18)):
        engine.machine.upload(engine.address, before)
        blocks = NEW[low:high]
        chunks = (high - 1) // 16 - low // 16 + 1
        assert engine.load(blocks, first=low) == (True, chunks)
        assert engine.holds(content, OLD[low:high], blocks)
        others = sorted(set(range(80)) - set(blocks))
        assert engine.holds(before, others, others)
    assert engine.load([], first=5) == (True, 0)


def test_layers_arrive_one_by_one_behind_the_engine_s_event(with_gpu_copies: GpuCopySetup) -> None:
    _, engine, content = with_gpu_copies
    engine.load()
    engine.fill(3)
    compute = engine.machine.runtime.stream(engine.machine.device)
    reached = engine.machine.emulator.pace.stop_after(100_000)
    load = engine.cache.load(engine.client.acquire(KEYS[:3]), NEW)
    assert load.gpu_copies == 3
    assert reached.wait(60)
    assert not load.arrived(0)
    assert load.wait_layer(1, compute)
    engine.machine.emulator.pace.resume()
    compute.synchronize()
    assert load.arrived(0)
    assert load.arrived(1)
    assert load.finish()
    assert engine.holds(content, OLD, NEW)
    compute.close()


def test_the_lease_lasts_as_long_as_the_copies(with_gpu_copies: GpuCopySetup) -> None:
    plane, engine, _ = with_gpu_copies
    engine.load()
    assert plane.leased() == 0
    reached = engine.machine.emulator.pace.stop_after(100_000)
    lease = engine.client.acquire(KEYS[:3])
    load = engine.cache.load(lease, NEW)
    lease.release()
    assert reached.wait(60)
    assert plane.leased() == 3
    engine.machine.emulator.pace.resume()
    assert load.finish()
    assert plane.leased() == 0


def test_without_gpu_copies_nothing_is_requested_and_the_pool_is_read(
    emulated: Machine, make_plane: MakePlane, make_engine: MakeEngine, exporter: Callable[..., Other]
) -> None:
    plane = make_plane()
    plane.export(5, emulated, exporter(emulated))
    plane.list_extents()
    engine = make_engine(plane, emulated, gpu_copies=False)
    engine.make_gpu_copies(engine.fill(1), 5, [0, 1, 2])
    assert engine.load() == (True, 0)
    assert engine.poisoned(NEW)
    assert plane.gpu_copy_requests == []


def test_two_caches_of_one_client_share_open_extents(with_gpu_copies: GpuCopySetup) -> None:
    plane, engine, content = with_gpu_copies
    assert engine.load() == (True, 3)
    first = engine.cache
    engine.use()
    engine.fill(4)
    assert engine.load() == (True, 3)
    assert engine.holds(content, OLD, NEW)
    first.close()
    assert engine.opened() == 1
    assert engine.load() == (True, 3)
    assert len(plane.gpu_copy_requests) == 2
    engine.cache.close()
    assert engine.opened() == 0
    wait_for(lambda: plane.gpu_copy_requests[-1].closed == [5], "it is reported")


def test_a_client_that_detaches_has_nothing_open(with_gpu_copies: GpuCopySetup) -> None:
    plane, engine, _ = with_gpu_copies
    engine.load()
    assert engine.opened() == 1
    engine.client.close()
    assert engine.opened() == 0
    closed, detach = plane.requests[-2:]
    assert (closed.closed, type(detach)) == ([5], Detach)


# ---- blocks and GPU copies that are not each other's


def test_a_gpu_copy_of_another_block_of_the_same_descriptor_is_not_read(with_gpu_copies: GpuCopySetup) -> None:
    plane, engine, _ = with_gpu_copies
    engine.load()
    plane.index.hot[1, HOT_CONTROL] += np.uint64(1 << 16)
    assert engine.load() == (True, 2)
    assert engine.poisoned(NEW[16:32])


def test_a_gpu_copy_that_was_withdrawn_is_not_read(with_gpu_copies: GpuCopySetup) -> None:
    plane, engine, _ = with_gpu_copies
    assert engine.load() == (True, 3)
    plane.table.hide(np.array([0, 2]))
    assert engine.load() == (True, 1)
    assert engine.poisoned([*NEW[:16], *NEW[32:]])


def test_a_block_of_another_size_is_read_from_the_pool(with_gpu_copies: GpuCopySetup) -> None:
    plane, engine, _ = with_gpu_copies
    engine.load()
    plane.publish(KEYS[0], offset=0, nbytes=engine.cache.chunk_bytes + 4096, at=0)
    assert engine.load(NEW[:16], keys=1) == (True, 0)


# ---- extents that come and go


def test_a_withdrawn_extent_is_closed_with_the_next_copy_and_reported(with_gpu_copies: GpuCopySetup) -> None:
    plane, engine, _ = with_gpu_copies
    assert engine.load() == (True, 3)
    assert engine.opened() == 1
    plane.table.hide(np.arange(3))
    plane.extents.clear()
    plane.list_extents()
    assert engine.load() == (True, 0)
    wait_for(lambda: engine.opened() == 0, "it is closed")
    wait_for(lambda: plane.gpu_copy_requests[-1].closed == [5], "it is reported")
    assert engine.load() == (True, 0)
    assert len(plane.gpu_copy_requests) == 3


def test_an_extent_that_is_given_up_during_a_load_is_closed_when_the_load_ended(with_gpu_copies: GpuCopySetup) -> None:
    plane, engine, content = with_gpu_copies
    engine.load()
    engine.fill(3)
    reached = engine.machine.emulator.pace.stop_after(100_000)
    load = engine.cache.load(engine.client.acquire(KEYS[:3]), NEW)
    assert reached.wait(60)
    plane.table.hide(np.arange(3))
    plane.extents.clear()
    plane.list_extents()
    other = engine.cache.load(engine.client.acquire(KEYS[:3]), OLD[:16])
    assert (load.gpu_copies, other.gpu_copies) == (3, 0)
    assert engine.opened() == 1
    assert plane.gpu_copy_requests[-1].closed == []
    engine.machine.emulator.pace.resume()
    assert load.finish()
    wait_for(lambda: engine.opened() == 0, "it is closed")
    assert other.finish()
    assert engine.holds(content, OLD, NEW[:16] + NEW[16:32] + NEW[32:]) or engine.poisoned(OLD[:16])
    wait_for(lambda: plane.gpu_copy_requests[-1].closed == [5], "it is reported")


def test_found_extents_are_requested_together_and_once(
    with_gpu_copies: GpuCopySetup, exporter: Callable[..., Other]
) -> None:
    plane, engine, _ = with_gpu_copies
    for number in (8, 9):
        plane.export(number, engine.machine, exporter(engine.machine))
    plane.list_extents()
    size = engine.cache.chunk_bytes
    plane.make_gpu_copies(1, 8, size)
    plane.make_gpu_copies(2, 9, 0)
    del plane.extents[9]  # of another space: it is listed, and not granted
    assert engine.load() == (True, 2)
    assert engine.load() == (True, 2)
    assert [sorted(each.extents) for each in plane.gpu_copy_requests] == [[], [5, 8, 9]]


def test_an_answer_that_comes_late_counts_for_the_next_load(
    with_gpu_copies: GpuCopySetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, engine, content = with_gpu_copies
    monkeypatch.setattr("dataplane.client.gpu_copies.EXTENT_TIMEOUT_S", 0.0)
    assert engine.load(NEW[:16], keys=1)[0]
    wait_for(lambda: engine.load() == (True, 3), "the answer came")
    assert engine.holds(content, OLD, NEW)


def test_an_extent_that_cannot_be_opened_is_left_to_the_pool_and_tried_again_later(
    with_gpu_copies: GpuCopySetup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plane, engine, content = with_gpu_copies
    engine.machine.emulator.fail("open", "cudaErrorMapBufferObjectFailed")
    assert engine.load() == (True, 0)
    assert engine.poisoned(NEW)
    assert engine.load() == (True, 0)
    assert len([each for each in caplog.text.splitlines() if "could not be opened" in each]) == 1
    later(monkeypatch)
    assert engine.load() == (True, 3)
    assert engine.holds(content, OLD, NEW)
    assert len(plane.gpu_copy_requests) == 2


def test_a_copy_from_a_gpu_copy_that_fails_fails_the_load_and_lets_its_lease_go(with_gpu_copies: GpuCopySetup) -> None:
    plane, engine, content = with_gpu_copies
    for operation in ("copy", "copying"):
        engine.machine.emulator.fail(operation)
        assert engine.load() == (False, 3)
        assert plane.leased() == 0
    assert engine.load() == (True, 3)
    assert engine.holds(content, OLD, NEW)


# ---- data planes that refuse


def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was to be left alone for a while may be tried again."""
    clock = type("Later", (), {"monotonic": staticmethod(lambda: time.monotonic() + 11)})
    monkeypatch.setattr("dataplane.client.gpu_copies.time", clock)


@pytest.mark.parametrize("refusal", [Code.UNSUPPORTED, Code.NOT_ALLOWED, None])
def test_a_data_plane_without_gpu_copies_gets_one_request(
    emulated: Machine,
    make_plane: MakePlane,
    make_engine: MakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    refusal: Code | None,
) -> None:
    plane = make_plane(refusal=refusal, old=refusal is None)
    engine = make_engine(plane, emulated)
    plane.block(KEYS[0], 0, engine.cache.chunk_bytes)
    for _ in range(3):
        assert engine.load(NEW[:16], keys=1) == (True, 0)
        later(monkeypatch)
    assert engine.poisoned(NEW[:16])
    assert len(plane.gpu_copy_requests) == 1
    assert engine.heard == ["attached"]


def test_a_refused_device_is_requested_again_later(
    with_gpu_copies: GpuCopySetup,
    emulated: Machine,
    make_plane: MakePlane,
    make_engine: MakeEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plane, first, content = with_gpu_copies
    plane.refusal = Code.DEVICE_REFUSED
    engine = make_engine(plane, emulated)
    engine.fill(7)
    for _ in range(3):
        assert engine.load() == (True, 0)
    wait_for(lambda: len(plane.gpu_copy_requests) == 2, "it was asked")
    plane.refusal = None
    later(monkeypatch)
    wait_for(lambda: engine.load() == (True, 3), "it asks again")
    assert engine.holds(content, OLD, NEW)
    assert first.heard == engine.heard == ["attached"]


def test_closed_extents_are_reported_again_after_a_refusal(
    with_gpu_copies: GpuCopySetup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plane, engine, _ = with_gpu_copies
    engine.load()
    plane.refusal = Code.DEVICE_REFUSED
    plane.extents.clear()
    plane.list_extents()

    def refused() -> bool:
        engine.load()
        return "GPU copies are refused" in caplog.text

    wait_for(refused, "it is reported, and refused")
    assert plane.gpu_copy_requests[-1].closed == [5]
    plane.refusal = None
    request_count = len(plane.gpu_copy_requests)
    later(monkeypatch)
    engine.load()
    wait_for(lambda: len(plane.gpu_copy_requests) > request_count, "it is reported again")
    assert plane.gpu_copy_requests[-1].closed == [5]


def test_a_data_plane_lost_during_the_request_is_not_retried_at_once(
    emulated: Machine, make_plane: MakePlane, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = make_plane(change=lambda answer, fds: None)
    engine = make_engine(plane, emulated)
    plane.block(KEYS[0], 0, engine.cache.chunk_bytes)
    engine.client._link.drop("a test")
    wait_for(lambda: engine.client.lookup(KEYS[:1]) and engine.client.connected, "it attaches again")
    assert engine.load(NEW[:16], keys=1) == (True, 0)
    assert len(plane.gpu_copy_requests) == 1
    later(monkeypatch)
    assert engine.load(NEW[:16], keys=1) == (True, 0)
    wait_for(lambda: len(plane.gpu_copy_requests) == 2, "it asks again")


def test_a_data_plane_that_is_silent_holds_nothing_up(
    emulated: Machine, make_plane: MakePlane, make_engine: MakeEngine
) -> None:
    plane = make_plane(change=lambda answer, fds: None)
    engine = make_engine(plane, emulated)
    plane.block(KEYS[0], 0, engine.cache.chunk_bytes)
    for _ in range(3):
        assert engine.load(NEW[:16], keys=1) == (True, 0)
    assert len(plane.gpu_copy_requests) == 1
    # Other requests are answered beside it.
    assert engine.client.reserve([KEYS[3]], 4096).outcomes.tolist() == [Code.POOL_FULL]
    assert engine.heard == ["attached"]


# ---- data planes that are broken


def mapped(number: int, *grants: ExtentGrant) -> GpuCopiesMapped:
    return GpuCopiesMapped(number, list(grants))


def a_table(**words: int) -> int:
    """A table whose header says something else."""
    fd = table_of(64, words.get("memory", IDENTITY))
    for at, name in ((R_MAGIC, "magic"), (R_VERSION, "version")):
        if name in words:
            os.pwrite(fd, words[name].to_bytes(8, "little"), 8 * at)
    return fd


@pytest.mark.parametrize(
    "fds",
    [
        list,
        lambda: [a_table(), a_table()],
        lambda: [a_table(memory=IDENTITY + 1)],
        lambda: [a_table(magic=1)],
        lambda: [a_table(version=2)],
        lambda: [table_of(32, IDENTITY)],
        lambda: [table_of(64, IDENTITY, seals=0)],
        lambda: [memory(4096)],
        lambda: [memory(100)],
        lambda: [os.open("/dev/null", os.O_RDONLY)],
    ],
)
def test_a_wrong_table_is_a_fault_and_a_miss(
    emulated: Machine, make_plane: MakePlane, make_engine: MakeEngine, fds: Callable[[], list[int]]
) -> None:
    def wrong(answer: GpuCopiesMapped, given: list[int]) -> Any:
        for each in given:
            os.close(each)
        return answer, fds()

    plane = make_plane(change=wrong)
    open_files = len(os.listdir("/proc/self/fd"))
    engine = make_engine(plane, emulated)
    plane.block(KEYS[0], 0, engine.cache.chunk_bytes)
    wait_for(engine.has_reported_a_fault, "the fault is reported")
    wait_for(lambda: engine.client.lookup(KEYS[:1]) and engine.client.connected, "it attaches again")
    assert engine.load(NEW[:16], keys=1) == (True, 0)
    assert engine.poisoned(NEW[:16])
    assert engine.heard.count("fault") == 1  # the rest of the cache goes on
    assert len(os.listdir("/proc/self/fd")) <= open_files + 8


GOOD = b"\1" * 64


@pytest.mark.parametrize(
    "grants",
    [
        [ExtentGrant(6, GOOD, 0, 4096)],
        [ExtentGrant(5, GOOD, 0, 4096), ExtentGrant(5, GOOD, 0, 4096)],
        [ExtentGrant(5, GOOD[:63], 0, 4096)],
        [ExtentGrant(5, GOOD, -1, 4096)],
        [ExtentGrant(5, GOOD, 0, 0)],
        [ExtentGrant(5, GOOD, 0, 2**63)],
        [ExtentGrant(5, GOOD, 2**62, 2**62)],
        "beyond",
        b"\x93no message",
    ],
)
def test_wrong_grants_are_a_fault_and_the_pool_is_read(with_gpu_copies: GpuCopySetup, grants: Any) -> None:
    plane, engine, _ = with_gpu_copies
    good = plane.extents[5]

    def wrong(answer: GpuCopiesMapped, fds: list[int]) -> Any:
        if not answer.grants:
            return answer, fds
        if isinstance(grants, bytes):
            return grants
        if grants == "beyond":
            return mapped(answer.id, ExtentGrant(5, good.handle, good.offset, good.nbytes + 4096)), fds
        return mapped(answer.id, *grants), fds

    plane.change = wrong
    assert engine.load() == (True, 0)
    assert engine.poisoned(NEW)
    wait_for(engine.has_reported_a_fault, "the fault is reported")
    wait_for(lambda: engine.opened() == 0, "it is closed")
    wait_for(lambda: engine.client.lookup(KEYS[:3]) and engine.client.connected, "it attaches again")
    assert engine.load() == (True, 0)


@pytest.mark.parametrize("offset", [1, 1 << 30, (1 << 43) + UNIT_BYTES])
def test_a_gpu_copy_beyond_its_extent_is_a_fault_and_the_pool_is_read(
    with_gpu_copies: GpuCopySetup, offset: int
) -> None:
    plane, engine, _ = with_gpu_copies
    size = plane.extents[5].nbytes - engine.cache.chunk_bytes
    plane.make_gpu_copies(1, 5, -(-(size + offset) // UNIT_BYTES) * UNIT_BYTES)
    assert engine.load() == (True, 0)
    assert engine.poisoned(NEW)
    # Another thread may have the client at that moment: then the next load tells.
    wait_for(lambda: "fault" in engine.heard or not engine.load(), "the fault is reported")
    wait_for(lambda: engine.opened() == 0, "it is closed")


def test_locations_in_unlisted_extents_are_read_from_the_pool(with_gpu_copies: GpuCopySetup) -> None:
    plane, engine, _ = with_gpu_copies
    control = int(plane.index.hot[1, HOT_CONTROL])
    for extent in (6, 2**31, 2**32 - 1):
        plane.table.show(1, control, location_of(extent, 0))
        assert engine.load() == (True, 2)
    assert engine.heard == ["attached"]
    assert [each.extents for each in plane.gpu_copy_requests] == [[], [5]]


# ---- another data plane


def test_another_data_plane_gets_a_new_request_and_extents_of_the_first_are_closed_after_the_loads(
    with_gpu_copies: GpuCopySetup, make_plane: MakePlane
) -> None:
    _, engine, content = with_gpu_copies
    engine.load()
    engine.fill(3)
    reached = engine.machine.emulator.pace.stop_after(100_000)
    load = engine.cache.load(engine.client.acquire(KEYS[:3]), NEW)
    assert reached.wait(60)
    second = make_plane()
    engine.client._link._path = second.socket
    engine.client._link.drop("it is gone")
    wait_for(lambda: engine.client.lookup(KEYS) == 0 and engine.client.connected, "it attaches again")
    other = engine.cache.load(engine.client.acquire(KEYS), [])
    assert engine.opened() == 1
    engine.machine.emulator.pace.resume()
    assert load.finish()
    assert engine.holds(content, OLD, NEW)
    wait_for(lambda: engine.opened() == 0, "it is closed")
    assert other.finish()
    wait_for(lambda: [each.table for each in second.gpu_copy_requests] == [True], "the second one is asked")
    assert second.gpu_copy_requests[0].closed == []


def test_while_the_connection_is_lost_the_pool_is_read(with_gpu_copies: GpuCopySetup) -> None:
    _, engine, _ = with_gpu_copies
    engine.load()
    engine.fill(3)
    engine.client._link._path += "-gone"
    engine.client._link.drop("it is gone")
    assert engine.load() == (True, 0)
    assert engine.poisoned(NEW)
    assert not engine.client.connected


def test_the_emulated_device_copies_out_of_opened_memory_and_nowhere_beyond_it(
    emulated: Machine, exporter: Callable[..., Other], with_gpu_copies: GpuCopySetup
) -> None:
    plane, engine, _ = with_gpu_copies
    grant = plane.extents[5]
    opened = emulated.runtime.open(Handle(grant.handle, 0, grant.nbytes, emulated.device.uuid))
    stream = emulated.runtime.stream(emulated.device)
    stream.copy(engine.address, opened.address, 4096)
    stream.synchronize()
    with pytest.raises(DeviceError, match="leaves its allocation"):
        stream.copy(engine.address, opened.address + opened.nbytes - 4096, 8192)
    opened.close()
    with pytest.raises(DeviceError, match="no registered or device memory"):
        stream.copy(engine.address, opened.address, 4096)
    stream.close()
