"""Stores and loads of SGLang's host pool: copied by the engine, and by the data plane, which gets the pool as a memfd.

The pages have the shape of Llama 8B: 64 tokens, 32 layers, 8 heads of keys and values, 128 elements of 2 bytes. In the
layout `page_first` a page has two pieces of 4 MiB, in `layer_first` 64 of 128 KiB. The four ways take turns. The engine
copies on two threads, as by default; stores compute checksums.
"""

import mmap
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import msgspec
import numpy as np

from benchmarks.harness.result import Result, at_least, at_most
from benchmarks.harness.setting import TIMEOUT_S, Setting
from dataplane.engines.sglang.host_pages import HostPages
from dataplane.engines.sglang.page_store import PageStore
from dataplane.engines.sglang.settings import BackendSettings
from dataplane.protocol.spaces import Space
from dataplane.replay.plane import own

PAGE_TOKENS, LAYERS, TOKEN_BYTES = 64, 32, 8 * 128 * 2
PAGES = 16
"""Pages of one store or load: 128 MiB."""
GB = 1e9


class _Memfd:
    """SGLang's allocator `shm`, as far as the backend reads it."""

    def __init__(self, nbytes: int) -> None:
        self.fds = [os.memfd_create("host-pool", os.MFD_CLOEXEC)]
        os.posix_fallocate(self.fds[0], 0, nbytes)
        self.mms = [mmap.mmap(self.fds[0], nbytes)]


class _HostPool:
    """A host pool with places for the pages of one store and of one load."""

    page_size = PAGE_TOKENS
    size = 2 * PAGES * PAGE_TOKENS
    dtype = "torch.bfloat16"

    def __init__(self, layout: str) -> None:
        self.layout = layout
        half = self.size * LAYERS * TOKEN_BYTES
        self.allocator = _Memfd(2 * half)
        self._memory = np.frombuffer(self.allocator.mms[0], np.uint8)
        self._memory[:] = np.random.default_rng(0).integers(0, 256, 2 * half, np.uint8)
        step = 1 if layout == "layer_first" else LAYERS
        self._piece_bytes = PAGE_TOKENS * step * TOKEN_BYTES
        address = self._memory.ctypes.data
        self._starts = [
            address + plane * half + layer * self.size * TOKEN_BYTES
            for layer in range(LAYERS // step)
            for plane in range(2)
        ]

    def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
        """Return the addresses and sizes of the pieces of pages."""
        positions = [
            start + first // PAGE_TOKENS * self._piece_bytes
            for first in indices.tolist()[::PAGE_TOKENS]
            for start in self._starts
        ]
        return positions, [self._piece_bytes] * len(positions)

    def close(self) -> None:
        os.close(self.allocator.fds[0])


class _Cost:
    """Seconds, and CPU seconds of the engine and of the data plane, of transfers."""

    def __init__(self, pid: int) -> None:
        self._clock = (~pid << 3) | 2  # the CPU clock of a process, as clock_getcpuclockid(3) makes it
        self.rows: list[tuple[float, float, float]] = []

    def add(self, transfer: Callable[[], object]) -> None:
        """Measure a transfer."""
        before = self._now()
        transfer()
        self.rows.append(tuple(after - start for after, start in zip(self._now(), before, strict=True)))  # type: ignore[arg-type]

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), time.clock_gettime(self._clock)

    def median(self, column: int) -> float:
        """Return the median of a column."""
        return median(row[column] for row in self.rows)


def run(setting: Setting) -> list[Result]:
    """Measure both layouts."""
    return [each for layout in ("page_first", "layer_first") for each in _measure(setting, layout)]


def _measure(setting: Setting, layout: str) -> list[Result]:
    pool: Any = type("MHATokenToKVPoolHost", (_HostPool,), {})(layout)
    pages = HostPages(pool)
    nbytes = PAGES * pages.page_bytes
    indices = np.arange(PAGES * PAGE_TOKENS)
    space = Space("bench", layout=f"bench:{layout}", block_bytes=pages.page_bytes, block_tokens=PAGE_TOKENS)
    serial = iter(range(1 << 30))

    def names() -> list[str]:
        return [f"{next(serial):064x}" for _ in range(PAGES)]

    with own(max(setting.effort.pool_bytes, 4 * nbytes)) as plane:
        assert plane.pid is not None
        common = BackendSettings(socket=plane.engine_socket, timeout_s=TIMEOUT_S)
        stores = {
            "engine": PageStore(common, space, pages),
            "data plane": PageStore(msgspec.structs.replace(common, store_copies="data_plane"), space, pages),
        }
        costs = {(what, by): _Cost(plane.pid) for what in ("store", "load") for by in stores}

        def store(by: str, known: list[str]) -> None:
            if not all(stores[by].save(known, indices)):
                raise RuntimeError(f"expected that the {by} stores all pages")

        def load(by: str, known: list[str]) -> None:
            if by == "engine":
                loaded = all(stores[by].load(known, indices + PAGES * PAGE_TOKENS))
            else:
                client = stores[by]._client
                copy = client.load_into(stores[by]._keys.of(known), np.arange(PAGES, 2 * PAGES))
                loaded = copy.wait(TIMEOUT_S) and copy.ended is not None and copy.ended.blocks == PAGES
            if not loaded:
                raise RuntimeError(f"expected that the {by} loads all pages")

        try:
            for _ in range(2 * max(1, setting.effort.pool_bytes // nbytes)):  # every page of the pool is in use
                store("engine", names())
            for by in stores:
                known = names()
                store(by, known)
                load("engine", known)
                load("data plane", known)
            for at in range(setting.effort.rounds):
                for by in sorted(stores, reverse=bool(at % 2)):
                    known = names()
                    costs["store", by].add(lambda by=by, known=known: store(by, known))  # type: ignore[misc]
                    costs["load", by].add(lambda by=by, known=known: load(by, known))  # type: ignore[misc]
        finally:
            for each in stores.values():
                each.close()
            pool.close()
    results = []
    for (what, by), cost in costs.items():
        name = f"SGLang, {layout}: {what} by the {by}"
        results.append(at_least(name, nbytes / cost.median(0) / GB, "GB/s", None))
        for column, process in ((1, "engine"), (2, "data plane")):
            results.append(at_most(f"{name}: CPU of the {process}", cost.median(column) / nbytes * GB, "s/GB", None))
    return results
