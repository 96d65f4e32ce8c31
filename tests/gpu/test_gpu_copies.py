"""What an engine reads from GPU copies on its device, what it does when the data plane refuses, fails or lies, and what
its copies do not wait for."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataplane.client import Client, ClientEvent, Space, attach
from dataplane.devices.copying import CopyLane, methods_for
from dataplane.devices.runtime import DeviceError, Handle
from dataplane.protocol.codec import encode
from dataplane.protocol.codes import Code
from dataplane.protocol.engine import Detach, ExtentGrant, GpuCopiesMapped
from dataplane.protocol.gpu_copies import R_MAGIC, R_VERSION, UNIT_BYTES, location_of
from dataplane.protocol.layout import HOT_CONTROL
from tests.dataplane.broken_plane import memory
from tests.dataplane.plane import wait_for
from tests.gpu.gpu_copy_plane import IDENTITY, GpuCopyPlane, table_of
from tests.gpu.layouts import ORDERS, WIDTHS, layout
from tests.gpu.machines import Bytes, Machine, Start
from tests.gpu.paged_engine import BLOCKS, KEYS, KIND, PAGE_BYTES, WAIT_S, PagedEngine
from tests.gpu.paged_memory import NEW, OLD

OTHER_KEY = bytes([4]) * 32
MakePlane = Callable[..., GpuCopyPlane]
MakeEngine = Callable[..., "Engine"]


class Engine(PagedEngine):
    """An engine of a plane whose blocks have GPU copies."""

    def __init__(
        self,
        plane: GpuCopyPlane,
        machine: Machine,
        form: tuple[str, str, int] = (KIND, "float16", PAGE_BYTES),
        client: Client | None = None,
        **options: Any,
    ) -> None:
        self.plane = plane
        self.events: list[ClientEvent] = []
        own = client or attach(plane.socket, [Space(model="gpu")], timeout_s=2, on_event=self.events.append)
        kind = layout(*form, blocks=BLOCKS)
        super().__init__(machine, plane.socket, kind, client=own, **{"gpu_copies": True, **options})

    @property
    def heard(self) -> list[str]:
        return [event.name for event in self.events]

    def chunks(self, content: Bytes, count: int) -> Bytes:
        """The bytes of the first chunks in OLD, as a store makes them."""
        self.machine.upload(self.address, content)
        group = self.cache.group
        at, pool = self.machine.host(group.chunk_bytes * count)
        lane = CopyLane(
            self.machine.runtime, self.machine.device, methods_for(self.machine.runtime, self.machine.device)
        )
        for number in range(count):
            runs = group.runs(OLD[number * 16 : number * 16 + 16], base=self.address)
            lane.copy(runs, at + number * group.chunk_bytes, to_device=False)
        lane.synchronize()
        lane.close()
        return pool.copy()

    def make_gpu_copies(self, content: Bytes, extent: int, with_gpu_copies: list[int], begin: int = 0) -> None:
        """The plane has a block for each key, of `content`, and those at some positions have a GPU copy."""
        self.hear()
        self.stored = content
        size = self.cache.chunk_bytes
        self.write(extent, self.chunks(content, 3), begin)
        for at in range(3):
            self.plane.block(KEYS[at], at, size)
            if at in with_gpu_copies:
                self.plane.make_gpu_copies(at, extent, begin + at * size)

    def hear(self) -> None:
        """What was asked until now is answered: the plane answers in order."""
        self.client.reserve([OTHER_KEY], 4096)

    def write(self, extent: int, data: Bytes, begin: int = 0) -> None:
        grant = self.plane.extents[extent]
        opened = self.machine.runtime.open(Handle(grant.handle, grant.offset, grant.nbytes, self.machine.device.uuid))
        self.machine.upload(opened.address + grant.offset + begin, data)
        opened.close()

    def wait_for_fault(self) -> None:
        """Until a fault is reported, everything of the plane is closed, and the client is attached again."""

        def reported() -> bool:
            self.load([], chunks=1)
            return "fault" in self.heard

        wait_for(reported, "the fault is reported")
        wait_for(lambda: self.opened() == 0, "it is closed")
        wait_for(lambda: self.client.lookup(KEYS[:1]) and self.client.connected, "it attaches again")

    def wait_closed(self) -> None:
        """Until extent 5 is closed, and reported as such."""
        wait_for(lambda: self.opened() == 0, "it is closed")
        wait_for(lambda: self.plane.gpu_copy_requests[-1].closed == [5], "it is reported")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads wait for extents, on a busy machine too."""
    monkeypatch.setattr("dataplane.client.gpu_copies.EXTENT_TIMEOUT_S", 2.0)


