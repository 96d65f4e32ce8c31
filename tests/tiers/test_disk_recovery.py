"""A disk tier that is opened again: by its journal, and by the headers of its slots."""

import errno
import os
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataplane.protocol.stored_blocks import Loaded, Outcome
from dataplane.tiers.disk import alignment, directory, offline, slot_journal
from dataplane.tiers.disk.disk_tier import DiskTier
from dataplane.tiers.disk.offline import BlockSum, NoTierDirectory, TierFault
from dataplane.tiers.header import HEADER_BYTES, pack_header
from dataplane.tiers.tier import BlockStore, TierError
from tests.forked import Forked
from tests.sizes import size
from tests.tiers.blocks import CLUSTER, assert_holds, assert_lacks, block, load, name, soon, store
from tests.tiers.disk_backend import MIB, SEGMENT_BYTES, DiskBackend, slot_of, state
from tests.tiers.disk_writer import BUDGET_BYTES
from tests.tiers.disk_writer import backend as writer_backend


@pytest.fixture
def backend(tmp_path: Path) -> DiskBackend:
    return DiskBackend(tmp_path / "one", tmp_path / "two")


def _changed(tier: DiskTier, seed: int, steps: int) -> dict[int, BlockStore]:
    """Store, replace and delete blocks, and return what is held."""
    choice = random.Random(seed)
    expected_blocks: dict[int, BlockStore] = {}
    for _ in range(steps):
        number = choice.randrange(30)
        if choice.random() < 0.3:
            assert tier.delete([name(number)], soon()) == [Outcome.OK]
            expected_blocks.pop(number, None)
        else:
            stored = block(number, choice.choice([1, 5000, 70_000]), tenant=f"tenant {choice.randrange(5)}")
            assert store(tier, stored) == [Outcome.OK]
            expected_blocks[number] = stored
    return expected_blocks


def _abandoned(tier: DiskTier) -> None:
    """Release the files as the end of a process does."""
    for each in tier._directories:
        each.close(clean=False)
    tier._directories.clear()


@pytest.mark.parametrize("seed", range(size(5, 2)))
@pytest.mark.parametrize("end", [DiskTier.close, _abandoned], ids=["closed", "killed"])
def test_the_journal_and_the_headers_give_the_same(
    backend: DiskBackend, seed: int, end: Callable[[DiskTier], None]
) -> None:
    tier = backend.open()
    expected_blocks = _changed(tier, seed, 120)
    before = state(tier)
    end(tier)
    for open_again in (backend.open, backend.scanned, backend.open):
        tier = open_again()
        by_journal = [each.recovered_by == "" for each in tier._directories]
        assert by_journal == [open_again == backend.open] * 2
        assert state(tier) == before
        assert_holds(tier, list(expected_blocks.values()))
        end(tier)


def test_work_continues_after_each_kind_of_recovery(backend: DiskBackend) -> None:
    expected_blocks: dict[int, BlockStore] = {}
    for number in range(6):
        tier = backend.scanned() if number % 2 else backend.open()
        assert_holds(tier, list(expected_blocks.values()))
        tier.delete([name(each) for each in range(30)], soon())
        assert tier.usage().stored_bytes == 0
        expected_blocks = _changed(tier, number, 60)
        _abandoned(tier)


def test_a_long_journal_is_replaced_by_a_checkpoint(backend: DiskBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_journal, "_MIN_COMPACTED_BYTES", 4096)
    tier = backend.open()
    expected_blocks = _changed(tier, 3, 400)
    before = state(tier)
    _abandoned(tier)
    assert all((folder / "journal").stat().st_size < 24_000 for folder in backend.directories)
    tier = backend.open()
    assert [each.recovered_by for each in tier._directories] == ["", ""]
    assert state(tier) == before
    assert_holds(tier, list(expected_blocks.values()))


