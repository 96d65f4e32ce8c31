"""Lookup of 64 keys that are all there: the keys known, and derived from 16,384 tokens first."""

from random import Random

from benchmarks.harness.result import Result, at_most
from benchmarks.harness.setting import Setting, store
from benchmarks.harness.timing import Latency
from dataplane.protocol.keys import chain
from dataplane.protocol.layout import pack_keys

BLOCKS = 64
BLOCK_BYTES = 64 << 10
TOKENS = 16_384
KNOWN_TARGET_US = 40.0
HASHED_TARGET_US = 400.0


def run(setting: Setting) -> list[Result]:
    """Baselines: one bare round trip for the lookup, hashing alone for hashing and lookup."""
    effort = setting.effort
    random = Random(16)
    tokens = [random.randrange(128_000) for _ in range(TOKENS)]
    keys = pack_keys(chain(tokens))
    assert len(keys) == BLOCKS
    with setting.client(BLOCK_BYTES) as client, setting.roundtrip() as message:
        store(client, keys, BLOCK_BYTES)
        if client.lookup(keys) != BLOCKS:
            raise RuntimeError("expected a hit on every key")
        of_keys = Latency(lambda: client.lookup(keys), message.go, runs=effort.runs, samples=effort.samples)
        hashed = Latency(
            lambda: client.lookup(chain(tokens)), lambda: chain(tokens), runs=effort.runs, samples=effort.samples
        )
    return [
        at_most("lookup_64_known_p50", of_keys.us(50), "us", KNOWN_TARGET_US, of_keys.baseline_us(50)),
        at_most("lookup_64_known_p99", of_keys.us(99), "us", None, of_keys.baseline_us(99)),
        at_most("lookup_16k_tokens_p50", hashed.us(50), "us", HASHED_TARGET_US, hashed.baseline_us(50)),
        at_most("lookup_16k_tokens_p99", hashed.us(99), "us", None, hashed.baseline_us(99)),
    ]