@pytest.fixture
def make_plane(socket_dir: Path, start: Start) -> Iterator[MakePlane]:
    """`make_plane(machine)`: a plane with an extent in memory of another process on the machine, as a data plane's.
    Without a machine there is none."""
    made: list[GpuCopyPlane] = []

    def new(
        machine: Machine | None = None, extent: int = 5, page_bytes: int = PAGE_BYTES, offset: int = 0, **options: Any
    ) -> GpuCopyPlane:
        folder = socket_dir / str(len(made))
        folder.mkdir()
        made.append(GpuCopyPlane(folder, **options))
        if machine is not None:
            made[-1].export(extent, machine, start(machine, "engine", page_bytes=page_bytes), offset)
            made[-1].list_extents()
        return made[-1]

    yield new
    for each in made:
        each.close()


@pytest.fixture
def make_engine() -> Iterator[MakeEngine]:
    made: list[Engine] = []

    def new(plane: GpuCopyPlane, machine: Machine, *arguments: Any, **options: Any) -> Engine:
        made.append(Engine(plane, machine, *arguments, **options))
        return made[-1]

    yield new
    for each in reversed(made):
        each.close()


@pytest.fixture
def engine(emulated: Machine, make_plane: MakePlane, make_engine: MakeEngine) -> Engine:
    """An engine of a plane with three blocks, all with a GPU copy in extent 5."""
    engine = make_engine(make_plane(emulated), emulated)
    engine.make_gpu_copies(engine.fill(1), 5, [0, 1, 2])
    engine.fill(2)
    return engine


@pytest.fixture
def make_plain(emulated: Machine, make_plane: MakePlane, make_engine: MakeEngine) -> MakeEngine:
    """`make_plain(refusal=…)`: an engine of such a plane, with one block that has no GPU copy."""

    def new(**options: Any) -> Engine:
        plane = make_plane(**options)
        engine = make_engine(plane, emulated)
        plane.block(KEYS[0], 0, engine.cache.chunk_bytes)
        return engine

    return new


# ---- what is read


@pytest.mark.parametrize(
    "page_bytes", [16 << 10, *(pytest.param(size, marks=pytest.mark.full) for size in (32 << 10, 64 << 10))]
)
@pytest.mark.parametrize("dtype", WIDTHS)
def test_chunks_come_out_of_gpu_copies_in_every_layout(
    machine: Machine, make_plane: MakePlane, make_engine: MakeEngine, dtype: str, page_bytes: int
) -> None:
    plane = make_plane(machine, page_bytes=page_bytes)
    client = make_engine(plane, machine).client
    for number, name in enumerate(ORDERS):
        engine = make_engine(plane, machine, (name, dtype, page_bytes), client)
        engine.hear()
        content = engine.fill(number)
        engine.write(5, engine.chunks(content, 1))
        key = (number + 100).to_bytes(4, "little") * 8
        plane.publish(key, offset=0, nbytes=engine.cache.chunk_bytes, at=number)
        plane.make_gpu_copies(number, 5, 0)
        engine.fill(99)
        load = engine.cache.load(client.acquire([key]), NEW[:16])
        assert (load.finish(), load.gpu_copies) == (True, 1)
        assert engine.holds(content, OLD[:16], NEW[:16])
        engine.cache.close()
    assert len(plane.gpu_copy_requests) <= 2 * len(ORDERS)


def test_blocks_without_a_gpu_copy_come_from_the_pool_in_the_same_load(
    machine: Machine, make_plane: MakePlane, make_engine: MakeEngine
) -> None:
    plane = make_plane(machine, 3, offset=UNIT_BYTES)
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


