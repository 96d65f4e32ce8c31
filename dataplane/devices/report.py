"""What a machine's devices can do for the cache, found out by doing it: what `larder doctor` asks in a process of its
own, so that nobody else gets a context on a GPU."""

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

from dataplane.devices.pinning import Pinned
from dataplane.devices.runtime import Device, DeviceError, Handle, Runtime, Stream
from dataplane.protocol.mappings import MADV_POPULATE_WRITE, advise, map_shared, unmap
from dataplane.protocol.units import format_size

TRIAL_BYTES = 128 << 20
ROUNDS = 3
WAIT_S = 60
LEAST_LOCKED_BYTES = 1 << 30
DOCKER_MEMLOCK = "ulimit -l unlimited, LimitMEMLOCK=infinity of systemd, or --ulimit memlock=-1 of Docker"


class Seen(msgspec.Struct):
    """One thing that was looked at. `fix` says what to do; empty when nothing is to be done."""

    name: str
    state: str
    """`ok`, `warning` or `failure`."""
    message: str
    fix: str = ""


class Exported(msgspec.Struct):
    """What the other process says of its memory."""

    body: bytes
    uuid: str


def examine(runtime: Runtime, exporter: Sequence[str]) -> Iterator[Seen]:
    """All devices. `exporter` is the command of a process that exports memory (`export`). Raises nothing."""
    devices = runtime.devices()
    for device in devices:
        yield Seen(
            f"GPU {device.index}", "ok", f"{device.name}, {format_size(device.memory_bytes)}, {device.uuid}"
        )
    yield _locked()
    for device in devices:
        yield _tried(f"GPU {device.index} copies", partial(_rates, runtime, device))
    yield _tried("GPU memory of other processes", partial(_foreign, runtime, devices[0], exporter))
    if len(devices) > 1:
        yield _peers(runtime, devices)


def _tried(name: str, look: Callable[[], str]) -> Seen:
    try:
        return Seen(name, "ok", look())
    except DeviceError as error:
        return Seen(name, "failure", f"{error.what}: {error.name}", error.advice)


def _locked() -> Seen:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY or soft >= LEAST_LOCKED_BYTES or os.geteuid() == 0:
        shown = "unlimited" if soft == resource.RLIM_INFINITY else format_size(soft)
        return Seen("pinned memory", "ok", f"{shown} may be locked")
    return Seen(
        "pinned memory",
        "warning",
        f"{format_size(soft)} may be locked: pools are registered with GPUs, which locks them",
        DOCKER_MEMLOCK,
    )


def _rates(runtime: Runtime, device: Device) -> str:
    """Register memory as the pool's is, also as read-only, and copy. Raises DeviceError."""
    with ExitStack() as stack:
        fd = os.memfd_create("larder-doctor", os.MFD_CLOEXEC)
        stack.callback(os.close, fd)
        os.ftruncate(fd, TRIAL_BYTES)
        host = _mapped(stack, fd, writable=True)
        advise(host, TRIAL_BYTES, MADV_POPULATE_WRITE)
        pinned = Pinned(runtime, host, TRIAL_BYTES, read_only=False)
        if not pinned.cover(0, TRIAL_BYTES):
            assert pinned.refused is not None
            raise pinned.refused
        stack.callback(pinned.close)
        memory = runtime.allocate(device, TRIAL_BYTES)
        stack.callback(runtime.free, memory)
        stream = runtime.stream(device)
        stack.callback(stream.close)
        rates = [_gbps(stream, *ends) for ends in ((memory, host), (host, memory))]
        read_only = Pinned(runtime, _mapped(stack, fd, writable=False), TRIAL_BYTES, read_only=True)
        told = (
            "" if read_only.cover(0, TRIAL_BYTES) else f"; read-only memory is staged ({read_only.refused})"
        )
        read_only.close()
    return f"{rates[0]:.1f} GB/s from host memory, {rates[1]:.1f} GB/s to it{told}"


def _mapped(stack: ExitStack, fd: int, *, writable: bool) -> int:
    address = map_shared(fd, TRIAL_BYTES, writable=writable)
    stack.callback(unmap, address, TRIAL_BYTES)
    return address


def _gbps(stream: Stream, target: int, source: int) -> float:
    best = 0.0
    for _ in range(ROUNDS):
        began = time.perf_counter()
        stream.copy(target, source, TRIAL_BYTES)
        stream.synchronize()
        best = max(best, TRIAL_BYTES / 1e9 / (time.perf_counter() - began))
    return best


def _foreign(runtime: Runtime, device: Device, exporter: Sequence[str]) -> str:
    """Open memory of another process and copy it. Raises DeviceError."""
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(exporter, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
        assert process.stdin is not None
        assert process.stdout is not None
        stack.callback(process.stdin.close)
        line = process.stdout.readline()
        if not line:
            raise DeviceError("export memory", f"the process ended with {process.wait(WAIT_S)}")
        exported = msgspec.json.decode(line, type=Exported)
        opened = runtime.open(Handle(exported.body, 0, TRIAL_BYTES, exported.uuid))
        stack.callback(opened.close)
        host = runtime.allocate_host(TRIAL_BYTES)
        stack.callback(runtime.free_host, host)
        stream = runtime.stream(device)
        stack.callback(stream.close)
        rates = [_gbps(stream, *ends) for ends in ((opened.address, host), (host, opened.address))]
    return f"opened; {rates[0]:.1f} GB/s into it, {rates[1]:.1f} GB/s out of it"


def _peers(runtime: Runtime, devices: Sequence[Device]) -> Seen:
    name = "GPU peers"
    try:
        apart = [
            f"{one.index} and {other.index}"
            for one in devices
            for other in devices
            if one.index < other.index and not (runtime.reaches(one, other) and runtime.reaches(other, one))
        ]
    except DeviceError as error:
        return Seen(name, "failure", f"{error.what}: {error.name}", error.advice)
    if not apart:
        return Seen(name, "ok", f"all {len(devices)} reach each other")
    return Seen(
        name, "ok", f"do not reach each other: {', '.join(apart)}; each GPU has its own engines anyway"
    )


def export(runtime: Runtime) -> None:
    """Be the other process: export memory, and keep it until the input ends. Raises DeviceError."""
    device = runtime.devices()[0]
    address = runtime.allocate(device, TRIAL_BYTES)
    handle = runtime.export(address, TRIAL_BYTES)
    sys.stdout.buffer.write(msgspec.json.encode(Exported(handle.body, device.uuid)) + b"\n")
    sys.stdout.flush()
    sys.stdin.read()
