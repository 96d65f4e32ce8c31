"""Memory that one engine exported from a device, opened in this process, and copies between it and this node's memory.

Every allocation is opened once and closed with the others, because an open handle keeps the engine's memory on the
device long after the engine is gone. This process itself waits for the engine's event: no work is enqueued for an event
that never completes, so none has to be cancelled.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from dataplane.copies.copying import CopyFailed
from dataplane.copies.devices import Devices
from dataplane.devices.paged import Runs
from dataplane.devices.pinning import PinnedMemory, Staging
from dataplane.devices.runtime import Handle, OpenedMemory, device_of

EVENT_WAIT_S = 30.0
"""Time that an engine's forward pass may take after the engine asked for a copy."""
_LOOK_S, _LONGEST_LOOK_S = 0.00005, 0.02
_LOOK_RATIO = 0.05
"""Fraction of the time waited so far that a copy sleeps before it polls its event again. It keeps many long waits from
using much CPU time."""


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
        with self._devices.failures():
            opened = self._devices.runtime().open_event(self._device, event)
            try:
                began = time.monotonic()
                while not opened.query():
                    if ended():
                        raise CopyFailed("the engine is gone")
                    waited = time.monotonic() - began
                    if waited > EVENT_WAIT_S:
                        raise CopyFailed(f"the engine's event did not come within {EVENT_WAIT_S:g} s")
                    time.sleep(min(max(_LOOK_S, _LOOK_RATIO * waited), _LONGEST_LOOK_S))
            finally:
                self._devices.close_quietly(opened.close)

    def copy(self, runs: Runs, memory: PinnedMemory, offset: int, *, to_device: bool) -> None:
        """Enqueue copies between the engine's memory and this node's memory at an offset; `synchronize` waits for them.
        Raises CopyFailed."""
        with self._devices.failures():
            if self._lane.copy_pinned(runs, memory, offset, to_device=to_device):
                return
            assert memory.refused is not None
            self._devices.staging(memory.refused)
            self.copy_staged(runs, memory.address + offset, to_device=to_device)

    def copy_staged(self, runs: Runs, host: int, *, to_device: bool) -> None:
        """Copy between the engine's memory and any memory of this process; complete on return. Raises CopyFailed."""
        with self._devices.failures():
            if self._staging is None:
                self._staging = Staging(self._devices.runtime())
            self._lane.copy_staged(runs, self._staging, host, to_device=to_device)

    def copy_within(self, runs: Runs, base: int) -> None:
        """Enqueue copies into the engine's memory from other memory of the device, where chunks begin at `base`. Raises
        CopyFailed."""
        with self._devices.failures():
            self._lane.copy(runs, base, to_device=True, within=True)

    def clear(self, address: int, nbytes: int) -> None:
        """Enqueue filling device memory with zeros. Raises CopyFailed."""
        with self._devices.failures():
            self._lane.stream.clear(address, nbytes)

    def synchronize(self) -> None:
        """Wait for all enqueued work, which has ended even if this raises CopyFailed."""
        with self._devices.failures():
            self._lane.synchronize()

    # ---- the end

    def close(self) -> None:
        """Close all opened memory, once. No copy may be in progress."""
        self._devices.close_quietly(self._lane.close)
        for memory in self._opened.values():
            self._devices.close_quietly(memory.close)
        if self._staging is not None:
            self._devices.close_quietly(self._staging.close)
        self._devices.leave()