def test_layers_arrive_one_by_one_behind_the_engine_s_event(engine: Engine) -> None:
    engine.load()
    engine.fill(3)
    compute = engine.machine.runtime.stream(engine.machine.device)
    reached = engine.machine.emulator.pace.stop_after(100_000)
    load = engine.begin_load()
    assert load.gpu_copies == 3
    assert reached.wait(60)
    assert not load.arrived(0)
    assert load.wait_layer(1, compute)
    engine.resume()
    compute.synchronize()
    assert load.arrived(0)
    assert load.arrived(1)
    assert load.finish()
    assert engine.holds(engine.stored, OLD, NEW)
    compute.close()


def test_the_lease_lasts_as_long_as_the_copies(engine: Engine) -> None:
    engine.load()
    assert engine.plane.leased() == 0
    reached = engine.machine.emulator.pace.stop_after(100_000)
    lease = engine.client.acquire(KEYS)
    load = engine.cache.load(lease, NEW)
    lease.release()
    assert reached.wait(60)
    assert engine.plane.leased() == 3
    engine.resume()
    assert load.finish()
    assert engine.plane.leased() == 0


def test_without_gpu_copies_nothing_is_requested_and_the_pool_is_read(
    emulated: Machine, make_plane: MakePlane, make_engine: MakeEngine
) -> None:
    plane = make_plane(emulated)
    engine = make_engine(plane, emulated, gpu_copies=False)
    engine.make_gpu_copies(engine.fill(1), 5, [0, 1, 2])
    assert engine.load() == (True, 0)
    assert engine.poisoned(NEW)
    assert plane.gpu_copy_requests == []


def test_two_caches_of_one_client_share_open_extents(engine: Engine, make_engine: MakeEngine) -> None:
    assert engine.load() == (True, 3)
    second = make_engine(engine.plane, engine.machine, client=engine.client)
    second.fill(4)
    assert second.load() == (True, 3)
    assert second.holds(engine.stored, OLD, NEW)
    engine.cache.close()
    assert engine.opened() == 1
    assert second.load() == (True, 3)
    assert len(engine.plane.gpu_copy_requests) == 2
    second.cache.close()
    assert engine.opened() == 0
    wait_for(lambda: engine.plane.gpu_copy_requests[-1].closed == [5], "it is reported")


def test_a_client_that_detaches_has_nothing_open(engine: Engine) -> None:
    engine.load()
    assert engine.opened() == 1
    engine.client.close()
    assert engine.opened() == 0
    closed, detach = engine.plane.requests[-2:]
    assert (closed.closed, type(detach)) == ([5], Detach)


# ---- blocks and GPU copies that are not each other's


def test_a_gpu_copy_of_another_block_of_the_same_descriptor_is_not_read(engine: Engine) -> None:
    engine.load()
    engine.plane.index.hot[1, HOT_CONTROL] += np.uint64(1 << 16)
    assert engine.load() == (True, 2)
    assert engine.poisoned(NEW[16:32])


def test_a_gpu_copy_that_was_withdrawn_is_not_read(engine: Engine) -> None:
    assert engine.load() == (True, 3)
    engine.plane.table.hide(np.array([0, 2]))
    assert engine.load() == (True, 1)
    assert engine.poisoned([*NEW[:16], *NEW[32:]])


def test_a_block_of_another_size_is_read_from_the_pool(engine: Engine) -> None:
    engine.load()
    engine.plane.publish(KEYS[0], offset=0, nbytes=engine.cache.chunk_bytes + 4096, at=0)
    assert engine.load(NEW[:16], 1) == (True, 0)


# ---- extents that come and go


def test_a_withdrawn_extent_is_closed_with_the_next_copy_and_reported(engine: Engine) -> None:
    assert engine.load() == (True, 3)
    assert engine.opened() == 1
    engine.plane.give_up()
    assert engine.load() == (True, 0)
    engine.wait_closed()
    assert engine.load() == (True, 0)
    assert len(engine.plane.gpu_copy_requests) == 3


