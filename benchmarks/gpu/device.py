"""What the benchmarks of a GPU run on: its runtime, or the emulated device on host memory, pool memory that is
registered with it, and a loop of matrix products that stands for decoding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.memory import MiB
from dataplane.client.gpu import DeviceLoad, PagedCache
from dataplane.devices.find import find
from dataplane.devices.pinning import PinnedMemory
from dataplane.devices.runtime import (
    Device,
    DeviceError,
    DeviceEvent,
    DeviceRuntime,
    DeviceStream,
    Handle,
    OpenedMemory,
)
from dataplane.protocol.mappings import MADV_POPULATE_WRITE, advise, map_shared, unmap
from tests.emulator.device import DEFAULT_UUID, EmulatedDevice

WAIT_S = 60.0
BATCH_BYTES, EMULATED_BATCH_BYTES = 512 * MiB, 64 * MiB
PRODUCT_SIZE = 8192
"""Of the matrices on a GPU; the emulated device has a smaller one."""


def runtime_of(*, emulated: bool) -> DeviceRuntime:
    """RuntimeError where there is none."""
    if emulated:
        return EmulatedDevice(device_bytes=8 << 30)
    try:
        return find()
    except DeviceError as error:
        raise RuntimeError(f"{error}; or measure the emulated device with --emulated") from None


@contextmanager
def pool_memory(runtime: DeviceRuntime, nbytes: int) -> Iterator[PinnedMemory]:
    """A segment as the data plane makes it, mapped, with its pages, and registered."""
    fd = os.memfd_create("larder-bench", os.MFD_CLOEXEC)
    os.ftruncate(fd, nbytes)
    address = map_shared(fd, nbytes, writable=True)
    os.close(fd)
    advise(address, nbytes, MADV_POPULATE_WRITE)
    pinned = PinnedMemory(runtime, address, nbytes, read_only=False)
    if not pinned.cover(0, nbytes):
        raise RuntimeError(f"the pool cannot be registered: {pinned.refused}")
    try:
        yield pinned
    finally:
        pinned.close()
        unmap(address, nbytes)


@contextmanager
def foreign_memory(runtime: DeviceRuntime, nbytes: int) -> Iterator[OpenedMemory]:
    """Device memory of another process, opened by its handle."""
    with exporter(runtime, nbytes) as handle:
        opened = runtime.open(handle)
        try:
            yield opened
        finally:
            opened.close()


@contextmanager
def exporter(runtime: DeviceRuntime, nbytes: int) -> Iterator[Handle]:
    """A handle of another process's device memory."""
    command = [sys.executable, "-m", "benchmarks.gpu.device", runtime.name, str(nbytes)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the process that was to export memory ended")
        message = json.loads(line)
        try:
            yield Handle(bytes.fromhex(message["body"]), 0, nbytes, message["uuid"])
        finally:
            process.stdin.close()


class Products:
    """Matrix products on the device, which stand for the layers of a forward pass."""

    def __init__(self, runtime: DeviceRuntime, device: Device, size: int = PRODUCT_SIZE) -> None:
        """RuntimeError without torch's CUDA build."""
        self._torch: Any = None
        self._events: list[DeviceEvent] = []
        if runtime.name == "cuda":
            torch: Any = import_module("torch")
            if not torch.cuda.is_available():
                raise RuntimeError("the matrix products need a CUDA build of torch")
            self._torch = torch
            where = f"cuda:{device.index}"
            self._factors = [torch.randn((size, size), dtype=torch.bfloat16, device=where) for _ in range(2)]
        else:
            self._host = np.random.default_rng(0).random((256, 256), np.float32)

    def run(self, count: int) -> None:
        """Enqueue so many."""
        for _ in range(count):
            if self._torch is None:
                np.matmul(self._host, self._host)
            else:
                self._torch.matmul(*self._factors)

    def time_s(self, count: int) -> float:
        """How long so many take on the device."""
        if self._torch is None:
            began = time.perf_counter()
            self.run(count)
            return time.perf_counter() - began
        torch = self._torch
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        self.run(count)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def event(self, cache: PagedCache) -> DeviceEvent | None:
        """An event behind all products, for copies to wait for. None on the emulated device: they are done."""
        if self._torch is None:
            return None
        event = cache.event()
        self._stream_of(cache).record(event)
        self._events.append(event)
        return event

    def wait_for(self, load: DeviceLoad, layer: int, cache: PagedCache) -> None:
        """Let later products wait for a layer of a load."""
        if self._torch is not None:
            load.wait_layer(layer, self._stream_of(cache))

    def _stream_of(self, cache: PagedCache) -> DeviceStream:
        return cache.stream_of(self._torch.cuda.current_stream().cuda_stream)

    def synchronize(self) -> None:
        """Wait until all of them are done."""
        if self._torch is not None:
            self._torch.cuda.current_stream().synchronize()
        events, self._events = self._events, []
        for event in events:
            event.close()


@contextmanager
def meanwhile(action: Callable[[], object]) -> Iterator[None]:
    """Do something again and again on another thread. What it raises is raised at the end."""
    stop, started, failed = threading.Event(), threading.Event(), []

    def run() -> None:
        try:
            while not stop.is_set():
                action()
                started.set()
        except DeviceError as error:
            failed.append(error)
            started.set()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait(WAIT_S)
    try:
        yield
    finally:
        stop.set()
        thread.join(WAIT_S)
    if thread.is_alive():
        raise RuntimeError(f"the copies beside the measurement did not end in {WAIT_S:g} s")
    if failed:
        raise RuntimeError(f"copying failed: {failed[0]}")


def _export(kind: str, nbytes: int) -> None:
    """The other process: export some memory, and keep it until the input ends."""
    runtime = EmulatedDevice([DEFAULT_UUID], 8 << 30) if kind == "emulated" else find()
    device = runtime.devices()[0]
    address = runtime.allocate(device, nbytes)
    handle = runtime.export(address, nbytes)
    sys.stdout.write(json.dumps({"body": handle.body.hex(), "uuid": device.uuid}) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    _export(sys.argv[1], int(sys.argv[2]))
