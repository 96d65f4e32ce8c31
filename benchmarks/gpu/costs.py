"""Times to register and unregister host memory, and to open and close device memory of another process."""

from __future__ import annotations

import os
from contextlib import ExitStack
from statistics import median
from time import perf_counter_ns

from benchmarks.gpu.device import exporter
from benchmarks.harness.memory import MiB
from benchmarks.harness.result import Result, at_most
from benchmarks.harness.setting import Setting
from dataplane.devices.pinning import WINDOW_BYTES, PinnedMemory
from dataplane.devices.runtime import Device, DeviceRuntime
from dataplane.protocol.mappings import MADV_POPULATE_WRITE, advise, map_shared, unmap

EMULATED_BYTES = 32 * MiB
CYCLES = 1_000


def run(setting: Setting, runtime: DeviceRuntime, device: Device) -> list[Result]:
    return [*_registering(setting, runtime), *_opening(setting, runtime, device)]


def _registering(setting: Setting, runtime: DeviceRuntime) -> list[Result]:
    """Register a window of populated memory through a writable and through a read-only mapping."""
    nbytes = EMULATED_BYTES if setting.emulated else WINDOW_BYTES
    results = []
    with ExitStack() as stack:
        fd = os.memfd_create("larder-bench", os.MFD_CLOEXEC)
        stack.callback(os.close, fd)
        os.ftruncate(fd, nbytes)
        for name, writable in (("", True), ("_read_only", False)):
            address = map_shared(fd, nbytes, writable=writable)
            stack.callback(unmap, address, nbytes)
            if writable:
                advise(address, nbytes, MADV_POPULATE_WRITE)
            times_ns: dict[str, list[int]] = {"register": [], "unregister": []}
            for _ in range(setting.effort.rounds):
                pinned = PinnedMemory(runtime, address, nbytes, read_only=not writable)
                began = perf_counter_ns()
                if not pinned.cover(0, nbytes):
                    raise RuntimeError(f"a mapping{name} cannot be registered: {pinned.refused}")
                between = perf_counter_ns()
                pinned.close()
                times_ns["register"].append(between - began)
                times_ns["unregister"].append(perf_counter_ns() - between)
            results += [
                at_most(f"gpu_{step}{name}_256MiB", median(times) / 1e6, "ms", None) for step, times in times_ns.items()
            ]
    return results


def _opening(setting: Setting, runtime: DeviceRuntime, device: Device) -> list[Result]:
    nbytes = EMULATED_BYTES if setting.emulated else WINDOW_BYTES
    times_ns: dict[str, list[int]] = {"open": [], "close": []}
    with exporter(runtime, nbytes) as handle:
        runtime.open(handle).close()
        before = runtime.memory_used(device)
        for _ in range(CYCLES if setting.effort.runs > 1 else 10):
            began = perf_counter_ns()
            opened = runtime.open(handle)
            between = perf_counter_ns()
            opened.close()
            times_ns["open"].append(between - began)
            times_ns["close"].append(perf_counter_ns() - between)
        leaked_bytes = runtime.memory_used(device) - before
    return [
        *(at_most(f"gpu_ipc_{step}", median(times) / 1e3, "us", None) for step, times in times_ns.items()),
        at_most("gpu_ipc_left", leaked_bytes / MiB, "MiB", None if setting.emulated else 0.0),
    ]
