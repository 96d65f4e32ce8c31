"""Each policy is the algorithm that it is named after."""

from collections.abc import Iterable
from itertools import count, islice
from random import Random

import pytest

from dataplane.policies import EvictionPolicy
from dataplane.policies.age_class import AgeClass
from dataplane.policies.arc import Arc
from dataplane.policies.lfu import Lfu
from dataplane.policies.noop import Noop
from dataplane.policies.registry import POLICIES
from dataplane.policies.s3fifo import S3Fifo
from dataplane.policies.slru import Slru
from tests.eviction.references import REFERENCES
from tests.eviction.simulator import Simulator

PAGE = 4096


def _skewed(asks: int, keys: int, seed: int) -> list[int]:
    """Few keys often, most seldom, and the favourites change on the way."""
    random = Random(seed)
    return [min(int(random.paretovariate(0.7)), keys) + at // 1500 * 37 for at in range(asks)]


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("capacity", [10, 53])
def test_hits_equal_those_of_a_simple_implementation(name, capacity):
    reference = REFERENCES[name](capacity)
    simulator = Simulator(POLICIES[name](), capacity)
    keys = _skewed(4000, 400, seed=capacity)
    for now, key in enumerate(keys):
        assert simulator.serve([key], now + 1.0) == reference.ask(key), f"ask {now}"
    assert 0.1 < simulator.hits / len(keys) < 0.95, "the trace says something"


def _store(policy: EvictionPolicy, numbers: Iterable[int], now: float = 0.0, size: int = PAGE) -> None:
    for number in numbers:
        policy.insert(number, number, size, now)


def _touch(policy: EvictionPolicy, numbers: Iterable[int], now: float = 0.0) -> None:
    for number in numbers:
        policy.touch(number, now)


@pytest.mark.parametrize("name", REFERENCES)
def test_only_policies_that_go_by_age_lose_blocks_used_twice_to_a_scan(name):
    cache, hot = Simulator(POLICIES[name](), 100), range(50)
    for now, key in enumerate([*range(1000, 1050), *hot, *hot, *hot, *range(10_000, 11_000)]):
        cache.serve([key], now + 1.0)
    survivors = sum(key in cache for key in hot)
    assert survivors == (0 if name in ("lru", "fifo", "age_class") else len(hot))


def test_refresh_renews_the_age_and_leaves_the_count():
    policy = AgeClass()
    _store(policy, [1, 2])
    for _ in range(20):
        policy.refresh(1, 50.0)
    _touch(policy, [2], now=10.0)
    assert list(policy.victims(100.0)) == [1, 2], "50 s without a use, 90/2 s with one"


def test_lfu_goes_by_uses_and_then_by_recency():
    policy = Lfu()
    _store(policy, range(5))
    _touch(policy, [0, 0, 1, 2, 3, 3])
    policy.refresh(1, 0.0)
    assert list(policy.victims(0.0)) == [4, 2, 1, 0, 3]


def test_lfu_takes_hits_from_elsewhere_into_account():
    policy = Lfu()
    for number, hits in ((1, 5), (2, 0), (3, 9), (4, 5), (5, 2)):
        policy.insert(number, number, PAGE, 0.0, hits)
    assert list(policy.victims(0.0)) == [2, 5, 1, 4, 3]
    _touch(policy, [2, 2])
    assert list(policy.victims(0.0)) == [5, 2, 1, 4, 3]


def test_slru_protects_bytes_and_not_blocks():
    policy = Slru()
    policy.insert(0, 0, 8 * PAGE, 0.0)
    _store(policy, range(1, 9))
    _touch(policy, [1, 2, 3, 4, 0])
    assert list(policy.victims(0.0))[:4] == [5, 6, 7, 8], "12 of 16 pages are protected"
    _touch(policy, [5])
    assert list(policy.victims(0.0))[:4] == [6, 7, 8, 1], "13 of 16 pages were too many"


def test_noop_names_no_victim_and_a_full_pool_refuses():
    cache = Simulator(Noop(), 3)
    for key in range(5):
        cache.serve([key], 0.0)
    assert cache.refused == 2
    assert [key for key in range(5) if key in cache] == [0, 1, 2]


@pytest.mark.parametrize("kind", [Arc, S3Fifo])
def test_ghosts_of_mixed_sizes_are_bounded_in_bytes_and_in_number(kind):
    policy = kind()
    random = Random(2)
    numbers = count()
    for _ in range(3000):
        number = next(numbers)
        policy.insert(number, number, random.choice([512, PAGE, 64 * PAGE]), 0.0)
        if number % 3 == 0:
            policy.touch(number, 0.0)
        if number >= 100:
            policy.evict(next(policy.victims(0.0)), 0.0)
    assert 20 < policy.ghosts <= 2 * len(policy)
    while len(policy) > 5:
        policy.evict(next(policy.victims(0.0)), 0.0)
    assert policy.ghosts <= 10


@pytest.mark.parametrize("kind", [Arc, S3Fifo])
def test_ghosts_go_with_an_account_that_is_emptied(kind):
    for leave in ("evict", "remove"):
        policy = kind()
        _store(policy, range(100))
        for number in list(islice(policy.victims(0.0), 40)):
            policy.evict(number, 0.0)
        assert policy.ghosts > 20
        for number in list(policy.victims(0.0)):
            policy.evict(number, 0.0) if leave == "evict" else policy.remove(number)
        assert policy.ghosts == 0
