"""Copies between an engine's pages in CPU memory and chunks of 256 tokens, beside one memcpy of as many bytes.

The model has the shape of Llama 8B: 32 layers, 8 heads of keys and values, 128 elements of 2 bytes. The engine's memory
and the chunks' memory are each 8 chunks large, 256 MiB, and take turns, so that neither is in the CPU's caches.
"""

import ctypes
from collections.abc import Callable
from itertools import count
from math import prod

import numpy as np

from benchmarks.harness.memory import Mapping
from benchmarks.harness.result import Result, at_least
from benchmarks.harness.setting import Setting
from benchmarks.harness.timing import Throughput
from dataplane.engines.pages import Layout, Pages

CHUNK_TOKENS = 256
CHUNKS = 8
TARGETS = {16: 0.7, 128: 0.9}
"""Targets by the number of tokens in a page."""
_AHEAD = 3
"""Number of chunks between one copy and the next one; an odd number."""


def run(setting: Setting) -> list[Result]:
    """Targets are for vLLM's usual order in memory; an order whose pages hold one head each is reported."""
    layers = 32 if setting.effort.runs > 1 else 2
    results = []
    for tokens, target in TARGETS.items():
        for scattered in (True, False):
            results += _measure(setting, "LBHNC", layers, tokens, target, scattered=scattered)
    return results + _measure(setting, "BHLNC", layers, 16, None, scattered=True)


def _measure(
    setting: Setting, order: str, layers: int, tokens: int, target: float | None, *, scattered: bool
) -> list[Result]:
    blocks = CHUNKS * CHUNK_TOKENS // tokens
    sizes = {"L": layers, "B": blocks, "H": 8, "N": tokens, "C": 2 * 128}
    chunk_bytes = 2 * prod(sizes.values()) // CHUNKS
    engine, pool = Mapping(CHUNKS * chunk_bytes), Mapping(CHUNKS * chunk_bytes)
    pages = Pages(
        _layouts(engine.address, sizes, order), tokens_per_block=tokens, chunk_tokens=CHUNK_TOKENS, owner=engine
    )
    memory = (ctypes.c_uint8 * (CHUNKS * chunk_bytes)).from_address(pool.address)
    chunks = np.ctypeslib.as_array(memory).reshape(CHUNKS, chunk_bytes)
    every = np.random.default_rng(0).permutation(blocks) if scattered else np.arange(blocks)
    numbers = every.reshape(CHUNKS, -1)

    def pair(copy: Callable[[int], object], target_address: int, source_address: int) -> Throughput:
        turns = count(0, _AHEAD)

        def memcpy() -> None:
            at = next(turns) % CHUNKS * chunk_bytes
            ctypes.memmove(target_address + at, source_address + at, chunk_bytes)

        return Throughput(lambda: copy(next(turns) % CHUNKS), memcpy, chunk_bytes, rounds=2 * setting.effort.rounds)

    gathered = pair(lambda at: pages.gather(numbers[at], chunks[at]), pool.address, engine.address)
    scattering = pair(lambda at: pages.scatter(chunks[at], numbers[at]), engine.address, pool.address)
    engine.close()
    pool.close()
    name = f"{order}_{tokens}_tokens_{'scattered' if scattered else 'consecutive'}_ratio"
    return [
        at_least(f"pages_gather_{name}", gathered.ratio, "of memcpy", target, gathered.baseline_gbps),
        at_least(f"pages_scatter_{name}", scattering.ratio, "of memcpy", target, scattering.baseline_gbps),
    ]


def _layouts(address: int, sizes: dict[str, int], order: str) -> list[Layout]:
    """Return the layers of one allocation, with the axes blocks, heads, tokens, content."""
    steps = {axis: prod(sizes[inner] for inner in order[at + 1 :]) for at, axis in enumerate(order)}
    return [
        Layout(
            address + 2 * layer * steps["L"],
            tuple(sizes[axis] for axis in "BHNC"),
            tuple(steps[axis] for axis in "BHNC"),
            2,
        )
        for layer in range(sizes["L"])
    ]
