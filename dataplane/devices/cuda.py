"""NVIDIA's runtime. Created by `find`; no CUDA module is imported before that.

`cuda.bindings` comes with torch's CUDA builds. Every failed call raises a DeviceError with CUDA's name for the error.
Waits do not spin, and let other threads run.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any
from uuid import UUID

from dataplane.devices.cuda_driver import Driver, runtime_name
from dataplane.devices.errors import EXPANDABLE, LASTING, advice_for
from dataplane.devices.runtime import (
    HANDLE_BYTES,
    I64,
    Device,
    DeviceError,
    DeviceEvent,
    DeviceStream,
    Handle,
    OpenedMemory,
    device_of,
)


class _Calls:
    """CUDA bindings that raise errors as exceptions."""

    def __init__(self) -> None:
        """Import the bindings. Raise ImportError."""
        self.runtime: Any = import_module("cuda.bindings.runtime")
        self.driver: Any = import_module("cuda.bindings.driver")
        self.libcuda = Driver()

    def __call__(self, what: str, function: str, *arguments: Any) -> Any:
        """Return the result of a call: None, one value, or a tuple. Raise DeviceError."""
        code, *results = getattr(self.runtime, function)(*arguments)
        if int(code) != 0:
            raise self.failure(what, str(code.name))
        return results[0] if len(results) == 1 else tuple(results) or None

    def failure(self, what: str, name: str, advice: str = "") -> DeviceError:
        self.runtime.cudaGetLastError()  # otherwise a later call that checks the last error reports it
        return DeviceError(what, name, advice or advice_for(name), lasting=name in LASTING)

    def range_of(self, address: int) -> tuple[int, int]:
        """Return the start and the size in bytes of the allocation that contains an address."""
        code, base, nbytes = self.driver.cuMemGetAddressRange(self.driver.CUdeviceptr(address))
        if int(code) != 0:
            raise self.failure("find an allocation", runtime_name(str(code.name)))
        return int(base), int(nbytes)


class CudaEvent:
    """An event of the runtime."""

    def __init__(self, calls: _Calls, device: Device, native: Any) -> None:
        self._calls = calls
        self.device = device
        self.native = native
        self._closed = False

    def query(self) -> bool:
        runtime = self._calls.runtime
        (code,) = runtime.cudaEventQuery(self.native)
        if int(code) == int(runtime.cudaError_t.cudaErrorNotReady):
            return False
        if int(code) != 0:
            raise self._calls.failure("look at an event", str(code.name))
        return True

    def synchronize(self) -> None:
        self._calls("wait for an event", "cudaEventSynchronize", self.native)

    def elapsed_ms(self, since: DeviceEvent) -> float:
        assert isinstance(since, CudaEvent)
        return float(self._calls("time events", "cudaEventElapsedTime", since.native, self.native))

    def export(self) -> bytes:
        handle = self._calls("export an event", "cudaIpcGetEventHandle", self.native)
        return ctypes.string_at(int(handle.getPtr()), HANDLE_BYTES)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._calls("end an event", "cudaEventDestroy", self.native)


class CudaStream:
    """A stream of the runtime."""

    def __init__(self, calls: _Calls, device: Device, stream: Any, *, own: bool) -> None:
        self._calls = calls
        self._device = device
        self._stream = stream
        self._own = own
        self._closed = False
        runtime = calls.runtime
        self._end = calls(
            "make an event", "cudaEventCreateWithFlags", runtime.cudaEventBlockingSync | runtime.cudaEventDisableTiming
        )

    @property
    def native(self) -> int:
        return int(self._stream)

    def _choose_device(self) -> None:
        """Make the stream's device current in this thread."""
        self._calls("choose a device", "cudaSetDevice", self._device.index)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self._choose_device()
        self._calls.libcuda.copy(target, source, nbytes, self.native)

    def copy_batch(self, targets: I64, sources: I64, sizes: I64) -> None:
        if len(sizes):
            self._choose_device()
            self._calls.libcuda.copy_batch(targets, sources, sizes, self.native)

    def clear(self, target: int, nbytes: int) -> None:
        self._choose_device()
        self._calls(f"clear {nbytes} bytes", "cudaMemsetAsync", target, 0, nbytes, self._stream)

    def record(self, event: DeviceEvent) -> None:
        assert isinstance(event, CudaEvent)
        self._choose_device()
        self._calls("record an event", "cudaEventRecord", event.native, self._stream)

    def wait(self, event: DeviceEvent) -> None:
        assert isinstance(event, CudaEvent)
        self._choose_device()
        self._calls("wait for an event", "cudaStreamWaitEvent", self._stream, event.native, 0)

    def synchronize(self) -> None:
        self._choose_device()
        self._calls("record an event", "cudaEventRecord", self._end, self._stream)
        self._calls("wait for copies", "cudaEventSynchronize", self._end)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._choose_device()
        try:
            if self._own:
                self._calls("wait for copies", "cudaStreamSynchronize", self._stream)
        finally:
            self._calls("end an event", "cudaEventDestroy", self._end)
            if self._own:
                self._calls("end a stream", "cudaStreamDestroy", self._stream)


