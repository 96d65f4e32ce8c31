"""What the kernel is launched with: on the emulated device, with a torch and a kernel of the same interfaces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dataplane.devices import kernels
from dataplane.devices.kernels import Direction, PageKernel
from dataplane.devices.runtime import DeviceError, DeviceStream
from tests.gpu.machines import Machine

PAGE = 4096


class Tensor:
    """64-bit numbers in device memory."""

    def __init__(self, machine: Machine, address: int, shape: tuple[int, ...]) -> None:
        self.machine, self.address, self.shape = machine, address, shape

    def data_ptr(self) -> int:
        return self.address

    def __getitem__(self, at: Any) -> Tensor:
        if isinstance(at, slice):
            return Tensor(self.machine, self.address + 8 * at.start, (self.shape[0] - at.start,))
        row = self.shape[1:]
        return Tensor(self.machine, self.address + 8 * at * int(np.prod(row)), row)

    def read(self, count: int) -> list[int]:
        return [int(each) for each in self.machine.download(self.address, 8 * count).view(np.int64)]


class Bench:
    """A page kernel whose launches copy at once."""

    def __init__(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.machine = machine
        self.launches: list[tuple[int, int, int]] = []
        """Programs, pages and bytes of a page."""
        self.stream: DeviceStream = machine.runtime.stream(machine.device)
        self._memory: list[int] = []

        @contextmanager
        def current(stream: object) -> Iterator[None]:
            yield

        def external(native: int, device: int) -> object:
            assert (native, device) == (self.stream.native, machine.device.index)
            return object()

        torch = SimpleNamespace(
            int64="int64", empty=self._empty, cuda=SimpleNamespace(stream=current, ExternalStream=external)
        )
        modules = {"torch": torch, "dataplane.devices.page_kernel": SimpleNamespace(copy_pages=self)}
        monkeypatch.setattr(kernels, "import_module", modules.__getitem__)
        monkeypatch.setattr(type(machine.runtime), "kernels_reach_host", lambda *_: True, raising=False)
        self.kernel = PageKernel(machine.runtime, machine.device)

    def _empty(self, shape: tuple[int, ...], *, dtype: str, device: str) -> Tensor:
        assert device == f"cuda:{self.machine.device.index}"
        address = self.machine.runtime.allocate(self.machine.device, 8 * int(np.prod(shape)))
        self._memory.append(address)
        return Tensor(self.machine, address, shape)

    def __getitem__(self, grid: tuple[int]) -> Any:
        def launch(targets: Tensor, sources: Tensor, pages: int, words: int, **options: Any) -> None:
            assert targets.address % 16 == sources.address % 16 == 0
            assert grid == (min(options["programs"], pages),)
            self.launches.append((grid[0], pages, 8 * words))
            self.stream.synchronize()  # the addresses were copied in the stream, before the launch
            for target, source in zip(targets.read(pages), sources.read(pages), strict=True):
                self.stream.copy(target, source, 8 * words)

        return launch

    def close(self) -> None:
        self.kernel.close()
        self.stream.close()
        for address in self._memory:
            self.machine.runtime.free(address)


@pytest.fixture
def bench(emulated: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    made = Bench(emulated, monkeypatch)
    yield made
    made.close()
    with pytest.raises(DeviceError):  # its memory is freed
        emulated.runtime.free_host(made.kernel._host)


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
    bench.kernel.copy(bench.stream, host + order * PAGE, device + at * PAGE, PAGE, Direction.OUT)
    bench.stream.synchronize()
    assert np.array_equal(memory.reshape(pages, PAGE)[order], content.reshape(pages, PAGE))
    assert sum(launched for _, launched, _ in bench.launches) == pages
    assert {nbytes for _, _, nbytes in bench.launches} == {PAGE}
    machine.runtime.free(device)


def test_each_direction_has_its_programs(bench: Bench) -> None:
    machine = bench.machine
    device = machine.runtime.allocate(machine.device, 400 * PAGE)
    at = device + np.arange(200, dtype=np.int64) * PAGE
    for direction in Direction:
        bench.kernel.copy(bench.stream, at + 200 * PAGE, at, PAGE, direction)
    assert [programs for programs, _, _ in bench.launches] == [8, 16, 128]
    bench.stream.synchronize()
    machine.runtime.free(device)


def test_more_launches_than_slots_wait_for_the_first_ones(bench: Bench) -> None:
    machine = bench.machine
    device = machine.runtime.allocate(machine.device, 2 * PAGE)
    one = np.array([device], np.int64)
    for _ in range(kernels.SLOTS + 3):
        bench.kernel.copy(bench.stream, one + PAGE, one, PAGE, Direction.WITHIN)
    assert len(bench.launches) == kernels.SLOTS + 3
    bench.stream.synchronize()
    machine.runtime.free(device)


def test_without_triton_memory_or_a_way_to_the_host_there_is_no_kernel(
    emulated: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "import_module", lambda name: SimpleNamespace(copy_pages=None))
    with pytest.raises(DeviceError, match="reaches no registered host memory"):
        PageKernel(emulated.runtime, emulated.device)

    def full(shape: object, **options: object) -> None:
        raise RuntimeError("CUDA out of memory")

    torch = SimpleNamespace(empty=full, int64=None, copy_pages=None)
    monkeypatch.setattr(kernels, "import_module", lambda name: torch)
    monkeypatch.setattr(type(emulated.runtime), "kernels_reach_host", lambda *_: True, raising=False)
    with pytest.raises(DeviceError, match="out of memory"):
        PageKernel(emulated.runtime, emulated.device)

    def missing(name: str) -> None:
        raise ImportError(name="triton")

    monkeypatch.setattr(kernels, "import_module", missing)
    with pytest.raises(DeviceError, match="no module triton"):
        PageKernel(emulated.runtime, emulated.device)
