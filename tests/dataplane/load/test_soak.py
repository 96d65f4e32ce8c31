"""Everything at once, for a while: `make soak` for half an hour, `LARDER_TEST_SOAK_S` seconds otherwise (10)."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks.harness.drift import drift
from dataplane.client import attach
from dataplane.protocol.control.nodes import DescribeNode, Description
from dataplane.protocol.control.prefixes import ListPrefixes, Trace
from dataplane.protocol.control.records import QuotaSpec
from dataplane.protocol.control.scopes import Demote, Invalidate, Scope, Swept
from dataplane.protocol.control.snapshots import Ack, Snapshot
from dataplane.protocol.stats.node import NodeStats
from tests.dataplane import factories as make
from tests.dataplane.load.content import chain, fill
from tests.dataplane.load.engines import Engines
from tests.dataplane.load.misfits import ROLES
from tests.dataplane.plane import Manager, Plane, wait_for
from tests.sizes import size

HONEST = 2
MISFITS = 3
STEP_S = 1.0
ALGORITHMS = ("lru", "age_class", "s3fifo", "arc", "slru", "lfu", "fifo")
GROWTH_BYTES = 96 << 20
"""The trace and the hot prefixes of the last hour alone take 70 MB before they are full."""
DRIFT_BYTES_PER_HOUR = 32 << 20
"""The trace takes 24 MB in the first hour: its rings are allocated at the start, and their pages at the first use."""
GROWTH_FDS = 4
"""Once no engine is attached, beside two for each segment of the pool."""
GONE_S = 60.0
"""A process may be attached 512 times over, with descriptors each time that are kept until it is proven gone."""


@dataclass
class Soak:
    """One run; what it finds wrong raises AssertionError."""

    plane: Plane
    rng: random.Random
    misfits: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    kills: int = 0
    audits: int = 0
    pushes: int = 0
    sizes: list[tuple[float, int]] = field(default_factory=list)
    """Time in seconds and private bytes of the data plane, at each audit."""
    fds_before: int = 0
    """Descriptors of the data plane before anybody attached."""
    _seed: int = 0
    _generation: int = 0

    def __post_init__(self) -> None:
        self.honest = Engines(self.plane)
        self.plane.wait_stats(lambda stats: stats.engines == [], "no engine is attached")
        self.fds_before = self.plane.open_fds()

    def run(self, seconds: float) -> None:
        """Soak for a while."""
        with self.plane.manager() as manager:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                self._step(manager)
                time.sleep(STEP_S)

    def _step(self, manager: Manager) -> None:
        assert self.plane.alive, self.plane.log()[-4000:]
        self.honest.assert_alive()
        while len(self.honest.running) < HONEST:
            self.honest.start("verifier")
        while len(self.misfits) < MISFITS:
            self._start_misfit()
        self._change_intent(manager)
        if self._generation % 3 == 0:
            self._audit(manager)
        if self.rng.random() < 0.5:
            self._kill_misfit()
        if self.rng.random() < 0.1:
            self.honest.kill(self.rng.choice(sorted(self.honest.running)))
            self.kills += 1
        assert self.honest.wrong() == []

    def _start_misfit(self) -> None:
        self._seed += 1
        role = self.rng.choice(sorted(ROLES))
        self.misfits[self._seed] = subprocess.Popen(
            [sys.executable, "-m", "tests.dataplane.load.misfits", role, self.plane.socket, str(self._seed)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _kill_misfit(self) -> None:
        victim = self.misfits.pop(self.rng.choice(sorted(self.misfits)))
        victim.kill()
        victim.wait(60)
        self.kills += 1

    def _change_intent(self, manager: Manager) -> None:
        self._generation += 1
        rng, number = self.rng, self._generation
        tenants = [
            QuotaSpec(
                f"t{at}",
                rng.choice([None, 2 * make.MIB, 8 * make.MIB]),
                rng.choice([0, make.MIB // 2]),
                weight=rng.choice([0.5, 1.0, 4.0]),
                on_exceed=rng.choice(["evict_self", "reject"]),
            )
            for at in range(rng.randint(0, 3))
        ]
        self._push(manager, make.shares(*tenants, generation=number), {})
        records = [
            make.pin(f"pin-{at}", chain(at)[0], tenant=f"t{at % 3}", strength=rng.choice(["soft", "guaranteed"]))
            for at in rng.sample(range(40), rng.randint(0, 8))
        ]
        self._push(manager, *make.pins(records, number))
        if number % 5 == 0:
            self._push(manager, make.policy(number, algorithm=rng.choice(ALGORITHMS)), {})
        if number % 4 == 0:
            kind = rng.choice([Invalidate, Demote])
            scope = rng.choice([Scope(tenant=f"t{rng.randrange(3)}"), Scope(model="other")])
            assert isinstance(manager.ask(kind(f"n{number}", scope)), Swept)
            manager.ask(ListPrefixes("p"))
            manager.ask(Trace("t"))

    def _push(self, manager: Manager, snapshot: Snapshot, bodies: dict[str, bytes]) -> None:
        answer = manager.push(snapshot, bodies)
        assert isinstance(answer, Ack), answer
        self.pushes += 1

    def _audit(self, manager: Manager) -> None:
        answer = manager.ask(DescribeNode("soak", audit=True))
        assert isinstance(answer, Description)
        assert answer.faults == []
        pool = answer.stats.pool
        assert pool.used_bytes <= pool.capacity_bytes
        assert answer.stats.totals.corrupt_blocks == 0
        self.audits += 1
        self.sizes.append((time.monotonic(), private_bytes(self.plane.pid)))

    def settle(self) -> NodeStats:
        """Kill every engine; the state once the data plane has noticed."""
        self.stop()
        return self.plane.wait_stats(lambda stats: not stats.engines, "everybody is gone", GONE_S)

    def wait_for_descriptors(self) -> int:
        """Until the data plane, without engines, has about the descriptors it began with, and two for each segment; how
        many more."""

        def grown() -> int:
            return self.plane.open_fds() - self.fds_before - 2 * self.plane.describe().pool.segments

        wait_for(lambda: grown() <= GROWTH_FDS, "about as many are open as before anybody attached", GONE_S)
        return grown()

    def stop(self) -> None:
        """Leave no process behind."""
        self.honest.kill_all()
        while self.misfits:
            self._kill_misfit()

    # ---- what was seen

    def growth(self) -> int:
        """Private bytes at the end, beyond the most of the first third (a new process has to grow)."""
        sizes = [nbytes for _, nbytes in self.sizes]
        return min(sizes[-3:]) - max(sizes[: max(1, len(sizes) // 3)])


def private_bytes(pid: int) -> int:
    """Memory of a process that is its own: shared segments do not count."""
    for text in Path(f"/proc/{pid}/status").read_text().splitlines():
        if text.startswith("RssAnon:"):
            return int(text.split()[1]) * 1024
    raise AssertionError("no RssAnon in /proc")


SECONDS = float(os.environ.get("LARDER_TEST_SOAK_S", size(60, 10)))


@pytest.mark.full
@pytest.mark.timeout(SECONDS * 1.5 + 180)
def test_no_byte_is_wrong_no_book_contradicts_itself_and_nothing_grows(make_plane: Callable[..., Plane]) -> None:
    plane = make_plane(dataplane__reservation_ttl_s="1").start()
    seed = int(os.environ.get("LARDER_TEST_SOAK_SEED", str(time.time_ns() % 10_000)))
    soak = Soak(plane, random.Random(seed))
    try:
        soak.run(SECONDS)
        wait_for(lambda: soak.honest.worked(200), "honest engines work", 60)
        assert soak.honest.wrong() == []
        stats = soak.settle()
        fds_grown = soak.wait_for_descriptors()
        bytes_grown = soak.growth()
        drifted = drift(soak.sizes)
        sizes = [nbytes >> 10 for _, nbytes in soak.sizes]
        print(
            f"soak: seed {seed}, {SECONDS:.0f} s, {soak.honest.totals()}, {soak.kills} kills, {soak.pushes} pushes, "
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
        fill(client, "fresh")
