"""What the gateway's copiers of devices share: the runtime, found when the first engine needs it, and the named segment
registered with it while any of them is there.

Registered pages stay where they are. Until the last copier is gone, the data plane gives none of the segment's back.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
import structlog

from dataplane.devices.copying import Lane, methods_for
from dataplane.devices.find import Finder, FindRuntime, find
from dataplane.devices.methods import Methods
from dataplane.devices.pinning import PAGE_BYTES, Pinned
from dataplane.devices.runtime import Device, DeviceError, Runtime
from dataplane.transport.lmcache.cache import Pool

log = structlog.stdlib.get_logger()


class Devices:
    """One for each gateway. `find` is what finds a runtime; the data plane is given no other than CUDA's."""

    def __init__(self, find: FindRuntime = find) -> None:
        self._find = Finder(find)
        self._broken: DeviceError | None = None
        self._pinned: Pinned | None = None
        self._pool: Pool | None = None
        self._methods: dict[str, Methods] = {}
        self._users = 0
        self._told = False
        self._unpinning: threading.Thread | None = None
        self._lock = threading.Lock()
        """Copies of several engines ask for the segment at once, on threads of their own."""

    def serve(self, pool: Pool) -> None:
        """The memory that copies go to and come from."""
        self._pool = pool

    @property
    def pinned(self) -> bool:
        """A device may write to the segment's pages by address."""
        unpinning = self._unpinning
        return self._pinned is not None or (unpinning is not None and unpinning.is_alive())

    def runtime(self) -> Runtime:
        """Raises DeviceError."""
        if self._broken is not None:
            raise self._broken.with_traceback(None)
        return self._find()

    def failed(self, error: DeviceError) -> None:
        """A call failed; after some errors nobody need try again."""
        if error.lasting and self._broken is None:
            self._broken = error.with_traceback(None)
            log.error(
                "lmcache.device_lost", error=str(error), effect="engines of CUDA are refused from here on"
            )

    def lane(self, device: Device) -> Lane:
        """A stream of its own for one more copier, which says `leave` at its end. Raises DeviceError."""
        runtime = self.runtime()
        methods = self._methods.get(device.uuid)
        if methods is None:
            methods = self._methods[device.uuid] = methods_for(runtime, device)
        lane = Lane(runtime, device, methods)
        self._users += 1
        return lane

    def memory(self) -> Pinned:
        """The segment, registered as far as copies needed it."""
        assert self._pool is not None
        with self._lock:
            if self._pinned is None:
                if self._unpinning is not None:
                    self._unpinning.join()
                view = np.frombuffer(self._pool.view(), np.uint8)
                nbytes = self._pool.nbytes // PAGE_BYTES * PAGE_BYTES
                self._pinned = Pinned(self.runtime(), int(view.ctypes.data), nbytes, read_only=False)
            return self._pinned

    def staging(self, refused: DeviceError) -> None:
        """Say once that the segment could not be registered."""
        if not self._told:
            self._told = True
            log.warning(
                "lmcache.not_pinned",
                reason=str(refused),
                effect="copies of CUDA engines go through a staging buffer: slower, nothing else changes",
            )

    def leave(self) -> None:
        """A copier ended; with the last one the registration does, on a thread: it takes a while for each GiB."""
        self._users -= 1
        if self._users:
            return
        pinned, methods = self._pinned, self._methods
        self._methods = {}
        self.close()
        self._unpinning = threading.Thread(target=self._unpin, args=(pinned, methods), name="lmcache-unpin")
        self._unpinning.start()
        self._pinned = None

    def _unpin(self, pinned: Pinned | None, methods: Mapping[str, Methods]) -> None:
        try:
            for each in methods.values():
                if each.pages is not None:
                    each.pages.close()
            if pinned is not None:
                pinned.close()
        except DeviceError as error:
            self.failed(error)
            log.warning("lmcache.device_close_failed", error=str(error))

    def close(self) -> None:
        """Wait until the registration has ended, where it is ending."""
        if self._unpinning is not None:
            self._unpinning.join()
