"""`check`, `repair` and `usage` of directories that no node uses."""

import os
import shutil
from pathlib import Path

import pytest

from dataplane.tiers.disk import offline
from dataplane.tiers.disk.offline import BlockSum, NoTierDirectory, TierFault
from dataplane.tiers.tier import TierError
from tests.tiers.blocks import assert_holds, assert_lacks, block, store
from tests.tiers.disk_backend import SEGMENT_BYTES, DiskBackend, slot_of


@pytest.fixture
def backend(tmp_path: Path) -> DiskBackend:
    return DiskBackend(tmp_path / "one")


def _bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}


def test_a_whole_directory_has_no_fault(backend: DiskBackend) -> None:
    tier = backend.open()
    store(tier, *(block(number, 5000) for number in range(10)), block(20, 70_000))
    used = tier.usage()
    tier.close()
    (folder,) = backend.directories
    before = _bytes_of(folder)
    found = offline.check(str(folder))
    assert found.faults == []
    assert (found.blocks, found.stored_bytes) == (used.blocks, used.stored_bytes) == (11, 10 * 12_288 + 77_824)
    assert (found.node, found.segments, found.segment_bytes) == ("node-1", 2, 2 * SEGMENT_BYTES)
    assert found.journal == ""
    assert _bytes_of(folder) == before


def test_bad_slots_are_listed_and_freed(backend: DiskBackend) -> None:
    (folder,) = backend.directories
    tier = backend.open()
    data, header, erased, swapped, other, good = stored = [block(number, 5000) for number in range(6)]
    store(tier, *stored)
    slots = {each.block.name: slot_of(tier, each.block.name)[1] for each in stored}
    flipped = bytearray(backend.stored(tier, data.block.name))
    flipped[6000] ^= 1
    backend.overwrite(tier, data.block.name, bytes(flipped))
    backend.overwrite(tier, header.block.name, b"nonsense")
    backend.overwrite(tier, erased.block.name, b"")
    raw = [backend.stored(tier, each.block.name) for each in (swapped, other)]
    backend.overwrite(tier, swapped.block.name, raw[1])
    backend.overwrite(tier, other.block.name, raw[0])
    tier.close()
    reasons = {
        slots[data.block.name]: "the data does not match its checksum",
        slots[header.block.name]: "header: the magic number is missing",
        slots[erased.block.name]: "the header is missing",
        slots[swapped.block.name]: "the slot holds another block",
        slots[other.block.name]: "the slot holds another block",
    }
    expected = [TierFault("segment-000000", slot, reasons[slot]) for slot in sorted(reasons)]
    before = _bytes_of(folder)
    assert offline.check(str(folder)).faults == expected
    assert _bytes_of(folder) == before
    assert offline.repair(str(folder)).faults == expected
    again = offline.check(str(folder))
    assert (again.faults, again.blocks) == ([], 1)
    for open_again in (backend.open, backend.scanned):
        tier = open_again()
        assert_holds(tier, [good])
        assert_lacks(tier, stored[:-1])
        assert tier.usage().stored_bytes == tier.stored_size(5000)
        tier.close()


def test_a_slot_that_only_its_header_knows_is_bad(backend: DiskBackend) -> None:
    """As after a deletion whose header was not erased."""
    (folder,) = backend.directories
    tier = backend.open()
    whole, deleted = block(1, 5000), block(2, 5000)
    store(tier, whole, deleted)
    segment, slot = slot_of(tier, deleted.block.name)
    raw = backend.stored(tier, deleted.block.name)
    tier.delete([deleted.block.name], 1e12)
    with open(segment.path, "r+b") as file:
        file.seek(segment.offset(slot))
        file.write(raw)
    tier.close()
    assert offline.check(str(folder)).faults == [TierFault("segment-000000", slot, "the journal has no such block")]
    offline.repair(str(folder))
    tier = backend.scanned()
    assert_holds(tier, [whole])
    assert_lacks(tier, [deleted])


def test_orphaned_and_truncated_segments_are_listed_and_repaired(tmp_path: Path, backend: DiskBackend) -> None:
    (folder,) = backend.directories
    tier = backend.open()
    lost, whole, small = block(1, 70_000), block(2, 70_000), block(3, 5000)
    store(tier, whole, lost, small)
    large = slot_of(tier, whole.block.name)[0].path
    slot = slot_of(tier, lost.block.name)[1]
    tier.close()
    other = DiskBackend(tmp_path / "other")
    tier = other.open()
    store(tier, block(9, 5000))
    tier.close()
    shutil.copy(tmp_path / "other" / "segment-000000", folder / "segment-000002")
    (folder / "segment-000007").write_bytes(b"what is this")
    os.truncate(large, 4096 + 77_824 + 10_000)
    assert offline.check(str(folder)).faults == [
        TierFault("segment-000002", None, "the segment is of another directory"),
        TierFault("segment-000007", None, "the file is shorter than a page"),
        TierFault(large.name, None, f"expected {SEGMENT_BYTES} bytes, got 91920"),
        TierFault(large.name, slot, "the journal has no such block"),
    ]
    offline.repair(str(folder))
    found = offline.check(str(folder))
    assert found.faults == []
    assert found.segment_bytes == 2 * SEGMENT_BYTES
    tier = backend.open()
    assert_holds(tier, [whole, small])
    assert_lacks(tier, [lost])


def test_a_directory_without_its_journal_is_checked_and_gets_one(backend: DiskBackend) -> None:
    (folder,) = backend.directories
    tier = backend.open()
    stored = [block(number, 5000) for number in range(5)]
    store(tier, *stored)
    tier.close()
    (folder / "journal").unlink()
    found = offline.check(str(folder))
    assert (found.faults, found.blocks, found.journal) == ([], 5, "journal: No such file or directory")
    offline.repair(str(folder))
    tier = backend.open()
    assert tier._directories[0].recovered_by == ""
    assert_holds(tier, stored)


def test_usage_counts_tenants_and_sizes(backend: DiskBackend) -> None:
    (folder,) = backend.directories
    tier = backend.open()
    store(tier, block(1, 5000, "a"), block(2, 5000, "b"), block(3, 70_000, "a"), block(4, 1, ""))
    tier.close()
    found = offline.usage(str(folder))
    assert found.tenants == {"": BlockSum(1, 8192), "a": BlockSum(2, 12_288 + 77_824), "b": BlockSum(1, 12_288)}
    assert found.sizes == {8192: BlockSum(1, 8192), 12_288: BlockSum(2, 24_576), 77_824: BlockSum(1, 77_824)}
    assert found.segment_bytes == 3 * SEGMENT_BYTES


@pytest.mark.parametrize("work", [offline.check, offline.repair, offline.usage])
def test_a_directory_in_use_or_of_nothing_is_refused(tmp_path: Path, backend: DiskBackend, work: object) -> None:
    assert callable(work)
    tier = backend.open()
    with pytest.raises(TierError, match="one: in use by node node-1, process"):
        work(str(backend.directories[0]))
    tier.close()
    work(str(backend.directories[0]))
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(NoTierDirectory, match="expected a directory of a tier"):
            work(str(path))
    assert not (tmp_path / "lock").exists()
