"""Launches of the kernel, their arguments and their memory. A Python function takes the kernel's place on the emulated
device."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dataplane.devices import kernels
from dataplane.devices.copying import methods_for
from dataplane.devices.kernels import Direction, KernelRuntime, PageKernel
from dataplane.devices.page_kernel import NAME, PTX, TEAM_THREADS
from dataplane.devices.runtime import DeviceError, DeviceStream
from tests.gpu.machines import Machine

PAGE = 4096


class Kernel:
    """Copies when it is launched, page by page."""

    def __init__(self) -> None:
        self.launches: list[tuple[int, int, int]] = []
        """Blocks, pages and bytes of a page."""
        self.closed = False

    def launch(self, stream: DeviceStream, blocks: int, threads: int, *arguments: Any) -> None:
        assert threads % TEAM_THREADS == 0
        sources, targets, pages, words = (each.value for each in arguments)
        self.launches.append((blocks, pages, 16 * words))
        stream.synchronize()  # the addresses were copied in the stream, before the launch
        ends = [(ctypes.c_uint64 * pages).from_address(each) for each in (targets, sources)]
        for target, source in zip(*ends, strict=True):
            stream.copy(target, source, 16 * words)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def loaded(emulated: Machine, monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """The kernels that were loaded on the emulated device, which takes them here."""
    made: list[Kernel] = []

    def load(runtime: object, device: object, ptx: str, name: str) -> Kernel:
        assert (ptx, name) == (PTX, NAME)
        made.append(Kernel())
        return made[-1]

    monkeypatch.setattr(type(emulated.runtime), "kernel", load, raising=False)
    monkeypatch.setattr(type(emulated.runtime), "kernels_reach_host", lambda *_: True, raising=False)
    return made


class Bench:
    """A page kernel, and a stream for it."""

    def __init__(self, machine: Machine, loaded: list[Kernel]) -> None:
        assert isinstance(machine.runtime, KernelRuntime)
        self.machine = machine
        self.stream = machine.runtime.stream(machine.device)
        self.pages = PageKernel(machine.runtime, machine.device)
        self.kernel = loaded[-1]


@pytest.fixture
def bench(emulated: Machine, loaded: list[Kernel]) -> Iterator[Bench]:
    made = Bench(emulated, loaded)
    yield made
    for _ in range(2):
        made.pages.close()
    assert made.kernel.closed
    made.stream.close()
    with pytest.raises(DeviceError):  # its memory is freed
        emulated.runtime.free_host(made.pages._host)
    assert emulated.runtime.memory_used(emulated.device) == 0


@pytest.mark.parametrize("pages", [1, 7, 40])
def test_each_page_is_copied_to_its_target(bench: Bench, pages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MAX_PAGES", 16)  # more pages than one launch takes
    machine = bench.machine
    rng = np.random.default_rng(0)
    content = rng.integers(0, 256, pages * PAGE, np.uint8)
    device = machine.runtime.allocate(machine.device, pages * PAGE)
    machine.upload(device, content)
    host, memory = machine.host(pages * PAGE)
    order = rng.permutation(pages).astype(np.int64)
    at = np.arange(pages, dtype=np.int64)
    bench.pages.copy(bench.stream, host + order * PAGE, device + at * PAGE, PAGE, Direction.OUT)
    bench.stream.synchronize()
    assert np.array_equal(memory.reshape(pages, PAGE)[order], content.reshape(pages, PAGE))
    assert sum(launched for _, launched, _ in bench.kernel.launches) == pages
    assert {nbytes for _, _, nbytes in bench.kernel.launches} == {PAGE}
    machine.runtime.free(device)


def test_each_direction_has_its_blocks(bench: Bench) -> None:
    machine = bench.machine
    device = machine.runtime.allocate(machine.device, 400 * PAGE)
    at = device + np.arange(200, dtype=np.int64) * PAGE
    for direction in Direction:
        bench.pages.copy(bench.stream, at + 200 * PAGE, at, PAGE, direction)
    assert [blocks for blocks, _, _ in bench.kernel.launches] == [2, 4, 50]  # no more than have work
    bench.stream.synchronize()
    machine.runtime.free(device)


def test_more_launches_than_slots_wait_for_the_first_ones(bench: Bench) -> None:
    machine = bench.machine
    device = machine.runtime.allocate(machine.device, 2 * PAGE)
    one = np.array([device], np.int64)
    for _ in range(kernels.SLOTS + 3):
        bench.pages.copy(bench.stream, one + PAGE, one, PAGE, Direction.WITHIN)
    assert len(bench.kernel.launches) == kernels.SLOTS + 3
    bench.stream.synchronize()
    machine.runtime.free(device)


@pytest.mark.parametrize("operation", ["allocate", "event"])
def test_a_device_without_room_has_no_kernel_and_keeps_nothing(
    emulated: Machine, loaded: list[Kernel], operation: str
) -> None:
    emulated.emulator.fail(operation, "cudaErrorMemoryAllocation")
    assert methods_for(emulated.runtime, emulated.device).pages is None
    assert [kernel.closed for kernel in loaded] == [True]
    assert emulated.runtime.memory_used(emulated.device) == 0
    assert methods_for(emulated.runtime, emulated.device).pages is not None


def test_where_kernels_reach_no_host_memory_there_is_none(
    emulated: Machine, loaded: list[Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(emulated.runtime), "kernels_reach_host", lambda *_: False)
    assert methods_for(emulated.runtime, emulated.device).pages is None
    assert loaded == []
