"""Open and close engines' device memory off the loop. The first opening loads the device's runtime, which takes
seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dataplane.copies.copying import CopyFailed, CopyThreads
from dataplane.copies.devices import Devices
from dataplane.gateways.lmcache.workers.copies import Copier


class DeviceOpens:
    """Open and close the memory of copiers, one after the other. Host memory needs no opening."""

    def __init__(self, copying: CopyThreads, devices: Devices) -> None:
        self._copying = copying
        self._devices = devices
        self._loose: set[Copier] = set()
        """Copiers that are being opened or closed and belong to no instance."""

    def open(self, copier: Copier, then: Callable[[CopyFailed | None], None], *, loose: bool) -> bool:
        """Open a copier, then call `then` on the loop. `loose` means that the copier belongs to no instance yet.

        Return False, without a call of `then`, if too many copies are queued.
        """

        def opened(failed: CopyFailed | None) -> None:
            self._loose.discard(copier)
            then(failed)

        if not copier.own_thread:
            then(None)
        elif not self._copying.submit(copier.open, opened, self._devices):
            return False
        elif loose:
            self._loose.add(copier)
        return True

    def close(self, copier: Copier | None) -> None:
        """Close a copier that has no running copy."""
        if copier is None:
            return
        closing = copier
        if copier.own_thread and self._copying.submit(
            copier.close, lambda failed: self._loose.discard(closing), self._devices
        ):
            self._loose.add(copier)
        else:
            copier.close()

    def end(self, copiers: Iterable[Copier | None]) -> None:
        """Close `copiers` and all loose copiers at once. The copy threads must have stopped."""
        for copier in self._loose.union(copiers):
            if copier is not None:
                copier.close()
        self._loose.clear()
