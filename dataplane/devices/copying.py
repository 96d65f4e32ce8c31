"""Gather and scatter of paged device memory, on a separate stream beside the engine's.

The other side of a copy is host memory or another place on the device. Copies are enqueued and complete later. Call
`synchronize` before you free memory, even after a failure.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from dataplane.devices.kernels import Direction, KernelRuntime, PageKernel
from dataplane.devices.methods import Methods
from dataplane.devices.paged import Runs, cut, joined, split
from dataplane.devices.pinning import WINDOW_BYTES, PinnedMemory, Staging
from dataplane.devices.runtime import I64, Device, DeviceError, DeviceEvent, DeviceRuntime
from dataplane.devices.split_stream import SplitStream

_log = logging.getLogger("larder.client")


def methods_for(runtime: DeviceRuntime, device: Device) -> Methods:
    """Return the copy methods of a device, with the kernel if it is available."""
    if not isinstance(runtime, KernelRuntime):
        return Methods(runtime, device)
    try:
        return Methods(runtime, device, PageKernel(runtime, device))
    except DeviceError as error:
        if error.lasting:
            raise
        _log.warning("larder.gpu small pages are copied slowly, because there is no kernel: %s", error)
        return Methods(runtime, device)


class Part(NamedTuple):
    """Copies of one or more chunks that lie in one mapping or allocation."""

    runs: Runs
    base: int
    """Address from which `runs.chunk` is counted."""
    offset: int | None = None
    """Bytes from the start of the registered mapping to `base`; None if no run crosses a registration."""

    def split(self) -> Part:
        """Return the same copies, cut at the borders of registrations."""
        if self.offset is None or not len(self.runs):
            return self
        return Part(split(self.runs, WINDOW_BYTES, self.offset), self.base)


def pinned_part(runs: Runs, memory: PinnedMemory, offset: int) -> Part | None:
    """Register the memory of a chunk at `offset` of a mapping. Return None if that is refused."""
    if len(runs):
        begin, end = int(runs.chunk.min()), int((runs.chunk + runs.sizes).max())
        if not memory.cover(offset + begin, offset + end):
            return None
    return Part(runs, memory.address + offset, offset)


def _located(parts: Sequence[Part]) -> Runs:
    """Return the copies of all parts. `chunk` of the result has addresses."""
    return Runs(
        np.concatenate([part.runs.device for part in parts]),
        np.concatenate([part.runs.chunk + part.base for part in parts]),
        np.concatenate([part.runs.sizes for part in parts]),
    )


class CopyLane:
    """One side stream of a device, which shares its batches with others. Not thread-safe."""

    def __init__(self, runtime: DeviceRuntime, device: Device, methods: Methods) -> None:
        self._runtime = runtime
        self._device = device
        self._methods = methods
        self._split = SplitStream(runtime, device)
        self.stream = self._split.main

    def copy(self, runs: Runs, base: int, *, to_device: bool, within: bool = False) -> None:
        """Enqueue copies between paged memory and a chunk at `base`.

        The chunk lies in registered host memory, where no run may cross a registration, or `within` the device, where
        no run may leave its allocation. `to_device`: copy from the chunk into paged memory.
        """
        self.copy_together([Part(runs, base)], to_device=to_device, within=within)

    def copy_pinned(self, runs: Runs, memory: PinnedMemory, offset: int, *, to_device: bool) -> bool:
        """Enqueue copies for a chunk at `offset` of a mapping. Return False if its registration is refused."""
        part = pinned_part(runs, memory, offset)
        if part is not None:
            self.copy_together([part], to_device=to_device)
        return part is not None

    def copy_together(self, parts: Sequence[Part], *, to_device: bool, within: bool = False) -> None:
        """Enqueue copies as `copy` does, those of all parts at once: a launch takes as long for one part as for many.

        Batches are split at the borders of registrations, which the driver refuses to cross; kernels need not be.
        """
        direction = Direction.WITHIN if within else Direction.of(to_device=to_device)
        runs = _located(parts)
        piece = self._methods.piece_for_kernel(runs, direction)
        if piece:
            runs = cut(runs, piece)
        else:
            runs = _located([part.split() for part in parts])
        addresses = runs.device, runs.chunk
        targets, sources = addresses if to_device else addresses[::-1]
        if piece:
            self._methods.copy_pieces(self.stream, direction, targets, sources, piece)
        elif len(runs) == 1:
            self.stream.copy(int(targets[0]), int(sources[0]), int(runs.sizes[0]))
        elif len(runs):
            self._split.copy_batch(targets, sources, runs.sizes)

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
            self._split.synchronize()
        except BaseException:
            with suppress(DeviceError):  # the next copy writes to the same halves
                self._split.synchronize()
            raise
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
        self._split.synchronize()

    def close(self) -> None:
        self._split.close()


def _move(sources: I64, targets: I64, sizes: I64) -> None:
    for target, source, nbytes in zip(targets.tolist(), sources.tolist(), sizes.tolist(), strict=True):
        ctypes.memmove(target, source, nbytes)


def _parts(runs: Runs, most_bytes: int) -> list[Runs]:
    """Group consecutive runs into parts of at most `most_bytes`. Cut runs that are larger."""
    sizes = runs.sizes
    if len(sizes) and int(sizes.max()) > most_bytes:
        runs = cut(runs, most_bytes)
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
