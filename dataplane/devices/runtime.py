"""What a device's runtime can do, in the few words that the cache needs. `cuda` and `twin` are the implementations.

Addresses are plain integers, of this process. Copies and events keep the order of their stream; nothing else orders
them. Every failure is a DeviceError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
HANDLE_BYTES = 64
"""Of a memory handle and of an event handle."""


class DeviceError(Exception):
    """What a runtime refused, or what failed on a device.

    `name` is the runtime's own name for it, as `cudaErrorInvalidValue`; `advice` says what to do. `lasting`: every
    later call of this process on this device fails too.
    """

    def __init__(self, what: str, name: str, advice: str = "", *, lasting: bool = False) -> None:
        super().__init__(f"{what}: {name}" + (f" ({advice})" if advice else ""))
        self.what = what
        self.name = name
        self.advice = advice
        self.lasting = lasting


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator that this process sees."""

    index: int
    uuid: str
    """As torch writes it: without `GPU-`, lower case."""
    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Handle:
    """Device memory of one process, as another one opens it."""

    body: bytes
    """Of the whole allocation."""
    offset: int
    """Of the memory that is meant, from the allocation's start."""
    nbytes: int
    device_uuid: str


class Opened(Protocol):
    """Another process's allocation in this process's address space. It stays in the device's memory until every
    opener closed it, also when its owner is long gone."""

    @property
    def address(self) -> int:
        """Of the allocation's start."""

    @property
    def nbytes(self) -> int:
        """Of the allocation, as the runtime says: not as its owner does."""

    def close(self) -> None:
        """Let go. A second call does nothing."""


class Event(Protocol):
    """A point in a stream."""

    def query(self) -> bool:
        """Whether everything before it is done. An event that was never recorded is done."""

    def synchronize(self) -> None:
        """Wait until it is."""

    def elapsed_ms(self, since: Event) -> float:
        """Milliseconds on the device between two recorded events that are done."""

    def export(self) -> bytes:
        """A handle for other processes; the event must have been made for that."""

    def close(self) -> None: ...


class Stream(Protocol):
    """Work that a device does in order. All calls but `synchronize` return before the work is done.

    Host memory of an asynchronous copy is registered with the runtime; of other memory the copy may be done before the
    call returns, and is slow.
    """

    @property
    def native(self) -> int:
        """The runtime's own handle, for libraries that take one; 0 where there is none."""

    def copy(self, target: int, source: int, nbytes: int) -> None: ...

    def copy_batch(self, targets: I64, sources: I64, sizes: I64) -> None:
        """Many copies in one call; among themselves they have no order."""

    def copy_strided(
        self, target: int, target_step: int, source: int, source_step: int, width: int, rows: int
    ) -> None:
        """`rows` copies of `width` bytes, each a step further on either side. Steps are at least as wide."""

    def clear(self, target: int, nbytes: int) -> None:
        """Make memory of the device 0."""

    def record(self, event: Event) -> None: ...

    def wait(self, event: Event) -> None:
        """What comes later waits for what was recorded last."""

    def synchronize(self) -> None:
        """Wait for all of it. Raises DeviceError with what failed in the stream."""

    def close(self) -> None:
        """Wait for all of it, and end the stream."""


class Runtime(Protocol):
    """One kind of devices, for this process."""

    @property
    def name(self) -> str:
        """`cuda` or `twin`."""

    def devices(self) -> Sequence[Device]: ...

    def memory_used(self, device: Device) -> int:
        """Bytes of the device that are taken, by whatever process."""

    def allocate(self, device: Device, nbytes: int) -> int: ...

    def free(self, address: int) -> None: ...

    def export(self, address: int, nbytes: int) -> Handle:
        """A handle of own memory, which may lie inside an allocation."""

    def open(self, handle: Handle) -> Opened:
        """Another process's allocation. The same one again is opened once more at no cost."""

    def register(self, address: int, nbytes: int, *, read_only: bool) -> None:
        """Have host memory pinned, so that devices copy from and to it. `read_only`: its mapping is."""

    def unregister(self, address: int) -> None: ...

    def allocate_host(self, nbytes: int) -> int:
        """Pinned host memory."""

    def free_host(self, address: int) -> None: ...

    def stream(self, device: Device) -> Stream: ...

    def external_stream(self, device: Device, native: int) -> Stream:
        """A stream that somebody else made and ends, as torch's."""

    def event(self, device: Device, *, shared: bool = False, timed: bool = False) -> Event:
        """`shared`: other processes may open it."""

    def open_event(self, device: Device, body: bytes) -> Event:
        """Another process's event."""

    def reaches(self, device: Device, other: Device) -> bool:
        """Whether a device reads another one's memory by itself."""


def device_of(runtime: Runtime, uuid: str) -> Device:
    """The visible device with this UUID. Raises DeviceError that tells which ones are visible."""
    wanted = plain_uuid(uuid)
    seen = runtime.devices()
    for device in seen:
        if device.uuid == wanted:
            return device
    visible = ", ".join(device.uuid for device in seen) or "none"
    raise DeviceError(
        f"device {wanted[:64]!r}",
        "not visible to this process",
        f"it sees {visible}: start it with that GPU in CUDA_VISIBLE_DEVICES, or in the engine's container",
    )


def plain_uuid(uuid: str) -> str:
    """A UUID as torch writes it."""
    return uuid.removeprefix("GPU-").lower()
