"""The worker's side with a KV cache on a device: its copies follow the work on the engine's stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from dataplane.client import Client, Space
from dataplane.client.gpu import PagedCache
from dataplane.devices.runtime import DeviceEvent
from dataplane.engines.vllm.copies import DeviceCopies
from dataplane.engines.vllm.messages import GroupLayout, Load, Save, StepPlan
from dataplane.engines.vllm.settings import ConnectorSettings
from dataplane.engines.vllm.worker import Results, WorkerSide
from tests.dataplane.plane import Plane, wait_for
from tests.gpu.layouts import CHUNK, TOKENS, layout
from tests.gpu.machine_fixtures import emulated, machine
from tests.gpu.machines import Machine
from tests.gpu.paged_memory import OLD, PagedMemory

__all__ = ["emulated", "machine"]

KEYS = b"".join(bytes([at]) * 32 for at in range(1, 4))
PER_CHUNK = CHUNK // TOKENS
NEW = [*range(46, 55), *range(17, 24), *range(71, 79), *range(24, 30), 1, 79, *range(2, 17), 55]


class Worker(PagedMemory):
    """A worker with some layers in one allocation, and the stream of its engine."""

    def __init__(self, plane: Plane, machine: Machine) -> None:
        super().__init__(machine, layout("keys and values first, NHD", "float16", 16 << 10, blocks=80))
        self.stream = machine.runtime.stream(machine.device)
        group = self.kind.group()
        space = Space("gpu", block_bytes=group.chunk_bytes, block_tokens=CHUNK)

        def cache_of(client: Client) -> PagedCache:
            return PagedCache(
                client,
                machine.runtime,
                machine.device,
                self.kind.planes(),
                [self.address] * len(self.kind.offsets),
                blocks=self.kind.blocks,
                tokens_per_block=TOKENS,
            )

        def record(cache: PagedCache, event: DeviceEvent) -> None:
            self.stream.record(event)

        self.side = WorkerSide(
            ConnectorSettings(socket=plane.socket, chunk_tokens=CHUNK, timeout_s=30),
            [DeviceCopies(group, GroupLayout(space, TOKENS), cache_of, record)],
            group="engine",
            engine="worker",
        )

    def save(self, keys: bytes, blocks: list[int]) -> dict[str, float]:
        """Save, wait for the end, and return the counts."""
        self.side.begin_saves(StepPlan(saves=[Save("a", keys, "acme", (blocks,))]))
        wait_for(self.side.take_report, "the save ends")
        return self.side.take_counts()

    def load(self, keys: bytes, blocks: list[int], skip: int = 0) -> Results:
        load = Load("b", keys, skip * TOKENS, len(blocks) * TOKENS, (blocks,))
        self.side.begin_loads(StepPlan(loads=[load]))
        found: list[Results] = []

        def ended() -> bool:
            found.append(self.side.results())
            return found[-1].received == {"b"}

        wait_for(ended, "the load ends")
        return found[-1]

    def close(self) -> None:
        self.side.close()
        self.stream.close()
        self.free()


@pytest.fixture
def plane(make_plane: Callable[..., Plane]) -> Plane:
    return make_plane(pool_bytes="64MiB", dataplane__segment_bytes="8MiB").start()


@pytest.fixture
def make_worker(plane: Plane, machine: Machine) -> Iterator[Callable[[], Worker]]:
    made: list[Worker] = []

    def new() -> Worker:
        made.append(Worker(plane, machine))
        return made[-1]

    yield new
    for each in made:
        each.close()


def test_another_engine_loads_the_same_bytes(make_worker: Callable[[], Worker]) -> None:
    one, other = make_worker(), make_worker()
    content = one.fill(1)
    assert one.save(KEYS, OLD)["saved_blocks"] == 3
    assert not other.load(KEYS, NEW[: 3 * PER_CHUNK]).bad_blocks
    assert other.holds(content, OLD, NEW[: 3 * PER_CHUNK])


def test_a_load_begins_within_a_chunk_and_skips_blocks(make_worker: Callable[[], Worker]) -> None:
    worker = make_worker()
    content = worker.fill(2)
    worker.save(KEYS, OLD)
    before = worker.fill(3)
    blocks = [*NEW[:10], 0, 0, *NEW[12:30]]
    found = worker.load(KEYS, blocks, skip=5)
    assert (found.bad_blocks, found.failed) == (set(), set())
    filled = [at for at, block in enumerate(blocks) if block]
    assert worker.holds(content, [OLD[5 + at] for at in filled], [blocks[at] for at in filled])
    assert worker.holds(before, [0], [0])


def test_a_load_counts_as_failed_from_the_first_missing_block(make_worker: Callable[[], Worker]) -> None:
    worker = make_worker()
    content = worker.fill(4)
    worker.save(KEYS[:32], OLD[:PER_CHUNK])
    found = worker.load(KEYS, NEW[: 3 * PER_CHUNK])
    assert found.bad_blocks == set(NEW[PER_CHUNK : 3 * PER_CHUNK])
    assert worker.holds(content, OLD[:PER_CHUNK], NEW[:PER_CHUNK])
    assert worker.side.take_counts()["lost_loads"] == 1


def test_a_save_waits_until_the_engine_has_computed_the_blocks(plane: Plane, emulated: Machine) -> None:
    worker = Worker(plane, emulated)
    try:
        worker.fill(5)
        late = np.random.default_rng(6).integers(0, 256, worker.kind.nbytes, np.uint8)
        address, host = emulated.host(worker.kind.nbytes)
        host[:] = late
        emulated.emulator.pace.stop_after(0)
        worker.stream.copy(worker.address, address, worker.kind.nbytes)
        worker.side.begin_saves(StepPlan(saves=[Save("a", KEYS, "acme", (OLD,))]))
        emulated.emulator.pace.resume()
        wait_for(worker.side.take_report, "the save ends")
        worker.fill(7)
        worker.load(KEYS, NEW[: 3 * PER_CHUNK])
        assert worker.holds(late, OLD, NEW[: 3 * PER_CHUNK])
    finally:
        emulated.emulator.pace.resume()
        worker.close()


class CancelledLater:
    """A job that is cancelled while it copies."""

    def __init__(self) -> None:
        self._answers = iter((False, True))

    @property
    def cancelled(self) -> bool:
        return next(self._answers)


def test_a_save_that_is_cancelled_while_it_copies_is_not_published(make_worker: Callable[[], Worker]) -> None:
    worker = make_worker()
    worker.fill(1)
    client, (copies,) = worker.side._client, worker.side._copies
    with client.reserve(KEYS, copies.group.chunk_bytes) as reservation:
        result = copies.save(reservation, OLD, None, CancelledLater())
    assert result is not None
    assert (result.blocks, client.lookup(KEYS)) == (0, 0)
    assert worker.save(KEYS, OLD)["saved_blocks"] == 3


def test_a_load_that_is_cancelled_while_it_copies_ends_with_the_copy_that_has_begun(
    make_worker: Callable[[], Worker],
) -> None:
    worker = make_worker()
    content = worker.fill(1)
    worker.save(KEYS, OLD)
    before = worker.fill(2)
    (copies,) = worker.side._copies
    blocks = np.array([*NEW[:10], 0, 0, *NEW[12:30]], np.int64)
    assert copies.load(KEYS, 0, blocks, None, CancelledLater()) == (12, 10 * copies.group.chunk_bytes // PER_CHUNK)
    assert worker.holds(content, OLD[:10], NEW[:10])
    assert worker.holds(before, NEW[12:30], NEW[12:30])
