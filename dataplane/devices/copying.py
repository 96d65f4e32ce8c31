"""Gather and scatter of paged device memory, on a separate stream beside the engine's.

The other side of a copy is host memory or another place on the device. Copies are enqueued and complete later. Call
`synchronize` before you free memory, even after a failure.
"""

from __future__ import annotations

import ctypes

import numpy as np

from dataplane.devices.kernels import PageKernel, fits
from dataplane.devices.methods import Direction, Method, Methods
from dataplane.devices.paged import Runs, joined, progression, split
from dataplane.devices.pinning import WINDOW_BYTES, PinnedMemory, Staging
from dataplane.devices.runtime import I64, Device, DeviceError, DeviceEvent, DeviceRuntime

MAX_STEP_BYTES = (1 << 31) - 1
"""Largest distance between rows that runtimes accept."""


def methods_for(runtime: DeviceRuntime, device: Device) -> Methods:
    """Return the copy methods of a device, with the kernel if it is available."""
    if runtime.name != "cuda":
        return Methods(runtime, device)
    try:
        return Methods(runtime, device, PageKernel(runtime, device))
    except DeviceError as error:
        if error.lasting:
            raise
        return Methods(runtime, device)


class CopyLane:
    """One side stream of a device. Not thread-safe."""

    def __init__(self, runtime: DeviceRuntime, device: Device, methods: Methods) -> None:
        self._runtime = runtime
        self._device = device
        self._methods = methods
        self.stream = runtime.stream(device)

    def copy(self, runs: Runs, base: int, *, to_device: bool, within: bool = False) -> None:
        """Enqueue copies between paged memory and a chunk at `base`.

        The chunk lies in registered host memory, where no run may cross a registration, or `within` the device, where
        no run may leave its allocation. `to_device`: copy from the chunk into paged memory.
        """
        if not len(runs):
            return
        ends = runs.device, runs.chunk + base
        targets, sources = ends if to_device else ends[::-1]
        sizes = runs.sizes
        if len(runs) == 1:
            self.stream.copy(int(targets[0]), int(sources[0]), int(sizes[0]))
        elif (steps := _rows(targets, sources, sizes)) is not None:
            self.stream.copy_strided(
                int(targets[0]), steps[0], int(sources[0]), steps[1], int(sizes[0]), len(sizes)
            )
        else:
            page_bytes = fits(targets, sources, sizes)
            direction = Direction.WITHIN if within else Direction.of(to_device=to_device)
            method = self._methods.choose(page_bytes, direction) if page_bytes else Method.BATCH
            self._methods.copy(self.stream, method, direction, targets, sources, sizes, page_bytes)

    def copy_pinned(self, runs: Runs, memory: PinnedMemory, offset: int, *, to_device: bool) -> bool:
        """Enqueue copies for a chunk at `offset` of a mapping. Return False if its registration is refused."""
        if not len(runs):
            return True
        begin = offset + int(runs.chunk.min())
        if not memory.cover(begin, offset + int((runs.chunk + runs.sizes).max())):
            return False
        self.copy(split(runs, WINDOW_BYTES, offset), memory.address + offset, to_device=to_device)
        return True

    def copy_staged(self, runs: Runs, staging: Staging, host: int, *, to_device: bool) -> None:
        """Copy with host memory of any kind at `host`, through a staging buffer. Wait until all copies are done."""
        events = [self._runtime.event(self._device) for _ in range(2)]
        parts = _parts(runs, staging.half_bytes)
        try:
            for turn, part in enumerate(parts):
                half = staging.half(turn)
                packed = np.cumsum(part.sizes) - part.sizes
                moved = joined(part.chunk + host, packed + half, part.sizes)
                if to_device:
                    events[turn % 2].synchronize()
                    _move(moved.device, moved.chunk, moved.sizes)
                self.copy(Runs(part.device, packed, part.sizes), half, to_device=to_device)
                self.stream.record(events[turn % 2])
                if not to_device:
                    if turn:
                        self._unload(parts[turn - 1], staging.half(turn - 1), host, events[(turn - 1) % 2])
                    if turn == len(parts) - 1:
                        self._unload(part, half, host, events[turn % 2])
            self.stream.synchronize()
        finally:
            for event in events:
                event.close()

    @staticmethod
    def _unload(part: Runs, half: int, host: int, copied: DeviceEvent) -> None:
        copied.synchronize()
        packed = np.cumsum(part.sizes) - part.sizes
        moved = joined(part.chunk + host, packed + half, part.sizes)
        _move(moved.chunk, moved.device, moved.sizes)

    def record(self, event: DeviceEvent) -> None:
        self.stream.record(event)

    def synchronize(self) -> None:
        """Wait for all copies. Raise DeviceError."""
        self.stream.synchronize()

    def close(self) -> None:
        self.stream.close()


def _move(sources: I64, targets: I64, sizes: I64) -> None:
    for target, source, nbytes in zip(targets.tolist(), sources.tolist(), sizes.tolist(), strict=True):
        ctypes.memmove(target, source, nbytes)


def _rows(targets: I64, sources: I64, sizes: I64) -> tuple[int, int] | None:
    """Return the steps of both sides if the copies are rows of a rectangle, otherwise None."""
    if bool((sizes != sizes[0]).any()):
        return None
    steps = progression(targets), progression(sources)
    if steps[0] is None or steps[1] is None:
        return None
    if not all(int(sizes[0]) <= step <= MAX_STEP_BYTES for step in steps if step is not None):
        return None
    return steps[0], steps[1]


def _parts(runs: Runs, most_bytes: int) -> list[Runs]:
    """Group consecutive runs into parts of at most `most_bytes`. Cut runs that are larger."""
    sizes = runs.sizes
    if len(sizes) and int(sizes.max()) > most_bytes:
        counts = -(-sizes // most_bytes)
        rows = np.repeat(np.arange(len(sizes)), counts)
        skipped = (np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)) * most_bytes
        runs = Runs(
            runs.device[rows] + skipped,
            runs.chunk[rows] + skipped,
            np.minimum(sizes[rows] - skipped, most_bytes),
        )
    parts: list[Runs] = []
    first, total = 0, 0
    for at, size in enumerate(runs.sizes.tolist()):
        if total + size > most_bytes:
            parts.append(Runs(runs.device[first:at], runs.chunk[first:at], runs.sizes[first:at]))
            first, total = at, 0
        total += size
    if len(runs) > first:
        parts.append(Runs(runs.device[first:], runs.chunk[first:], runs.sizes[first:]))
    return parts
