"""The budget of a disk tier holds with many sizes, many threads and several directories."""

import random
import threading
from pathlib import Path

import pytest

from dataplane.protocol.stored_blocks import Outcome
from dataplane.tiers.tier import BlockStore
from tests.threads import join
from tests.tiers.blocks import assert_holds, block, soon, store
from tests.tiers.disk_backend import MIB, SEGMENT_BYTES, DiskBackend, slot_of, state

LENGTHS = (1, 4097, 20_000, 100_000, 400_000, 900_000)
BUDGET_BYTES = 9 * SEGMENT_BYTES + 12_345


@pytest.mark.parametrize("directories", [1, 3])
def test_the_budget_holds_while_threads_store_blocks_of_many_sizes(tmp_path: Path, directories: int) -> None:
    backend = DiskBackend(*(tmp_path / str(each) for each in range(directories)), budget_bytes=BUDGET_BYTES)
    tier = backend.open()
    over: list[int] = []
    stored: list[list[BlockStore]] = [[] for _ in range(6)]

    def work(thread: int) -> None:
        choice = random.Random(thread)
        for number in range(60):
            added = block(1000 * thread + number, choice.choice(LENGTHS))
            if store(tier, added) == [Outcome.OK]:
                stored[thread].append(added)
            elif stored[thread]:
                victim = stored[thread].pop(choice.randrange(len(stored[thread])))
                assert tier.delete([victim.block.name], soon()) == [Outcome.OK]
            if max(tier.usage().stored_bytes, backend.segment_bytes_on_disk()) > BUDGET_BYTES:
                over.append(number)

    threads = [threading.Thread(target=work, args=[number]) for number in range(6)]
    for each in threads:
        each.start()
    join(*threads)
    assert over == []
    everything = [each for of_thread in stored for each in of_thread]
    assert_holds(tier, everything)
    assert tier.usage().stored_bytes == sum(tier.stored_size(each.block.length) for each in everything)
    before = state(tier)
    tier.close()
    tier = backend.open()
    assert state(tier) == before


def test_an_empty_segment_serves_another_size(tmp_path: Path) -> None:
    backend = DiskBackend(tmp_path / "one", budget_bytes=2 * SEGMENT_BYTES)
    tier = backend.open()
    for length in (900_000, 5000, 100_000, 900_000):
        stored = [block(number, length) for number in range(4)]
        assert store(tier, *stored) == [Outcome.OK] * 4
        assert_holds(tier, stored)
        tier.delete([each.block.name for each in stored], soon())
        assert tier.usage().stored_bytes == 0
    assert backend.segment_bytes_on_disk() <= 2 * SEGMENT_BYTES


def test_directories_share_the_blocks(tmp_path: Path) -> None:
    backend = DiskBackend(tmp_path / "one", tmp_path / "two", budget_bytes=16 * SEGMENT_BYTES)
    tier = backend.open()
    for each in tier._directories:
        each.bandwidth = 1e9
    stored = [block(number, MIB) for number in range(24)]
    assert store(tier, *stored) == [Outcome.OK] * 24
    used = [slot_of(tier, each.block.name)[0].path.parent.name for each in stored]
    assert {"one", "two"} == set(used)


def test_a_faster_directory_gets_more_blocks(tmp_path: Path) -> None:
    backend = DiskBackend(tmp_path / "one", tmp_path / "two", budget_bytes=16 * SEGMENT_BYTES, threads=1)
    tier = backend.open()
    slow, fast = tier._directories
    used = []
    for number in range(12):
        slow.bandwidth, fast.bandwidth = 1e8, 2e9
        stored = block(number, MIB)
        assert store(tier, stored) == [Outcome.OK]
        used.append(slot_of(tier, stored.block.name)[0].path.parent.name)
    assert used.count("two") > used.count("one")
