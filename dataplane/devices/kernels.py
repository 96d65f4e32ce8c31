"""Copies of many small pages by a kernel that accesses device memory and registered host memory directly.

To and from the host, only a few blocks of threads run, each with several teams that copy one page after another: the
link to the host is slow, and the engine needs the rest of the device. Within a device more blocks run, because its
memory is fast.
"""

from __future__ import annotations

import ctypes
import threading
from contextlib import ExitStack
from enum import Enum
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dataplane.devices.page_kernel import NAME, PTX, TEAM_THREADS, WORD_BYTES
from dataplane.devices.runtime import I64, Device, DeviceError, DeviceEvent, DeviceRuntime, DeviceStream

ADDRESS_BYTES = 8
SLOTS, MAX_PAGES = 128, 1 << 12
"""Number of launches whose addresses are stored, and largest number of pages of a launch. A launch overwrites the
addresses of the launch `SLOTS` before it, and first waits until that one has ended. With fewer slots than an engine has
layers, the thread that enqueues a load would wait for copies."""
SLOT_BYTES = 2 * MAX_PAGES * ADDRESS_BYTES


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


SHAPES = {Direction.OUT: (2, 1024), Direction.IN: (4, 1024), Direction.WITHIN: (132, 1024)}
"""Most blocks of a launch, and threads of each block. A copy within a device takes all of it, for a short time."""


class Kernel(Protocol):
    """A kernel that was loaded for one device."""

    def launch(self, stream: DeviceStream, blocks: int, threads: int, *arguments: Any) -> None:
        """Enqueue it with arguments that are objects of ctypes. Raise DeviceError."""

    def close(self) -> None: ...


@runtime_checkable
class KernelRuntime(DeviceRuntime, Protocol):
    """A runtime that can load and launch kernels."""

    def kernels_reach_host(self, device: Device) -> bool:
        """Return whether kernels can use registered host memory at its address in this process."""

    def kernel(self, device: Device, ptx: str, name: str) -> Kernel:
        """Load a kernel. Raise DeviceError."""


class PageKernel:
    """The kernel, with memory for the addresses of its launches."""

    def __init__(self, runtime: KernelRuntime, device: Device) -> None:
        """Load the kernel. Raise DeviceError, also if kernels cannot access host memory by its address."""
        if not runtime.kernels_reach_host(device):
            raise DeviceError("use a kernel", "cudaErrorNotSupported", "it reaches no registered host memory")
        self._runtime = runtime
        with ExitStack() as opening:
            self._kernel = runtime.kernel(device, PTX, NAME)
            opening.callback(self._kernel.close)
            self._host = runtime.allocate_host(SLOTS * SLOT_BYTES)
            opening.callback(runtime.free_host, self._host)
            self._addresses = runtime.allocate(device, SLOTS * SLOT_BYTES)
            opening.callback(runtime.free, self._addresses)
            self._used: list[DeviceEvent] = []
            for _ in range(SLOTS):
                self._used.append(runtime.event(device))
                opening.callback(self._used[-1].close)
            self._opened = opening.pop_all()
        count = SLOTS * SLOT_BYTES // ADDRESS_BYTES
        self._written: I64 = np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(self._host)).reshape(
            SLOTS, 2 * MAX_PAGES
        )
        self._turn = 0
        self._lock = threading.Lock()
        """Serialises launches by several threads."""

    def copy(self, stream: DeviceStream, targets: I64, sources: I64, page_bytes: int, direction: Direction) -> None:
        """Enqueue copies of pages of one size. Sizes and addresses are multiples of 16. Raise DeviceError."""
        with self._lock:
            for first in range(0, len(targets), MAX_PAGES):
                batch = slice(first, first + MAX_PAGES)
                self._launch(stream, targets[batch], sources[batch], page_bytes, direction)

    def _launch(self, stream: DeviceStream, targets: I64, sources: I64, page_bytes: int, direction: Direction) -> None:
        pages = len(targets)
        most, threads = SHAPES[direction]
        slot = self._turn = (self._turn + 1) % SLOTS
        self._used[slot].synchronize()
        self._written[slot, :pages] = sources
        self._written[slot, pages : 2 * pages] = targets
        addresses = self._addresses + slot * SLOT_BYTES
        stream.copy(addresses, self._host + slot * SLOT_BYTES, 2 * pages * ADDRESS_BYTES)
        self._kernel.launch(
            stream,
            min(most, -(-pages * TEAM_THREADS // threads)),
            threads,
            ctypes.c_uint64(addresses),
            ctypes.c_uint64(addresses + pages * ADDRESS_BYTES),
            ctypes.c_uint32(pages),
            ctypes.c_uint32(page_bytes // WORD_BYTES),
        )
        stream.record(self._used[slot])

    def close(self) -> None:
        """Wait for all launches, and free their memory and the kernel. A second call does nothing."""
        used, self._used = self._used, []
        try:
            for event in used:
                event.synchronize()
        finally:
            self._opened.close()
