"""Copies of many small pages by a kernel that accesses device memory and registered host memory directly.

Only a few programs run, each copying one page after another: the link to the host is slow, and the rest of the device
belongs to the engine. Reading from the host takes more of them than writing to it. Within a device more programs run,
because its memory is fast.
"""

from __future__ import annotations

import ctypes
import threading
from enum import Enum
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from dataplane.devices.runtime import I64, Device, DeviceError, DeviceEvent, DeviceRuntime, DeviceStream

PIECE_WORDS = 1024
WORD_BYTES = 8
SLOTS, MAX_PAGES = 128, 1 << 12
"""Number of launches whose addresses are stored, and of pages per launch. A launch reuses the addresses of the launch
`SLOTS` before it, and waits until that one has ended: with fewer slots than layers, the engine's forward pass would
wait."""
SLOT_BYTES = 2 * MAX_PAGES * WORD_BYTES


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


PROGRAMS = {Direction.OUT: 8, Direction.IN: 16, Direction.WITHIN: 128}


class PageCopier(Protocol):
    """Copies pages of one size."""

    def copy(
        self, stream: DeviceStream, targets: I64, sources: I64, page_bytes: int, direction: Direction
    ) -> None:
        """Enqueue copies. Sizes and addresses are multiples of 16. Raise DeviceError."""

    def close(self) -> None: ...


class PageKernel:
    """The Triton kernel, with device memory for the addresses of a few launches."""

    def __init__(self, runtime: DeviceRuntime, device: Device) -> None:
        """Load the kernel. Raise DeviceError without Triton, or if kernels cannot access host memory by its address."""
        try:
            self._torch: Any = import_module("torch")
            self._kernel: Any = import_module("dataplane.devices.page_kernel").copy_pages
        except ImportError as error:
            raise DeviceError("load Triton", f"no module {error.name}") from None
        if not getattr(runtime, "kernels_reach_host", lambda _: False)(device):
            raise DeviceError("use a kernel", "cudaErrorNotSupported", "it reaches no registered host memory")
        self._runtime = runtime
        self._device = device
        try:
            self._addresses: Any = self._torch.empty(
                (SLOTS, 2 * MAX_PAGES), dtype=self._torch.int64, device=f"cuda:{device.index}"
            )
        except RuntimeError as error:  # torch has no room on the device
            raise DeviceError("load the kernel", "cudaErrorMemoryAllocation", str(error)) from None
        # torch's own pinned memory would remember the streams that use it, and fail when it is freed after one of them.
        self._host = runtime.allocate_host(SLOTS * SLOT_BYTES)
        self._written: I64 = np.ctypeslib.as_array(
            (ctypes.c_int64 * (SLOTS * 2 * MAX_PAGES)).from_address(self._host)
        ).reshape(SLOTS, 2 * MAX_PAGES)
        self._used: list[DeviceEvent] = [runtime.event(device) for _ in range(SLOTS)]
        self._turn = 0
        self._lock = threading.Lock()
        """Serialises launches by several threads."""

    def copy(
        self, stream: DeviceStream, targets: I64, sources: I64, page_bytes: int, direction: Direction
    ) -> None:
        with self._lock:
            self._copy(stream, targets, sources, page_bytes, PROGRAMS[direction])

    def _copy(self, stream: DeviceStream, targets: I64, sources: I64, page_bytes: int, most: int) -> None:
        torch = self._torch
        for first in range(0, len(targets), MAX_PAGES):
            pages = min(MAX_PAGES, len(targets) - first)
            slot = self._turn = (self._turn + 1) % SLOTS
            self._used[slot].synchronize()
            written, addresses = self._written[slot], self._addresses[slot]
            half = pages + pages % 2  # both lists begin at multiples of 16
            written[:pages] = targets[first : first + pages]
            written[half : half + pages] = sources[first : first + pages]
            nbytes = WORD_BYTES * (half + pages)
            stream.copy(int(addresses.data_ptr()), self._host + slot * SLOT_BYTES, nbytes)
            with torch.cuda.stream(torch.cuda.ExternalStream(stream.native, device=self._device.index)):
                self._kernel[(min(most, pages),)](
                    addresses,
                    addresses[half:],
                    pages,
                    page_bytes // WORD_BYTES,
                    programs=most,
                    piece=PIECE_WORDS,
                    num_warps=8,
                )
            stream.record(self._used[slot])

    def close(self) -> None:
        """Wait for all launches, and free the memory of their addresses."""
        for event in self._used:
            event.synchronize()
            event.close()
        if self._used:
            self._runtime.free_host(self._host)
        self._used = []
