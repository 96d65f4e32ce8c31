"""The gate closes under pressure, lets second sightings through, and opens by itself."""

from itertools import count

import pytest

from dataplane.policies.admission import FEWEST_KEYS, Admission
from dataplane.policies.lru import Lru
from tests.eviction.simulator import Simulator

IDLE_S = 240.0


def _pressed(now: float = 1000.0) -> Admission:
    """A gate that is closed: victims were idle for 10 s."""
    gate = Admission(IDLE_S)
    gate.victim(10.0, now)
    return gate


def test_without_victims_every_key_is_admitted():
    gate = Admission(IDLE_S)
    assert all(gate.admits(key, 100, 5.0) for key in range(50))
    assert not gate.closed(5.0)
    assert gate.victim_idle_s(5.0) is None
    assert (gate.admitted, gate.declined) == (50, 0)


def test_under_pressure_a_known_key_is_admitted():
    gate = _pressed()
    assert gate.closed(1000.0)
    assert [gate.admits(key, 100, 1000.0) for key in (1, 2, 1, 3, 2)] == [False, False, True, False, True]
    assert (gate.admitted, gate.declined) == (2, 3)


def test_keys_seen_while_admission_was_off_count():
    gate = Admission(IDLE_S)
    assert gate.admits(1, 100, 0.0)
    gate.victim(10.0, 1.0)
    assert gate.admits(1, 100, 1.0)


def test_old_victims_keep_the_gate_open():
    gate = Admission(IDLE_S)
    for now in range(1000):
        gate.victim(IDLE_S, float(now))
    assert not gate.closed(1000.0)


def test_the_average_follows_the_victims_slowly():
    gate = _pressed()
    gate.victim(10_000.0, 1000.0)
    assert gate.closed(1000.0), "one is not enough"
    for _ in range(1000):
        gate.victim(300.0, 1000.0)
    assert gate.victim_idle_s(1000.0) == pytest.approx(300.0, rel=0.01)
    assert not gate.closed(1000.0)
    for _ in range(1000):
        gate.victim(5.0, 1000.0)
    assert gate.closed(1000.0)


def test_a_time_without_victims_opens_the_gate():
    gate = _pressed(now=1000.0)
    assert gate.closed(1000.0 + IDLE_S - 1)
    assert not gate.closed(1000.0 + IDLE_S)
    assert gate.victim_idle_s(1500.0) == 500.0
    gate.victim(5.0, 2000.0)
    assert not gate.closed(2000.0), "nothing was needed for a long time: one victim proves no pressure"
    for _ in range(300):
        gate.victim(5.0, 2000.0)
    assert gate.closed(2000.0)


def test_a_clock_that_steps_back_breaks_nothing():
    gate = _pressed(now=1000.0)
    gate.victim(-3.0, 900.0)
    assert gate.closed(900.0)
    assert gate.admits(1, 100, 800.0) is False
    assert gate.admits(1, 100, 700.0) is True


def test_it_remembers_at_most_four_keys_for_each_resident_block():
    gate = _pressed()
    for key in range(100_000):
        gate.admits(key, 1000, 1000.0)
        assert gate.keys <= 4000
    assert gate.keys >= 3000
    assert not gate.admits(90_000, 1000, 1000.0), "forgotten"
    assert gate.admits(97_500, 1000, 1000.0)


def test_a_small_cache_remembers_a_few_keys():
    gate = _pressed()
    for key in range(FEWEST_KEYS):
        gate.admits(key, 0, 1000.0)
    assert all(gate.admits(key, 0, 1000.0) for key in range(FEWEST_KEYS))
    for key in range(10_000):
        gate.admits(key, 0, 1000.0)
    assert gate.keys <= 4 * FEWEST_KEYS


def _scanned(admission: Admission | None, capacity: int) -> float:
    """Hit ratio of ten prompts that come back every 40 requests, between prompts that never do."""
    cache = Simulator(Lru(), capacity, admission)
    fresh = count(1000)
    for now in range(4000):
        cache.serve([now // 4 % 10] if now % 4 == 0 else [next(fresh)], float(now))
    return cache.hits / cache.requested


def test_a_starved_cache_hits_more_with_it_and_a_large_one_loses_nothing():
    assert _scanned(None, 20) == 0.0
    assert _scanned(Admission(IDLE_S), 20) > 0.2
    assert _scanned(Admission(IDLE_S), 1000) == _scanned(None, 1000)
