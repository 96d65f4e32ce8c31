"""What fits the evictable bytes is refused only when every place that could serve it holds what may not go."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.dataplane import factories as make
from tests.dataplane.memory.room import Traffic
from tests.sizes import size

SIZES = {
    "models": (64 * make.KIB, 3 * make.MIB // 2, 32 * make.MIB),
    "odd": (4096, 5000, 100_000, 262_144, 262_145, 700_000, 9 * make.MIB),
    "small": (4096, 65_536, 200_000),
    "large": (300_000, make.MIB, 5_000_000, 7 * make.MIB),
}
POOLS = [
    ("models", 160, 64, 0),
    ("odd", 24, 4, 0),
    ("small", 8, 2, 0),
    ("large", 48, 16, 0),
    ("models", 160, 64, 128),
    ("odd", 24, 4, 24),
    ("large", 48, 16, 20),
]
"""Sizes, and capacity, segments and named segment in MiB."""


@pytest.mark.parametrize(("mix", "capacity", "segment", "named"), POOLS)
@settings(max_examples=size(12, 4), deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_a_refusal_means_no_room_with_any_leases_pins_and_reservations(
    mix: str, capacity: int, segment: int, named: int, seed: int
) -> None:
    sizes = SIZES[mix]
    traffic = Traffic(seed, capacity * make.MIB, segment * make.MIB, sizes, named * make.MIB)
    for number in range(200):
        traffic.step(number)
    assert traffic.bench.faults() == []
    for engine in traffic.engines:
        engine.release()
    for engine, reservation in traffic.open:
        engine.abort(reservation)
    traffic.generation += 1
    snapshot, bodies = make.pins([], traffic.generation)
    assert traffic.bench.apply(snapshot, bodies) == []
    for number, (engines, position) in enumerate(traffic.homes):
        stored = engines[0].store([make.key(("last", number))], sizes[-1], space=position)
        assert stored.written == 1, "once every lease ended, everything fits again"
