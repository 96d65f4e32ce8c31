"""Open and close engines' device memory off the loop. The first opening loads the device's runtime, which takes
seconds."""

from __future__ import annotations

from collections.abc import Callable

from dataplane.copies.copying import CopyFailed, CopyThreads
from dataplane.copies.devices import Devices
from dataplane.gateways.lmcache.workers.copies import Copier


class DeviceOpens:
    """Open and close the memory of copiers, one after the other. Host memory needs no opening."""

    def __init__(self, copying: CopyThreads, devices: Devices) -> None:
        self._copying = copying
        self._devices = devices
        self._copiers: set[Copier] = set()
        """Copiers that are not closed yet."""

    def open(self, copier: Copier, then: Callable[[CopyFailed | None], None]) -> bool:
        """Open a copier, then call `then` on the loop.

        Return False, without a call of `then`, if too many copies are queued.
        """
        self._copiers.add(copier)
        if copier.own_thread:
            return self._copying.submit(copier.open, then, self._devices)
        then(None)
        return True

    def close(self, copier: Copier | None) -> None:
        """Close a copier that has no running copy."""
        if copier is None:
            return
        closed = copier

        def forget(failed: CopyFailed | None = None) -> None:
            self._copiers.discard(closed)

        if not (copier.own_thread and self._copying.submit(copier.close, forget, self._devices)):
            copier.close()
            forget()

    def end(self) -> None:
        """Close all copiers at once. The copy threads must have stopped."""
        for copier in self._copiers:
            copier.close()
        self._copiers.clear()