class _KilledError(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("before_the_write", [True, False])
def test_a_checkpoint_during_a_write_leaves_the_slot_to_its_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before_the_write: bool
) -> None:
    backend, copy = DiskBackend(tmp_path / "one"), DiskBackend(tmp_path / "copy")
    tier = backend.open()
    expected_blocks, written = block(1, 5000), block(2, 5000)
    store(tier, expected_blocks)
    real = alignment.write_slots

    def write(*arguments: Any, direct: bool) -> None:
        if before_the_write:
            tier._directories[0]._replace_journal()
        real(*arguments, direct=direct)
        if not before_the_write:
            tier._directories[0]._replace_journal()
        raise _KilledError

    monkeypatch.setattr(directory, "write_slots", write)
    with pytest.raises(_KilledError):
        store(tier, written)
    _abandoned(tier)
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    by_journal, by_headers = backend.open(), copy.scanned()
    assert by_journal._directories[0].recovered_by == ""
    assert state(by_journal) == state(by_headers)
    assert_holds(by_journal, [expected_blocks, written])


@pytest.mark.parametrize("cut", [1, 15, 16, 17, 60, 112, 300])
def test_a_torn_record_ends_the_journal(tmp_path: Path, cut: int) -> None:
    backend = DiskBackend(tmp_path / "one")
    tier = backend.open()
    stored = [block(number, 5000) for number in range(20)]
    store(tier, *stored)
    _abandoned(tier)
    journal = tmp_path / "one" / "journal"
    os.truncate(journal, journal.stat().st_size - cut)
    tier = backend.open()
    assert tier._directories[0].recovered_by == ""
    assert_holds(tier, stored[:17])
    for each in stored[17:]:
        assert load(tier, each)[0] in (Loaded(Outcome.OK, each.block), Loaded(Outcome.MISSING))
    more = block(50, 5000)
    assert store(tier, more) == [Outcome.OK]
    before = state(tier)
    _abandoned(tier)
    tier = backend.open()
    assert tier._directories[0].recovered_by == ""
    assert state(tier) == before


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [_flip, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"\0" * 5000), Path.unlink],
    ids=["flipped", "empty", "zeros", "removed"],
)
def test_a_journal_that_cannot_be_used_is_rebuilt_from_the_headers(
    backend: DiskBackend, damage: Callable[[Path], object]
) -> None:
    tier = backend.open()
    expected_blocks = _changed(tier, 1, 100)
    before = state(tier)
    tier.close()
    for folder in backend.directories:
        damage(folder / "journal")
    tier = backend.open()
    assert all("journal" in each.recovered_by for each in tier._directories)
    assert state(tier) == before
    assert_holds(tier, list(expected_blocks.values()))


@pytest.mark.parametrize("boots", [("one", "another"), ("", "")])
@pytest.mark.parametrize("closed", [True, False])
def test_a_journal_of_another_or_an_unknown_boot_counts_only_if_it_was_closed(
    backend: DiskBackend, monkeypatch: pytest.MonkeyPatch, closed: bool, boots: tuple[str, str]
) -> None:
    monkeypatch.setattr(slot_journal, "boot", lambda: boots[0])
    tier = backend.open()
    expected_blocks = _changed(tier, 1, 50)
    if closed:
        tier.close()
    else:
        _abandoned(tier)
    monkeypatch.setattr(slot_journal, "boot", lambda: boots[1])
    tier = backend.open()
    assert [each.recovered_by == "" for each in tier._directories] == [closed] * 2
    assert_holds(tier, list(expected_blocks.values()))


def test_a_journal_of_another_directory_is_not_used(backend: DiskBackend) -> None:
    tier = backend.open()
    expected_blocks = _changed(tier, 1, 50)
    before = state(tier)
    tier.close()
    one, two = (folder / "journal" for folder in backend.directories)
    shutil.copy(one, two)
    tier = backend.open()
    assert [each.recovered_by == "" for each in tier._directories] == [True, False]
    assert state(tier) == before
    assert_holds(tier, list(expected_blocks.values()))


@pytest.mark.parametrize("recovered", ["open", "scanned"])
def test_a_torn_block_is_a_miss_after_a_start(tmp_path: Path, recovered: str) -> None:
    backend = DiskBackend(tmp_path / "one")
    tier = backend.open()
    torn, whole = block(1, 70_000), block(2, 70_000)
    store(tier, torn, whole)
    backend.overwrite(tier, torn.block.name, backend.stored(tier, torn.block.name)[: HEADER_BYTES + 10_000])
    _abandoned(tier)
    tier = getattr(backend, recovered)()
    assert load(tier, torn)[0] == Loaded(Outcome.CORRUPT)
    assert_lacks(tier, [torn])
    assert_holds(tier, [whole])
    assert tier.usage().corrupt_blocks == 1


