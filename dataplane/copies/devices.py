"""State shared by all copies between devices and this node's memory, for the engine socket and the gateways: the device
runtime, found when the first engine needs it, and the host memory registered with it while there are users.

Registering takes time, so the thread that copies does it; registrations end on a separate thread. Segments of the pool
get mappings for it; the named segment is registered at the mapping that offsets of its clients refer to. Registered
pages must stay in place: while the named segment is registered, the data plane gives none of its pages back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

import numpy as np
import structlog

from dataplane.copies.copying import CopyFailed
from dataplane.devices.copying import CopyLane, methods_for
from dataplane.devices.find import FindRuntime
from dataplane.devices.methods import Methods
from dataplane.devices.pinning import PAGE_BYTES, PinnedMemory
from dataplane.devices.runtime import Device, DeviceError, DeviceRuntime
from dataplane.memory.shared_file import SharedFile
from dataplane.protocol.mappings import map_shared, unmap

MAX_USERS = 512
"""Each user has up to four streams, and usually a thread."""
NAMED = -1
"""Key of the named segment among segment numbers."""

log = structlog.stdlib.get_logger()


class Devices:
    """Devices of one data plane. Thread-safe."""

    def __init__(
        self, find: FindRuntime, segments: Mapping[int, SharedFile], named: Callable[[], memoryview] | None
    ) -> None:
        """`find` finds a runtime; the data plane always passes CUDA's. `segments` is the live mapping of the pool's
        segments, and `named` returns a view of the whole named segment."""
        self._find = find
        self._runtime: DeviceRuntime | None = None
        self._finding = threading.Lock()
        self._segments = segments
        self._named = named
        self._users_lock = threading.Lock()
        """Guards users and methods. A kernel may be compiled while it is held, so the loop must not wait for it."""
        self._lock = threading.Lock()
        """Guards registrations; always taken last."""
        self._broken: DeviceError | None = None
        self._pinned: dict[int, PinnedMemory] = {}
        self._methods: dict[str, Methods] = {}
        self._users = 0
        self._warned = False
        self._cleanup_thread = ThreadPoolExecutor(1, "device-end")
        self._cleanup: Future[None] | None = None
        """Cleanup that started when the last user left."""

    # ---- the runtime

    def runtime(self) -> DeviceRuntime:
        """Return the device runtime. It is found again after a failure, because a driver may become available later.
        Raises DeviceError."""
        if self._broken is not None:
            raise self._broken.with_traceback(None)
        with self._finding:
            if self._runtime is None:
                self._runtime = self._find()
            return self._runtime

    def failed(self, error: DeviceError) -> None:
        """Note a failed call; after a lasting error no device can be used."""
        if error.lasting and self._broken is None:
            self._broken = error.with_traceback(None)
            log.error("device.lost", error=str(error), effect="engines of GPUs are refused from here on")

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Note a DeviceError of a block, and raise CopyFailed in its place."""
        try:
            yield
        except DeviceError as error:
            self.failed(error)
            raise CopyFailed(str(error)) from None

    @property
    def lost(self) -> bool:
        """Whether a lasting error occurred, after which retries are useless."""
        return self._broken is not None

    def lane(self, device: Device) -> CopyLane:
        """Return a lane, with its own stream, for one more user, which calls `leave` at the end. Raises DeviceError."""
        runtime = self.runtime()
        with self._users_lock:
            if self._users >= MAX_USERS:
                raise DeviceError("open one more engine's memory", f"at most {MAX_USERS} are served", "try again later")
            methods = self._methods.get(device.uuid)
            if methods is None:
                methods = self._methods[device.uuid] = methods_for(runtime, device)
            lane = CopyLane(runtime, device, methods)
            self._users += 1
            return lane

    def leave(self) -> None:
        """Remove a user. When the last one leaves, all registrations end."""
        with self._users_lock:
            self._users -= 1
            if self._users:
                return
            methods, self._methods = self._methods, {}
            with self._lock:
                pinned, self._pinned = self._pinned, {}
            self._cleanup = self._cleanup_thread.submit(self._end_all, pinned, methods)

    # ---- memory, for current users

    def segment(self, number: int) -> PinnedMemory:
        """Return the registration of a pool segment that has a block being copied. Call this on the loop. Raises
        DeviceError."""
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

    def named(self) -> PinnedMemory:
        """Return the registration of the named segment. Blocks while an earlier registration is ending, so do not call
        it on the loop. Raises DeviceError."""
        assert self._named is not None
        if self._cleanup is not None:
            wait([self._cleanup])
        with self._lock:
            pinned = self._pinned.get(NAMED)
            if pinned is None:
                view = np.frombuffer(self._named(), np.uint8)
                pinned = _whole_pages(self.runtime(), int(view.ctypes.data), len(view))
                self._pinned[NAMED] = pinned
            return pinned

    @property
    def named_is_pinned(self) -> bool:
        """Whether a device may write to the named segment's pages by address."""
        cleanup = self._cleanup
        return NAMED in self._pinned or (cleanup is not None and not cleanup.done())

    def retired(self, number: int) -> None:
        """End the registration of a pool segment that is being released and has no block that is being copied."""
        with self._lock:
            pinned = self._pinned.pop(number, None)
        if pinned is not None:
            self._cleanup_thread.submit(self._end, number, pinned)

    def staging(self, refused: DeviceError) -> None:
        """Log, only once, that memory could not be registered."""
        if not self._warned:
            self._warned = True
            log.warning(
                "device.pool_not_pinned",
                reason=str(refused),
                effect="copies of GPUs go through a staging buffer: slower, nothing else changes",
            )

    # ---- the end

    def _end_all(self, pinned: Mapping[int, PinnedMemory], methods: Mapping[str, Methods]) -> None:
        for device_methods in methods.values():
            if device_methods.pages is not None:
                self.close_quietly(device_methods.pages.close)
        for number, memory in pinned.items():
            self._end(number, memory)

    def _end(self, number: int, pinned: PinnedMemory) -> None:
        self.close_quietly(pinned.close)
        if number != NAMED:
            unmap(pinned.address, pinned.nbytes)

    def close_quietly(self, close: Callable[[], None]) -> None:
        """Call `close` and log its failure, so that the remaining resources are still closed."""
        try:
            close()
        except DeviceError as error:
            self.failed(error)
            log.warning("device.close_failed", error=str(error))

    def close(self) -> None:
        """Wait until the registrations have ended. Every user must have left."""
        self._cleanup_thread.shutdown()


def _whole_pages(runtime: DeviceRuntime, address: int, nbytes: int) -> PinnedMemory:
    return PinnedMemory(runtime, address, nbytes // PAGE_BYTES * PAGE_BYTES, read_only=False)
