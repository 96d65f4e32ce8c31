"""What one engine exported of a device's memory, open in this process, and copies between it and this node's.

Every allocation is opened once and closed with the rest: an open handle keeps the engine's memory on the device, long
after the engine. The engine's event is waited for here, in this process: nothing is enqueued for an engine that never
comes so far, so nothing has to be given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dataplane.devices.copying import Lane
from dataplane.devices.paged import Runs
from dataplane.devices.pinning import Pinned, Staging
from dataplane.devices.runtime import DeviceError, Handle, Opened, device_of
from dataplane.transport.copying import CopyFailed, wait_for_engine
from dataplane.transport.devices import Devices


class DeviceMemory:
    """Opened, made ready, and closed when nobody uses it. Not for two threads at once."""

    def __init__(self, devices: Devices, uuid: str) -> None:
        """Of the device with this UUID. Raises DeviceError."""
        self._devices = devices
        self._device = device_of(devices.runtime(), uuid)
        self._opened: dict[bytes, Opened] = {}
        self._lane: Lane | None = None
        self._staging: Staging | None = None

    def open(self, body: bytes) -> Opened:
        """An allocation, by the driver's handle. Raises DeviceError."""
        opened = self._opened.get(body)
        if opened is None:
            handle = Handle(body, 0, 0, self._device.uuid)
            opened = self._opened[body] = self._devices.runtime().open(handle)
        return opened

    def ready(self) -> None:
        """Everything is open: copies may begin. Raises DeviceError."""
        self._lane = self._devices.lane(self._device)

    # ---- copies, on a thread of their own

    def wait(self, event: bytes, ended: Callable[[], bool]) -> None:
        """Until the engine came so far. Raises CopyFailed, also when `ended` says that nobody waits any more."""
        with self._failures():
            wait_for_engine(self._devices.runtime(), self._device, event, ended, self._devices.close_quietly)

    def copy(self, runs: Runs, memory: Pinned, offset: int, *, to_device: bool) -> None:
        """Enqueue copies between the engine's memory and this node's at an offset; done with `synchronize`. Raises
        CopyFailed."""
        assert self._lane is not None
        with self._failures():
            if self._lane.copy_pinned(runs, memory, offset, to_device=to_device):
                return
            assert memory.refused is not None
            self._devices.staging(memory.refused)
            self.copy_staged(runs, memory.address + offset, to_device=to_device)

    def copy_staged(self, runs: Runs, host: int, *, to_device: bool) -> None:
        """The same with any memory of this process, done when it returns. Raises CopyFailed."""
        assert self._lane is not None
        with self._failures():
            if self._staging is None:
                self._staging = Staging(self._devices.runtime())
            self._lane.copy_staged(runs, self._staging, host, to_device=to_device)

    def copy_within(self, runs: Runs, base: int) -> None:
        """Enqueue copies into the engine's memory out of the device's own, where chunks begin at `base`. Raises
        CopyFailed."""
        assert self._lane is not None
        with self._failures():
            self._lane.copy(runs, base, to_device=True, within=True)

    def clear(self, address: int, nbytes: int) -> None:
        """Enqueue that memory of the device becomes 0. Raises CopyFailed."""
        assert self._lane is not None
        with self._failures():
            self._lane.stream.clear(address, nbytes)

    def synchronize(self) -> None:
        """Nothing is under way when this returns, or raises CopyFailed."""
        assert self._lane is not None
        with self._failures():
            self._lane.synchronize()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except DeviceError as error:
            self._devices.failed(error)
            raise CopyFailed(str(error)) from None

    # ---- the end

    def close(self) -> None:
        """Close everything that was opened. No copy is under way."""
        lane, self._lane = self._lane, None
        if lane is not None:
            self._devices.close_quietly(lane.close)
        for each in self._opened.values():
            self._devices.close_quietly(each.close)
        self._opened.clear()
        staging, self._staging = self._staging, None
        if staging is not None:
            self._devices.close_quietly(staging.close)
        if lane is not None:
            self._devices.leave()