def test_a_torn_replacement_leaves_the_block_before_it(tmp_path: Path) -> None:
    """As after a kill in the middle of the write of a newer block, before the older one was freed."""
    backend = DiskBackend(tmp_path / "one")
    tier = backend.open()
    before, other = block(1, 70_000), block(2, 70_000)
    store(tier, before, other)
    newer = block(1, 70_000)
    header = pack_header(newer.block, CLUSTER)
    backend.overwrite(tier, other.block.name, header + newer.data[:30_000])
    _abandoned(tier)
    tier = backend.scanned()
    assert_holds(tier, [before])
    assert tier.usage().blocks == 1


@pytest.mark.parametrize("recovered", ["open", "scanned"])
def test_swapped_slots_are_never_served_for_each_other(tmp_path: Path, recovered: str) -> None:
    backend = DiskBackend(tmp_path / "one")
    tier = backend.open()
    one, other = block(1, 70_000), block(2, 70_000)
    store(tier, one, other)
    stored = [backend.stored(tier, each.block.name) for each in (one, other)]
    backend.overwrite(tier, one.block.name, stored[1])
    backend.overwrite(tier, other.block.name, stored[0])
    tier.close()
    tier = getattr(backend, recovered)()
    for each in (one, other):
        loaded, data = load(tier, each)
        assert loaded == Loaded(Outcome.CORRUPT) or (loaded.block == each.block and data == each.data)


