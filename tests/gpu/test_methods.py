"""Choice between batches and the kernel: a fake kernel records the pieces that it is given."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from dataplane.devices.copying import CopyLane
from dataplane.devices.kernels import Direction, PageKernel
from dataplane.devices.methods import MAX_PIECE_BYTES, SIZES, Method, Methods
from dataplane.devices.paged import Runs
from dataplane.devices.pinning import PinnedMemory
from dataplane.devices.runtime import I64, DeviceStream
from tests.gpu.machines import Machine

PAGE = 8 << 10
FAST, SLOW = 50.0, 5.0


class Kernel(PageKernel):
    """Copies page by page, wherever the pages lie: kernels know no registrations."""

    def __init__(self) -> None:
        self.copied: list[tuple[int, int]] = []

    def copy(self, stream: DeviceStream, targets: I64, sources: I64, page_bytes: int, direction: Direction) -> None:
        self.copied.append((len(targets), page_bytes))
        step = min(page_bytes, 4096)
        at = np.arange(0, page_bytes, step, dtype=np.int64)
        target, source = ((each[:, None] + at).ravel() for each in (targets, sources))
        stream.copy_batch(target, source, np.full(len(target), step, np.int64))

    def close(self) -> None:
        pass


class Bench:
    """Device memory with known bytes, pinned memory, and a lane that takes the given rates for measured ones."""

    def __init__(self, machine: Machine, kernel: float, batch: float) -> None:
        self.machine = machine
        self.kernel = Kernel()
        self.methods = Methods(machine.runtime, machine.device, self.kernel)
        self.methods._measured = set(Direction)
        for direction in Direction:
            for size in SIZES:
                self.methods.rates[size, direction, Method.KERNEL] = kernel
                self.methods.rates[size, direction, Method.BATCH] = batch
        self.lane = CopyLane(machine.runtime, machine.device, self.methods)
        self.nbytes = 64 * PAGE
        self.device = machine.runtime.allocate(machine.device, self.nbytes)
        self.content = np.random.default_rng(1).integers(0, 256, self.nbytes, np.uint8)
        machine.upload(self.device, self.content)
        self.host, self.memory = machine.host(self.nbytes)

    def copied(self, runs: Runs) -> bool:
        """Copy the runs to the host; return whether exactly their bytes have arrived."""
        self.memory[:] = 0
        self.lane.copy(Runs(runs.device + self.device, runs.chunk, runs.sizes), self.host, to_device=False)
        self.lane.synchronize()
        expected = np.zeros_like(self.memory)
        for device, chunk, size in zip(*(each.tolist() for each in (runs.device, runs.chunk, runs.sizes)), strict=True):
            expected[chunk : chunk + size] = self.content[device : device + size]
        return np.array_equal(self.memory, expected)

    def close(self) -> None:
        self.lane.close()
        self.machine.runtime.free(self.device)


@pytest.fixture
def fast(emulated: Machine) -> Iterator[Bench]:
    made = Bench(emulated, FAST, SLOW)
    yield made
    made.close()


@pytest.fixture
def slow(emulated: Machine) -> Iterator[Bench]:
    made = Bench(emulated, SLOW, FAST)
    yield made
    made.close()


def runs(*pieces: tuple[int, int, int]) -> Runs:
    return Runs(*(np.array(column, np.int64) for column in zip(*pieces, strict=True)))


NEIGHBOURS = runs((0, 5 * PAGE, PAGE), (3 * PAGE, 0, 2 * PAGE), (9 * PAGE, 7 * PAGE, 3 * PAGE))
"""Pages of which some have been joined."""


def test_pages_that_were_joined_with_their_neighbours_are_copied_by_the_kernel(fast: Bench) -> None:
    assert fast.copied(NEIGHBOURS)
    assert fast.kernel.copied == [(6, PAGE)]


def test_large_pages_are_cut_so_that_every_program_has_work(fast: Bench) -> None:
    assert fast.copied(runs((0, 0, 24 * PAGE), (30 * PAGE, 24 * PAGE, 24 * PAGE)))
    assert fast.kernel.copied == [(6, MAX_PIECE_BYTES)]


def test_a_faster_batch_is_used(slow: Bench) -> None:
    assert slow.copied(NEIGHBOURS)
    assert slow.kernel.copied == []


@pytest.mark.parametrize(
    "odd",
    [
        runs((8, 0, PAGE), (2 * PAGE, PAGE, PAGE)),  # an address
        runs((0, 8, PAGE), (2 * PAGE, 2 * PAGE, PAGE)),  # the other one
        runs((0, 0, PAGE), (2 * PAGE, PAGE, 1000)),  # a size
        runs((0, 0, PAGE), (2 * PAGE, PAGE, 1024)),  # too small
    ],
    ids=["device", "chunk", "size", "small"],
)
def test_pieces_that_the_kernel_cannot_copy_are_copied_as_a_batch(fast: Bench, odd: Runs) -> None:
    assert fast.copied(odd)
    assert fast.kernel.copied == []


def test_a_single_run_is_a_plain_copy(fast: Bench) -> None:
    assert fast.copied(runs((PAGE, 3 * PAGE, 5 * PAGE)))
    assert fast.kernel.copied == []


def test_the_kernel_s_pieces_are_not_cut_at_windows(fast: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    window = 5 * 4096  # no multiple of a page
    monkeypatch.setattr("dataplane.devices.pinning.WINDOW_BYTES", window)
    monkeypatch.setattr("dataplane.devices.copying.WINDOW_BYTES", window)
    host = np.zeros(16 * PAGE + 4096, np.uint8)
    address = -(-host.ctypes.data // 4096) * 4096
    pinned = PinnedMemory(fast.machine.runtime, address, 16 * PAGE, read_only=False)
    moved = Runs(NEIGHBOURS.device + fast.device, NEIGHBOURS.chunk, NEIGHBOURS.sizes)
    assert fast.lane.copy_pinned(moved, pinned, 0, to_device=False)
    fast.lane.synchronize()
    assert fast.kernel.copied == [(6, PAGE)]
    begin = address - host.ctypes.data
    assert np.array_equal(host[begin : begin + 2 * PAGE], fast.content[3 * PAGE : 5 * PAGE])
    pinned.close()


def test_both_methods_are_measured_once_for_each_direction(emulated: Machine) -> None:
    kernel = Kernel()
    methods = Methods(emulated.runtime, emulated.device, kernel)
    for _ in range(2):
        methods.piece_for_kernel(NEIGHBOURS, Direction.IN)
        measured = len(kernel.copied)
    assert measured == len(kernel.copied)
    kernels = {size for size, _, method in methods.rates if method is Method.KERNEL}
    assert kernels == {size for size in SIZES if size <= MAX_PIECE_BYTES}
    assert {size for size, _, method in methods.rates if method is Method.BATCH} == set(SIZES)
    assert all(rate > 0 for rate in methods.rates.values())


def test_without_memory_for_the_measurement_batches_are_used(emulated: Machine) -> None:
    methods = Methods(emulated.runtime, emulated.device, Kernel())
    emulated.emulator.fail("allocate", "cudaErrorMemoryAllocation")
    assert methods.piece_for_kernel(NEIGHBOURS, Direction.OUT) == 0
    assert methods.rates == {}
