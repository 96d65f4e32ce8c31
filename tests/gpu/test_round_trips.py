"""Paged memory comes back byte for byte: every layout, type and page size, whole chunks and parts of them, pinned and
staged."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from dataplane.devices.copying import CopyLane, methods_for
from dataplane.devices.paged import TensorGroup, split
from dataplane.devices.pinning import PinnedMemory, Staging
from tests.gpu.layouts import CHUNK, ORDERS, TOKENS, WIDTHS, layout
from tests.gpu.machines import Machine, array_at

PAGES = (16 << 10, pytest.param(32 << 10, marks=pytest.mark.full), 64 << 10)
PARTS = {"whole": (0, 16), "its beginning": (0, 5), "its end": (9, 16), "its middle": (3, 4)}
OLD = [5, 6, 7, 20, 3, 4, 39, 30, 31, 32, 33, 0, 11, 13, 15, 17]
NEW = [38, 1, 2, 3, 9, 8, 7, 6, 5, 4, 21, 22, 23, 24, 25, 26]


@pytest.fixture
def lane(machine: Machine) -> Iterator[CopyLane]:
    methods = methods_for(machine.runtime, machine.device)
    made = CopyLane(machine.runtime, machine.device, methods)
    yield made
    made.close()
    if methods.pages is not None:
        methods.pages.close()


def moved(group: TensorGroup, low: int, high: int, device: int, numbers: list[int]):
    return group.runs(numbers[low:high], first=low, base=device)


@pytest.mark.parametrize("page_bytes", PAGES)
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("name", ORDERS)
def test_a_chunk_comes_back_into_other_blocks(
    machine: Machine, lane: CopyLane, name: str, dtype: str, page_bytes: int
) -> None:
    kind = layout(name, dtype, page_bytes)
    group = kind.group()
    content = np.random.default_rng(1).integers(0, 256, kind.nbytes, np.uint8)
    device = machine.runtime.allocate(machine.device, kind.nbytes)
    at, pool = machine.host(group.chunk_bytes)
    for low, high in PARTS.values():
        machine.upload(device, content)
        pool[:] = 0xAA
        lane.copy(moved(group, low, high, device, OLD), at, to_device=False)
        lane.synchronize()
        lane.copy(moved(group, low, high, device, NEW), at, to_device=True)
        lane.synchronize()
        after = machine.download(device, kind.nbytes)
        for number in range(len(kind.offsets)):
            expected = kind.layer(content, number).copy()
            expected[NEW[low:high]] = expected[OLD[low:high]]
            assert np.array_equal(kind.layer(after, number), expected)
    machine.runtime.free(device)


@pytest.mark.parametrize("name", ORDERS)
def test_a_chunk_through_the_staging_buffer_is_the_same(machine: Machine, lane: CopyLane, name: str) -> None:
    kind = layout(name, "float16", PAGES[0])
    group = kind.group()
    content = np.random.default_rng(2).integers(0, 256, kind.nbytes, np.uint8)
    device = machine.runtime.allocate(machine.device, kind.nbytes)
    machine.upload(device, content)
    at, pinned = machine.host(group.chunk_bytes)
    lane.copy(group.runs(OLD, base=device), at, to_device=False)
    lane.synchronize()
    for nbytes in (8192, 3 * 8192, 1 << 20):
        staging = Staging(machine.runtime, nbytes)
        plain = np.zeros(group.chunk_bytes, np.uint8)
        lane.copy_staged(group.runs(OLD, base=device), staging, plain.ctypes.data, to_device=False)
        assert np.array_equal(plain, pinned)
        lane.copy_staged(group.runs(NEW, base=device), staging, plain.ctypes.data, to_device=True)
        after = machine.download(device, kind.nbytes)
        for number in range(len(kind.offsets)):
            assert np.array_equal(kind.layer(after, number)[NEW], kind.layer(content, number)[OLD])
        machine.upload(device, content)
        staging.close()
    machine.runtime.free(device)


def test_layers_copied_one_by_one_make_the_same_chunk(machine: Machine, lane: CopyLane) -> None:
    kind = layout("keys and values first, NHD", "bfloat16", PAGES[0], layers=5)
    group = kind.group()
    device = machine.runtime.allocate(machine.device, kind.nbytes)
    machine.upload(device, np.random.default_rng(3).integers(0, 256, kind.nbytes, np.uint8))
    at, whole = machine.host(group.chunk_bytes)
    other, layers = machine.host(group.chunk_bytes)
    lane.copy(group.runs(OLD, base=device), at, to_device=False)
    for number in range(5):
        runs = group.runs(OLD, base=device, tensors=slice(number, number + 1))
        assert runs.nbytes == group.chunk_bytes // 5
        lane.copy(runs, other, to_device=False)
    lane.synchronize()
    assert np.array_equal(whole, layers)
    machine.runtime.free(device)


def test_chunks_that_cross_windows_of_pinned_memory_are_copied(
    machine: Machine, lane: CopyLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = 64 << 10
    monkeypatch.setattr("dataplane.devices.pinning.WINDOW_BYTES", window)
    monkeypatch.setattr("dataplane.devices.copying.WINDOW_BYTES", window)
    kind = layout("latent attention", "bfloat16", 32 << 10)
    group = kind.group()
    device = machine.runtime.allocate(machine.device, kind.nbytes)
    content = np.random.default_rng(4).integers(0, 256, kind.nbytes, np.uint8)
    machine.upload(device, content)
    nbytes = -(-(group.chunk_bytes + 3 * window) // 4096) * 4096
    memory = np.zeros(nbytes + 4096, np.uint8)
    address = -(-memory.ctypes.data // 4096) * 4096
    pinned = PinnedMemory(machine.runtime, address, nbytes, read_only=False)
    offset = window + 1000 * 8
    assert lane.copy_pinned(group.runs(OLD, base=device), pinned, offset, to_device=False)
    lane.synchronize()
    assert 0 < len(pinned._windows) < nbytes // window
    assert lane.copy_pinned(group.runs(NEW, base=device), pinned, offset, to_device=True)
    lane.synchronize()
    after = machine.download(device, kind.nbytes)
    for number in range(len(kind.offsets)):
        assert np.array_equal(kind.layer(after, number)[NEW], kind.layer(content, number)[OLD])
    assert not array_at(address, offset).any()
    pinned.close()
    machine.runtime.free(device)


def test_runs_are_cut_at_windows_and_nowhere_else() -> None:
    group = layout("keys and values second, NHD", "bfloat16", PAGES[0]).group()
    runs = group.runs(list(range(16)), base=1 << 40)
    assert len(runs) == 2  # one for each layer: all blocks lie together
    for window, offset in ((10_000, 0), (4096, 17), (1 << 30, 5)):
        cut = split(runs, window, offset)
        assert cut.nbytes == runs.nbytes == group.chunk_bytes
        begins = cut.chunk + offset
        assert np.array_equal(begins // window, (begins + cut.sizes - 1) // window)
        assert np.array_equal(
            np.sort(cut.chunk), np.concatenate(([0], np.cumsum(cut.sizes[np.argsort(cut.chunk)])[:-1]))
        )
        source = {int(c): int(d) for c, d in zip(cut.chunk, cut.device, strict=True)}
        for chunk, at in source.items():
            row = int(np.searchsorted(runs.chunk, chunk, "right")) - 1
            assert at - int(runs.device[row]) == chunk - int(runs.chunk[row])


def test_a_chunk_has_as_many_bytes_as_its_tokens() -> None:
    for name in ORDERS:
        kind = layout(name, "float16", PAGES[0])
        one = kind.nbytes // kind.blocks
        assert kind.group().chunk_bytes == one * CHUNK // TOKENS
