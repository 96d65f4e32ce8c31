"""Copies of many small pages by a kernel that accesses device memory and registered host memory directly.

Only a few programs run, each copying one page after another: the link to the host is slow, and the rest of the device
belongs to the engine. Within a device more programs run, because its memory is fast.
"""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from dataplane.devices.runtime import I64, Device, DeviceError, DeviceEvent, DeviceRuntime, DeviceStream

PROGRAMS, PROGRAMS_WITHIN = 24, 128
PIECE_WORDS = 1024
WORD_BYTES = 8
ALIGNED_BYTES = 16
SLOTS = 4
MAX_PAGES = 1 << 16


class PageCopier(Protocol):
    """Copies pages of one size."""

    def copy(
        self, stream: DeviceStream, targets: I64, sources: I64, page_bytes: int, *, within: bool = False
    ) -> None:
        """Enqueue copies. Sizes and addresses are multiples of 16. `within`: on one device. Raise DeviceError."""

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
        self._host = [
            self._torch.empty((2, MAX_PAGES), dtype=self._torch.int64, pin_memory=True) for _ in range(SLOTS)
        ]
        self._addresses = [
            self._torch.empty((2, MAX_PAGES), dtype=self._torch.int64, device=f"cuda:{device.index}")
            for _ in range(SLOTS)
        ]
        self._used: list[DeviceEvent] = [runtime.event(device) for _ in range(SLOTS)]
        self._turn = 0
        self._lock = threading.Lock()
        """Serialises launches by several threads."""

    def copy(
        self, stream: DeviceStream, targets: I64, sources: I64, page_bytes: int, *, within: bool = False
    ) -> None:
        with self._lock:
            self._copy(stream, targets, sources, page_bytes, PROGRAMS_WITHIN if within else PROGRAMS)

    def _copy(self, stream: DeviceStream, targets: I64, sources: I64, page_bytes: int, most: int) -> None:
        torch = self._torch
        for first in range(0, len(targets), MAX_PAGES):
            pages = min(MAX_PAGES, len(targets) - first)
            slot = self._turn = (self._turn + 1) % SLOTS
            self._used[slot].synchronize()
            host, addresses = self._host[slot], self._addresses[slot]
            written = host.numpy()
            written[0, :pages] = targets[first : first + pages]
            written[1, :pages] = sources[first : first + pages]
            with torch.cuda.stream(torch.cuda.ExternalStream(stream.native, device=self._device.index)):
                addresses[:, :pages].copy_(host[:, :pages], non_blocking=True)
                self._kernel[(min(most, pages),)](
                    addresses[0],
                    addresses[1],
                    pages,
                    page_bytes // WORD_BYTES,
                    programs=most,
                    piece=PIECE_WORDS,
                    num_warps=8,
                )
            stream.record(self._used[slot])

    def close(self) -> None:
        for event in self._used:
            event.synchronize()
            event.close()
        self._used = []


def fits(targets: I64, sources: I64, sizes: I64) -> int:
    """Return the page size in bytes if all pieces have one size and are aligned to 16 bytes, otherwise 0."""
    size = int(sizes[0])
    if size % ALIGNED_BYTES or bool((sizes != size).any()):
        return 0
    uneven = np.bitwise_or(targets, sources) & (ALIGNED_BYTES - 1)
    return 0 if bool(uneven.any()) else size
