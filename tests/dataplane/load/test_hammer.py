"""The memory protocol under fire: four readers, two writers, eviction pressure, random sizes, random kills.

`LARDER_TEST_HAMMER_S` sets the seconds; else 60 in a full run (`make full`), 2 otherwise.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from dataplane.protocol.stats.node import NodeStats
from tests.dataplane import factories as make
from tests.dataplane.blocks import connect
from tests.dataplane.load.engines import Engines
from tests.dataplane.load.misfits import attachment_of
from tests.dataplane.plane import Plane
from tests.sizes import size

POOL_BYTES = 24 << 20
LIMIT_S = 200.0
READERS, WRITERS = 4, 2
KILL_INTERVAL_S = 1.0


def seconds() -> float:
    return float(os.environ.get("LARDER_TEST_HAMMER_S", size(60, 2)))


@dataclass
class Hammer(Plane):
    """A data plane, and the engines that beat on it."""

    def __post_init__(self) -> None:
        self.engines = Engines(self)

    def run(self, duration_s: float, until: Callable[[], object]) -> None:
        """Beat for a while and then until the condition holds, `LIMIT_S` at most, killing an engine now and then and
        starting another of its kind. On a busy machine engines that have not reported yet are left to work."""
        rng = random.Random(7)
        for role in ("reader",) * READERS + ("writer",) * WRITERS:
            self.engines.start(role)
        began = time.monotonic()
        while time.monotonic() - began < LIMIT_S:
            time.sleep(KILL_INTERVAL_S)
            assert self.alive, "the data plane lives"
            self.engines.assert_alive()
            if time.monotonic() - began >= duration_s and until():
                return
            reported = sorted(name for name in self.engines.running if self.engines.has_reported(name))
            if reported:
                victim = rng.choice(reported)
                self.engines.kill(victim)
                self.engines.start(victim.split("-")[0])

    def has_met_readers(self, blocks: int) -> bool:
        """Whether more blocks than these were read, stored and evicted, and evictions gave up blocks that are read."""
        if not self.engines.worked(blocks):
            return False
        totals = self.describe().totals
        return totals.evicted_blocks > blocks and totals.evictions_cancelled > 0

    def settle(self) -> NodeStats:
        """Kill every engine; the state once the data plane has noticed."""
        self.engines.kill_all()
        return self.wait_stats(lambda stats: not stats.engines, "every killed engine was noticed", 90)

    def result(self) -> dict[str, object]:
        """Stop the data plane, and return what it says at its end."""
        assert self.stop() == 0
        found: dict[str, object] = json.loads(self.log().splitlines()[-1])
        return found


@contextmanager
def hammer(folder: Path, module: str = "tests.dataplane.load.plane", **settings: str) -> Iterator[Hammer]:
    sizes = {"pool_bytes": str(POOL_BYTES), "dataplane__segment_bytes": "4MiB", "dataplane__prefault": "true"}
    beaten = Hammer(folder, {**sizes, **settings}, module=module)
    try:
        beaten.start()
        yield beaten
    finally:
        beaten.engines.kill_all()
        beaten.kill()


@pytest.mark.parametrize(
    ("module", "membarrier"),
    [("plane", True), ("late_plane", True), pytest.param("plane", False, marks=pytest.mark.full)],
)
def test_no_byte_is_wrong_and_nothing_leaks_when_engines_are_killed_at_random(
    socket_dir: Path, module: str, *, membarrier: bool
) -> None:
    membarrier_setting = str(membarrier).lower()
    with hammer(socket_dir, f"tests.dataplane.load.{module}", dataplane__membarrier=membarrier_setting) as beaten:
        with connect(beaten) as client:
            assert attachment_of(client).membarrier is membarrier
        beaten.run(seconds(), lambda: beaten.has_met_readers(blocks=1000))
        assert beaten.engines.wrong() == []
        totals = beaten.engines.totals()
        assert totals["blocks"] > 1000, totals
        assert totals["stored"] > 1000, totals
        stats = beaten.settle()
        assert (stats.pool.reserved_bytes, stats.pool.quarantined_bytes) == (0, 0)
        assert stats.pool.used_bytes == sum(tenant.bytes for tenant in stats.tenants)
        assert_whole_pool_is_usable(beaten)
        result = beaten.result()
        assert result["faults"] == []
        assert int(str(result["evicted"])) > 1000, "there was pressure"
        assert int(str(result["put_back"])) > 0, "eviction met readers"


def test_with_the_counter_scan_off_the_hammer_finds_wrong_bytes(socket_dir: Path) -> None:
    with hammer(socket_dir, "tests.dataplane.load.blind_plane") as beaten:
        beaten.run(0, beaten.engines.wrong)
        assert beaten.engines.wrong(), "the hammer proves nothing if it cannot find the errors that the scan prevents"


def assert_whole_pool_is_usable(beaten: Hammer) -> None:
    """No counter leaked: every old block can be evicted for new ones."""
    block = 64 << 10
    keys = make.keys(POOL_BYTES // block, "fresh")
    with connect(beaten) as client, client.reserve(keys, block) as room:
        assert room.refused == {}
        assert len(room.writable) == len(keys)
    pool = msgspec.to_builtins(beaten.describe().pool)
    assert pool["used_bytes"] == 0, pool
