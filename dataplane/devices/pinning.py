"""Host memory that devices copy from and to: registered a window at a time where a copy needs it, and a staging buffer
where that is refused.

Registering takes pages for good, so windows that no copy touched stay as they were. A copy lies within one window:
runtimes refuse one that crosses from a registration into the next.
"""

from __future__ import annotations

import threading

from dataplane.devices.runtime import DeviceError, Runtime

WINDOW_BYTES = 256 << 20
STAGING_BYTES = 32 << 20
PAGE_BYTES = 4096


class Pinned:
    """One mapping of host memory, registered as far as it was needed."""

    def __init__(self, runtime: Runtime, address: int, nbytes: int, *, read_only: bool) -> None:
        """The mapping outlives this. `nbytes` is of whole pages."""
        self.address = address
        self.nbytes = nbytes
        self._runtime = runtime
        self._read_only = read_only
        self._windows: set[int] = set()
        self._refused: DeviceError | None = None
        self._lock = threading.Lock()

    @property
    def refused(self) -> DeviceError | None:
        """Why some of it could not be registered."""
        return self._refused

    @property
    def registered_bytes(self) -> int:
        return sum(self._size(window) for window in self._windows)

    def _size(self, window: int) -> int:
        return min(WINDOW_BYTES, self.nbytes - window * WINDOW_BYTES)

    def cover(self, begin: int, end: int) -> bool:
        """Have these bytes of the mapping registered. False: refused, now or before; stage them."""
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
                    # Without the frames of whoever wanted it: they refer to memory that is given back.
                    self._refused = error.with_traceback(None)
                    return False
                self._windows.add(window)
            return True

    def close(self) -> None:
        """Give all of it back. No copy is under way."""
        with self._lock:
            while self._windows:
                self._runtime.unregister(self.address + self._windows.pop() * WINDOW_BYTES)


class Staging:
    """Pinned memory of our own, in two halves that take turns: one is copied by the device while the processor copies
    the other."""

    def __init__(self, runtime: Runtime, nbytes: int = STAGING_BYTES) -> None:
        """Raises DeviceError when not even this much can be pinned."""
        self._runtime = runtime
        self.half_bytes = nbytes // 2 // PAGE_BYTES * PAGE_BYTES
        self._address = runtime.allocate_host(2 * self.half_bytes)
        self._closed = False

    def half(self, turn: int) -> int:
        """Address of a half."""
        return self._address + turn % 2 * self.half_bytes

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._runtime.free_host(self._address)
