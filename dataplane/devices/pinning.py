"""Host memory for device copies: registered in windows as copies need it, with a staging buffer if that is refused.

Registration pins pages permanently, so windows that no copy touches stay unregistered. A copy must lie within one
window: runtimes refuse a copy that crosses from one registration into the next.
"""

from __future__ import annotations

import threading

from dataplane.devices.runtime import DeviceError, DeviceRuntime

WINDOW_BYTES = 256 << 20
STAGING_BYTES = 32 << 20
PAGE_BYTES = 4096


class PinnedMemory:
    """A mapping of host memory, registered as far as copies have needed it."""

    def __init__(self, runtime: DeviceRuntime, address: int, nbytes: int, *, read_only: bool) -> None:
        """Register nothing yet. The mapping must outlive this object; `nbytes` is a multiple of the page size."""
        self.address = address
        self.nbytes = nbytes
        self._runtime = runtime
        self._read_only = read_only
        self._windows: set[int] = set()
        self._refused: DeviceError | None = None
        self._lock = threading.Lock()

    @property
    def refused(self) -> DeviceError | None:
        """Error with which a registration was refused, if any."""
        return self._refused

    def _size(self, window: int) -> int:
        return min(WINDOW_BYTES, self.nbytes - window * WINDOW_BYTES)

    def cover(self, begin: int, end: int) -> bool:
        """Register these bytes of the mapping. Return False if that is or was refused; the caller then stages them."""
        with self._lock:
            if self._refused is not None:
                return False
            for window in range(begin // WINDOW_BYTES, (end - 1) // WINDOW_BYTES + 1):
                if window in self._windows:
                    continue
                try:
                    self._runtime.register(
                        self.address + window * WINDOW_BYTES, self._size(window), read_only=self._read_only
                    )
                except DeviceError as error:
                    # Drop the caller's frames: they refer to memory that is to be freed.
                    self._refused = error.with_traceback(None)
                    return False
                self._windows.add(window)
            return True

    def close(self) -> None:
        """Unregister everything. No copy may be under way."""
        with self._lock:
            while self._windows:
                self._runtime.unregister(self.address + self._windows.pop() * WINDOW_BYTES)


class Staging:
    """Pinned memory of our own, in two alternating halves: the device copies one while the CPU copies the other."""

    def __init__(self, runtime: DeviceRuntime, nbytes: int = STAGING_BYTES) -> None:
        """Allocate the memory. Raise DeviceError if not even this much can be pinned."""
        self._runtime = runtime
        self.half_bytes = nbytes // 2 // PAGE_BYTES * PAGE_BYTES
        self._address = runtime.allocate_host(2 * self.half_bytes)
        self._closed = False

    def half(self, turn: int) -> int:
        """Return the address of a half."""
        return self._address + turn % 2 * self.half_bytes

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._runtime.free_host(self._address)
