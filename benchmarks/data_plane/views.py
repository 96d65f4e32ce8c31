"""`lease.view` hands out the pool's own memory: nothing is copied, whatever the size of the block."""

import numpy as np

from benchmarks.harness.memory import MiB
from benchmarks.harness.result import Result, at_most
from benchmarks.harness.setting import Setting, store
from benchmarks.harness.timing import Latency

BLOCK_BYTES = 32 * MiB


def run(setting: Setting) -> list[Result]:
    """Baseline: a memcpy of the same block."""
    effort = setting.effort
    keys = setting.new_keys(1)
    with setting.client(BLOCK_BYTES) as client, setting.memcpy(BLOCK_BYTES) as memcpy:
        store(client, keys, BLOCK_BYTES)
        with client.acquire(keys) as first, client.acquire(keys) as second:
            is_same_address = _are_same_memory(first.view(0), second.view(0))
            latency = Latency(
                lambda: first.view(0), memcpy.out_of_arena, runs=effort.runs, samples=min(50, effort.samples)
            )
    return [
        at_most("view_32MiB_copied", 0.0 if is_same_address else BLOCK_BYTES, "bytes", 0.0, BLOCK_BYTES),
        at_most("view_32MiB_p50", latency.us(50), "us", None, latency.baseline_us(50)),
    ]


def _are_same_memory(one: memoryview, other: memoryview) -> bool:
    """Return whether two views have one address. Both are held: a freed copy would leave its address to the next."""
    return np.frombuffer(one, np.uint8).ctypes.data == np.frombuffer(other, np.uint8).ctypes.data
