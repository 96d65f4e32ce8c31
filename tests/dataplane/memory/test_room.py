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
POOLS = {"models": (160, 64), "odd": (24, 4), "small": (8, 2), "large": (48, 16)}


@pytest.mark.parametrize("mix", list(SIZES))
@settings(max_examples=size(12, 4), deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_a_refusal_means_no_room_with_any_leases_pins_and_reservations(mix: str, seed: int) -> None:
    capacity, segment = POOLS[mix]
    traffic = Traffic(seed, capacity * make.MIB, segment * make.MIB, SIZES[mix])
    for number in range(150):
        traffic.step(number)
    assert traffic.bench.faults() == []
    for engine in traffic.engines:
        engine.release()
    for engine, reservation in traffic.open:
        engine.abort(reservation)
    traffic.generation += 1
    snapshot, bodies = make.pins([], traffic.generation)
    assert traffic.bench.apply(snapshot, bodies) == []
    for space in range(2):
        stored = traffic.engines[0].store([make.key(("last", space))], SIZES[mix][-1], space=space)
        assert stored.written == 1, "once every lease ended, everything fits again"
