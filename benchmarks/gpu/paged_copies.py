"""Device and pool: paged copies in both directions at 16, 32 and 64 KiB a page, beside one contiguous pinned copy and
beside a copy for each page; the same from another process's memory; what copying costs the engine; loads from GPU
copies on the device.

Blocks lie in shuffled order, layers apart, keys and values apart, as engines have them. `--emulated` measures the
emulated device: it shows that everything runs, and its figures are those of this machine's memory, of no GPU.
"""

from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from time import perf_counter_ns

import numpy as np

from benchmarks.gpu import gpu_copies
from benchmarks.gpu.device import (
    BATCH_BYTES,
    EMULATED_BATCH_BYTES,
    Products,
    foreign_memory,
    meanwhile,
    pool_memory,
    runtime_of,
)
from benchmarks.gpu.pages import (
    BLOCKS_PER_CHUNK,
    LAYERS,
    PAGES,
    TOKENS_PER_BLOCK,
    blocks_in,
    shuffled,
    tensor_group,
)
from benchmarks.harness.result import Result, at_least, at_most
from benchmarks.harness.setting import Setting
from dataplane.client.gpu import PagedCache
from dataplane.devices.copying import CopyLane, methods_for
from dataplane.devices.methods import Direction
from dataplane.devices.paged import Runs
from dataplane.devices.pinning import PinnedMemory
from dataplane.devices.runtime import Device, DeviceRuntime

TARGET = 0.9
MAX_SLOWER = 1.03
PRODUCTS, EMULATED_PRODUCTS = 300, 10
DIRECTIONS = {"out": False, "in": True}


def run(setting: Setting) -> list[Result]:
    """All of it. RuntimeError without a GPU."""
    runtime = runtime_of(emulated=setting.emulated)
    device = runtime.devices()[0]
    setting.device = device.name if runtime.name == "cuda" else "none: the emulated device, on host memory"
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
            whole = bench.gbps(_contiguous(memory, batch), to_device=to_device)
            results.append(at_least(f"gpu_{name}_contiguous", whole, "GB/s", None))
            for page in PAGES:
                results += _paged(bench, name, page, memory, whole, to_device=to_device)
            with foreign_memory(runtime, batch) as opened:
                gbps = bench.gbps(_runs(PAGES[0], batch, opened.address), to_device=to_device)
            results.append(
                at_least(
                    f"gpu_{name}_16KiB_other_process_ratio", gbps / whole, "of pinned", bench.target, whole
                )
            )
        methods.choose(PAGES[0], Direction.WITHIN)  # measured where there is a choice
        results += [
            at_least(f"gpu_{direction.value}_{page >> 10}KiB_{method.value}", rate, "GB/s", None)
            for (page, direction, method), rate in methods.rates.items()
        ]
        results += _slowed(setting, runtime, device, bench, memory)
        results += _engine_side(setting, runtime, device)
        results += gpu_copies.run(setting, runtime, device)
    return results


class _Bench:
    """Copies of one batch between the device and the pool, timed until they are done."""

    def __init__(self, setting: Setting, lane: CopyLane, pool: PinnedMemory, batch: int) -> None:
        self.rounds = setting.effort.rounds
        self.target = None if setting.emulated else TARGET
        """Targets are those of GPUs."""
        self.lane = lane
        self.pool = pool
        self.batch = batch

    def gbps(self, runs: Runs, *, to_device: bool, copy: Callable[[Runs, bool], None] | None = None) -> float:
        """Median of the rounds; 10^9 bytes a second."""
        copy = copy or self.copy
        taken = []
        for _ in range(self.rounds + 1):
            began = perf_counter_ns()
            copy(runs, to_device)
            self.lane.synchronize()
            taken.append(perf_counter_ns() - began)
        return median(self.batch / each for each in taken[1:])

    def copy(self, runs: Runs, to_device: bool) -> None:
        if not self.lane.copy_pinned(runs, self.pool, 0, to_device=to_device):
            raise RuntimeError(f"the pool cannot be registered: {self.pool.refused}")

    def page_by_page(self, runs: Runs, to_device: bool) -> None:
        """A call for each page: what a cache does that takes no care."""
        host = runs.chunk + self.pool.address
        targets, sources = (runs.device, host) if to_device else (host, runs.device)
        for target, source, nbytes in zip(
            targets.tolist(), sources.tolist(), runs.sizes.tolist(), strict=True
        ):
            self.lane.stream.copy(target, source, nbytes)

    def enqueue_us(self, runs: Runs, *, to_device: bool) -> float:
        """Processor time of this thread to ask for one batch, median of the rounds."""
        taken = []
        for _ in range(self.rounds):
            began = perf_counter_ns()
            self.copy(runs, to_device)
            taken.append(perf_counter_ns() - began)
            self.lane.synchronize()
        return median(taken) / 1e3


