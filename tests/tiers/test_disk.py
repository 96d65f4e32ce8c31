"""A disk tier: the conformance suite, its budget, what it erases and syncs, and names of tenants."""

import errno
import os
import random
import threading
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest

from dataplane.protocol.stored_blocks import Outcome
from dataplane.tiers.disk import slot_journal
from dataplane.tiers.disk.disk_tier import DiskTier
from dataplane.tiers.disk.segment_file import SegmentFile
from dataplane.tiers.disk.slot_journal import Checkpoint, SlotJournal
from dataplane.tiers.tier import BlockStore, TierError
from tests.threads import join
from tests.tiers.blocks import assert_holds, assert_lacks, block, name, soon, store
from tests.tiers.conformance import Backend, TierConformance
from tests.tiers.disk_backend import MIB, SEGMENT_BYTES, DiskBackend, slot_of, state
from tests.tiers.erasure_cache import ErasureCache


class TestDiskTier(TierConformance):
    @pytest.fixture(params=["one directory", "three directories", "buffered", "one thread"])
    def backend(self, request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
        if request.param == "three directories":
            return DiskBackend(tmp_path / "one", tmp_path / "two", tmp_path / "three")
        if request.param == "buffered":
            return DiskBackend(tmp_path / "one", direct_io="off")
        return DiskBackend(tmp_path / "one", threads=1 if request.param == "one thread" else 4)


# ---- budget and directories


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


# ---- erasures


LENGTH = 5000


@pytest.fixture
def backend(tmp_path: Path) -> DiskBackend:
    return DiskBackend(tmp_path / "one")


@pytest.fixture
def mend(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """No slot can be erased until this is called."""
    real = SegmentFile.erase

    def failing(segment: SegmentFile, slot: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(SegmentFile, "erase", failing)
    return lambda: monkeypatch.setattr(SegmentFile, "erase", real)


@pytest.mark.parametrize("scanned", [False, True])
def test_a_block_is_deleted_once_its_slot_is_erased(
    backend: DiskBackend, mend: Callable[[], None], scanned: bool
) -> None:
    tier = backend.open()
    stored = block(1, LENGTH)
    store(tier, stored)
    for _ in range(3):
        assert tier.delete([name(1)], soon()) == [Outcome.FAILED]
    assert_lacks(tier, [stored])
    mend()
    assert tier.delete([name(1)], soon()) == [Outcome.OK]
    assert tier.usage().stored_bytes == 0
    tier.close()
    assert_lacks(backend.scanned() if scanned else backend.open(), [stored])


def test_a_failed_deletion_is_repeated_without_a_fault_of_the_directory(
    backend: DiskBackend, mend: Callable[[], None]
) -> None:
    tier = backend.open()
    store(tier, block(1, LENGTH))
    tier.delete([name(1)], soon())
    assert tier.health(soon()).ok
    assert tier.delete([name(1)], soon()) == [Outcome.FAILED]
    stored = block(2, LENGTH)
    assert store(tier, stored) == [Outcome.OK], "one slot that cannot be erased does not stop the directory"
    assert_holds(tier, [stored])


def test_a_name_given_twice_is_erased_once(backend: DiskBackend, mend: Callable[[], None]) -> None:
    tier = backend.open()
    store(tier, *(block(number, LENGTH) for number in (1, 2)))
    names = [name(1)] * 4 + [name(2)] * 4
    assert Outcome.FAILED in tier.delete(names, soon())
    mend()
    assert tier.delete(names, soon()) == [Outcome.OK] * 8
    assert tier.usage().stored_bytes == 0
    assert tier.health(soon()).ok
    again = [block(number, LENGTH) for number in range(10, 20)]
    store(tier, *again)
    assert_holds(tier, again)


def test_an_older_block_that_could_not_be_erased_is_deleted_with_the_newer_one(
    backend: DiskBackend, mend: Callable[[], None]
) -> None:
    tier = backend.open()
    older, newer = block(1, LENGTH), block(1, LENGTH)
    store(tier, older)
    assert store(tier, newer) == [Outcome.OK]
    assert tier.delete([name(1)], soon()) == [Outcome.FAILED]
    mend()
    assert tier.delete([name(1)], soon()) == [Outcome.OK]
    tier.close()
    assert_lacks(backend.scanned(), [newer])


def test_a_block_whose_write_failed_is_erased_by_a_deletion(
    backend: DiskBackend, mend: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = backend.open()
    real = os.pwritev

    def written_and_failed(*arguments: Any) -> int:
        real(*arguments)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    store(tier, block(2, LENGTH))
    monkeypatch.setattr(os, "pwritev", written_and_failed)
    stored = block(1, LENGTH)
    assert store(tier, stored) == [Outcome.FAILED]
    monkeypatch.setattr(os, "pwritev", real)
    assert tier.delete([name(1)], soon()) == [Outcome.FAILED]
    mend()
    assert tier.delete([name(1)], soon()) == [Outcome.OK]
    tier.close()
    assert_lacks(backend.scanned(), [stored])


def test_a_stale_block_that_the_start_could_not_erase_is_deleted_with_the_newer_one(
    tmp_path: Path, mend: Callable[[], None]
) -> None:
    one = DiskBackend(tmp_path / "one")
    tier = one.open()
    older, newer = block(1, LENGTH), block(1, LENGTH)
    store(tier, older, newer)
    tier.close()
    tier = one.scanned()
    assert_holds(tier, [newer])
    assert tier.delete([name(1)], soon()) == [Outcome.FAILED]
    mend()
    assert tier.delete([name(1)], soon()) == [Outcome.OK]
    tier.close()
    assert_lacks(one.scanned(), [newer])


# ---- syncs


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> ErasureCache:
    return ErasureCache(monkeypatch)


@pytest.fixture
def cached_backend(tmp_path: Path, cache: ErasureCache) -> DiskBackend:
    return DiskBackend(tmp_path / "one", direct_io="off")


def _opened_after_loss(backend: DiskBackend, cache: ErasureCache, tier: DiskTier) -> DiskTier:
    """Open the tier as after a loss of power: its journal, of another boot, is not used."""
    tier.close()
    cache.lose_power()
    return backend.scanned()


def test_a_deleted_block_comes_back_after_a_loss_of_power_unless_it_was_synced(
    cached_backend: DiskBackend, cache: ErasureCache
) -> None:
    tier = cached_backend.open()
    blocks = [block(number, LENGTH) for number in range(1, 4)]
    store(tier, *blocks)
    assert tier.delete([name(1)], soon()) == [Outcome.OK]
    assert tier.sync(soon()) is Outcome.OK
    assert tier.delete([name(2)], soon()) == [Outcome.OK]
    tier = _opened_after_loss(cached_backend, cache, tier)
    assert_lacks(tier, blocks[:1])
    assert_holds(tier, blocks[1:])


def test_only_segments_with_erased_slots_are_synced(cached_backend: DiskBackend, cache: ErasureCache) -> None:
    tier = cached_backend.open()
    store(tier, block(1, LENGTH), block(2, MIB))
    assert tier.sync(soon()) is Outcome.OK
    assert cache.synced == []
    tier.delete([name(2)], soon())
    assert [tier.sync(soon()) for _ in range(2)] == [Outcome.OK] * 2
    assert len(cache.synced) == 1


def test_what_was_deleted_before_the_start_is_synced(cached_backend: DiskBackend, cache: ErasureCache) -> None:
    tier = cached_backend.open()
    stored = block(1, LENGTH)
    store(tier, stored)
    tier.delete([name(1)], soon())
    tier.close()
    tier = cached_backend.open()
    assert tier.sync(soon()) is Outcome.OK
    assert_lacks(_opened_after_loss(cached_backend, cache, tier), [stored])


def test_an_older_block_that_a_newer_one_replaced_is_synced(cached_backend: DiskBackend, cache: ErasureCache) -> None:
    tier = cached_backend.open()
    older, newer = block(1, LENGTH), block(1, LENGTH)
    store(tier, older)
    store(tier, newer)
    tier.delete([name(1)], soon())
    assert tier.sync(soon()) is Outcome.OK
    assert_lacks(_opened_after_loss(cached_backend, cache, tier), [older, newer])


def test_a_sync_goes_on_where_its_deadline_ended_it(cached_backend: DiskBackend, cache: ErasureCache) -> None:
    tier = cached_backend.open()
    store(tier, block(1, LENGTH))
    tier.delete([name(1)], soon())
    assert tier.sync(-inf) is Outcome.LATE
    assert cache.headers
    assert tier.sync(soon()) is Outcome.OK
    assert not cache.headers


def test_a_device_that_does_not_sync_is_reported(cached_backend: DiskBackend, cache: ErasureCache) -> None:
    tier = cached_backend.open()
    store(tier, block(1, LENGTH))
    tier.delete([name(1)], soon())
    cache.error = errno.EIO
    assert tier.sync(soon()) is Outcome.FAILED
    with pytest.raises(TierError, match="sync failed: Input/output error"):
        store(tier, block(2, LENGTH))


def test_a_directory_that_was_left_out_is_not_synced(tmp_path: Path, cache: ErasureCache) -> None:
    backend = DiskBackend(tmp_path / "one", tmp_path / "file")
    (tmp_path / "file").touch()
    tier = backend.open()
    assert tier.health(soon()).reason.startswith(f"{tmp_path}/file: cannot be opened")
    assert tier.sync(soon()) is Outcome.FAILED


def test_segments_that_a_smaller_budget_removes_are_synced(
    cached_backend: DiskBackend, cache: ErasureCache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tier = cached_backend.open()
    store(tier, *(block(number, MIB) for number in range(1, 8)))
    tier.close()
    real = os.fsync
    segments: list[int] = []
    """Number of them at each sync of the directory."""

    def fsync(fd: int) -> None:
        folder = tmp_path / "one"
        if os.readlink(f"/proc/self/fd/{fd}") == str(folder):
            segments.append(len(list(folder.glob("segment-*"))))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    tier = cached_backend.open(budget_bytes=SEGMENT_BYTES)
    assert segments == [1]
    assert tier.sync(soon()) is Outcome.OK


# ---- tenants


SHORT = 100
COMPACTED_BYTES = 4096


@pytest.fixture
def compacting_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskBackend:
    monkeypatch.setattr(slot_journal, "_MIN_COMPACTED_BYTES", COMPACTED_BYTES)
    return DiskBackend(tmp_path / "one", threads=4)


def tenants_of(tier: DiskTier) -> list[str]:
    return tier._directories[0]._tenants


def test_tenants_without_blocks_are_forgotten_while_the_tier_is_open(compacting_backend: DiskBackend) -> None:
    tier = compacting_backend.open()
    surviving = [block(number, SHORT, f"kept {number}") for number in (10, 11)]
    store(tier, surviving[0])
    for number in range(400):
        store(tier, block(2, SHORT, f"tenant {number}"))
        if number == 200:
            store(tier, surviving[1])
    assert len(tenants_of(tier)) < 100
    assert_holds(tier, surviving)
    tier.close()
    tier = compacting_backend.open()
    assert tier._directories[0].recovered_by == ""
    assert_holds(tier, surviving)


def test_a_journal_of_long_names_is_not_replaced_with_each_record(
    compacting_backend: DiskBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = compacting_backend.open()
    surviving = [block(number, SHORT, f"{number:02}".ljust(1000, "x")) for number in range(1, 21)]
    store(tier, *surviving)  # the names alone are longer than the bound
    replaced: list[Checkpoint] = []
    replace = SlotJournal.replace

    def counted(journal: SlotJournal, contents: Checkpoint) -> None:
        replaced.append(contents)
        replace(journal, contents)

    monkeypatch.setattr(SlotJournal, "replace", counted)
    for _ in range(50):
        store(tier, block(30, SHORT, surviving[0].block.tenant))
    assert len(replaced) <= 2
    assert_holds(tier, surviving)


def test_a_block_that_is_committed_during_a_checkpoint_keeps_its_tenant(
    compacting_backend: DiskBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint gives the tenants other numbers after the block's record has been written."""
    tier = compacting_backend.open()
    (directory,) = tier._directories
    for number in range(5):
        store(tier, block(2, SHORT, f"tenant {number}"))
    stored = block(1, SHORT, "acme")
    record = directory.record_stores

    def recorded(stores: object) -> None:
        record(stores)  # type: ignore[arg-type]
        with directory._journal_lock:
            directory._replace_journal()

    monkeypatch.setattr(directory, "record_stores", recorded)
    assert store(tier, stored) == [Outcome.OK]
    assert_holds(tier, [stored])
    assert len(tenants_of(tier)) == 2
    tier.close()
    assert_holds(compacting_backend.open(), [stored])


def test_blocks_of_many_threads_keep_their_tenants(compacting_backend: DiskBackend) -> None:
    tier = compacting_backend.open()

    def work(first: int) -> None:
        for turn in range(40):
            store(tier, block(first, SHORT, f"{first} {turn}"), block(first + 1, SHORT, f"other {first} {turn}"))

    threads = [threading.Thread(target=work, args=(10 * number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    join(*threads)
    expected = {
        name(10 * number + other): f"{prefix}{10 * number} 39"
        for number in range(1, 5)
        for other, prefix in ((0, ""), (1, "other "))
    }
    assert {stored.name: stored.tenant for stored in tier.blocks()} == expected
    tier.close()
    tier = compacting_backend.open()
    assert tier._directories[0].recovered_by == ""
    assert {stored.name: stored.tenant for stored in tier.blocks()} == expected
    assert tier.delete(list(expected), soon()) == [Outcome.OK] * len(expected)
