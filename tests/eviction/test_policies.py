"""Every eviction policy: what the protocol demands, held against a model, and the algorithm that it is named after."""

import gc
import tracemalloc
from collections.abc import Iterable
from itertools import count, islice
from random import Random

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dataplane.policies import EvictionPolicy
from dataplane.policies.age_class import AgeClass
from dataplane.policies.arc import Arc
from dataplane.policies.lfu import Lfu
from dataplane.policies.noop import Noop
from dataplane.policies.registry import POLICIES
from dataplane.policies.s3fifo import S3Fifo
from dataplane.policies.slru import Slru
from dataplane.protocol.control.records import ALGORITHMS
from tests.eviction.conftest import Make
from tests.eviction.references import REFERENCES
from tests.eviction.simulator import Simulator
from tests.sizes import size

# ---- the protocol


NUMBERS = range(24)
SIZES = st.sampled_from([1, 4096, 65_536, 7 * 4096])


def test_every_algorithm_of_the_protocol_has_a_policy():
    assert list(POLICIES) == list(ALGORITHMS)


class Machine(RuleBasedStateMachine):
    """Any calls that the protocol allows, on two instances at once: what one does, the other does too."""

    make: Make

    @initialize()
    def start(self):
        self.policy, self.duplicate = self.make(), self.make()
        self.blocks: dict[int, int] = {}
        self.now = 1000.0

    def both(self, name: str, *arguments: object) -> None:
        for policy in (self.policy, self.duplicate):
            getattr(policy, name)(*arguments)

    @rule(number=st.sampled_from(NUMBERS), key=st.integers(0, 40), size=SIZES, hits=st.sampled_from([0, 0, 0, 1, 9]))
    def insert(self, number, key, size, hits):
        assume(number not in self.blocks)
        self.both("insert", number, key, size, self.now, hits)
        self.blocks[number] = size

    @precondition(lambda self: self.blocks)
    @rule(data=st.data(), name=st.sampled_from(["touch", "touch", "refresh"]))
    def use(self, data, name):
        self.both(name, data.draw(st.sampled_from(sorted(self.blocks))), self.now)

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def leave(self, data):
        number = data.draw(st.sampled_from(sorted(self.blocks)))
        del self.blocks[number]
        if data.draw(st.booleans()):
            self.both("evict", number, self.now)
        else:
            self.both("remove", number)

    @rule(count=st.integers(1, 6))
    def make_room(self, count):
        victims = list(islice(self.policy.victims(self.now), count))
        for number in victims:
            self.both("evict", number, self.now)
            del self.blocks[number]

    @rule(seconds=st.sampled_from([0.0, 0.5, 60.0]))
    def wait(self, seconds):
        self.now += seconds

    @invariant()
    def every_block_is_named_once_and_asking_changes_nothing(self):
        named = list(self.policy.victims(self.now))
        assert len(self.policy) == len(self.blocks)
        if isinstance(self.policy, Noop):
            assert named == []
            return
        assert sorted(named) == sorted(self.blocks)
        next(self.policy.victims(self.now), None)
        assert list(self.policy.victims(self.now)) == named, "asking changed the order"

    @invariant()
    def it_is_deterministic(self):
        assert list(self.policy.victims(self.now)) == list(self.duplicate.victims(self.now))

    @invariant()
    def ghosts_are_bounded_by_what_is_held(self):
        if isinstance(self.policy, Arc | S3Fifo):
            assert self.policy.ghosts <= 4 * len(self.policy)


def test_any_allowed_calls_keep_every_block_in_the_order_once(make: Make):
    machine = type("MachineOfThis", (Machine,), {"make": staticmethod(make)})
    limits = settings(
        max_examples=size(60, 20), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(machine, settings=limits)


def _filled(make: Make, blocks: int, seed: int = 3) -> EvictionPolicy:
    """A policy with a past: blocks stored, used and evicted."""
    random = Random(seed)
    policy = make()
    for number in range(blocks):
        policy.insert(number, number, 4096, float(number))
    for _ in range(2 * blocks):
        policy.touch(random.randrange(blocks), float(blocks))
    return policy


@given(excluded=st.sets(st.integers(0, 59)))
def test_victims_that_are_evicted_one_by_one_are_those_that_were_planned(excluded):
    for make in POLICIES.values():
        policy, duplicate = _filled(make, 60), _filled(make, 60)
        planned = [number for number in policy.victims(99.0) if number not in excluded]
        for number in planned:
            again = next(each for each in duplicate.victims(99.0) if each not in excluded)
            if not excluded:
                assert again == number
            duplicate.evict(again, 99.0)
            policy.evict(number, 99.0)
        assert sorted(duplicate.victims(99.0)) == sorted(policy.victims(99.0))


def test_a_block_that_is_not_in_the_order_is_an_error(make: Make):
    policy = make()
    policy.insert(1, 1, 4096, 0.0)
    with pytest.raises(KeyError):
        policy.remove(2)
    with pytest.raises(KeyError):
        policy.evict(2, 0.0)
    assert len(policy) == 1


def test_victims_are_made_as_they_are_taken(evicting: Make):
    policy = _filled(evicting, 20_000)
    taken = policy.victims(1e6)
    tracemalloc.start()
    next(taken)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 20_000 * 8, "no list of everything"


def test_a_thousand_small_instances_are_cheap(make: Make):
    gc.collect()
    tracemalloc.start()
    policies = [make() for _ in range(1000)]
    for at, policy in enumerate(policies):
        for number in range(3):
            policy.insert(number, at * 3 + number, 4096, 0.0)
        policy.touch(1, 1.0)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown / len(policies) < 3000, f"{grown / len(policies):.0f} bytes each"


def test_a_chain_loses_its_end_first_however_it_grows(chain_keeping: Make):
    random = Random(5)
    policy = chain_keeping()
    chain: list[int] = []
    for now in range(30):
        for number in reversed(chain):
            policy.touch(number, float(now))
        new = list(range(len(chain), len(chain) + random.randint(1, 4)))
        for number in reversed(new):
            policy.insert(number, number, 4096, float(now))
        for number in reversed(chain):
            policy.refresh(number, float(now))
        chain += new
        used = chain[: random.randint(0, len(chain))]
        for number in reversed(used):
            policy.touch(number, now + 0.5)
        assert list(policy.victims(now + 0.5)) == chain[::-1]
        assert list(policy.victims(now + 100.0)) == chain[::-1]


def test_blocks_that_are_stored_together_go_tail_first(evicting: Make):
    policy = evicting()
    for number in reversed(range(50)):
        policy.insert(number, number, 4096, 0.0)
    assert list(policy.victims(1.0)) == list(reversed(range(50)))


@pytest.fixture(params=["lru", "age_class"])
def chain_keeping(request: pytest.FixtureRequest) -> Make:
    return POLICIES[request.param]


def test_a_policy_that_is_dropped_leaves_no_cycle_behind(make: Make):
    # The data plane runs no full garbage collection.
    gc.collect()
    gc.disable()
    try:
        policy = _filled(make, 200)
        for number in list(islice(policy.victims(1e3), 50)):
            policy.evict(number, 1e3)
        del policy
        assert gc.collect() == 0
    finally:
        gc.enable()


# ---- algorithms


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
