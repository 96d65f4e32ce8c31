"""Loads from GPU copies on the device, beside the same loads from the pool: a data plane that keeps GPU copies, pinned
chunks, and two engines, of which one reads the pool alone. They take turns.
"""

from __future__ import annotations

from contextlib import ExitStack
from statistics import median
from time import perf_counter_ns, thread_time_ns

from benchmarks.gpu.device import BATCH_BYTES, EMULATED_BATCH_BYTES
from benchmarks.gpu.pages import SPLIT, Form, paged_cache, shuffled
from benchmarks.gpu.plane import WAIT_S, Plane, plane_on
from benchmarks.harness.result import Result, at_least, at_most
from benchmarks.harness.setting import Setting, attached
from dataplane.client import Client
from dataplane.client.gpu import PagedCache
from dataplane.devices.runtime import Device, DeviceRuntime
from dataplane.protocol.layout import U64

MODEL = "bench"
MIN_TIMES = 2.0
"""As fast as the pool, on a GPU."""


def run(setting: Setting, runtime: DeviceRuntime, device: Device) -> list[Result]:
    """RuntimeError when there are no GPU copies."""
    batch = EMULATED_BATCH_BYTES if setting.emulated else BATCH_BYTES
    with plane_on(runtime, 4 * batch, 3 * batch) as plane:
        return [result for form in SPLIT for result in _loads(setting, runtime, device, form, plane, batch)]


def _loads(
    setting: Setting, runtime: DeviceRuntime, device: Device, form: Form, plane: Plane, batch: int
) -> list[Result]:
    blocks = form.blocks_in(batch)
    chunks = blocks // form.blocks_per_chunk
    with ExitStack() as stack:
        memory = runtime.allocate(device, batch)
        stack.callback(runtime.free, memory)
        sides: list[tuple[PagedCache, Client]] = []
        for gpu_copies in (True, False):
            # Mappings of their own: the same one is registered with a device once.
            client = stack.enter_context(attached(plane.engine_socket, form.chunk_bytes, checksums=False, verify="off"))
            cache = paged_cache(form, client, runtime, device, memory, blocks, gpu_copies=gpu_copies)
            stack.callback(cache.close)
            sides.append((cache, client))
        cache, client = sides[0]
        keys, numbers = setting.new_keys(chunks), shuffled(blocks)
        stored = cache.store(client.reserve(keys, form.chunk_bytes), numbers).all().finish()
        if stored.blocks != chunks:
            raise RuntimeError(f"stored {stored.blocks} of {chunks} chunks")
        plane.pin(MODEL, keys.tobytes())
        plane.wait_for_gpu_copies(chunks)
        _open(cache, client, keys, numbers)
        times_by_side: list[list[tuple[int, int]]] = [[], []]
        for _ in range(setting.effort.rounds + 1):
            for side, times, expected in zip(sides, times_by_side, (chunks, 0), strict=True):
                times.append(_load(*side, keys, numbers, expected))
    nbytes = form.chunk_bytes * chunks
    pages = nbytes // form.page_bytes
    rates = [median(nbytes / pair[0] for pair in times[1:]) for times in times_by_side]
    cpu_us = [median(pair[1] for pair in times[1:]) / 1e3 / pages for times in times_by_side]
    label = f"gpu_copy_{form.name}"
    return [
        at_least(f"{label}_times", rates[0] / rates[1], "of pool", None if setting.emulated else MIN_TIMES, rates[1]),
        at_least(label, rates[0], "GB/s", None, rates[1]),
        at_least(f"{label}_pool", rates[1], "GB/s", None),
        at_most(f"{label}_cpu_per_page", cpu_us[0], "us", None, cpu_us[1]),
    ]


def _open(cache: PagedCache, client: Client, keys: U64, numbers: list[int]) -> None:
    """Load until all comes from GPU copies: the first loads wait for no handle."""
    deadline = perf_counter_ns() + WAIT_S * 1e9
    while perf_counter_ns() < deadline:
        load = cache.load(client.acquire(keys), numbers)
        if load.finish() and load.gpu_copies == len(keys):
            return
    raise RuntimeError("GPU copies are there, and the engine does not read them")


def _load(cache: PagedCache, client: Client, keys: U64, numbers: list[int], expected: int) -> tuple[int, int]:
    """Nanoseconds until it is done, and of this thread's processor time."""
    lease = client.acquire(keys)
    began, used = perf_counter_ns(), thread_time_ns()
    load = cache.load(lease, numbers)
    well = load.finish()
    times = perf_counter_ns() - began, thread_time_ns() - used
    if not well or load.gpu_copies != expected:
        raise RuntimeError(f"loaded: {well}, {load.gpu_copies} chunks from GPU copies, expected {expected}")
    return times
