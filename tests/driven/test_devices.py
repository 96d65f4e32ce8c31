"""What the engine socket and the gateway share of devices."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import pytest

from dataplane.copies.devices import Devices
from dataplane.devices.runtime import DeviceError
from dataplane.memory.shared_file import SharedFile
from tests.dataplane.plane import wait_for
from tests.gpu.machines import Machine

NBYTES = 1 << 20


@pytest.fixture
def segment() -> Iterator[SharedFile]:
    file = SharedFile.create("larder-segment-test", NBYTES)
    yield file
    file.close()


@pytest.fixture
def devices(emulated: Machine, segment: SharedFile) -> Iterator[Devices]:
    named = mmap.mmap(-1, NBYTES)
    made = Devices(lambda: emulated.runtime, {3: segment}, lambda: memoryview(named))
    yield made
    made.close()


def mappings() -> int:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return sum("memfd:larder-segment-test" in line for line in maps)


def test_registrations_of_either_kind_end_with_the_last_user_alone(emulated: Machine, devices: Devices) -> None:
    lanes = [devices.lane(emulated.device) for _ in range(2)]
    segment, named = devices.segment(3), devices.named()
    assert segment.cover(0, NBYTES)
    assert named.cover(0, NBYTES)
    assert devices.segment(3) is segment
    assert devices.named() is named
    lanes[0].close()
    devices.leave()
    assert devices.named_is_pinned
    assert mappings() == 1
    lanes[1].close()
    devices.leave()
    wait_for(lambda: not devices.named_is_pinned and not mappings(), "the registrations ended")
    assert not segment._windows
    assert not named._windows


def test_memory_is_registered_again_for_a_client_that_arrives_at_its_end(emulated: Machine, devices: Devices) -> None:
    for _ in range(20):
        lane = devices.lane(emulated.device)
        assert devices.named().cover(0, NBYTES)  # at the same address: refused while it is registered
        assert devices.segment(3).cover(0, NBYTES)
        lane.close()
        devices.leave()


def test_only_a_retired_segment_is_unmapped(emulated: Machine, devices: Devices) -> None:
    lane = devices.lane(emulated.device)
    devices.segment(3).cover(0, NBYTES)
    devices.named().cover(0, NBYTES)
    devices.retired(3)
    devices.retired(3)
    devices.retired(4)
    wait_for(lambda: not mappings(), "the segment is unmapped")
    assert devices.named_is_pinned
    lane.close()
    devices.leave()


def test_no_more_streams_are_made_than_one_process_should_have(
    emulated: Machine, devices: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dataplane.copies.devices.MAX_USERS", 2)
    lanes = [devices.lane(emulated.device) for _ in range(2)]
    with pytest.raises(DeviceError, match="at most 2 are served"):
        devices.lane(emulated.device)
    for lane in lanes:
        lane.close()
        devices.leave()
    devices.lane(emulated.device).close()
    devices.leave()


def test_a_segment_is_not_mapped_once_the_device_is_lost(emulated: Machine, devices: Devices) -> None:
    lane = devices.lane(emulated.device)
    devices.failed(DeviceError("copy", "cudaErrorIllegalAddress", lasting=True))
    for call in (devices.runtime, lambda: devices.segment(3), devices.named, lambda: devices.lane(emulated.device)):
        with pytest.raises(DeviceError, match="IllegalAddress"):
            call()
    assert not mappings()
    lane.close()
    devices.leave()
