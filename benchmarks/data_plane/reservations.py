"""Reserving and committing 16 new blocks in a full pool, without writing to them: each makes room by eviction."""

from benchmarks.harness.result import Result, at_most
from benchmarks.harness.setting import Setting, store
from benchmarks.harness.timing import Latency
from dataplane.client import Client

BLOCKS = 16
BLOCK_BYTES = 64 << 10
POOL_BLOCKS = 1024
TARGET_US = 250.0
SPIN_S = 0.0003
"""Of the engine that looks for answers before it goes to sleep."""


def run(setting: Setting) -> list[Result]:
    """Baseline: two bare round trips, the least that the two messages cost."""
    effort = setting.effort
    chains = iter([setting.new_keys(BLOCKS) for _ in range(2 * (effort.runs * effort.samples + 1))])
    with (
        setting.client(BLOCK_BYTES, POOL_BLOCKS * BLOCK_BYTES) as client,
        setting.another(client, BLOCK_BYTES, spin_s=SPIN_S) as awake,
        setting.roundtrip() as message,
    ):
        for _ in range(2 * POOL_BLOCKS // BLOCKS):
            store(client, setting.new_keys(BLOCKS), BLOCK_BYTES)

        def measured(engine: Client) -> Latency:
            return Latency(
                lambda: store(engine, next(chains), BLOCK_BYTES),
                lambda: message.go(2),
                runs=effort.runs,
                samples=effort.samples,
            )

        asleep, spinning = measured(client), measured(awake)
    return [
        at_most("reserve_commit_16_p50", asleep.us(50), "us", TARGET_US, asleep.baseline_us(50)),
        at_most("reserve_commit_16_p99", asleep.us(99), "us", None, asleep.baseline_us(99)),
        at_most("reserve_commit_16_spinning_p50", spinning.us(50), "us", TARGET_US, spinning.baseline_us(50)),
    ]