@pytest.mark.parametrize("recovered", ["open", "scanned"])
@pytest.mark.parametrize("surviving", [0, 100, 4096, 4096 + 74_000, SEGMENT_BYTES // 2, SEGMENT_BYTES - 1])
def test_a_truncated_segment_loses_only_its_own_end(tmp_path: Path, recovered: str, surviving: int) -> None:
    backend = DiskBackend(tmp_path / "one")
    tier = backend.open()
    stored = [block(number, 70_000) for number in range(20)]
    other = block(99, 5000)
    store(tier, *stored, other)
    slots = {each.block.name: slot_of(tier, each.block.name) for each in stored}
    segment = slots[stored[0].block.name][0]
    ends = {of: segment.offset(slot) + segment.slot_bytes for of, (_, slot) in slots.items()}
    tier.close()
    os.truncate(segment.path, surviving)
    tier = getattr(backend, recovered)()
    whole = [each for each in stored if ends[each.block.name] <= surviving]
    assert_holds(tier, [*whole, other])
    assert_lacks(tier, [each for each in stored if each not in whole])
    again = [block(number, 70_000) for number in range(20)]
    assert store(tier, *again) == [Outcome.OK] * 20
    tier.close()
    tier = backend.open()
    assert_holds(tier, [*again, other])


def test_a_removed_segment_takes_only_its_own_blocks_along(tmp_path: Path) -> None:
    backend = DiskBackend(tmp_path / "one")
    tier = backend.open()
    lost, surviving = block(1, 70_000), block(2, 5000)
    store(tier, lost, surviving)
    path = slot_of(tier, lost.block.name)[0].path
    tier.close()
    path.unlink()
    tier = backend.open()
    assert_lacks(tier, [lost])
    assert_holds(tier, [surviving])
    assert store(tier, lost) == [Outcome.OK]
    tier.close()
    tier = backend.scanned()
    assert_holds(tier, [lost, surviving])


@pytest.mark.parametrize("recovered", ["open", "scanned"])
def test_a_smaller_budget_holds_from_the_start(backend: DiskBackend, recovered: str) -> None:
    tier = backend.open()
    stored = [block(number, MIB) for number in range(30)]
    assert store(tier, *stored) == [Outcome.OK] * 30
    tier.close()
    budget = 3 * SEGMENT_BYTES
    tier = getattr(backend, recovered)(budget_bytes=budget)
    assert backend.segment_bytes_on_disk() <= budget
    assert 0 < tier.usage().stored_bytes <= budget
    left = [each for each in stored if tier.lookup([each.block.name], soon())[0]]
    assert left
    assert_holds(tier, left)
    tier.close()
    tier = backend.open(budget_bytes=budget)
    assert_holds(tier, left)


def test_data_is_never_taken_for_a_header(tmp_path: Path) -> None:
    """An engine may store bytes that look like the header of another tenant's block, at the place where a header would
    be if the segment had slots of another size."""
    backend = DiskBackend(tmp_path / "one", budget_bytes=SEGMENT_BYTES, segment_bytes=SEGMENT_BYTES)
    victim = block(1, 4096, tenant="victim")
    forged = pack_header(victim.block, CLUSTER) + bytes(4096)  # a slot of the smaller size
    tier = backend.open()
    stored = block(2, 60 * 4096)
    stored = BlockStore(stored.block, bytes(4096) + forged * 29 + bytes(4096))
    assert store(tier, stored) == [Outcome.OK]
    tier.delete([stored.block.name], soon())
    small = block(3, 4096)
    assert store(tier, small) == [Outcome.OK]
    _abandoned(tier)
    tier = backend.scanned()
    assert [each.name for each in tier.blocks()] == [small.block.name]


def test_the_newest_of_two_directories_is_kept(tmp_path: Path) -> None:
    one, two = DiskBackend(tmp_path / "one"), DiskBackend(tmp_path / "two")
    older, newer = block(1, 5000), block(1, 9000)
    for backend, stored in ((one, newer), (two, older)):
        tier = backend.open()
        store(tier, stored)
        tier.close()
    tier = DiskBackend(tmp_path / "one", tmp_path / "two").open()
    assert_holds(tier, [newer])
    assert tier.usage().stored_bytes == tier.stored_size(9000)


def test_a_directory_on_a_full_device_is_recovered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = DiskBackend(tmp_path / "one")
    tier = backend.open()
    stored = [block(number, 5000) for number in range(5)]
    store(tier, *stored)
    tier.close()

    def full(fd: int, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for _ in range(2):  # by the journal, and then by the headers, as it could not be continued
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", full)
            tier = backend.open()
        assert_holds(tier, stored)
        assert "the journal cannot be written: No space left" in tier._health().reason
        tier.close()
        assert not (tmp_path / "one" / "journal").exists()
    tier = backend.open()
    assert tier.health(soon()).reason == tier._health().reason
    assert_holds(tier, stored)


@pytest.mark.parametrize("recovered", ["open", "scanned"])
def test_names_of_tenants_without_blocks_are_forgotten(tmp_path: Path, recovered: str) -> None:
    backend = DiskBackend(tmp_path / "one")
    tier = backend.open()
    surviving = block(1, 100, "kept")
    for number in range(1100):
        store(tier, block(2, 100, f"tenant {number}"))
    store(tier, surviving)
    tier.delete([name(2)], soon())
    tier.close()
    tier = getattr(backend, recovered)()
    assert tier._directories[0]._tenants == ["kept"]
    assert_holds(tier, [surviving])
    more = block(3, 100, "more")
    store(tier, more)
    _abandoned(tier)
    tier = backend.open()
    assert tier._directories[0].recovered_by == ""
    assert_holds(tier, [surviving, more])


def _frames(journal: Path) -> list[tuple[int, bytes]]:
    data, at, frames = journal.read_bytes(), 0, []
    while at < len(data):
        kind, size, _ = slot_journal._FRAME.unpack_from(data, at)
        at += slot_journal._FRAME.size
        frames.append((kind, data[at : at + size]))
        at += size
    return frames


def _write(journal: Path, frames: list[tuple[int, bytes]]) -> None:
    """Write a journal of which every checksum is right."""
    with journal.open("r+b") as file:
        file.truncate()
        for kind, payload in frames:
            slot_journal._write(file.fileno(), kind, payload)


def _double_tenant(frames: list[tuple[int, bytes]]) -> None:
    at = next(at for at, (kind, _) in enumerate(frames) if kind == slot_journal.TENANT)
    frames.insert(at, frames[at])


def _swap_frames(frames: list[tuple[int, bytes]]) -> None:
    """Records come before the tenants that they name."""
    frames.sort(key=lambda frame: {slot_journal.HEAD: 0, slot_journal.RECORDS: 1}.get(frame[0], frame[0] + 1))


def _garble_head(frames: list[tuple[int, bytes]]) -> None:
    frames[0] = slot_journal.HEAD, b"\xc1"


def _name(tenant: bytes) -> Callable[[list[tuple[int, bytes]]], None]:
    def change(frames: list[tuple[int, bytes]]) -> None:
        at = next(at for at, (kind, _) in enumerate(frames) if kind == slot_journal.TENANT)
        frames[at] = slot_journal.TENANT, tenant

    return change


def _set(field: str, value: int) -> Callable[[list[tuple[int, bytes]]], None]:
    def change(frames: list[tuple[int, bytes]]) -> None:
        for at, (kind, payload) in enumerate(frames):
            if kind == slot_journal.RECORDS:
                records = np.frombuffer(payload, slot_journal.RECORD).copy()
                records[field] = value
                frames[at] = kind, records.tobytes()

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_garble_head, "beginning"),
        (_double_tenant, "twice"),
        (_swap_frames, "tenant"),
        (_name(b"\xff"), "UTF-8"),
        (_name(b"x" * 5000), "bytes"),
        (_set("op", 9), "operation"),
        (_set("tenant", 1 << 31), "tenant"),
        (_set("sequence", (1 << 64) - 1), "sequence"),
        (_set("length", 1 << 63), "length"),
    ],
    ids=["head", "tenant twice", "order", "not UTF-8", "long name", "op", "tenant", "sequence", "length"],
)
def test_a_journal_with_impossible_contents_is_rebuilt_from_the_headers(
    tmp_path: Path, change: Callable[[list[tuple[int, bytes]]], None], reason: str
) -> None:
    backend = DiskBackend(tmp_path / "one")
    tier = backend.open()
    expected_blocks = _changed(tier, 1, 60)
    before = state(tier)
    _abandoned(tier)
    frames = _frames(tmp_path / "one" / "journal")
    change(frames)
    _write(tmp_path / "one" / "journal", frames)
    used = offline.usage(str(tmp_path / "one"))
    tier = backend.open()
    assert reason in tier._directories[0].recovered_by
    assert state(tier) == before
    assert_holds(tier, list(expected_blocks.values()))
    assert {tenant: each.blocks for tenant, each in used.tenants.items()} == Counter(
        each.block.tenant for each in expected_blocks.values()
    )


