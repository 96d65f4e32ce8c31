"""Cascades to a tier that is slow, full or gone, and from and to disks of a data plane that is killed."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataplane.client import Client
from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.tiers import TierSpec
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane, wait_for
from tests.dataplane.tiering.chains import connect, disk_tier, in_service, known_tier, load, push, read, store, tier
from tests.dataplane.tiering.faulty_tier import FaultyTier
from tests.dataplane.tiering.mover_bench import NBYTES as SMALL
from tests.dataplane.tiering.mover_bench import MoverBench
from tests.sizes import size

ABOVE_BLOCKS = 64


class CascadeBench(MoverBench):
    """A node with the tier `t`, which has room for a few blocks, and the tier `below`, which takes what it evicts."""

    def __init__(self) -> None:
        super().__init__(budget_bytes=ABOVE_BLOCKS * (4096 + SMALL))
        self.below = FaultyTier()
        spec = TierSpec(name="below", type="faulty", budget_bytes=1 << 30, spill="cascade", order=1)
        self.below_state = TierState(1, spec, self.below.stored_size)
        self.below_run = self.mover.add(self.below_state, self.below, lambda: None)
        self.mover.opened(self.below_run)
        self.stored: list[bytes] = []

    def fill(self, blocks: int) -> None:
        """Store blocks one after the other, as fast as the tier `t` takes them."""
        for _ in range(blocks):
            (key,) = make.keys(1, ("block", len(self.stored)))
            self.stored.append(key)
            assert self.store([key]) == 1
            self.until(lambda: not self.waits())
            self.until(lambda: not self.below_run.serves or self.below.fault or not self.busy())

    def busy(self) -> bool:
        """Return whether copies wait or are under way."""
        return bool(self.tiering.table.copies or self.below_state.spilling_bytes)

    def refused(self) -> dict[str, int]:
        return self.below_state.counters.refused

    def close(self) -> None:
        self.below.fault = ""
        self.below.go_on.set()
        super().close()


@pytest.fixture
def run() -> Iterator[CascadeBench]:
    bench = CascadeBench()
    yield bench
    bench.close()


@pytest.mark.parametrize("fault", ["failed", "full", "error", "crash"])
def test_a_tier_that_fails_stops_nothing_and_is_used_again(run: CascadeBench, fault: str) -> None:
    run.below.fault = fault
    run.fill(2 * ABOVE_BLOCKS)
    lost = run.refused()["evicted"]
    assert lost == run.state.contents.evicted_blocks == ABOVE_BLOCKS
    run.below.fault = ""
    run.until(lambda: run.below_run.serves)
    run.until(lambda: run.below.stored, "copies begin again")
    lost = run.refused()["evicted"]
    run.fill(ABOVE_BLOCKS)
    if fault != "full":  # its room grows slowly again
        assert run.refused()["evicted"] == lost


def test_a_tier_that_hangs_stops_neither_stores_nor_evictions(run: CascadeBench) -> None:
    run.below.fault = "hang"
    run.fill(3 * ABOVE_BLOCKS)
    assert len(run.state.contents) == ABOVE_BLOCKS
    assert run.below.hanging == 1, "one call is under way"
    assert run.below_state.spilling_bytes <= run.below_state.spec.max_bytes_in_flight
    run.below.fault = ""
    run.below.go_on.set()
    run.until(lambda: not run.below_state.spilling_bytes)
    assert set(run.below_state.contents.entries) == set(run.below.stored)


BLOCKS = 8
"""Of a chain."""
ABOVE_BYTES, BELOW_BYTES = 16 << 20, 2 << 30
"""The upper disk has room for 30 chains, and for three when cascades begin, at nine tenths."""


def above(folder: Path, **fields: object) -> TierSpec:
    return disk_tier(folder, "above", 2 << 20, budget_bytes=ABOVE_BYTES, **fields)


def below(folder: Path, spill: str = "cascade") -> TierSpec:
    return disk_tier(folder, "below", order=1, spill=spill, budget_bytes=BELOW_BYTES)


def fill(plane: Plane, client: Client, first: int, count: int) -> list[list[bytes]]:
    """Store chains, each after the disk has taken the one before. Return those that it took: it has no room for some
    when it gets full."""
    chains = []
    for number in range(first, first + count):
        chain = make.keys(BLOCKS, ("cascade", number))
        before = spilled(plane)
        store(client, chain)
        settled(plane)
        if spilled(plane) == before + BLOCKS:
            chains.append(chain)
    return chains


def spilled(plane: Plane) -> int:
    known = tier(plane, "above")
    return 0 if known is None else known.spilled_blocks


def settled(plane: Plane) -> None:
    """Wait until no copies are under way."""
    for _ in range(2):  # one that has ended may cause others
        wait_for(lambda: not _waits(plane), "all blocks are copied")


def _waits(plane: Plane) -> bool:
    with plane.manager() as manager:
        tiers = manager.describe(audit=False).tiers
    return len(tiers) < 2 or any(each.waiting_bytes or each.spilling_bytes for each in tiers)


def test_a_lower_disk_that_is_gone_fails_nothing(plane: Plane, tmp_path: Path) -> None:
    push(plane, 1, above(tmp_path / "a"), below(tmp_path / "b"))
    in_service(plane, "above", "below")
    (tmp_path / "b").rename(tmp_path / "gone")
    wait_for(lambda: (known := tier(plane, "below")) is None or not known.serves, "it is out of service")
    with connect(plane) as client:
        chains = fill(plane, client, 0, 40)
        assert known_tier(plane, "below").refused["evicted"] > 25
        assert read(client, chains[-1]) == BLOCKS
        (tmp_path / "gone").rename(tmp_path / "b")
        in_service(plane, "below")
        fill(plane, client, 100, 20)
        assert known_tier(plane, "below").cascaded_blocks > 50
    assert plane.stop() == 0


@pytest.mark.parametrize("kills", [size(100, 4)])
def test_kills_while_blocks_cascade_leave_no_wrong_byte_and_no_block_in_neither_disk(
    plane: Plane, tmp_path: Path, kills: int
) -> None:
    """A block that both disks could take is in one of them after each kill: the upper one deletes it after its copy."""
    choice = random.Random(11)
    specs = [above(tmp_path / "a"), below(tmp_path / "b")]
    push(plane, 1, *specs)
    in_service(plane, "above", "below")
    held: list[list[bytes]] = []
    for number in range(kills):
        with connect(plane) as client:
            held += fill(plane, client, 1000 * number, 8 if number else 34)  # the disk is full from then on
            assert "evicted" not in known_tier(plane, "below").refused
            store(client, make.keys(BLOCKS, ("killed", number)))
            threading.Event().wait(choice.random() / 50)  # its copies, and those of what it evicts, are under way
            plane.kill()
        plane.start()
        push(plane, 2 + number, *specs)
        in_service(plane, "above", "below")
        settled(plane)
        with connect(plane) as client:
            for chain in choice.sample(held, min(len(held), 6)):
                arrived = client.lookup_tiers(chain)
                assert arrived.ready + arrived.coming == BLOCKS
                load(client, chain, BLOCKS)
                assert read(client, chain) == BLOCKS
        for name, budget_bytes in (("above", ABOVE_BYTES), ("below", BELOW_BYTES)):
            assert known_tier(plane, name).stored_bytes <= budget_bytes


def test_a_drain_continues_after_kills_and_leaves_no_block_in_the_drained_tier_alone(
    plane: Plane, tmp_path: Path
) -> None:
    choice = random.Random(5)
    specs = [disk_tier(tmp_path / "a", "above"), below(tmp_path / "b", spill="off")]
    push(plane, 1, *specs)
    in_service(plane, "above")
    with connect(plane) as client:
        chains = fill(plane, client, 0, size(40, 16))
    assert len(chains) == size(40, 16)
    drained = [disk_tier(tmp_path / "a", "above", spill="drain"), below(tmp_path / "b", spill="evict")]
    for number in range(size(20, 3)):
        push(plane, 2 + number, *drained)
        threading.Event().wait(choice.random() / 50)
        plane.kill()
        plane.start()
    push(plane, 100, *drained)
    wait_for(lambda: (known := tier(plane, "above")) and known.draining_blocks == 0, "it is drained")
    push(plane, 101, drained[1])
    wait_for(lambda: tier(plane, "above") is None, "it is closed")
    with connect(plane) as client:
        for chain in chains:
            assert client.lookup_tiers(chain).coming + client.lookup(chain) == BLOCKS
        for chain in choice.sample(chains, 4):
            load(client, chain, BLOCKS)
            assert read(client, chain) == BLOCKS
    assert plane.stop() == 0