class CudaKernel:
    """A kernel that was loaded for one device."""

    def __init__(self, calls: _Calls, device: Device, ptx: str, name: str) -> None:
        """Load it into the context of this thread. Raise DeviceError."""
        self._calls = calls
        self._device = device
        self._module, self._function = calls.libcuda.load(ptx, name)

    def launch(self, stream: DeviceStream, blocks: int, threads: int, *arguments: Any) -> None:
        self._calls("choose a device", "cudaSetDevice", self._device.index)
        self._calls.libcuda.launch(self._function, blocks, threads, arguments, stream.native)

    def close(self) -> None:
        module, self._module = self._module, 0
        if module:
            self._calls("choose a device", "cudaSetDevice", self._device.index)
            self._calls.libcuda.unload(module)


class _Allocation:
    """Memory of another process, opened once for all its users."""

    def __init__(self, address: int, nbytes: int, device: Device) -> None:
        self.address = address
        self.nbytes = nbytes
        self.device = device
        self.users = 0


class Cuda:
    """All visible GPUs of this machine."""

    name = "cuda"

    def __init__(self) -> None:
        """Find the GPUs. Raise ImportError without the bindings, DeviceError without a driver or a GPU."""
        self._calls = _Calls()
        runtime = self._calls.runtime
        self._devices = []
        for index in range(self._calls("count GPUs", "cudaGetDeviceCount")):
            properties = self._calls("look at a GPU", "cudaGetDeviceProperties", index)
            self._devices.append(
                Device(
                    index,
                    str(UUID(bytes=bytes(properties.uuid.bytes))),
                    properties.name.decode(errors="replace").rstrip("\0"),
                    int(properties.totalGlobalMem),
                )
            )
        if not self._devices:
            raise self._calls.failure("count GPUs", "cudaErrorNoDevice")
        self._pin_flags = runtime.cudaHostRegisterPortable | runtime.cudaHostRegisterMapped
        self._home: Device | None = None
        """First device that was used. A context on another device would only take up that device's memory."""
        self._opened: dict[tuple[int, bytes], _Allocation] = {}
        self._lock = threading.Lock()

    @property
    def batches(self) -> bool:
        """Whether the driver takes many copies in one call."""
        return self._calls.libcuda.batches

    def versions(self) -> tuple[int, int]:
        """Return the CUDA versions of driver and runtime; 13020 means 13.2."""
        driver = self._calls("ask the driver", "cudaDriverGetVersion")
        return int(driver), int(self._calls("ask the runtime", "cudaRuntimeGetVersion"))

    def _choose(self, device: Device) -> None:
        if self._home is None:
            self._home = device
        self._calls("choose a device", "cudaSetDevice", device.index)

    # ---- memory

    def devices(self) -> Sequence[Device]:
        return self._devices

    def memory_used(self, device: Device) -> int:
        self._choose(device)
        free, total = self._calls("ask for free memory", "cudaMemGetInfo")
        return int(total) - int(free)

    def allocate(self, device: Device, nbytes: int) -> int:
        self._choose(device)
        return int(self._calls(f"allocate {nbytes} bytes", "cudaMalloc", nbytes))

    def free(self, address: int) -> None:
        self._calls("free memory", "cudaFree", address)

    def export(self, address: int, nbytes: int) -> Handle:
        attributes = self._calls("look at an address", "cudaPointerGetAttributes", address)
        device = self._devices[int(attributes.device)] if int(attributes.device) >= 0 else self._devices[0]
        self._choose(device)
        base, size = self._calls.range_of(address)
        if address + nbytes > base + size:
            # An expandable segment consists of many adjacent allocations.
            raise self._calls.failure("export memory", "cudaErrorInvalidValue", EXPANDABLE)
        code, handle = self._calls.runtime.cudaIpcGetMemHandle(base)
        if int(code) != 0:
            raise self._calls.failure(
                "export memory",
                str(code.name),
                EXPANDABLE if code.name in ("cudaErrorInvalidValue", "cudaErrorNotSupported") else "",
            )
        body = ctypes.string_at(int(handle.getPtr()), HANDLE_BYTES)
        return Handle(body, address - base, nbytes, device.uuid)

    def open(self, handle: Handle) -> OpenedMemory:
        if len(handle.body) != HANDLE_BYTES:
            raise DeviceError("open a handle", "cudaErrorInvalidValue", f"expected {HANDLE_BYTES} bytes")
        device = device_of(self, handle.device_uuid)
        key = device.index, handle.body
        with self._lock:
            opened = self._opened.get(key)
            if opened is None:
                opened = self._opened[key] = self._open(device, handle.body)
            opened.users += 1
        return OpenedMemory(opened.address, opened.nbytes, lambda: self._release(key))

    def _open(self, device: Device, body: bytes) -> _Allocation:
        runtime = self._calls.runtime
        self._choose(device)
        handle = runtime.cudaIpcMemHandle_t()
        ctypes.memmove(int(handle.getPtr()), body, HANDLE_BYTES)
        address = int(
            self._calls("open a handle", "cudaIpcOpenMemHandle", handle, runtime.cudaIpcMemLazyEnablePeerAccess)
        )
        try:
            base, nbytes = self._calls.range_of(address)
        except DeviceError:
            self._calls("close a handle", "cudaIpcCloseMemHandle", address)
            raise
        return _Allocation(address, nbytes - (address - base), device)

    def _release(self, key: tuple[int, bytes]) -> None:
        with self._lock:
            allocation = self._opened[key]
            allocation.users -= 1
            if allocation.users:
                return
            del self._opened[key]
            self._choose(allocation.device)
            self._calls("close a handle", "cudaIpcCloseMemHandle", allocation.address)

    # ---- host memory

    def register(self, address: int, nbytes: int, *, read_only: bool) -> None:
        flags = self._pin_flags | (self._calls.runtime.cudaHostRegisterReadOnly if read_only else 0)
        self._choose(self._home or self._devices[0])
        self._calls(f"pin {nbytes} bytes", "cudaHostRegister", address, nbytes, flags)

    def unregister(self, address: int) -> None:
        self._calls("unpin memory", "cudaHostUnregister", address)

    def allocate_host(self, nbytes: int) -> int:
        self._choose(self._home or self._devices[0])
        flags = self._calls.runtime.cudaHostAllocPortable
        return int(self._calls(f"allocate {nbytes} pinned bytes", "cudaHostAlloc", nbytes, flags))

    def free_host(self, address: int) -> None:
        self._calls("free pinned memory", "cudaFreeHost", address)

    # ---- kernels

    def kernels_reach_host(self, device: Device) -> bool:
        """Return whether kernels can use registered host memory at its address in this process."""
        attribute = self._calls.runtime.cudaDeviceAttr.cudaDevAttrCanUseHostPointerForRegisteredMem
        return bool(self._calls("look at a GPU", "cudaDeviceGetAttribute", attribute, device.index))

    def kernel(self, device: Device, ptx: str, name: str) -> CudaKernel:
        """Load a kernel. Raise DeviceError."""
        self._choose(device)
        self._calls("start CUDA on a GPU", "cudaFree", 0)  # makes the context, if nothing has yet
        return CudaKernel(self._calls, device, ptx, name)

    # ---- streams and events

    def stream(self, device: Device) -> DeviceStream:
        self._choose(device)
        flags = self._calls.runtime.cudaStreamNonBlocking
        # At equal priority, a kernel may wait until the engine has no more work for the device.
        _, highest = self._calls("ask for priorities", "cudaDeviceGetStreamPriorityRange")
        native = self._calls("make a stream", "cudaStreamCreateWithPriority", flags, highest)
        return CudaStream(self._calls, device, native, own=True)

    def external_stream(self, device: Device, native: int) -> DeviceStream:
        self._choose(device)
        return CudaStream(self._calls, device, self._calls.runtime.cudaStream_t(native), own=False)

    def event(self, device: Device, *, shared: bool = False, timed: bool = False) -> DeviceEvent:
        runtime = self._calls.runtime
        if shared and timed:
            raise ValueError("an event that others open has no time")
        self._choose(device)
        flags = runtime.cudaEventBlockingSync | (0 if timed else runtime.cudaEventDisableTiming)
        flags |= runtime.cudaEventInterprocess if shared else 0
        return CudaEvent(self._calls, device, self._calls("make an event", "cudaEventCreateWithFlags", flags))

    def open_event(self, device: Device, body: bytes) -> DeviceEvent:
        if len(body) != HANDLE_BYTES:
            raise DeviceError("open an event", "cudaErrorInvalidValue", f"expected {HANDLE_BYTES} bytes")
        self._choose(device)
        handle = self._calls.runtime.cudaIpcEventHandle_t()
        ctypes.memmove(int(handle.getPtr()), body, HANDLE_BYTES)
        return CudaEvent(self._calls, device, self._calls("open an event", "cudaIpcOpenEventHandle", handle))

    def reaches(self, device: Device, other: Device) -> bool:
        answer = self._calls("ask about peers", "cudaDeviceCanAccessPeer", device.index, other.index)
        return bool(answer)
