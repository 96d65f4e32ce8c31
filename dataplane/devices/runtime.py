"""Interface to a device runtime: the operations that the cache needs. Implemented by `cuda` and `emulator`.

Addresses are plain integers of this process. Copies and events keep the order of their stream; there is no order
between streams. Every failure is a DeviceError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
HANDLE_BYTES = 64
"""Size of a memory handle and of an event handle."""


class DeviceError(Exception):
    """An operation that the runtime refused or that failed on a device.

    `name` is the runtime's own name of the error, such as `cudaErrorInvalidValue`; `advice` tells the user what to do.
    `lasting`: every later call of this process on this device fails too.
    """

    def __init__(self, what: str, name: str, advice: str = "", *, lasting: bool = False) -> None:
        super().__init__(f"{what}: {name}" + (f" ({advice})" if advice else ""))
        self.what = what
        self.name = name
        self.advice = advice
        self.lasting = lasting


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator that is visible to this process."""

    index: int
    uuid: str
    """UUID as torch writes it: lower case, without `GPU-`."""
    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Handle:
    """Handle of one process's device memory, for other processes to open."""

    body: bytes
    """Handle of the whole allocation."""
    offset: int
    """Bytes from the start of the allocation to the memory in question."""
    nbytes: int
    device_uuid: str


class OpenedMemory:
    """Allocation of another process, mapped into this process's address space.

    The device keeps the memory until every opener has closed it, even after its owner has ended.
    """

    def __init__(self, address: int, nbytes: int, release: Callable[[], None]) -> None:
        """`nbytes` is the size according to the runtime, not according to the owner."""
        self.address = address
        self.nbytes = nbytes
        self._release: Callable[[], None] | None = release

    def close(self) -> None:
        """Close the memory. A second call does nothing."""
        release, self._release = self._release, None
        if release is not None:
            release()


class DeviceEvent(Protocol):
    """A point in a stream."""

    def query(self) -> bool:
        """Return whether all work before the event is done. True for an event that was never recorded."""

    def synchronize(self) -> None:
        """Wait until all work before the event is done."""

    def elapsed_ms(self, since: DeviceEvent) -> float:
        """Return the milliseconds on the device between two recorded events that are done."""

    def export(self) -> bytes:
        """Return a handle for other processes. The event must have been created as shared."""

    def close(self) -> None: ...


class DeviceStream(Protocol):
    """Work that a device does in order. All calls but `synchronize` and `close` return before the work is done.

    Asynchronous copies need host memory that is registered with the runtime. With other host memory, a copy is slow and
    may complete before the call returns.
    """

    @property
    def native(self) -> int:
        """The runtime's own handle, for libraries that take one; 0 if there is none."""

    def copy(self, target: int, source: int, nbytes: int) -> None: ...

    def copy_batch(self, targets: I64, sources: I64, sizes: I64) -> None:
        """Copy many pieces in one call, in no particular order."""

    def clear(self, target: int, nbytes: int) -> None:
        """Set device memory to 0."""

    def record(self, event: DeviceEvent) -> None: ...

    def wait(self, event: DeviceEvent) -> None:
        """Make later work of this stream wait for the last recording of the event."""

    def synchronize(self) -> None:
        """Wait for all work. Raise DeviceError if any of it failed."""

    def close(self) -> None:
        """Wait for all work, and end the stream."""


class DeviceRuntime(Protocol):
    """Runtime for one kind of device in this process."""

    @property
    def name(self) -> str:
        """`cuda` or `emulated` (the emulated device)."""

    def devices(self) -> Sequence[Device]: ...

    def memory_used(self, device: Device) -> int:
        """Return the bytes of device memory in use by all processes."""

    def allocate(self, device: Device, nbytes: int) -> int: ...

    def free(self, address: int) -> None: ...

    def export(self, address: int, nbytes: int) -> Handle:
        """Return a handle of this process's own memory, which may lie inside an allocation."""

    def open(self, handle: Handle) -> OpenedMemory:
        """Open another process's allocation. Opening it again is free."""

    def register(self, address: int, nbytes: int, *, read_only: bool) -> None:
        """Pin host memory, so that devices can copy from and to it. Set `read_only` if its mapping is read-only."""

    def unregister(self, address: int) -> None: ...

    def allocate_host(self, nbytes: int) -> int:
        """Allocate pinned host memory."""

    def free_host(self, address: int) -> None: ...

    def stream(self, device: Device) -> DeviceStream: ...

    def external_stream(self, device: Device, native: int) -> DeviceStream:
        """Wrap a stream that another library created and will destroy, such as torch's."""

    def event(self, device: Device, *, shared: bool = False, timed: bool = False) -> DeviceEvent:
        """Create an event. Other processes can open it if it is `shared`."""

    def open_event(self, device: Device, body: bytes) -> DeviceEvent:
        """Open another process's event."""

    def reaches(self, device: Device, other: Device) -> bool:
        """Return whether a device can read another device's memory directly."""


def device_of(runtime: DeviceRuntime, uuid: str) -> Device:
    """Return the visible device with this UUID. Raise DeviceError that lists the visible devices."""
    plain = plain_uuid(uuid)
    seen = runtime.devices()
    for device in seen:
        if device.uuid == plain:
            return device
    visible = ", ".join(device.uuid for device in seen) or "none"
    raise DeviceError(
        f"device {plain[:64]!r}",
        "not visible to this process",
        f"it sees {visible}: start it with that GPU in CUDA_VISIBLE_DEVICES, or in the engine's container",
    )


def plain_uuid(uuid: str) -> str:
    """Return a UUID in torch's form."""
    return uuid.removeprefix("GPU-").lower()