@pytest.mark.parametrize("seed", range(size(400, 12)))
def test_no_journal_makes_a_start_fail_or_a_wrong_byte_be_served(tmp_path: Path, seed: int) -> None:
    choice = random.Random(seed)
    backend = DiskBackend(tmp_path / "one")
    tier = backend.open()
    expected_blocks = _changed(tier, seed, 30)
    _abandoned(tier)
    journal = tmp_path / "one" / "journal"
    frames = _frames(journal)
    for _ in range(choice.randint(1, 4)):
        at = choice.randrange(len(frames))
        kind, payload = frames[at]
        changed = bytearray(payload)
        match choice.randrange(5):
            case 0:
                frames.insert(choice.randrange(len(frames)), frames[at])
            case 1 if len(frames) > 1:
                frames.pop(at)
            case 2:
                choice.shuffle(frames)
            case 3 if changed:
                changed[choice.randrange(len(changed))] = choice.randrange(256)
                frames[at] = kind, bytes(changed)
            case _:
                frames[at] = choice.randrange(7), bytes(changed[: choice.randrange(len(changed) + 1)])
    _write(journal, frames)
    offline.usage(str(tmp_path / "one"))
    offline.check(str(tmp_path / "one"))
    tier = backend.open()
    for stored in expected_blocks.values():
        outcome, data = load(tier, stored)
        assert outcome.outcome is not Outcome.OK or data[: len(stored.data)] == stored.data
    assert store(tier, block(99, 5000)) == [Outcome.OK]
    tier.close()
    assert offline.usage(str(tmp_path / "one")).tenants


# ---- kills


KILLS = 5
Version = tuple[int, int]
"""Sequence and length of a block; (0, 0) for none."""
NONE: Version = (0, 0)


