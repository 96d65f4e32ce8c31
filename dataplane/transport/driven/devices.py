"""What caches of engines share: the runtime, found when the first one registers, and the pool's segments registered
with it while any is there.

Segments are mapped and forgotten on the loop. Registering their pages, which takes time, is left to who copies.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from dataplane.devices.copying import Lane, methods_for
from dataplane.devices.find import Finder, FindRuntime
from dataplane.devices.methods import Methods
from dataplane.devices.pinning import PAGE_BYTES, Pinned
from dataplane.devices.runtime import Device, DeviceError, Runtime
from dataplane.protocol.mappings import map_shared, unmap
from dataplane.tiers.memory import NodeMemory

log = structlog.stdlib.get_logger()


class Devices:
    """One for each engine socket."""

    def __init__(self, find: FindRuntime, memory: NodeMemory) -> None:
        """`find` is what finds a runtime; the data plane is given no other than CUDA's."""
        self._find = Finder(find)
        self._memory = memory
        self._lock = threading.Lock()
        self._broken: DeviceError | None = None
        self._segments: dict[int, Pinned] = {}
        self._methods: dict[str, Methods] = {}
        self._users = 0
        self._told = False

    # ---- the runtime

    def runtime(self) -> Runtime:
        """Raises DeviceError."""
        if self._broken is not None:
            raise self._broken
        return self._find()

    def failed(self, error: DeviceError) -> None:
        """A call failed; after some errors nobody need try again."""
        if error.lasting and self._broken is None:
            self._broken = error
            log.error("device.lost", error=str(error), effect="caches of devices are refused from here on")

    def lane(self, device: Device) -> Lane:
        """A stream of its own for one more cache, which says `leave` at its end. Raises DeviceError."""
        runtime = self.runtime()
        with self._lock:
            methods = self._methods.get(device.uuid)
            if methods is None:
                methods = self._methods[device.uuid] = methods_for(runtime, device)
            lane = Lane(runtime, device, methods)
            self._users += 1
            return lane

    def leave(self) -> None:
        """A cache ended; with the last one the registrations of the pool do."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            segments, self._segments = self._segments, {}
            methods, self._methods = self._methods, {}
        for each in methods.values():
            if each.pages is not None:
                self.close_quietly(each.pages.close)
        for pinned in segments.values():
            self._end(pinned)

    # ---- the pool

    def segment(self, number: int) -> Pinned:
        """A segment that has a block which is being copied. On the loop. Raises DeviceError."""
        with self._lock:
            pinned = self._segments.get(number)
            if pinned is None:
                file = self._memory.segments[number]
                try:
                    address = map_shared(file.fd, file.nbytes, writable=True)
                except OSError as error:
                    raise DeviceError(f"map segment {number}", str(error)) from None
                nbytes = file.nbytes // PAGE_BYTES * PAGE_BYTES
                pinned = Pinned(self.runtime(), address, nbytes, read_only=False)
                self._segments[number] = pinned
            return pinned

    def retired(self, number: int) -> Callable[[], None] | None:
        """A segment is given back: what ends its registration, off the loop; None where there is none."""
        with self._lock:
            pinned = self._segments.pop(number, None)
        return None if pinned is None else lambda: self._end(pinned)

    def _end(self, pinned: Pinned) -> None:
        self.close_quietly(pinned.close)
        unmap(pinned.address, pinned.nbytes)

    def staging(self, refused: DeviceError) -> None:
        """Say once that the pool could not be registered."""
        if not self._told:
            self._told = True
            log.warning(
                "device.pool_not_pinned",
                reason=str(refused),
                effect="copies of devices go through a staging buffer: slower, nothing else changes",
            )

    def close_quietly(self, close: Callable[[], None]) -> None:
        """What fails to close must not keep the rest open."""
        try:
            close()
        except DeviceError as error:
            self.failed(error)
            log.warning("device.close_failed", error=str(error))
