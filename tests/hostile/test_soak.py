"""Everything at once, for a while: `make soak` for half an hour, `LARDER_TEST_SOAK_S` seconds otherwise (10)."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import pytest

from benchmarks.harness.drift import drift
from dataplane.client import attach
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane
from tests.hostile.soak import DRIFT_BYTES_PER_HOUR, GROWTH_BYTES, Soak
from tests.sizes import size

SECONDS = float(os.environ.get("LARDER_TEST_SOAK_S", size(60, 10)))


@pytest.mark.full
@pytest.mark.timeout(SECONDS * 1.5 + 180)
def test_no_byte_is_wrong_no_book_contradicts_itself_and_nothing_grows(make_plane: Callable[..., Plane]) -> None:
    plane = make_plane(dataplane__reservation_ttl_s="1").start()
    seed = int(os.environ.get("LARDER_TEST_SOAK_SEED", str(time.time_ns() % 10_000)))
    soak = Soak(plane, random.Random(seed))
    try:
        soak.run(SECONDS)
        soak.wait_for_work(200)
        assert soak.wrong() == []
        stats = soak.settle()
        fds_grown = soak.wait_for_descriptors()
        bytes_grown = soak.growth()
        drifted = drift(soak.sizes)
        sizes = [nbytes >> 10 for _, nbytes in soak.sizes]
        print(
            f"soak: seed {seed}, {SECONDS:.0f} s, {soak.totals()}, {soak.kills} kills, {soak.pushes} pushes, "
            f"{soak.audits} audits, grown {bytes_grown} bytes and {fds_grown} descriptors, "
            f"drift in bytes: {drifted or 'unknown, too few samples'}, "
            f"KiB {sizes[:: max(1, len(sizes) // 20)]}, {stats.totals}"
        )
        assert bytes_grown < GROWTH_BYTES
        assert drifted is None or drifted.low < DRIFT_BYTES_PER_HOUR
        assert (stats.pool.reserved_bytes, stats.pool.quarantined_bytes) == (0, 0)
        assert soak.audits > 0
        assert soak.kills > 0
        whole_pool_is_usable(plane)
        assert "Traceback" not in plane.log()
        assert "request_failed" not in plane.log()
    finally:
        soak.stop()


def whole_pool_is_usable(plane: Plane) -> None:
    """No counter, mark or byte leaked: without quotas and pins sixteen megabytes fit a pool of 16 MiB."""
    with plane.manager() as manager:
        manager.push(make.shares(generation=1 << 30))
        manager.push(*make.pins([], 1 << 30))
        manager.push(make.policy(1 << 30))
    with attach(plane.socket, [make.space()], group="fresh", timeout_s=30) as client:
        for number in range(16):
            with client.reserve([make.key(("fresh", number))], make.MIB) as reservation:
                assert reservation.refused == {}
                assert reservation.commit().blocks == 1
