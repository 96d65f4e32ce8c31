"""Pages in shuffled order to pinned memory of the pool and back, beside one plain copy of the same bytes; the same with
another process's memory; and how much longer matrix products take meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from time import perf_counter_ns

import numpy as np

from benchmarks.gpu.device import BATCH_BYTES, EMULATED_BATCH_BYTES, Products, foreign_memory, meanwhile, pool_memory
from benchmarks.gpu.pages import FORMS, SPLIT, Form, shuffled
from benchmarks.harness.result import Result, at_least, at_most
from benchmarks.harness.setting import Setting
from dataplane.devices.copying import CopyLane, methods_for
from dataplane.devices.kernels import Direction
from dataplane.devices.paged import Runs
from dataplane.devices.pinning import WINDOW_BYTES, PinnedMemory
from dataplane.devices.runtime import Device, DeviceRuntime

TARGETS = {16: 0.7, 128: 0.9}
"""Least rate as a ratio to one plain copy, by tokens per page."""
MAX_SLOWER = 1.03
PRODUCTS, EMULATED_PRODUCTS = 300, 10
DIRECTIONS = {"out": False, "in": True}


def run(setting: Setting, runtime: DeviceRuntime, device: Device) -> list[Result]:
    batch = EMULATED_BATCH_BYTES if setting.emulated else BATCH_BYTES
    results: list[Result] = []
    with ExitStack() as stack:
        pool = stack.enter_context(pool_memory(runtime, batch))
        methods = methods_for(runtime, device)
        lane = CopyLane(runtime, device, methods)
        stack.callback(lane.close)
        memory = runtime.allocate(device, batch)
        stack.callback(runtime.free, memory)
        bench = _Bench(setting, lane, pool, batch)
        for name, to_device in DIRECTIONS.items():
            plain = bench.gbps(bench.plain(memory, to_device=to_device), batch)
            results.append(at_least(f"gpu_{name}_plain", plain, "GB/s", None))
            for form in FORMS:
                results += bench.paged(name, form, memory, plain, to_device=to_device)
            with foreign_memory(runtime, batch) as opened:
                results += bench.paged(f"other_process_{name}", SPLIT[0], opened.address, plain, to_device=to_device)
        methods.piece_for_kernel(_runs(SPLIT[0], batch, memory), Direction.WITHIN)  # measures it
        results += [
            at_least(f"gpu_{direction.value}_{size >> 10}KiB_{method.value}", rate, "GB/s", None)
            for (size, direction, method), rate in methods.rates.items()
        ]
        results += _slowed(setting, runtime, device, bench, memory)
    return results


class _Bench:
    """Copies of one batch between the device and the pool, timed until they are done."""

    def __init__(self, setting: Setting, lane: CopyLane, pool: PinnedMemory, batch: int) -> None:
        self._rounds = setting.effort.rounds
        self._targets = {} if setting.emulated else TARGETS
        self.lane = lane
        self._pool = pool
        self._batch = batch
        self._used: list[int] = []
        """Nanoseconds of this thread to ask for the copies of each round."""

    def gbps(self, copy: Callable[[], None], nbytes: int) -> float:
        """Median of the rounds; 10^9 bytes a second."""
        times_ns, self._used = [], []
        for _ in range(self._rounds + 1):
            began = perf_counter_ns()
            copy()
            self._used.append(perf_counter_ns() - began)
            self.lane.synchronize()
            times_ns.append(perf_counter_ns() - began)
        return median(nbytes / time_ns for time_ns in times_ns[1:])

    def plain(self, memory: int, *, to_device: bool) -> Callable[[], None]:
        """One copy for each registration of the pool."""
        self._pool.cover(0, self._batch)

        def copy() -> None:
            for at in range(0, self._batch, WINDOW_BYTES):
                addresses = self._pool.address + at, memory + at
                target, source = addresses[::-1] if to_device else addresses
                self.lane.stream.copy(target, source, min(WINDOW_BYTES, self._batch - at))

        return copy

    def copy(self, runs: Runs, *, to_device: bool) -> None:
        if not self.lane.copy_pinned(runs, self._pool, 0, to_device=to_device):
            raise RuntimeError(f"the pool cannot be registered: {self._pool.refused}")

    def paged(self, name: str, form: Form, memory: int, plain: float, *, to_device: bool) -> list[Result]:
        runs = _runs(form, self._batch, memory)
        gbps = self.gbps(lambda: self.copy(runs, to_device=to_device), runs.nbytes)
        pages = runs.nbytes // form.page_bytes
        label = f"gpu_{name}_{form.name}"
        return [
            at_least(f"{label}_ratio", gbps / plain, "of plain", self._targets.get(form.tokens), plain),
            at_least(label, gbps, "GB/s", None, plain),
            at_most(f"{label}_cpu_per_page", median(self._used[1:]) / 1e3 / pages, "us", None),
        ]


def _runs(form: Form, batch: int, memory: int) -> Runs:
    """All chunks of a batch."""
    blocks = form.blocks_in(batch)
    at = np.arange(blocks, dtype=np.int64)
    positions = at % form.blocks_per_chunk, at // form.blocks_per_chunk * form.chunk_bytes
    return form.group(blocks).runs(shuffled(blocks), base=memory, in_chunks=positions)


def _slowed(setting: Setting, runtime: DeviceRuntime, device: Device, bench: _Bench, memory: int) -> list[Result]:
    """How much longer matrix products take while pages are copied."""
    products = Products(runtime, device)
    count = EMULATED_PRODUCTS if setting.emulated else PRODUCTS
    batch = EMULATED_BATCH_BYTES if setting.emulated else BATCH_BYTES
    runs = _runs(SPLIT[0], batch, memory)
    # The emulated device copies with the processor that multiplies.
    target = None if setting.emulated else MAX_SLOWER
    results = []
    products.time_s(count)
    for name, to_device in DIRECTIONS.items():

        def copy(to_device: bool = to_device) -> None:
            bench.copy(runs, to_device=to_device)
            bench.lane.synchronize()

        pairs = []
        for _ in range(3):
            alone = products.time_s(count)
            with meanwhile(copy):
                pairs.append((products.time_s(count) / alone, alone))
        slower, alone = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
        results.append(at_most(f"gpu_{name}_products_slowed", slower, "times", target, alone))
    return results
