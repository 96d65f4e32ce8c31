"""What an eviction policy costs the data plane for one block's life: stored, used once, named as a victim, evicted."""

from collections.abc import Callable
from itertools import islice
from statistics import median
from time import perf_counter_ns

from benchmarks.harness.result import Result, at_most
from benchmarks.harness.setting import Setting
from dataplane.policies import EvictionPolicy
from dataplane.policies.registry import POLICIES

_BLOCKS = 20_000
_REQUEST_BLOCKS = 24
_REQUESTS_A_ROUND = 100
_SIZE_BYTES = 1 << 21


def run(setting: Setting) -> list[Result]:
    """A figure for each policy that evicts, in microseconds a block."""
    return [
        at_most(f"policy_{name}_life", _life_us(make, setting.effort.rounds), "us", None)
        for name, make in POLICIES.items()
        if name != "noop"
    ]


def _life_us(make: Callable[[], EvictionPolicy], rounds: int) -> float:
    """Median over requests that come to a full cache; one is short enough to be left alone by the scheduler."""
    policy = make()
    for number in range(_BLOCKS):
        policy.insert(number, number, _SIZE_BYTES, 0.0)
    first, times_ns = _BLOCKS, []
    for _ in range(_REQUESTS_A_ROUND * rounds):
        start = perf_counter_ns()
        _request(policy, first)
        times_ns.append((perf_counter_ns() - start) / _REQUEST_BLOCKS)
        first += _REQUEST_BLOCKS
    return median(times_ns) / 1e3


def _request(policy: EvictionPolicy, first: int) -> None:
    now = float(first)
    for number in list(islice(policy.victims(now), _REQUEST_BLOCKS)):
        policy.evict(number, now)
    numbers = range(first, first + _REQUEST_BLOCKS)
    for number in numbers:
        policy.insert(number, number, _SIZE_BYTES, now)
    for number in numbers:
        policy.touch(number, now)
