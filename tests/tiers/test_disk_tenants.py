"""A directory forgets the names of tenants whose blocks are gone, in memory and in its journal."""

import threading
from pathlib import Path

import pytest

from dataplane.protocol.stored_blocks import Outcome
from dataplane.tiers.disk import slot_journal
from dataplane.tiers.disk.disk_tier import DiskTier
from dataplane.tiers.disk.slot_journal import Checkpoint, SlotJournal
from tests.threads import join
from tests.tiers.blocks import assert_holds, block, name, soon, store
from tests.tiers.disk_backend import DiskBackend

LENGTH = 100
COMPACTED_BYTES = 4096


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskBackend:
    monkeypatch.setattr(slot_journal, "_MIN_COMPACTED_BYTES", COMPACTED_BYTES)
    return DiskBackend(tmp_path / "one", threads=4)


def tenants_of(tier: DiskTier) -> list[str]:
    return tier._directories[0]._tenants


def test_tenants_without_blocks_are_forgotten_while_the_tier_is_open(backend: DiskBackend) -> None:
    tier = backend.open()
    surviving = [block(number, LENGTH, f"kept {number}") for number in (10, 11)]
    store(tier, surviving[0])
    for number in range(400):
        store(tier, block(2, LENGTH, f"tenant {number}"))
        if number == 200:
            store(tier, surviving[1])
    assert len(tenants_of(tier)) < 100
    assert_holds(tier, surviving)
    tier.close()
    tier = backend.open()
    assert tier._directories[0].recovered_by == ""
    assert_holds(tier, surviving)


def test_a_journal_of_long_names_is_not_replaced_with_each_record(
    backend: DiskBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = backend.open()
    surviving = [block(number, LENGTH, f"{number:02}".ljust(1000, "x")) for number in range(1, 21)]
    store(tier, *surviving)  # the names alone are longer than the bound
    replaced: list[Checkpoint] = []
    replace = SlotJournal.replace

    def counted(journal: SlotJournal, contents: Checkpoint) -> None:
        replaced.append(contents)
        replace(journal, contents)

    monkeypatch.setattr(SlotJournal, "replace", counted)
    for _ in range(50):
        store(tier, block(30, LENGTH, surviving[0].block.tenant))
    assert len(replaced) <= 2
    assert_holds(tier, surviving)


def test_a_block_that_is_committed_during_a_checkpoint_keeps_its_tenant(
    backend: DiskBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint gives the tenants other numbers after the block's record has been written."""
    tier = backend.open()
    (directory,) = tier._directories
    for number in range(5):
        store(tier, block(2, LENGTH, f"tenant {number}"))
    stored = block(1, LENGTH, "acme")
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
    assert_holds(backend.open(), [stored])


def test_blocks_of_many_threads_keep_their_tenants(backend: DiskBackend) -> None:
    tier = backend.open()

    def work(first: int) -> None:
        for turn in range(40):
            store(tier, block(first, LENGTH, f"{first} {turn}"), block(first + 1, LENGTH, f"other {first} {turn}"))

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
    tier = backend.open()
    assert tier._directories[0].recovered_by == ""
    assert {stored.name: stored.tenant for stored in tier.blocks()} == expected
    assert tier.delete(list(expected), soon()) == [Outcome.OK] * len(expected)
