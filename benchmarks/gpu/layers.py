"""Stores and loads of a cache, layer by layer beside the products of a forward pass: how much of them is hidden."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from time import perf_counter

from benchmarks.gpu.device import BATCH_BYTES, EMULATED_BATCH_BYTES, Products
from benchmarks.gpu.pages import SPLIT, Form, paged_cache, shuffled
from benchmarks.harness.result import Result, at_least, at_most
from benchmarks.harness.setting import Setting
from dataplane.client import Client
from dataplane.client.gpu import PagedCache
from dataplane.devices.runtime import Device, DeviceRuntime
from dataplane.protocol.layout import U64

MIN_HIDDEN = 0.8
LONGER = 1.5
"""The products of all layers take so many times as long as the copies."""
PRODUCT_SIZE = 4096


def run(setting: Setting, runtime: DeviceRuntime, device: Device) -> list[Result]:
    products = Products(runtime, device, PRODUCT_SIZE)
    return [result for form in SPLIT for result in _hidden(setting, runtime, device, form, products)]


def _hidden(setting: Setting, runtime: DeviceRuntime, device: Device, form: Form, products: Products) -> list[Result]:
    batch = EMULATED_BATCH_BYTES if setting.emulated else BATCH_BYTES
    blocks = form.blocks_in(batch)
    chunks = blocks // form.blocks_per_chunk
    with ExitStack() as stack:
        client = stack.enter_context(setting.client(form.chunk_bytes, 3 * batch))
        memory = runtime.allocate(device, batch)
        stack.callback(runtime.free, memory)
        cache = paged_cache(form, client, runtime, device, memory, blocks)
        stack.callback(cache.close)
        passes = _Passes(client, cache, shuffled(blocks), products)

        def timed(count: int) -> tuple[float, float]:
            """Seconds of a store and of the load of the same chunks, beside so many products for each layer."""
            keys = setting.new_keys(chunks)
            return passes.time_s(lambda: passes.store(keys, count)), passes.time_s(lambda: passes.load(keys, count))

        for _ in range(3):  # the first ones register memory, and measure methods
            alone = timed(0)
        count = max(1, round(LONGER * max(alone) / cache.layers / (products.time_s(20) / 20)))
        timed(count)
        rounds = range(setting.effort.rounds)
        copies = [median(times) for times in zip(*(timed(0) for _ in rounds), strict=True)]
        with_products = [median(times) for times in zip(*(timed(count) for _ in rounds), strict=True)]
        forward_s = median(passes.time_s(lambda: passes.forward(count)) for _ in rounds)
    label = f"gpu_layers_{form.name}"
    results = []
    for name, copy_s, both_s in zip(("store", "load"), copies, with_products, strict=True):
        hidden = 1 - (both_s - forward_s) / copy_s
        results += [
            at_least(f"{label}_{name}_hidden", hidden, "of it", None if setting.emulated else MIN_HIDDEN),
            at_least(f"{label}_{name}", chunks * form.chunk_bytes / 1e9 / copy_s, "GB/s", None),
        ]
    requested_us = 1e6 * median(passes.request_s) / form.layers
    return [*results, at_most(f"{label}_load_cpu_per_layer", requested_us, "us", None)]


class _Passes:
    """Forward passes of an engine, with and without copies."""

    def __init__(self, client: Client, cache: PagedCache, numbers: list[int], products: Products) -> None:
        self._client = client
        self._cache = cache
        self._numbers = numbers
        self._products = products
        self.request_s: list[float] = []
        """Seconds of this thread to ask for the copies of each load."""

    def time_s(self, work: Callable[[], None]) -> float:
        """Return the seconds until the work and all products on the device are done."""
        self._products.synchronize()
        began = perf_counter()
        work()
        self._products.synchronize()
        return perf_counter() - began

    def forward(self, count: int) -> None:
        for _ in range(self._cache.layers):
            self._products.run(count)

    def store(self, keys: U64, count: int) -> None:
        """Each layer behind its products."""
        store = self._cache.store(self._client.reserve(keys, self._cache.chunk_bytes), self._numbers)
        for number in range(self._cache.layers):
            self._products.run(count)
            store.layer(number, after=self._products.event(self._cache) if count else None)
        if store.finish().blocks != len(keys):
            raise RuntimeError("a store failed")

    def load(self, keys: U64, count: int) -> None:
        """The products of each layer behind its copies."""
        began = perf_counter()
        load = self._cache.load(self._client.acquire(keys), self._numbers)
        self.request_s.append(perf_counter() - began)
        for number in range(self._cache.layers if count else 0):
            self._products.wait_for(load, number, self._cache)
            self._products.run(count)
        if not load.finish():
            raise RuntimeError("a load failed")
