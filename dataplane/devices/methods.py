"""Which way to copy pages is the fastest, measured on the device that does it: it depends on driver, page and device.

The measurement takes some milliseconds and 32 MiB on either side, once for each device, where there is anything to
choose at all.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from enum import Enum

import numpy as np

from dataplane.devices.kernels import Pages
from dataplane.devices.runtime import I64, Device, DeviceError, Runtime, Stream

PAGE_BYTES = (16 << 10, 32 << 10, 64 << 10)
SCRATCH_BYTES = 32 << 20
ROUNDS = 3


class Method(Enum):
    BATCH = "batch"
    """Many copies in one call of the driver."""
    KERNEL = "kernel"
    """A kernel that copies all pages."""


class Methods:
    """The table of one device. Without a kernel there is nothing to choose."""

    def __init__(self, runtime: Runtime, device: Device, pages: Pages | None = None) -> None:
        self.pages = pages
        self._runtime = runtime
        self._device = device
        self._lock = threading.Lock()
        self._table: dict[tuple[int, bool], Method] | None = None
        self.rates: dict[tuple[int, bool, Method], float] = {}
        """GB/s by page size, direction (to the device) and method, as measured."""

    def choose(self, page_bytes: int, *, to_device: bool) -> Method:
        """For pages of this size; those between two measured sizes go as the next smaller one."""
        if self.pages is None or page_bytes >= 2 * PAGE_BYTES[-1]:
            return Method.BATCH
        with self._lock:
            if self._table is None:
                self._table = self._measure()
        measured = max((size for size in PAGE_BYTES if size <= page_bytes), default=PAGE_BYTES[0])
        return self._table.get((measured, to_device), Method.BATCH)

    def _measure(self) -> dict[tuple[int, bool], Method]:
        table: dict[tuple[int, bool], Method] = {}
        with ExitStack() as stack:
            try:
                device = self._runtime.allocate(self._device, SCRATCH_BYTES)
                stack.callback(self._runtime.free, device)
                host = self._runtime.allocate_host(SCRATCH_BYTES)
                stack.callback(self._runtime.free_host, host)
                stream = self._runtime.stream(self._device)
                stack.callback(stream.close)
                for size in PAGE_BYTES:
                    for to_device in (False, True):
                        rates = {
                            method: self._rate(stream, method, device, host, size, to_device)
                            for method in Method
                        }
                        self.rates |= {(size, to_device, method): rate for method, rate in rates.items()}
                        table[size, to_device] = max(rates, key=lambda method: rates[method])
            except DeviceError as error:
                if error.lasting:
                    raise
                # No room for it: the way that needs nothing.
                return {}
        return table

    def _rate(
        self, stream: Stream, method: Method, device: int, host: int, size: int, to_device: bool
    ) -> float:
        """GB/s of the fastest of a few rounds, pages shuffled on the device's side."""
        count = SCRATCH_BYTES // size
        order = np.random.default_rng(0).permutation(count).astype(np.int64)
        ends = device + order * size, host + np.arange(count, dtype=np.int64) * size
        targets, sources = ends if to_device else ends[::-1]
        before = self._runtime.event(self._device, timed=True)
        after = self._runtime.event(self._device, timed=True)
        best = 0.0
        for _ in range(ROUNDS):
            stream.record(before)
            self.copy(stream, method, targets, sources, np.full(count, size, np.int64), size)
            stream.record(after)
            stream.synchronize()
            best = max(best, SCRATCH_BYTES / 1e6 / max(after.elapsed_ms(before), 1e-6))
        before.close()
        after.close()
        return best

    def copy(
        self, stream: Stream, method: Method, targets: I64, sources: I64, sizes: I64, page_bytes: int
    ) -> None:
        """Enqueue by one of the methods. `page_bytes` is that of all pieces where they are equal, else 0."""
        if method is Method.KERNEL and page_bytes and self.pages is not None:
            self.pages.copy(stream, targets, sources, page_bytes)
        else:
            stream.copy_batch(targets, sources, sizes)
