"""Checks of a machine's devices by trial copies.

`larder doctor` runs them in a separate process, so that no other process gets a context on a GPU.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial

import msgspec

from dataplane.base.units import format_size
from dataplane.devices.pinning import PinnedMemory
from dataplane.devices.runtime import Device, DeviceError, DeviceRuntime, DeviceStream, Handle
from dataplane.protocol.mappings import MADV_POPULATE_WRITE, advise, map_shared, unmap

TRIAL_BYTES = 128 << 20
ROUNDS = 3
WAIT_S = 60
MIN_LOCKED_BYTES = 1 << 30
DOCKER_MEMLOCK = "ulimit -l unlimited, LimitMEMLOCK=infinity of systemd, or --ulimit memlock=-1 of Docker"


class SeenDevice(msgspec.Struct):
    """Result of one check. `fix` says what the user can do; empty if nothing is needed."""

    name: str
    state: str
    """`ok`, `warning` or `failure`."""
    message: str
    fix: str = ""


class ExportedMemory(msgspec.Struct):
    """Description of the memory that the other process exported."""

    body: bytes
    uuid: str


def examine(runtime: DeviceRuntime, exporter: Sequence[str]) -> Iterator[SeenDevice]:
    """Yield the checks of all devices. `exporter` is the command of a process that runs `export`. Raises nothing."""
    devices = runtime.devices()
    for device in devices:
        yield SeenDevice(
            f"GPU {device.index}", "ok", f"{device.name}, {format_size(device.memory_bytes)}, {device.uuid}"
        )
    yield _locked()
    for device in devices:
        yield _tried(f"GPU {device.index} copies", partial(_rates, runtime, device))
    yield _tried("GPU memory of other processes", partial(_foreign, runtime, devices[0], exporter))
    if len(devices) > 1:
        yield _peers(runtime, devices)


def _tried(name: str, look: Callable[[], str]) -> SeenDevice:
    try:
        return SeenDevice(name, "ok", look())
    except DeviceError as error:
        return SeenDevice(name, "failure", f"{error.what}: {error.name}", error.advice)


def _locked() -> SeenDevice:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY or soft >= MIN_LOCKED_BYTES or os.geteuid() == 0:
        shown = "unlimited" if soft == resource.RLIM_INFINITY else format_size(soft)
        return SeenDevice("pinned memory", "ok", f"{shown} may be locked")
    return SeenDevice(
        "pinned memory",
        "warning",
        f"{format_size(soft)} may be locked: pools are registered with GPUs, which locks them",
        DOCKER_MEMLOCK,
    )


def _rates(runtime: DeviceRuntime, device: Device) -> str:
    """Measure copies with memory registered like the pool's, and try read-only registration. Raise DeviceError."""
    with ExitStack() as stack:
        fd = os.memfd_create("larder-doctor", os.MFD_CLOEXEC)
        stack.callback(os.close, fd)
        os.ftruncate(fd, TRIAL_BYTES)
        host = _mapped(stack, fd, writable=True)
        advise(host, TRIAL_BYTES, MADV_POPULATE_WRITE)
        pinned = PinnedMemory(runtime, host, TRIAL_BYTES, read_only=False)
        if not pinned.cover(0, TRIAL_BYTES):
            assert pinned.refused is not None
            raise pinned.refused
        stack.callback(pinned.close)
        memory = runtime.allocate(device, TRIAL_BYTES)
        stack.callback(runtime.free, memory)
        stream = runtime.stream(device)
        stack.callback(stream.close)
        rates = [_gbps(stream, *addresses) for addresses in ((memory, host), (host, memory))]
        read_only = PinnedMemory(runtime, _mapped(stack, fd, writable=False), TRIAL_BYTES, read_only=True)
        staging = "" if read_only.cover(0, TRIAL_BYTES) else f"; read-only memory is staged ({read_only.refused})"
        read_only.close()
    return f"{rates[0]:.1f} GB/s from host memory, {rates[1]:.1f} GB/s to it{staging}"


def _mapped(stack: ExitStack, fd: int, *, writable: bool) -> int:
    address = map_shared(fd, TRIAL_BYTES, writable=writable)
    stack.callback(unmap, address, TRIAL_BYTES)
    return address


def _gbps(stream: DeviceStream, target: int, source: int) -> float:
    best = 0.0
    for _ in range(ROUNDS):
        began = time.perf_counter()
        stream.copy(target, source, TRIAL_BYTES)
        stream.synchronize()
        best = max(best, TRIAL_BYTES / 1e9 / (time.perf_counter() - began))
    return best


def _foreign(runtime: DeviceRuntime, device: Device, exporter: Sequence[str]) -> str:
    """Open memory of another process and measure copies. Raise DeviceError."""
    with ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen(exporter, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert process.stdin is not None
        assert process.stdout is not None
        stack.callback(process.stdin.close)
        line = process.stdout.readline()
        if not line:
            raise DeviceError("export memory", f"the process ended with {process.wait(WAIT_S)}")
        exported = msgspec.json.decode(line, type=ExportedMemory)
        opened = runtime.open(Handle(exported.body, 0, TRIAL_BYTES, exported.uuid))
        stack.callback(opened.close)
        host = runtime.allocate_host(TRIAL_BYTES)
        stack.callback(runtime.free_host, host)
        stream = runtime.stream(device)
        stack.callback(stream.close)
        rates = [_gbps(stream, *addresses) for addresses in ((opened.address, host), (host, opened.address))]
    return f"opened; {rates[0]:.1f} GB/s into it, {rates[1]:.1f} GB/s out of it"


def _peers(runtime: DeviceRuntime, devices: Sequence[Device]) -> SeenDevice:
    name = "GPU peers"
    try:
        apart = [
            f"{first.index} and {second.index}"
            for first in devices
            for second in devices
            if first.index < second.index and not (runtime.reaches(first, second) and runtime.reaches(second, first))
        ]
    except DeviceError as error:
        return SeenDevice(name, "failure", f"{error.what}: {error.name}", error.advice)
    if not apart:
        return SeenDevice(name, "ok", f"all {len(devices)} reach each other")
    return SeenDevice(name, "ok", f"do not reach each other: {', '.join(apart)}; each GPU has its own engines anyway")


def export(runtime: DeviceRuntime) -> None:
    """Export memory for the process that runs the checks, and keep it until standard input ends. Raise DeviceError."""
    device = runtime.devices()[0]
    address = runtime.allocate(device, TRIAL_BYTES)
    handle = runtime.export(address, TRIAL_BYTES)
    sys.stdout.buffer.write(msgspec.json.encode(ExportedMemory(handle.body, device.uuid)) + b"\n")
    sys.stdout.flush()
    sys.stdin.read()
