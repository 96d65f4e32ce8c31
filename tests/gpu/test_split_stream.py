"""Batches that several streams share."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from dataplane.devices.runtime import DeviceError
from dataplane.devices.split_stream import MIN_COPIES, STREAMS, SplitStream
from tests.gpu.machines import Machine

PAGE, PAGES = 4096, MIN_COPIES + 7
Batch = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Targets, sources and sizes."""


@pytest.fixture
def split(machine: Machine) -> Iterator[SplitStream]:
    made = SplitStream(machine.runtime, machine.device)
    yield made
    made.close()


def addresses(base: int, count: int = PAGES) -> np.ndarray:
    return base + np.arange(count, dtype=np.int64) * PAGE


@pytest.fixture
def shared(emulated: Machine) -> Iterator[SplitStream]:
    """On the emulated device, whose failures the test provokes."""
    made = SplitStream(emulated.runtime, emulated.device)
    yield made
    made.close()


@pytest.fixture
def batch(emulated: Machine) -> Iterator[Batch]:
    """Copies from host memory to the device, enough to be shared."""
    device = emulated.runtime.allocate(emulated.device, PAGES * PAGE)
    host, _ = emulated.host(PAGES * PAGE)
    yield addresses(device), addresses(host), np.full(PAGES, PAGE, np.int64)
    emulated.runtime.free(device)


@pytest.mark.parametrize("count", [1, MIN_COPIES - 1, PAGES])
def test_a_batch_runs_between_the_work_before_it_and_after_it(machine: Machine, split: SplitStream, count: int) -> None:
    """Each page goes up, to another place, down again, and is overwritten at once, without a wait in between."""
    content = np.random.default_rng(count).integers(0, 256, count * PAGE, np.uint8)
    device = machine.runtime.allocate(machine.device, 2 * count * PAGE)
    one, source = machine.host(count * PAGE)
    two, target = machine.host(count * PAGE)
    source[:] = content
    order = np.random.default_rng(0).permutation(count)
    sizes = np.full(count, PAGE, np.int64)
    low, high = addresses(device, count), addresses(device + count * PAGE, count)
    for _ in range(3):
        target[:] = 0
        split.copy_batch(low, addresses(one, count), sizes)
        split.copy_batch(high[order], low, sizes)
        split.copy_batch(addresses(two, count)[order], high[order], sizes)
        split.main.clear(device, 2 * count * PAGE)
        split.synchronize()
        assert np.array_equal(target.reshape(count, PAGE)[order], content.reshape(count, PAGE))
    assert not machine.download(device, 2 * count * PAGE).any()
    machine.runtime.free(device)


@pytest.mark.parametrize("stream", range(STREAMS))
def test_a_failure_on_any_stream_is_raised_once_all_have_ended(
    emulated: Machine, batch: Batch, shared: SplitStream, stream: int
) -> None:
    shared.copy_batch(*batch)
    shared.synchronize()
    emulated.emulator.fail("copy", after=stream)
    with pytest.raises(DeviceError, match="cudaErrorInvalidValue"):
        shared.copy_batch(*batch)
    shared.synchronize()  # nothing reads or writes any more
    emulated.emulator.fail("copying", after=stream)
    shared.copy_batch(*batch)
    with pytest.raises(DeviceError, match="cudaErrorInvalidValue"):
        shared.synchronize()
    shared.copy_batch(*batch)
    shared.synchronize()


def test_work_after_a_failed_batch_waits_for_its_started_copies(
    emulated: Machine, batch: Batch, shared: SplitStream
) -> None:
    shared.copy_batch(*batch)
    shared.synchronize()
    stopped = emulated.emulator.pace.stop_after(0)
    emulated.emulator.fail("copy", after=STREAMS - 2)
    with pytest.raises(DeviceError):
        shared.copy_batch(*batch)
    after = emulated.runtime.event(emulated.device)
    shared.main.record(after)
    assert stopped.wait(60)
    assert not after.query()
    emulated.emulator.pace.resume()
    shared.main.synchronize()
    assert after.query()
    after.close()


def test_streams_that_cannot_be_made_are_made_by_the_next_batch(
    emulated: Machine, batch: Batch, shared: SplitStream
) -> None:
    emulated.emulator.fail("event", after=1)
    streams = len(emulated.emulator._streams)
    with pytest.raises(DeviceError):
        shared.copy_batch(*batch)
    assert len(emulated.emulator._streams) == streams
    shared.copy_batch(*batch)
    shared.synchronize()