@pytest.mark.parametrize("seed", range(size(4, 2)))
def test_a_kill_loses_no_acknowledged_block(tmp_path: Path, seed: int) -> None:
    choice = random.Random(seed)
    killed = writer_backend(tmp_path / "one", tmp_path / "two")
    copy = writer_backend(tmp_path / "copy-one", tmp_path / "copy-two")
    acknowledged: dict[int, Version] = {}
    operations = 0
    for kill in range(KILLS):
        begun = _killed(killed, 1 + kill * 1_000_000, choice.randrange(10, 300), acknowledged)
        operations += len(acknowledged)
        for source, target in zip(killed.directories, copy.directories, strict=True):
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target)
        tier = killed.open()
        try:
            assert [each.recovered_by for each in tier._directories] == ["", ""]
            _check(tier, acknowledged, begun)
            assert tier.usage().stored_bytes <= killed.segment_bytes_on_disk() <= BUDGET_BYTES
            from_journal = state(tier)
            _load_all(tier, acknowledged, begun)
        finally:
            tier.close()
        scanned = copy.scanned()
        try:
            assert state(scanned) == from_journal
        finally:
            scanned.close()
    assert operations > KILLS


def _killed(killed: DiskBackend, first: int, lines: int, acknowledged: dict[int, Version]) -> dict[int, Version]:
    """Run a writer until it has written so many lines and is killed. Update what it acknowledged, and return what it
    was doing."""
    begun: dict[int, Version] = {}
    folders = map(str, killed.directories)
    with Forked(
        "tests.tiers.disk_writer", str(first), *folders, env=dict(os.environ), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            for count, line in enumerate(process.stdout, 1):
                what, number, *version = line.split()
                sequence, length = map(int, version)
                if what == "begin":
                    begun[int(number)] = sequence, length
                else:
                    del begun[int(number)]
                    if what == "end":
                        acknowledged[int(number)] = sequence, length
                if count == lines:
                    process.kill()
        finally:
            process.kill()
        assert process.wait(60) == -9
    return begun


def _check(tier: DiskTier, acknowledged: dict[int, Version], begun: dict[int, Version]) -> None:
    """What was acknowledged is there, except where another operation on it had begun."""
    for number in {*acknowledged, *begun}:
        (found,) = tier.lookup([name(number)], soon())
        version = (found.sequence, found.length) if found else NONE
        possible = {acknowledged.get(number, NONE)} | ({begun[number]} if number in begun else set())
        assert version in possible, number


def _load_all(tier: DiskTier, acknowledged: dict[int, Version], begun: dict[int, Version]) -> None:
    """Every block that is there has its bytes; one that was being written may be refused. Remember what is there."""
    for number in {*acknowledged, *begun}:
        (found,) = tier.lookup([name(number)], soon())
        acknowledged[number] = NONE
        if found is None:
            continue
        expected = block(number, found.length, sequence=found.sequence)
        loaded, data = load(tier, expected)
        if loaded.outcome is Outcome.OK:
            assert data == expected.data
            acknowledged[number] = found.sequence, found.length
        else:
            assert number in begun
            assert loaded.outcome is Outcome.CORRUPT


# ---- directories that no tier has open


@pytest.fixture
def one_directory(tmp_path: Path) -> DiskBackend:
    return DiskBackend(tmp_path / "one")


def _bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}


def test_a_whole_directory_has_no_fault(one_directory: DiskBackend) -> None:
    tier = one_directory.open()
    store(tier, *(block(number, 5000) for number in range(10)), block(20, 70_000))
    used = tier.usage()
    tier.close()
    (folder,) = one_directory.directories
    before = _bytes_of(folder)
    found = offline.check(str(folder))
    assert found.faults == []
    assert (found.blocks, found.stored_bytes) == (used.blocks, used.stored_bytes) == (11, 10 * 12_288 + 77_824)
    assert (found.node, found.segments, found.segment_bytes) == ("node-1", 2, 2 * SEGMENT_BYTES)
    assert found.journal == ""
    assert _bytes_of(folder) == before


