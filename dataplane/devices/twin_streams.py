"""Streams and events of the twin: a worker thread each that keeps order, and two counters in a page that processes
may share."""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from dataplane.devices.runtime import I64, DeviceError, Event
from dataplane.devices.twin_memory import Places, Shared

PIECE_BYTES = 64 << 10
LOOK_S = 0.0001
_RECORDED, _DONE, _AT_NS = range(3)


class Pace:
    """Lets copies be stopped in their middle, at a byte: what a test needs to kill somebody there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: int | None = None
        self._open = threading.Event()
        self._open.set()
        self._reached = threading.Event()

    def stop_after(self, nbytes: int) -> threading.Event:
        """Stop every stream once so many more bytes were copied; the event is set when that is so."""
        with self._lock:
            self._left, self._reached = nbytes, threading.Event()
            return self._reached

    def go_on_for(self, nbytes: int) -> threading.Event:
        """The same from where they stand: those that were stopped copy so many more bytes together."""
        reached = self.stop_after(nbytes)
        self._open.set()
        return reached

    def go_on(self) -> None:
        with self._lock:
            self._left = None
            self._open.set()

    def pass_bytes(self, nbytes: int) -> None:
        """Called by streams before they copy a piece."""
        with self._lock:
            if self._left is not None:
                self._left -= nbytes
                if self._left < 0:
                    self._open.clear()
                    self._reached.set()
        self._open.wait()


class TwinEvent:
    """An event. Its page has the number of its last record, that of the last one that is done, and when that was."""

    def __init__(self, page: Shared, *, own: bool) -> None:
        self._page = page
        self._own = own
        self._cells = np.frombuffer(page.memory, np.uint64, 3)

    def begin(self) -> int:
        """A record is enqueued; its number."""
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
        """Raises DeviceError when the process that was to record it is gone."""
        tries = 0
        while int(self._cells[_DONE]) < number:
            time.sleep(LOOK_S)
            tries += 1
            if not self._own and not tries % 100 and not self._page.owner_lives():
                raise DeviceError(
                    "wait for an event", "cudaErrorInvalidResourceHandle", "its process is gone"
                )

    def query(self) -> bool:
        return int(self._cells[_DONE]) >= self.last

    def synchronize(self) -> None:
        self.wait_for(self.last)

    def elapsed_ms(self, since: Event) -> float:
        assert isinstance(since, TwinEvent)
        return (int(self._cells[_AT_NS]) - int(since._cells[_AT_NS])) / 1e6

    def export(self) -> bytes:
        if not self._own:
            raise DeviceError("export an event", "cudaErrorInvalidResourceHandle", "it is another process's")
        return self._page.handle()

    def close(self) -> None:
        """The page goes with the last stream that still has it."""
        if self._own:
            self._page.forget()


class TwinStream:
    """Work in order, on a thread of its own."""

    native = 0

    def __init__(
        self, places: Places, pace: Pace, check: Callable[[str], None], ended: Callable[[], None]
    ) -> None:
        """`check` raises the failure that somebody provoked for an operation."""
        self._places = places
        self._pace = pace
        self._check = check
        self._ended = ended
        self._work: deque[Callable[[], None] | None] = deque()
        self._more = threading.Condition()
        self._busy = False
        self._failed: DeviceError | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="twin-stream", daemon=True)
        self._thread.start()

    # ---- work

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self.copy_batch(*(np.array([each], np.int64) for each in (target, source, nbytes)))

    def copy_batch(self, targets: I64, sources: I64, sizes: I64) -> None:
        self._check("copy")
        self._places.check(targets, sizes, written=True)
        self._places.check(sources, sizes, written=False)
        copies = list(zip(targets.tolist(), sources.tolist(), sizes.tolist(), strict=True))

        def work() -> None:
            self._check("copying")
            for target, source, nbytes in copies:
                for at in range(0, nbytes, PIECE_BYTES):
                    size = min(PIECE_BYTES, nbytes - at)
                    self._pace.pass_bytes(size)
                    ctypes.memmove(target + at, source + at, size)

        self._put(work)

    def copy_strided(
        self, target: int, target_step: int, source: int, source_step: int, width: int, rows: int
    ) -> None:
        if rows > 1 and min(target_step, source_step) < width:
            raise DeviceError("copy rows", "cudaErrorInvalidPitchValue", f"rows of {width} bytes overlap")
        at = np.arange(rows, dtype=np.int64)
        self.copy_batch(target + at * target_step, source + at * source_step, np.full(rows, width, np.int64))

    def clear(self, target: int, nbytes: int) -> None:
        self._places.check(np.array([target], np.int64), np.array([nbytes], np.int64), written=True)

        def work() -> None:
            ctypes.memset(target, 0, nbytes)

        self._put(work)

    def record(self, event: Event) -> None:
        assert isinstance(event, TwinEvent)
        number = event.begin()
        self._put(lambda: event.end(number), always=True)

    def wait(self, event: Event) -> None:
        assert isinstance(event, TwinEvent)
        number = event.last
        if number:
            self._put(lambda: event.wait_for(number))

    # ---- the thread

    def _put(self, work: Callable[[], None], *, always: bool = False) -> None:
        """`always`: also after a failure, so that nobody waits for ever."""
        if self._closed:
            raise DeviceError("use a stream", "cudaErrorInvalidResourceHandle", "it was closed")

        def guarded() -> None:
            if self._failed is not None and not always:
                return
            try:
                work()
            except DeviceError as error:
                self._failed = error

        with self._more:
            self._work.append(guarded)
            self._more.notify_all()

    def _run(self) -> None:
        while True:
            with self._more:
                while not self._work:
                    self._busy = False
                    self._more.notify_all()
                    self._more.wait()
                self._busy = True
                work = self._work.popleft()
            if work is None:
                return
            work()

    def synchronize(self) -> None:
        self.drain()
        failed = self._failed
        if failed is not None:
            if not failed.lasting:
                self._failed = None
            raise failed

    def drain(self) -> None:
        """Wait until nothing is left to do, whatever became of it."""
        with self._more:
            while self._work or self._busy:
                self._more.wait()

    def close(self) -> None:
        if self._closed:
            return
        self.drain()
        self._closed = True
        with self._more:
            self._work.append(None)
            self._more.notify_all()
        self._thread.join()
        self._ended()
