"""Taking and giving back a lease on 64 blocks, without reading them."""

from benchmarks.harness.result import Result, at_most
from benchmarks.harness.setting import Setting, store
from benchmarks.harness.timing import Latency

BLOCKS = 64
BLOCK_BYTES = 64 << 10


def run(setting: Setting) -> list[Result]:
    """Baseline: one bare round trip, the least that a lease by message would cost."""
    effort = setting.effort
    keys = setting.new_keys(BLOCKS)
    with setting.client(BLOCK_BYTES) as client, setting.roundtrip() as message:
        store(client, keys, BLOCK_BYTES)

        def acquire_and_release() -> None:
            with client.acquire(keys) as lease:
                if len(lease) != BLOCKS:
                    raise RuntimeError(f"expected {BLOCKS} blocks, got {len(lease)}")

        latency = Latency(acquire_and_release, message.go, runs=effort.runs, samples=effort.samples)
    return [
        at_most("acquire_release_64_p50", latency.us(50), "us", None, latency.baseline_us(50)),
        at_most("acquire_release_64_p99", latency.us(99), "us", None, latency.baseline_us(99)),
    ]
