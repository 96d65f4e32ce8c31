"""Choice of the faster method to copy pages, measured on the device: it depends on driver, device, direction and page
size.

The measurement takes about 0.1 s and 32 MiB on either side, once for each device and direction. It is skipped if there
is only one method.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from enum import Enum

import numpy as np

from dataplane.devices.kernels import Direction, PageKernel
from dataplane.devices.paged import Runs
from dataplane.devices.runtime import I64, Device, DeviceError, DeviceRuntime, DeviceStream
from dataplane.devices.split_stream import SplitStream

SIZES = (4 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10)
"""Sizes of pieces at which both methods are measured."""
SCRATCH_BYTES = 32 << 20
ROUNDS = 3
ALIGNED_BYTES = 16
MIN_TIMES = 1.5
"""The kernel has to be so many times as fast as a batch: it takes processors of the device from the engine, which copy
engines do not."""
MIN_PIECE_BYTES, MAX_PIECE_BYTES = 2 << 10, 64 << 10
"""Pieces that the kernel copies. Larger pages are cut, so that all of its blocks have work."""


class Method(Enum):
    BATCH = "batch"
    """Many copies in one call of the driver."""
    KERNEL = "kernel"
    """One kernel that copies all pages."""


class Methods:
    """Methods of one device. Without a kernel there is only one."""

    def __init__(self, runtime: DeviceRuntime, device: Device, pages: PageKernel | None = None) -> None:
        self.pages = pages
        self._runtime = runtime
        self._device = device
        self._lock = threading.Lock()
        self._measured: set[Direction] = set()
        self.rates: dict[tuple[int, Direction, Method], float] = {}
        """GB/s by size, direction and method, as measured. Empty for a direction in which only batches are used."""

    def piece_for_kernel(self, runs: Runs, direction: Direction) -> int:
        """Return the size in bytes of the pieces into which the kernel copies these runs, or 0 for a batch.
        `runs.chunk` has addresses."""
        if self.pages is None or len(runs) < 2:
            return 0
        piece = _piece_of(runs)
        if not piece:
            return 0
        with self._lock:
            if direction not in self._measured:
                self._measured.add(direction)
                self.rates |= self._measure(direction)
        by_kernel = self._rate_at(piece, direction, Method.KERNEL)
        by_batch = self._rate_at(runs.nbytes // len(runs), direction, Method.BATCH)
        return piece if by_kernel > MIN_TIMES * by_batch else 0

    def _rate_at(self, size: int, direction: Direction, method: Method) -> float:
        """Return the rate at the largest measured size that is not above `size`."""
        measured = max((measured_size for measured_size in SIZES if measured_size <= size), default=SIZES[0])
        return self.rates.get((measured, direction, method), 0.0)

    def _measure(self, direction: Direction) -> dict[tuple[int, Direction, Method], float]:
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
                split = SplitStream(runtime, self._device)
                stack.callback(split.close)
                return {
                    (size, direction, method): self._rate(split, method, scattered, chunks, size, direction)
                    for size in SIZES
                    for method in Method
                    if method is Method.BATCH or size <= MAX_PIECE_BYTES
                }
            except DeviceError as error:
                if error.lasting:
                    raise
                return {}  # no memory for the measurement: use the method that needs none

    def _rate(
        self, split: SplitStream, method: Method, scattered: int, chunks: int, size: int, direction: Direction
    ) -> float:
        """Return the GB/s of the fastest round. Pages are shuffled on the side of the engine's memory."""
        count = SCRATCH_BYTES // size
        order = np.random.default_rng(0).permutation(count).astype(np.int64)
        runs = Runs(order * size + scattered, np.arange(count, dtype=np.int64) * size, np.full(count, size, np.int64))
        addresses = runs.device, runs.chunk + chunks
        targets, sources = addresses[::-1] if direction is Direction.OUT else addresses
        before = self._runtime.event(self._device, timed=True)
        after = self._runtime.event(self._device, timed=True)
        best = 0.0
        for _ in range(ROUNDS):
            split.main.record(before)
            if method is Method.KERNEL:
                self.copy_pieces(split.main, direction, targets, sources, size)
            else:
                split.copy_batch(targets, sources, runs.sizes)
            split.main.record(after)
            split.synchronize()
            best = max(best, SCRATCH_BYTES / 1e6 / max(after.elapsed_ms(before), 1e-6))
        before.close()
        after.close()
        return best

    def copy_pieces(self, stream: DeviceStream, direction: Direction, targets: I64, sources: I64, piece: int) -> None:
        """Enqueue copies by the kernel of pieces of one size in bytes."""
        assert self.pages is not None
        self.pages.copy(stream, targets, sources, piece, direction)


def _piece_of(runs: Runs) -> int:
    """Return the largest size that the kernel takes and into which all runs can be cut, or 0 if there is none."""
    if bool((np.bitwise_or(runs.device, runs.chunk) & (ALIGNED_BYTES - 1)).any()):
        return 0
    common = int(np.gcd.reduce(runs.sizes))
    for parts in range(-(-common // MAX_PIECE_BYTES), common // MIN_PIECE_BYTES + 1):
        if common % (parts * ALIGNED_BYTES) == 0:
            return common // parts
    return 0