def _contiguous(memory: int, batch: int) -> Runs:
    """As much as fits into one registration at a time."""
    return Runs(*(np.array([each], np.int64) for each in (memory, 0, batch)))


def _runs(page: int, batch: int, memory: int) -> Runs:
    """All chunks of a batch."""
    blocks = blocks_in(page, batch)
    form = tensor_group(page, blocks)
    at = np.arange(blocks, dtype=np.int64)
    places = at % BLOCKS_PER_CHUNK, at // BLOCKS_PER_CHUNK * form.chunk_bytes
    return form.runs(shuffled(blocks), base=memory, in_chunks=places)


def _paged(
    bench: _Bench, name: str, page: int, memory: int, whole: float, *, to_device: bool
) -> list[Result]:
    runs = _runs(page, bench.batch, memory)
    gbps = bench.gbps(runs, to_device=to_device) * runs.nbytes / bench.batch
    single = bench.gbps(runs, to_device=to_device, copy=bench.page_by_page) * runs.nbytes / bench.batch
    each_us = bench.enqueue_us(runs, to_device=to_device) / len(runs)
    label = f"gpu_{name}_{page >> 10}KiB"
    return [
        at_least(f"{label}_ratio", gbps / whole, "of pinned", bench.target, whole),
        at_least(label, gbps, "GB/s", None, whole),
        at_least(f"{label}_page_by_page", single, "GB/s", None, whole),
        at_most(f"{label}_cpu_per_page", each_us, "us", None),
    ]


def _slowed(
    setting: Setting, runtime: DeviceRuntime, device: Device, bench: _Bench, memory: int
) -> list[Result]:
    """How much longer matrix products take while pages are copied."""
    products = Products(runtime, device)
    count = EMULATED_PRODUCTS if setting.emulated else PRODUCTS
    runs = _runs(PAGES[0], bench.batch, memory)
    target = (
        None if setting.emulated else MAX_SLOWER
    )  # the emulated device copies with the processor that multiplies
    results = []
    products.time_s(count)
    for name, to_device in DIRECTIONS.items():

        def copy(to_device: bool = to_device) -> None:
            bench.copy(runs, to_device)
            bench.lane.synchronize()

        pairs = []
        for _ in range(3):
            alone = products.time_s(count)
            with meanwhile(copy):
                pairs.append((products.time_s(count) / alone, alone))
        slower, alone = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
        results.append(at_most(f"gpu_{name}_products_slowed", slower, "times", target, alone))
    return results


def _engine_side(setting: Setting, runtime: DeviceRuntime, device: Device) -> list[Result]:
    """Store and load of a paged cache through a data plane of its own, until they are committed and let go."""
    page, chunks = PAGES[1], 2
    blocks = chunks * BLOCKS_PER_CHUNK
    form = tensor_group(page, blocks)
    nbytes = form.chunk_bytes * chunks
    memory = runtime.allocate(device, nbytes)
    rates: dict[str, list[float]] = {"store": [], "load": []}
    try:
        with setting.client(form.chunk_bytes) as client:
            cache = PagedCache(
                client,
                runtime,
                device,
                form.tensors,
                [memory] * LAYERS,
                blocks=blocks,
                tokens_per_block=TOKENS_PER_BLOCK,
            )
            for _ in range(setting.effort.rounds + 1):
                keys = setting.new_keys(chunks)
                began = perf_counter_ns()
                stored = cache.store(client.reserve(keys, form.chunk_bytes), shuffled(blocks)).all().finish()
                rates["store"].append(nbytes / (perf_counter_ns() - began))
                began = perf_counter_ns()
                loaded = cache.load(client.acquire(keys), shuffled(blocks)).finish()
                rates["load"].append(nbytes / (perf_counter_ns() - began))
                if stored.blocks != chunks or not loaded:
                    raise RuntimeError(f"stored {stored.blocks} of {chunks} chunks, loaded: {loaded}")
            cache.close()
    finally:
        runtime.free(memory)
    return [
        at_least(f"gpu_{name}_32KiB_engine_side", median(each[1:]), "GB/s", None)
        for name, each in rates.items()
    ]
