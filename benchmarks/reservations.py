"""Reserving and committing 16 new blocks in a full pool, without writing to them: each makes room by eviction."""

from benchmarks.result import Result, at_most
from benchmarks.setting import Setting, store
from benchmarks.timing import Latency

BLOCKS = 16
BLOCK_BYTES = 64 << 10
POOL_BLOCKS = 1024
TARGET_US = 250.0


def run(setting: Setting) -> list[Result]:
    """Baseline: two bare round trips, the least that the two messages cost."""
    effort = setting.effort
    chains = iter([setting.new_keys(BLOCKS) for _ in range(effort.runs * effort.samples + 1)])
    with setting.client(BLOCK_BYTES, POOL_BLOCKS * BLOCK_BYTES) as client, setting.roundtrip() as message:
        for _ in range(2 * POOL_BLOCKS // BLOCKS):
            store(client, setting.new_keys(BLOCKS), BLOCK_BYTES)
        latency = Latency(
            lambda: store(client, next(chains), BLOCK_BYTES),
            lambda: message.go(2),
            runs=effort.runs,
            samples=effort.samples,
        )
    return [
        at_most("reserve_commit_16_p50", latency.us(50), "us", TARGET_US, latency.baseline_us(50)),
        at_most("reserve_commit_16_p99", latency.us(99), "us", None, latency.baseline_us(99)),
    ]
