"""Runtime of emulated devices on host memory.

It follows the contract of `runtime` and refuses what CUDA refuses, with CUDA's error names: opening a process's own
handles, handles of another user or of a process that is gone, copies that cross a registration, and writes to memory
that is registered read-only. Other processes reach the memory through its owner's file descriptors. Therefore a handle
becomes invalid when its owner ends, while the memory lives until the last process closes it. Whoever sets up a process
passes this runtime in; it is never found automatically.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dataplane.devices.errors import ELSEWHERE, EXPANDABLE, LASTING
from dataplane.devices.runtime import Device, DeviceError, DeviceEvent, DeviceStream, Handle, OpenedMemory, device_of
from dataplane.protocol.mappings import map_shared, unmap
from tests.emulator.memory import NAME, AddressSpace, MappedFile, SharedHostMemory, handle_of, open_handle
from tests.emulator.streams import EmulatedEvent, EmulatedStream, Pace

DEVICE_BYTES = 1 << 30
PAGE_BYTES = 4096
_MEMORY, _EVENT = b"EMEM", b"EMEV"
DEFAULT_UUID = "7717ca5e-0000-4000-8000-000000000000"


class EmulatedDevice:
    """One process's view of emulated devices."""

    name = "emulated"

    def __init__(self, uuids: Sequence[str] = (DEFAULT_UUID,), device_bytes: int = DEVICE_BYTES) -> None:
        """Create the devices. Devices with the same UUID are the same device in all processes."""
        self._devices = [Device(index, uuid, f"emulated {index}", device_bytes) for index, uuid in enumerate(uuids)]
        self._own: dict[int, tuple[MappedFile, Device, bool]] = {}
        self._opened: dict[bytes, tuple[MappedFile, int]] = {}
        self._host: dict[int, int] = {}
        self._addresses = AddressSpace()
        self._streams: set[EmulatedStream] = set()
        self._lock = threading.RLock()
        self._failures: dict[str, deque[str | None]] = {}
        self.pace = Pace()

    def fail(self, operation: str, name: str = "cudaErrorInvalidValue", *, after: int = 0) -> None:
        """Make one call of an operation fail, after `after` calls that succeed.

        Operations: `allocate`, `export`, `open`, `register`, `copy` (when it is requested), `copying` (when the stream
        runs it), `event`, `open_event`.
        """
        self._failures.setdefault(operation, deque()).extend([*[None] * after, name])

    def _check(self, operation: str) -> None:
        waiting = self._failures.get(operation)
        if waiting:
            name = waiting.popleft()
            if name is not None:
                raise DeviceError(operation, name, "provoked", lasting=name in LASTING)

    # ---- devices and their memory

    def devices(self) -> Sequence[Device]:
        return self._devices

    def memory_used(self, device: Device) -> int:
        found: dict[str, int] = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                with suppress(OSError):
                    for line in (folder / "maps").read_text().splitlines():
                        if f"memfd:{NAME}{device.uuid}" in line:
                            low, _, high = line.split()[0].partition("-")
                            found[line.split()[4]] = int(high, 16) - int(low, 16)
        return sum(found.values())

    def allocate(self, device: Device, nbytes: int, *, expandable: bool = False) -> int:
        """Allocate device memory. `expandable` memory has no handle, like memory of CUDA's VMM API."""
        self._check("allocate")
        own = sum(memory.nbytes for memory, owner, _ in self._own.values() if owner == device)
        if not 0 < nbytes <= device.memory_bytes - own:
            raise DeviceError(f"allocate {nbytes} bytes", "cudaErrorMemoryAllocation", "the device is full")
        size = -(-nbytes // PAGE_BYTES) * PAGE_BYTES
        fd = os.memfd_create(NAME + device.uuid, os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
        memory = MappedFile(fd, size)
        with self._lock:
            self._own[memory.address] = memory, device, expandable
            self._addresses.add(memory.address, size)
        return memory.address

    def free(self, address: int) -> None:
        self._drain()
        with self._lock:
            self._addresses.drop(address)
            self._own.pop(address)[0].close()

    def export(self, address: int, nbytes: int) -> Handle:
        self._check("export")
        with self._lock:
            for base, (memory, device, expandable) in self._own.items():
                if base <= address and address + nbytes <= base + memory.nbytes:
                    if expandable:
                        raise DeviceError("export memory", "cudaErrorInvalidValue", EXPANDABLE)
                    body = handle_of(_MEMORY, memory.fd, memory.nbytes)
                    return Handle(body, address - base, nbytes, device.uuid)
        raise DeviceError("export memory", "cudaErrorInvalidValue", "it is no memory of a device")

    def open(self, handle: Handle) -> OpenedMemory:
        self._check("open")
        device_of(self, handle.device_uuid)
        with self._lock:
            known = self._opened.get(handle.body)
            if known is None:
                fd, nbytes, _ = open_handle(_MEMORY, handle.body)
                memory = MappedFile(fd, nbytes)
                self._addresses.add(memory.address, nbytes)
                known = memory, 0
            memory, users = known
            self._opened[handle.body] = memory, users + 1
            return OpenedMemory(memory.address, memory.nbytes, lambda: self._release(handle.body))

    def _release(self, body: bytes) -> None:
        with self._lock:
            memory, users = self._opened[body]
            if users > 1:
                self._opened[body] = memory, users - 1
                return
            del self._opened[body]
        self._drain()
        with self._lock:
            self._addresses.drop(memory.address)
            memory.close()

    # ---- host memory

    def register(self, address: int, nbytes: int, *, read_only: bool) -> None:
        self._check("register")
        if address % PAGE_BYTES or nbytes % PAGE_BYTES:
            raise DeviceError("register memory", "cudaErrorInvalidValue", "expected whole pages")
        with self._lock:
            self._addresses.add(address, nbytes, writable=not read_only)

    def unregister(self, address: int) -> None:
        self._drain()
        with self._lock:
            if self._addresses.size_of(address) is None or address in self._own:
                raise DeviceError("unregister memory", "cudaErrorHostMemoryNotRegistered")
            self._addresses.drop(address)

    def allocate_host(self, nbytes: int) -> int:
        size = -(-nbytes // PAGE_BYTES) * PAGE_BYTES
        fd = os.memfd_create("larder-staging", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            address = map_shared(fd, size, writable=True)
        except OSError as error:
            raise DeviceError(f"allocate {nbytes} bytes", "cudaErrorMemoryAllocation", str(error.strerror)) from None
        finally:
            os.close(fd)
        with self._lock:
            self._host[address] = size
            self._addresses.add(address, size)
        return address

    def free_host(self, address: int) -> None:
        self._drain()
        with self._lock:
            self._addresses.drop(address)
            unmap(address, self._host.pop(address))

    # ---- streams and events

    def stream(self, device: Device) -> DeviceStream:
        stream = EmulatedStream(self._addresses, self.pace, self._check, lambda: self._streams.discard(stream))
        self._streams.add(stream)
        return stream

    def external_stream(self, device: Device, native: int) -> DeviceStream:
        raise DeviceError("use a stream", "cudaErrorNotSupported", "the emulated device has none of others")

    def event(self, device: Device, *, shared: bool = False, timed: bool = False) -> DeviceEvent:
        self._check("event")
        return EmulatedEvent(SharedHostMemory.make(_EVENT, "event", PAGE_BYTES), own=True)

    def open_event(self, device: Device, body: bytes) -> DeviceEvent:
        self._check("open_event")
        try:
            page = SharedHostMemory.open(_EVENT, body)
        except DeviceError:
            # CUDA has one name for all that is no event. It opens those of processes that are gone, this does not.
            raise DeviceError("open an event", "cudaErrorMapBufferObjectFailed", ELSEWHERE) from None
        return EmulatedEvent(page, own=False)

    def reaches(self, device: Device, other: Device) -> bool:
        return True

    def _drain(self) -> None:
        """Wait for all streams before memory is freed, as CUDA does."""
        for stream in list(self._streams):
            stream.drain()