def test_an_extent_that_is_given_up_during_a_load_is_closed_when_the_load_ended(engine: Engine) -> None:
    engine.load()
    engine.fill(3)
    load = engine.stopped_load()
    engine.plane.give_up()
    other = engine.begin_load(OLD[:16])
    assert (load.gpu_copies, other.gpu_copies) == (3, 0)
    assert engine.opened() == 1
    assert engine.plane.gpu_copy_requests[-1].closed == []
    engine.resume()
    assert load.finish()
    wait_for(lambda: engine.opened() == 0, "it is closed")
    assert other.finish()
    assert engine.holds(engine.stored, OLD, NEW[:16] + NEW[16:32] + NEW[32:]) or engine.poisoned(OLD[:16])
    wait_for(lambda: engine.plane.gpu_copy_requests[-1].closed == [5], "it is reported")


def test_found_extents_are_requested_together_and_once(engine: Engine, start: Start) -> None:
    for number in (8, 9):
        engine.plane.export(number, engine.machine, start(engine.machine, "engine"))
    engine.plane.list_extents()
    size = engine.cache.chunk_bytes
    engine.plane.make_gpu_copies(1, 8, size)
    engine.plane.make_gpu_copies(2, 9, 0)
    del engine.plane.extents[9]  # of another space: it is listed, and not granted
    assert engine.load() == (True, 2)
    assert engine.load() == (True, 2)
    assert [sorted(each.extents) for each in engine.plane.gpu_copy_requests] == [[], [5, 8, 9]]


