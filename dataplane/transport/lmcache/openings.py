"""Memory of engines' devices is opened and closed beside the loop: for the first one the device's runtime is loaded,
which takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dataplane.transport.copying import CopyFailed, Copying
from dataplane.transport.devices import Devices
from dataplane.transport.lmcache.copies import Copier


class Openings:
    """Opens and closes what copiers have, one after the other. What is in host memory is open at once."""

    def __init__(self, copying: Copying, devices: Devices) -> None:
        self._copying = copying
        self._devices = devices
        self._loose: set[Copier] = set()
        """Those that are being opened or closed, and belong to nobody."""

    def open(self, copier: Copier, then: Callable[[CopyFailed | None], None], *, loose: bool) -> bool:
        """Open, then call on the loop. `loose`: it belongs to nobody before. False: too much waits, and nothing is
        called."""

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
        """Nobody copies there any more."""
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
        """Close these, and what belongs to nobody, now: nothing runs off the loop any more."""
        for copier in self._loose.union(copiers):
            if copier is not None:
                copier.close()
        self._loose.clear()
