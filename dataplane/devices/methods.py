"""Choice of the fastest method to copy pages, measured on the device: it depends on driver, device, direction and page
size.

The measurement takes a few milliseconds and 32 MiB on either side, once for each device and direction. It is skipped if
there is only one method.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from enum import Enum

import numpy as np

from dataplane.devices.kernels import PageCopier
from dataplane.devices.runtime import I64, Device, DeviceError, DeviceRuntime, DeviceStream

PAGE_BYTES = (16 << 10, 32 << 10, 64 << 10)
SCRATCH_BYTES = 32 << 20
ROUNDS = 3


class Method(Enum):
    BATCH = "batch"
    """Many copies in one call of the driver."""
    KERNEL = "kernel"
    """One kernel that copies all pages."""


class Direction(Enum):
    """Direction in which pages are copied."""

    OUT = "out"
    """From the device to host memory."""
    IN = "in"
    """From host memory to the device."""
    WITHIN = "within"
    """From one place of the device to another."""

    @classmethod
    def of(cls, *, to_device: bool) -> Direction:
        """Return the direction of a copy between host memory and the device."""
        return cls.IN if to_device else cls.OUT


class Methods:
    """Methods of one device. Without a kernel there is only one."""

    def __init__(self, runtime: DeviceRuntime, device: Device, pages: PageCopier | None = None) -> None:
        self.pages = pages
        self._runtime = runtime
        self._device = device
        self._lock = threading.Lock()
        self._tables: dict[Direction, dict[int, Method]] = {}
        self.rates: dict[tuple[int, Direction, Method], float] = {}
        """GB/s by page size, direction and method, as measured."""

    def choose(self, page_bytes: int, direction: Direction) -> Method:
        """Return the method for pages of this size. A size between two measured ones uses the smaller."""
        if self.pages is None or page_bytes >= 2 * PAGE_BYTES[-1]:
            return Method.BATCH
        with self._lock:
            table = self._tables.get(direction)
            if table is None:
                table = self._tables[direction] = self._measure(direction)
        measured = max((size for size in PAGE_BYTES if size <= page_bytes), default=PAGE_BYTES[0])
        return table.get(measured, Method.BATCH)

    def _measure(self, direction: Direction) -> dict[int, Method]:
        table: dict[int, Method] = {}
        runtime = self._runtime
        with ExitStack() as stack:
            try:
                scattered = runtime.allocate(self._device, SCRATCH_BYTES)
                stack.callback(runtime.free, scattered)
                if direction is Direction.WITHIN:
                    chunks = runtime.allocate(self._device, SCRATCH_BYTES)
                    stack.callback(runtime.free, chunks)
                else:
                    chunks = runtime.allocate_host(SCRATCH_BYTES)
                    stack.callback(runtime.free_host, chunks)
                stream = runtime.stream(self._device)
                stack.callback(stream.close)
                for size in PAGE_BYTES:
                    rates = {
                        method: self._rate(stream, method, scattered, chunks, size, direction)
                        for method in Method
                    }
                    self.rates |= {(size, direction, method): rate for method, rate in rates.items()}
                    table[size] = max(rates, key=lambda method: rates[method])
            except DeviceError as error:
                if error.lasting:
                    raise
                # No memory for the measurement: use the method that needs none.
                return {}
        return table

    def _rate(
        self,
        stream: DeviceStream,
        method: Method,
        scattered: int,
        chunks: int,
        size: int,
        direction: Direction,
    ) -> float:
        """Return the GB/s of the fastest round. Pages are shuffled on the side of the engine's memory."""
        count = SCRATCH_BYTES // size
        order = np.random.default_rng(0).permutation(count).astype(np.int64)
        ends = scattered + order * size, chunks + np.arange(count, dtype=np.int64) * size
        targets, sources = ends[::-1] if direction is Direction.OUT else ends
        before = self._runtime.event(self._device, timed=True)
        after = self._runtime.event(self._device, timed=True)
        best = 0.0
        for _ in range(ROUNDS):
            stream.record(before)
            self.copy(stream, method, direction, targets, sources, np.full(count, size, np.int64), size)
            stream.record(after)
            stream.synchronize()
            best = max(best, SCRATCH_BYTES / 1e6 / max(after.elapsed_ms(before), 1e-6))
        before.close()
        after.close()
        return best

    def copy(
        self,
        stream: DeviceStream,
        method: Method,
        direction: Direction,
        targets: I64,
        sources: I64,
        sizes: I64,
        page_bytes: int,
    ) -> None:
        """Enqueue copies with one method. `page_bytes` is the size of all pieces if it is the same, otherwise 0."""
        if method is Method.KERNEL and page_bytes and self.pages is not None:
            self.pages.copy(stream, targets, sources, page_bytes, within=direction is Direction.WITHIN)
        else:
            stream.copy_batch(targets, sources, sizes)
