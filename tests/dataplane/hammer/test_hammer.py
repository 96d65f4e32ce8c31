"""The memory protocol under fire: four readers, two writers, eviction pressure, random sizes, random kills.

`LARDER_TEST_HAMMER_S` sets the seconds; else 60 in a full run (`make full`), 2 otherwise.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import msgspec

from dataplane.client import Space, attach
from dataplane.protocol.stats.node import NodeStats
from tests.dataplane.hammer.content import MODEL
from tests.dataplane.plane import Plane
from tests.forked import Forked
from tests.sizes import size

POOL_BYTES = 24 << 20
LIMIT_S = 200.0
READERS, WRITERS = 4, 2
KILL_INTERVAL_S = 1.0


def seconds() -> float:
    return float(os.environ.get("LARDER_TEST_HAMMER_S", size(60, 2)))


@dataclass
class Hammer(Plane):
    """A data plane and the engines that beat on it."""

    engines: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _seed: int = 0

    def start_engine(self, role: str) -> None:
        self._seed += 1
        report = self.folder / f"report-{self._seed}.jsonl"
        self.engines[f"{role}-{self._seed}"] = Forked(
            "tests.dataplane.hammer.engine", role, self.socket, str(self._seed), str(report), env=dict(os.environ)
        )

    def kill_engine(self, name: str) -> None:
        process = self.engines.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait(60)

    def lines(self) -> Iterator[dict[str, object]]:
        for path in self.folder.glob("report-*.jsonl"):
            for line in path.read_text().splitlines():
                yield json.loads(line)

    def wrong(self) -> list[dict[str, object]]:
        return [line for line in self.lines() if "wrong" in line]

    def totals(self) -> dict[str, int]:
        last: dict[object, dict[str, object]] = {}
        for line in self.lines():
            if "pid" in line:
                last[line["pid"]] = line
        names = ("blocks", "stored", "aborted", "refused")
        return {name: sum(int(str(line[name])) for line in last.values()) for name in names}

    def run(self, duration_s: float, until: Callable[[], object]) -> None:
        """Beat for a while and then until the condition holds, `LIMIT_S` at most, killing an engine now and then and
        starting another of its kind. On a busy machine engines that have not reported yet are left to work."""
        rng = random.Random(7)
        for _ in range(READERS):
            self.start_engine("reader")
        for _ in range(WRITERS):
            self.start_engine("writer")
        began = time.monotonic()
        while time.monotonic() - began < LIMIT_S:
            time.sleep(KILL_INTERVAL_S)
            assert self.alive, "the data plane lives"
            for name, engine in self.engines.items():
                assert engine.poll() is None, f"{name} never fails by itself"
            if time.monotonic() - began >= duration_s and until():
                return
            reported = sorted(name for name in self.engines if self.has_reported(name))
            if reported:
                victim = rng.choice(reported)
                self.kill_engine(victim)
                self.start_engine(victim.split("-")[0])

    def has_reported(self, name: str) -> bool:
        """Whether an engine has worked since its start."""
        report = self.folder / f"report-{name.split('-')[1]}.jsonl"
        return report.exists() and report.stat().st_size > 0

    def has_met_readers(self, blocks: int) -> bool:
        """Whether more blocks than these were read, stored and evicted, and evictions gave up blocks that are read."""
        if min(self.totals()[name] for name in ("blocks", "stored")) <= blocks:
            return False
        totals = self.describe().totals
        return totals.evicted_blocks > blocks and totals.evictions_cancelled > 0

    def settle(self) -> NodeStats:
        """Kill every engine; the state once the data plane has noticed."""
        for name in list(self.engines):
            self.kill_engine(name)
        return self.wait_stats(lambda stats: not stats.engines, "every killed engine was noticed", 90)

    def result(self) -> dict[str, object]:
        """Stop the data plane, and return what it says at its end."""
        assert self.stop() == 0
        found: dict[str, object] = json.loads(self.log().splitlines()[-1])
        return found


@contextmanager
def hammer(folder: Path, module: str = "tests.dataplane.hammer.plane", **settings: str) -> Iterator[Hammer]:
    sizes = {"pool_bytes": str(POOL_BYTES), "dataplane__segment_bytes": "4MiB", "dataplane__prefault": "true"}
    beaten = Hammer(folder, {**sizes, **settings}, module=module)
    try:
        beaten.start()
        yield beaten
    finally:
        for name in list(beaten.engines):
            beaten.kill_engine(name)
        beaten.kill()


def test_no_byte_is_wrong_and_nothing_leaks_when_engines_are_killed_at_random(socket_dir: Path) -> None:
    with hammer(socket_dir) as beaten:
        beaten.run(seconds(), lambda: beaten.has_met_readers(blocks=1000))
        assert beaten.wrong() == []
        totals = beaten.totals()
        assert totals["blocks"] > 1000, totals
        assert totals["stored"] > 1000, totals
        stats = beaten.settle()
        assert stats.pool.reserved_bytes == 0
        assert stats.pool.quarantined_bytes == 0
        assert stats.pool.used_bytes == sum(tenant.bytes for tenant in stats.tenants)
        assert_whole_pool_is_usable(beaten)
        result = beaten.result()
        assert result["faults"] == []
        assert int(str(result["evicted"])) > 1000, "there was pressure"
        assert int(str(result["put_back"])) > 0, "eviction met readers"


def test_with_the_counter_scan_off_the_hammer_finds_wrong_bytes(socket_dir: Path) -> None:
    with hammer(socket_dir, "tests.dataplane.hammer.blind_plane") as beaten:
        beaten.run(0, beaten.wrong)
        assert beaten.wrong(), "the hammer proves nothing if it cannot find the errors that the scan prevents"


def assert_whole_pool_is_usable(beaten: Hammer) -> None:
    """No counter leaked: every old block can be evicted for new ones."""
    block = 64 << 10
    keys = [sha256(b"fresh%d" % at).digest() for at in range(POOL_BYTES // block)]
    with attach(beaten.socket, [Space(model=MODEL)], timeout_s=30) as client, client.reserve(keys, block) as room:
        assert room.refused == {}
        assert len(room.writable) == len(keys)
    pool = msgspec.to_builtins(beaten.describe().pool)
    assert pool["used_bytes"] == 0, pool
