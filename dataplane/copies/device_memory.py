"""Memory that one engine exported from a device, opened in this process, and copies between it and this node's memory.

Every allocation is opened once and closed with the others, because an open handle keeps the engine's memory on the
device long after the engine is gone. This process itself waits for the engine's event: no work is enqueued for an event
that never completes, so none has to be cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dataplane.copies.copying import CopyFailed, wait_for_engine
from dataplane.copies.devices import Devices
from dataplane.devices.paged import Runs
from dataplane.devices.pinning import PinnedMemory, Staging
from dataplane.devices.runtime import DeviceError, Handle, OpenedMemory, device_of


class DeviceMemory:
    """Memory of one device, and a lane for its copies. Not safe for concurrent use by two threads."""

    def __init__(self, devices: Devices, uuid: str) -> None:
        """Use the device with this UUID. Raises DeviceError."""
        self._devices = devices
        self._device = device_of(devices.runtime(), uuid)
        self._lane = devices.lane(self._device)
        self._opened: dict[bytes, OpenedMemory] = {}
        self._staging: Staging | None = None

    def open(self, body: bytes) -> OpenedMemory:
        """Open the allocation of a driver handle. Raises DeviceError."""
        opened = self._opened.get(body)
        if opened is None:
            handle = Handle(body, 0, 0, self._device.uuid)
            opened = self._opened[body] = self._devices.runtime().open(handle)
        return opened

    # ---- copies, on a separate thread

    def wait(self, event: bytes, ended: Callable[[], bool]) -> None:
        """Wait until the engine's event has completed. Raises CopyFailed, also if `ended` returns that the copy is no
        longer wanted."""
        with self._failures():
            wait_for_engine(self._devices.runtime(), self._device, event, ended, self._devices.close_quietly)

    def copy(self, runs: Runs, memory: PinnedMemory, offset: int, *, to_device: bool) -> None:
        """Enqueue copies between the engine's memory and this node's memory at an offset; `synchronize` waits for them.
        Raises CopyFailed."""
        with self._failures():
            if self._lane.copy_pinned(runs, memory, offset, to_device=to_device):
                return
            assert memory.refused is not None
            self._devices.staging(memory.refused)
            self.copy_staged(runs, memory.address + offset, to_device=to_device)

    def copy_staged(self, runs: Runs, host: int, *, to_device: bool) -> None:
        """Copy between the engine's memory and any memory of this process; complete on return. Raises CopyFailed."""
        with self._failures():
            if self._staging is None:
                self._staging = Staging(self._devices.runtime())
            self._lane.copy_staged(runs, self._staging, host, to_device=to_device)

    def copy_within(self, runs: Runs, base: int) -> None:
        """Enqueue copies into the engine's memory from other memory of the device, where chunks begin at `base`. Raises
        CopyFailed."""
        with self._failures():
            self._lane.copy(runs, base, to_device=True, within=True)

    def clear(self, address: int, nbytes: int) -> None:
        """Enqueue filling device memory with zeros. Raises CopyFailed."""
        with self._failures():
            self._lane.stream.clear(address, nbytes)

    def synchronize(self) -> None:
        """Wait for all enqueued work, which has ended even if this raises CopyFailed."""
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
        """Close all opened memory, once. No copy may be in progress."""
        self._devices.close_quietly(self._lane.close)
        for memory in self._opened.values():
            self._devices.close_quietly(memory.close)
        if self._staging is not None:
            self._devices.close_quietly(self._staging.close)
        self._devices.leave()