def test_bad_slots_are_listed_and_freed(one_directory: DiskBackend) -> None:
    (folder,) = one_directory.directories
    tier = one_directory.open()
    data, header, erased, swapped, other, good = stored = [block(number, 5000) for number in range(6)]
    store(tier, *stored)
    slots = {each.block.name: slot_of(tier, each.block.name)[1] for each in stored}
    flipped = bytearray(one_directory.stored(tier, data.block.name))
    flipped[6000] ^= 1
    one_directory.overwrite(tier, data.block.name, bytes(flipped))
    one_directory.overwrite(tier, header.block.name, b"nonsense")
    one_directory.overwrite(tier, erased.block.name, b"")
    raw = [one_directory.stored(tier, each.block.name) for each in (swapped, other)]
    one_directory.overwrite(tier, swapped.block.name, raw[1])
    one_directory.overwrite(tier, other.block.name, raw[0])
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
    for open_again in (one_directory.open, one_directory.scanned):
        tier = open_again()
        assert_holds(tier, [good])
        assert_lacks(tier, stored[:-1])
        assert tier.usage().stored_bytes == tier.stored_size(5000)
        tier.close()


def test_a_slot_that_only_its_header_knows_is_bad(one_directory: DiskBackend) -> None:
    """As after a deletion whose header was not erased."""
    (folder,) = one_directory.directories
    tier = one_directory.open()
    whole, deleted = block(1, 5000), block(2, 5000)
    store(tier, whole, deleted)
    segment, slot = slot_of(tier, deleted.block.name)
    raw = one_directory.stored(tier, deleted.block.name)
    tier.delete([deleted.block.name], 1e12)
    with open(segment.path, "r+b") as file:
        file.seek(segment.offset(slot))
        file.write(raw)
    tier.close()
    assert offline.check(str(folder)).faults == [TierFault("segment-000000", slot, "the journal has no such block")]
    offline.repair(str(folder))
    tier = one_directory.scanned()
    assert_holds(tier, [whole])
    assert_lacks(tier, [deleted])


def test_orphaned_and_truncated_segments_are_listed_and_repaired(tmp_path: Path, one_directory: DiskBackend) -> None:
    (folder,) = one_directory.directories
    tier = one_directory.open()
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
    tier = one_directory.open()
    assert_holds(tier, [whole, small])
    assert_lacks(tier, [lost])


def test_a_directory_without_its_journal_is_checked_and_gets_one(one_directory: DiskBackend) -> None:
    (folder,) = one_directory.directories
    tier = one_directory.open()
    stored = [block(number, 5000) for number in range(5)]
    store(tier, *stored)
    tier.close()
    (folder / "journal").unlink()
    found = offline.check(str(folder))
    assert (found.faults, found.blocks, found.journal) == ([], 5, "journal: No such file or directory")
    offline.repair(str(folder))
    tier = one_directory.open()
    assert tier._directories[0].recovered_by == ""
    assert_holds(tier, stored)


def test_usage_counts_tenants_and_sizes(one_directory: DiskBackend) -> None:
    (folder,) = one_directory.directories
    tier = one_directory.open()
    store(tier, block(1, 5000, "a"), block(2, 5000, "b"), block(3, 70_000, "a"), block(4, 1, ""))
    tier.close()
    found = offline.usage(str(folder))
    assert found.tenants == {"": BlockSum(1, 8192), "a": BlockSum(2, 12_288 + 77_824), "b": BlockSum(1, 12_288)}
    assert found.sizes == {8192: BlockSum(1, 8192), 12_288: BlockSum(2, 24_576), 77_824: BlockSum(1, 77_824)}
    assert found.segment_bytes == 3 * SEGMENT_BYTES


@pytest.mark.parametrize("work", [offline.check, offline.repair, offline.usage])
def test_a_directory_in_use_or_of_nothing_is_refused(tmp_path: Path, one_directory: DiskBackend, work: object) -> None:
    assert callable(work)
    tier = one_directory.open()
    with pytest.raises(TierError, match="one: in use by node node-1, process"):
        work(str(one_directory.directories[0]))
    tier.close()
    work(str(one_directory.directories[0]))
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(NoTierDirectory, match="expected a directory of a tier"):
            work(str(path))
    assert not (tmp_path / "lock").exists()
