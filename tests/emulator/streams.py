"""Streams and events of emulated devices.

A stream has a worker thread that keeps its work in order. An event is a few counters in a page that processes can
share.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from dataplane.devices.runtime import I64, DeviceError, DeviceEvent
from tests.emulator.memory import AddressSpace, SharedHostMemory

PIECE_BYTES = 64 << 10
POLL_S = 0.0001
WAIT_S = 60.0
"""Longest wait for a stopped copy or for an event; then the stream fails, as it does after CUDA's own time limit."""
DRAIN_S = 90.0
"""Longest wait for all work of a stream. Longer than WAIT_S, so that the operation that waits fails first."""
_RECORDED, _DONE, _AT_NS = range(3)


def _too_long(operation: str, seconds: float, cause: str) -> DeviceError:
    return DeviceError(operation, "cudaErrorTimeout", f"{cause} within {seconds:.3g} s")


class Pace:
    """Stops copies after a given number of bytes, so that a test can kill a process in the middle of a copy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: int | None = None
        self._open = threading.Event()
        self._open.set()
        self._reached = threading.Event()

    def stop_after(self, nbytes: int) -> threading.Event:
        """Stop every stream once `nbytes` more bytes are copied. The returned event is set when that happens."""
        with self._lock:
            return self._stop_after(nbytes)

    def _stop_after(self, nbytes: int) -> threading.Event:
        self._left, self._reached = nbytes, threading.Event()
        return self._reached

    def resume_for(self, nbytes: int) -> threading.Event:
        """Resume stopped copies for `nbytes` more bytes in total. The returned event is set when they stop again."""
        with self._lock:
            self._open.set()
            return self._stop_after(nbytes)

    def resume(self) -> None:
        with self._lock:
            self._left = None
            self._open.set()

    def pass_bytes(self, nbytes: int) -> None:
        """Wait while copies are stopped; streams call this before each piece. Raises DeviceError after WAIT_S."""
        with self._lock:
            if self._left is not None:
                self._left -= nbytes
                if self._left < 0:
                    self._open.clear()
                    self._reached.set()
        if not self._open.wait(WAIT_S):
            raise _too_long("copy", WAIT_S, "the copy was not resumed")


class EmulatedEvent:
    """An event. Its page holds the number of the last recording, that of the last completed one, and its time."""

    def __init__(self, page: SharedHostMemory, *, own: bool) -> None:
        self._page = page
        self._own = own
        self._cells = np.frombuffer(page.memory, np.uint64, 3)

    def begin(self) -> int:
        """Count an enqueued recording and return its number."""
        number = int(self._cells[_RECORDED]) + 1
        self._cells[_RECORDED] = number
        return number

    def end(self, number: int) -> None:
        self._cells[_AT_NS] = time.perf_counter_ns()
        self._cells[_DONE] = number

    @property
    def last(self) -> int:
        return int(self._cells[_RECORDED])

    def wait_for(self, number: int) -> None:
        """Wait for a recording. Raise DeviceError when the recording process is gone, or after WAIT_S seconds."""
        tries = 0
        deadline = time.monotonic() + WAIT_S
        while int(self._cells[_DONE]) < number:
            time.sleep(POLL_S)
            tries += 1
            if not self._own and not tries % 100 and not self._page.owner_lives():
                raise DeviceError("wait for an event", "cudaErrorInvalidResourceHandle", "its process is gone")
            if time.monotonic() > deadline:
                raise _too_long("wait for an event", WAIT_S, "the event was not recorded")

    def query(self) -> bool:
        return int(self._cells[_DONE]) >= self.last

    def synchronize(self) -> None:
        self.wait_for(self.last)

    def elapsed_ms(self, since: DeviceEvent) -> float:
        assert isinstance(since, EmulatedEvent)
        return (int(self._cells[_AT_NS]) - int(since._cells[_AT_NS])) / 1e6

    def export(self) -> bytes:
        if not self._own:
            raise DeviceError(
                "export an event", "cudaErrorInvalidResourceHandle", "the event belongs to another process"
            )
        return self._page.handle()

    def close(self) -> None:
        """Close the event. Its page is freed when the last stream that uses it is done."""
        if self._own:
            self._page.forget()


class EmulatedStream:
    """Work that runs in order on a dedicated thread."""

    native = 0

    def __init__(
        self, addresses: AddressSpace, pace: Pace, check: Callable[[str], None], ended: Callable[[], None]
    ) -> None:
        """Create the stream. `check` raises the failure that a test injected for an operation."""
        self._addresses = addresses
        self._pace = pace
        self._check = check
        self._ended = ended
        self._work: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()  # its lock is reentrant
        self._busy = False
        self._failed: DeviceError | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="emulated-stream", daemon=True)
        self._thread.start()

    # ---- work

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self.copy_batch(*(np.array([each], np.int64) for each in (target, source, nbytes)))

    def copy_batch(self, targets: I64, sources: I64, sizes: I64) -> None:
        self._check("copy")
        self._addresses.check(targets, sizes, written=True)
        self._addresses.check(sources, sizes, written=False)
        copies = list(zip(targets.tolist(), sources.tolist(), sizes.tolist(), strict=True))

        def work() -> None:
            self._check("copying")
            for target, source, nbytes in copies:
                for at in range(0, nbytes, PIECE_BYTES):
                    size = min(PIECE_BYTES, nbytes - at)
                    self._pace.pass_bytes(size)
                    ctypes.memmove(target + at, source + at, size)

        self._put(work)

    def clear(self, target: int, nbytes: int) -> None:
        self._addresses.check(np.array([target], np.int64), np.array([nbytes], np.int64), written=True)

        def work() -> None:
            ctypes.memset(target, 0, nbytes)

        self._put(work)

    def record(self, event: DeviceEvent) -> None:
        assert isinstance(event, EmulatedEvent)
        with self._changed:  # a number that no work completes would block waiters forever
            self._refuse_closed()
            number = event.begin()
            self._put(lambda: event.end(number), always=True)

    def wait(self, event: DeviceEvent) -> None:
        assert isinstance(event, EmulatedEvent)
        number = event.last
        if number:
            self._put(lambda: event.wait_for(number))

    # ---- the thread

    def _refuse_closed(self) -> None:
        if self._closed:
            raise DeviceError("use a stream", "cudaErrorInvalidResourceHandle", "it was closed")

    def _put(self, work: Callable[[], None], *, always: bool = False) -> None:
        """Queue work. `always`: run it even after a failure, so that no waiter waits forever."""

        def guarded() -> None:
            if self._failed is not None and not always:
                return
            try:
                work()
            except DeviceError as error:
                self._failed = error

        with self._changed:
            self._refuse_closed()
            self._work.append(guarded)
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while work := self._next():
                work()
        finally:  # also after an exception other than DeviceError: waiters see an idle, closed stream
            with self._changed:
                self._closed, self._busy = True, False
                self._work.clear()
                self._changed.notify_all()

    def _next(self) -> Callable[[], None] | None:
        """Wait for the next piece of work. Return None when the stream is closed and all work is done."""
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._work or self._closed)
            if not self._work:
                return None
            self._busy = True
            return self._work.popleft()

    def synchronize(self) -> None:
        self.drain()
        failed = self._failed
        if failed is not None:
            if not failed.lasting:
                self._failed = None
            raise failed

    def drain(self) -> None:
        """Wait until all work is done, failed or not. Raises DeviceError after DRAIN_S."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._work and not self._busy, DRAIN_S):
                raise _too_long("wait for a stream", DRAIN_S, "its work was not finished")

    def close(self) -> None:
        """Take no more work, and return when all queued work is done. Any thread may call it, even while another one
        closes or drains the stream. Raises DeviceError after DRAIN_S."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(DRAIN_S)
        if self._thread.is_alive():
            raise _too_long("close a stream", DRAIN_S, "its work was not finished")
        self._ended()