def test_an_answer_that_comes_late_counts_for_the_next_load(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataplane.client.gpu_copies.EXTENT_TIMEOUT_S", 0.0)
    assert engine.load(NEW[:16], 1)[0]
    wait_for(lambda: engine.load() == (True, 3), "the answer came")
    assert engine.holds(engine.stored, OLD, NEW)


def test_an_extent_that_cannot_be_opened_is_left_to_the_pool_and_tried_again_later(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine.machine.emulator.fail("open", "cudaErrorMapBufferObjectFailed")
    assert engine.load() == (True, 0)
    assert engine.poisoned(NEW)
    assert engine.load() == (True, 0)
    assert len([each for each in caplog.text.splitlines() if "could not be opened" in each]) == 1
    later(monkeypatch)
    assert engine.load() == (True, 3)
    assert engine.holds(engine.stored, OLD, NEW)
    assert len(engine.plane.gpu_copy_requests) == 2


def test_a_copy_from_a_gpu_copy_that_fails_fails_the_load_and_lets_its_lease_go(engine: Engine) -> None:
    for operation in ("copy", "copying"):
        engine.machine.emulator.fail(operation)
        assert engine.load() == (False, 3)
        assert engine.plane.leased() == 0
    assert engine.load() == (True, 3)
    assert engine.holds(engine.stored, OLD, NEW)


# ---- data planes that refuse


def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was to be left alone for a while may be tried again."""
    clock = type("Later", (), {"monotonic": staticmethod(lambda: time.monotonic() + 11)})
    monkeypatch.setattr("dataplane.client.gpu_copies.time", clock)


@pytest.mark.parametrize("refusal", [Code.UNSUPPORTED, Code.NOT_ALLOWED, None])
def test_a_data_plane_without_gpu_copies_gets_one_request(
    make_plain: MakeEngine, monkeypatch: pytest.MonkeyPatch, refusal: Code | None
) -> None:
    engine = make_plain(refusal=refusal, old=refusal is None)
    for _ in range(3):
        assert engine.load(NEW[:16], 1) == (True, 0)
        later(monkeypatch)
    assert engine.poisoned(NEW[:16])
    assert len(engine.plane.gpu_copy_requests) == 1
    assert engine.heard == ["attached"]


def test_a_refused_device_is_requested_again_later(
    engine: Engine, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, plane = engine, engine.plane
    plane.refusal = Code.DEVICE_REFUSED
    engine = make_engine(plane, engine.machine)
    engine.fill(7)
    for _ in range(3):
        assert engine.load() == (True, 0)
    wait_for(lambda: len(plane.gpu_copy_requests) == 2, "it was asked")
    plane.refusal = None
    later(monkeypatch)
    wait_for(lambda: engine.load() == (True, 3), "it asks again")
    assert engine.holds(first.stored, OLD, NEW)
    assert first.heard == engine.heard == ["attached"]


def test_closed_extents_are_reported_again_after_a_refusal(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine.load()
    engine.plane.refusal = Code.DEVICE_REFUSED
    engine.plane.give_up()

    def refused() -> bool:
        engine.load()
        return "GPU copies are refused" in caplog.text

    wait_for(refused, "it is reported, and refused")
    assert engine.plane.gpu_copy_requests[-1].closed == [5]
    engine.plane.refusal = None
    request_count = len(engine.plane.gpu_copy_requests)
    later(monkeypatch)
    engine.load()
    wait_for(lambda: len(engine.plane.gpu_copy_requests) > request_count, "it is reported again")
    assert engine.plane.gpu_copy_requests[-1].closed == [5]


def test_a_data_plane_lost_during_the_request_is_not_retried_at_once(
    make_plain: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_plain(change=lambda answer, fds: None)
    engine.client._link.drop("a test")
    wait_for(lambda: engine.client.lookup(KEYS[:1]) and engine.client.connected, "it attaches again")
    assert engine.load(NEW[:16], 1) == (True, 0)
    assert len(engine.plane.gpu_copy_requests) == 1
    later(monkeypatch)
    assert engine.load(NEW[:16], 1) == (True, 0)
    wait_for(lambda: len(engine.plane.gpu_copy_requests) == 2, "it asks again")


def test_a_data_plane_that_is_silent_holds_nothing_up(make_plain: MakeEngine) -> None:
    engine = make_plain(change=lambda answer, fds: None)
    for _ in range(3):
        assert engine.load(NEW[:16], 1) == (True, 0)
    assert len(engine.plane.gpu_copy_requests) == 1
    # Other requests are answered beside it.
    assert engine.client.reserve([OTHER_KEY], 4096).outcomes.tolist() == [Code.POOL_FULL]
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
    engine.wait_for_fault()
    assert engine.load(NEW[:16], 1) == (True, 0)
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
def test_wrong_grants_are_a_fault_and_the_pool_is_read(engine: Engine, grants: Any) -> None:
    good = engine.plane.extents[5]

    def wrong(answer: GpuCopiesMapped, fds: list[int]) -> Any:
        if not answer.grants:
            return answer, fds
        if isinstance(grants, bytes):
            return grants
        if grants == "beyond":
            return mapped(answer.id, ExtentGrant(5, good.handle, good.offset, good.nbytes + 4096)), fds
        return mapped(answer.id, *grants), fds

    engine.plane.change = wrong
    assert engine.load() == (True, 0)
    assert engine.poisoned(NEW)
    engine.wait_for_fault()
    assert engine.load() == (True, 0)


@pytest.mark.parametrize("offset", [1, 1 << 30, (1 << 43) + UNIT_BYTES])
def test_a_gpu_copy_beyond_its_extent_is_a_fault_and_the_pool_is_read(engine: Engine, offset: int) -> None:
    size = engine.plane.extents[5].nbytes - engine.cache.chunk_bytes
    engine.plane.make_gpu_copies(1, 5, -(-(size + offset) // UNIT_BYTES) * UNIT_BYTES)
    assert engine.load() == (True, 0)
    assert engine.poisoned(NEW)
    # Another thread may have the client at that moment: then the next load tells.
    wait_for(lambda: "fault" in engine.heard or not engine.load(), "the fault is reported")
    wait_for(lambda: engine.opened() == 0, "it is closed")


def test_locations_in_unlisted_extents_are_read_from_the_pool(engine: Engine) -> None:
    control = int(engine.plane.index.hot[1, HOT_CONTROL])
    for extent in (6, 2**31, 2**32 - 1):
        engine.plane.table.show(1, control, location_of(extent, 0))
        assert engine.load() == (True, 2)
    assert engine.heard == ["attached"]
    assert [each.extents for each in engine.plane.gpu_copy_requests] == [[], [5]]


# ---- another data plane


def test_another_data_plane_gets_a_new_request_and_extents_of_the_first_are_closed_after_the_loads(
    engine: Engine, make_plane: MakePlane
) -> None:
    engine.load()
    engine.fill(3)
    load = engine.stopped_load()
    second = make_plane()
    engine.client._link._path = second.socket
    engine.client._link.drop("it is gone")
    wait_for(lambda: engine.client.lookup(KEYS) == 0 and engine.client.connected, "it attaches again")
    other = engine.begin_load([])
    assert engine.opened() == 1
    engine.resume()
    assert load.finish()
    assert engine.holds(engine.stored, OLD, NEW)
    wait_for(lambda: engine.opened() == 0, "it is closed")
    assert other.finish()
    wait_for(lambda: [each.table for each in second.gpu_copy_requests] == [True], "the second one is asked")
    assert second.gpu_copy_requests[0].closed == []


def test_while_the_connection_is_lost_the_pool_is_read(engine: Engine) -> None:
    engine.load()
    engine.fill(3)
    engine.client._link._path += "-gone"
    engine.client._link.drop("it is gone")
    assert engine.load() == (True, 0)
    assert engine.poisoned(NEW)
    assert not engine.client.connected


def test_the_emulated_device_copies_out_of_opened_memory_and_nowhere_beyond_it(
    emulated: Machine, engine: Engine
) -> None:
    grant = engine.plane.extents[5]
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


# ---- what a copy does not wait for while GPU copies are opened, closed, requested and reported


@contextmanager
def beside(work: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Run in a thread; what is given waits for its answer, and fails when there is none."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(work()), daemon=True)
    thread.start()

    def answer() -> Any:
        thread.join(WAIT_S)
        assert not thread.is_alive(), "it waits"
        return answers[0]

    yield answer
    thread.join(WAIT_S)


@pytest.fixture
def slow_open(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Opening an extent sets the first event, and waits for the second one."""
    opening, may_open = threading.Event(), threading.Event()
    runtime = engine.machine.runtime
    real = runtime.open

    def slow(handle: Any) -> Any:
        opening.set()
        may_open.wait(2 * WAIT_S)
        return real(handle)

    monkeypatch.setattr(runtime, "open", slow)
    monkeypatch.setattr("dataplane.client.gpu_copies.EXTENT_TIMEOUT_S", 0.2)
    return opening, may_open


def test_a_load_begins_and_ends_while_another_thread_s_request_has_no_answer(engine: Engine) -> None:
    assert engine.load() == (True, 3)
    engine.fill(3)
    lease = engine.client.acquire(KEYS)
    begun, over = threading.Event(), threading.Event()

    def request() -> None:
        with engine.client._link.lock:  # as a request has it until its answer
            begun.set()
            over.wait(2 * WAIT_S)

    def load() -> tuple[bool, int]:
        copy = engine.cache.load(lease, NEW)
        return copy.finish(), copy.gpu_copies

    with beside(request):
        assert begun.wait(WAIT_S)
        with beside(load) as loaded:
            try:
                assert loaded() == (True, 3)
            finally:
                over.set()
    assert engine.holds(engine.stored, OLD, NEW)


def test_a_load_begins_while_an_extent_is_closed_behind_another_copy(engine: Engine) -> None:
    assert engine.load() == (True, 3)
    stream = engine.machine.runtime.stream(engine.machine.device)
    reached = engine.machine.emulator.pace.stop_after(1 << 14)
    stream.copy(engine.address, engine.address + (1 << 16), 1 << 16)
    assert reached.wait(WAIT_S)
    engine.plane.give_up()
    lease = engine.client.acquire(KEYS[:1])
    with beside(lambda: engine.cache.load(lease, NEW[:16])) as begun:
        try:
            load = begun()
            assert engine.plane.gpu_copy_requests[-1].closed == []
        finally:
            engine.resume()
    assert load.finish()
    assert load.gpu_copies == 0
    stream.close()
    engine.wait_closed()


def test_a_load_does_not_wait_for_an_extent_that_takes_long_to_open(
    engine: Engine, slow_open: tuple[threading.Event, threading.Event]
) -> None:
    opening, may_open = slow_open

    def begun() -> bool:
        assert engine.load() == (True, 0)
        return opening.is_set()

    with beside(lambda: wait_for(begun, "it is being opened")) as done:
        try:
            done()
        finally:
            may_open.set()
    assert engine.poisoned(NEW)
    wait_for(lambda: engine.load() == (True, 3), "it is open")
    assert engine.holds(engine.stored, OLD, NEW)
    assert [each.extents for each in engine.plane.gpu_copy_requests] == [[], [5]]


def test_an_extent_withdrawn_while_it_is_opened_is_closed_and_reported_once(
    engine: Engine, slow_open: tuple[threading.Event, threading.Event]
) -> None:
    opening, may_open = slow_open
    wait_for(lambda: engine.load()[0] and opening.is_set(), "it is being opened")
    engine.plane.give_up()
    assert engine.load() == (True, 0)
    assert [each.closed for each in engine.plane.gpu_copy_requests] == [[], []]
    may_open.set()
    wait_for(lambda: [each.closed for each in engine.plane.gpu_copy_requests] == [[], [], [5]], "it is reported")
    assert engine.opened() == 0


def test_a_client_that_detaches_waits_for_closing_extents(engine: Engine) -> None:
    assert engine.load() == (True, 3)
    stream = engine.machine.runtime.stream(engine.machine.device)
    reached = engine.machine.emulator.pace.stop_after(1 << 14)
    stream.copy(engine.address, engine.address + (1 << 16), 1 << 16)
    assert reached.wait(WAIT_S)
    with beside(engine.client.close) as closed:
        wait_for(lambda: engine.client._gpu_copies[engine.machine.device.uuid]._ended, "it closes")
        assert not any(isinstance(each, Detach) for each in engine.plane.requests)
        engine.resume()
        closed()
    assert engine.opened() == 0
    closing, detach = engine.plane.requests[-2:]
    assert (closing.closed, type(detach)) == ([5], Detach)
    stream.close()


def test_a_client_closed_during_a_load_does_not_detach(engine: Engine) -> None:
    assert engine.load() == (True, 3)
    engine.fill(3)
    load = engine.stopped_load()
    engine.client.close()
    assert engine.opened() == 1
    engine.resume()
    assert load.finish()
    assert engine.holds(engine.stored, OLD, NEW)
    wait_for(lambda: engine.opened() == 0, "it is closed")
    assert not any(isinstance(each, Detach) for each in engine.plane.requests)


def test_an_unanswered_request_is_repeated_and_its_late_answer_is_accepted(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, engine.plane.change = engine.plane.change, lambda answer, fds: None
    monkeypatch.setattr("dataplane.client.gpu_copies.EXTENT_TIMEOUT_S", 0.0)
    for _ in range(3):
        assert engine.load() == (True, 0)
    wait_for(lambda: len(engine.plane.gpu_copy_requests) == 2, "it is asked")
    engine.plane.change = change
    later(monkeypatch)
    wait_for(lambda: engine.load() == (True, 3), "it is asked again")
    assert [each.extents for each in engine.plane.gpu_copy_requests] == [[], [5], [5]]
    late = GpuCopiesMapped(engine.plane.gpu_copy_requests[1].id, [engine.plane.extents[5]])
    socket.send_fds(engine.plane._open[-1], [encode(late)], [])
    engine.hear()
    assert engine.load() == (True, 3)
    assert engine.holds(engine.stored, OLD, NEW)
    assert engine.heard == ["attached"]
    engine.plane.give_up()
    wait_for(lambda: engine.load() == (True, 0) and engine.plane.gpu_copy_requests[-1].closed == [5], "it is reported")
    assert engine.opened() == 0


def test_a_load_that_cannot_begin_releases_its_leases(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine.load() == (True, 3)

    def fails() -> Any:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(engine.cache, "record", fails)
        with pytest.raises(MemoryError):
            engine.begin_load()
    engine.plane.give_up()
    assert engine.load() == (True, 0)
    engine.wait_closed()
