"""What everybody shares who copies between devices and this node's memory, for the engine socket and the gateways: the
runtime, found when the first engine needs it, and host memory registered with it while any engine is there.

Registering takes time and is left to who copies; registrations end on a thread of their own. Segments of the pool get
mappings for it; the named segment is registered where its clients' bytes are reckoned from. Registered pages stay where
they are: while the named segment is registered, the data plane gives none of its pages back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
import structlog

from dataplane.devices.copying import Lane, methods_for
from dataplane.devices.find import Finder, FindRuntime
from dataplane.devices.methods import Methods
from dataplane.devices.pinning import PAGE_BYTES, Pinned
from dataplane.devices.runtime import Device, DeviceError, Runtime
from dataplane.protocol.mappings import map_shared, unmap
from dataplane.tiers.memory import SharedFile

MAX_USERS = 512
"""Each has a stream, and mostly a thread."""
NAMED = -1
"""Stands for the named segment among the numbers of segments."""

log = structlog.stdlib.get_logger()


class Devices:
    """One for each data plane. Safe on any thread."""

    def __init__(
        self,
        find: FindRuntime,
        segments: Mapping[int, SharedFile],
        named: Callable[[], memoryview] | None = None,
    ) -> None:
        """`find` is what finds a runtime; the data plane is given no other than CUDA's. `segments` are those of the
        pool, as they are now, and `named` all of the named segment."""
        self._find = Finder(find)
        self._segments = segments
        self._named = named
        self._users_lock = threading.Lock()
        """Of users and methods: a kernel may be made under it, which the loop does not wait for."""
        self._lock = threading.Lock()
        """Of registrations; taken last."""
        self._broken: DeviceError | None = None
        self._pinned: dict[int, Pinned] = {}
        self._methods: dict[str, Methods] = {}
        self._users = 0
        self._told = False
        self._ends = ThreadPoolExecutor(1, "device-end")
        self._ending: Future[None] | None = None
        """What ended with the last user."""

    # ---- the runtime

    def runtime(self) -> Runtime:
        """Raises DeviceError."""
        if self._broken is not None:
            raise self._broken.with_traceback(None)
        return self._find()

    def failed(self, error: DeviceError) -> None:
        """A call failed; after some errors nobody need try again."""
        if error.lasting and self._broken is None:
            self._broken = error.with_traceback(None)
            log.error("device.lost", error=str(error), effect="engines of GPUs are refused from here on")

    @property
    def lost(self) -> bool:
        """Nobody need try again."""
        return self._broken is not None

    def lane(self, device: Device) -> Lane:
        """A stream of its own for one more user, who says `leave` at its end. Raises DeviceError."""
        runtime = self.runtime()
        with self._users_lock:
            if self._users >= MAX_USERS:
                raise DeviceError(
                    "open one more engine's memory", f"at most {MAX_USERS} are served", "try again later"
                )
            methods = self._methods.get(device.uuid)
            if methods is None:
                methods = self._methods[device.uuid] = methods_for(runtime, device)
            lane = Lane(runtime, device, methods)
            self._users += 1
            return lane

    def leave(self) -> None:
        """A user ended; with the last one the registrations do."""
        with self._users_lock:
            self._users -= 1
            if self._users:
                return
            methods, self._methods = self._methods, {}
            with self._lock:
                pinned, self._pinned = self._pinned, {}
            self._ending = self._ends.submit(self._end_all, pinned, methods)

    # ---- memory, for users who have not left

    def segment(self, number: int) -> Pinned:
        """A segment of the pool that has a block which is being copied. On the loop. Raises DeviceError."""
        with self._lock:
            pinned = self._pinned.get(number)
            if pinned is None:
                runtime, file = self.runtime(), self._segments[number]
                try:
                    address = map_shared(file.fd, file.nbytes, writable=True)
                except OSError as error:
                    raise DeviceError(f"map segment {number}", str(error)) from None
                pinned = self._pinned[number] = _whole_pages(runtime, address, file.nbytes)
            return pinned

    def named(self) -> Pinned:
        """The named segment. Waits where its registration is ending; not on the loop. Raises DeviceError."""
        assert self._named is not None
        if self._ending is not None:
            wait([self._ending])
        with self._lock:
            pinned = self._pinned.get(NAMED)
            if pinned is None:
                view = np.frombuffer(self._named(), np.uint8)
                pinned = _whole_pages(self.runtime(), int(view.ctypes.data), len(view))
                self._pinned[NAMED] = pinned
            return pinned

    @property
    def named_is_pinned(self) -> bool:
        """A device may write to the named segment's pages by address."""
        ending = self._ending
        return NAMED in self._pinned or (ending is not None and not ending.done())

    def retired(self, number: int) -> None:
        """A segment of the pool is given back, and no block of it is being copied."""
        with self._lock:
            pinned = self._pinned.pop(number, None)
        if pinned is not None:
            self._ends.submit(self._end, number, pinned)

    def staging(self, refused: DeviceError) -> None:
        """Say once that memory could not be registered."""
        if not self._told:
            self._told = True
            log.warning(
                "device.pool_not_pinned",
                reason=str(refused),
                effect="copies of GPUs go through a staging buffer: slower, nothing else changes",
            )

    # ---- the end

    def _end_all(self, pinned: Mapping[int, Pinned], methods: Mapping[str, Methods]) -> None:
        for each in methods.values():
            if each.pages is not None:
                self.close_quietly(each.pages.close)
        for number, memory in pinned.items():
            self._end(number, memory)

    def _end(self, number: int, pinned: Pinned) -> None:
        self.close_quietly(pinned.close)
        if number != NAMED:
            unmap(pinned.address, pinned.nbytes)

    def close_quietly(self, close: Callable[[], None]) -> None:
        """What fails to close must not keep the rest open."""
        try:
            close()
        except DeviceError as error:
            self.failed(error)
            log.warning("device.close_failed", error=str(error))

    def close(self) -> None:
        """Wait until the registrations have ended. Every user has left."""
        self._ends.shutdown()


def _whole_pages(runtime: Runtime, address: int, nbytes: int) -> Pinned:
    return Pinned(runtime, address, nbytes // PAGE_BYTES * PAGE_BYTES, read_only=False)
