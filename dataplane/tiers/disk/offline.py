"""Check, repair and describe directories while no node uses them: what `larder tiers` does.

These functions raise TierError if a node uses the directory or if it is not one of a tier, and OSError.
"""

import errno
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from dataplane.tiers.disk.alignment import read_page
from dataplane.tiers.disk.recovery import Recovered, data_matches, location_of, locations_of, recover
from dataplane.tiers.disk.segment_file import ERASED, SegmentFile, segment_numbers
from dataplane.tiers.disk.slot_journal import Checkpoint, SlotJournal
from dataplane.tiers.disk.superblock import DirectoryLock, Superblock, read_superblock
from dataplane.tiers.header import HeaderError, unpack_header
from dataplane.tiers.tier import TierError

_OWNER = "larder tiers"
_THREADS = 4


class NoTierDirectory(TierError):
    """There is no directory of a tier at the path."""


class TierFault(msgspec.Struct, frozen=True):
    """A slot or a segment that is not as it should be."""

    segment: str
    """Name of the file."""
    slot: int | None
    """Number of the slot, or None for the whole segment."""
    reason: str


class DirectoryCheck(msgspec.Struct, frozen=True):
    """The result of a check."""

    directory: str
    node: str
    segments: int
    segment_bytes: int
    blocks: int
    """Blocks whose data matches its checksum."""
    stored_bytes: int
    """Bytes of their slots."""
    journal: str
    """Why the journal cannot be used, or nothing."""
    faults: list[TierFault]


class BlockSum(msgspec.Struct, frozen=True):
    """Blocks of one tenant or one size in one directory."""

    blocks: int
    stored_bytes: int


class DirectoryUsage(msgspec.Struct, frozen=True):
    """What a directory holds."""

    directory: str
    node: str
    segment_bytes: int
    """Size of all segment files."""
    tenants: dict[str, BlockSum]
    sizes: dict[int, BlockSum]
    """By the size of the slots in bytes."""


class _Contents(NamedTuple):
    path: Path
    superblock: Superblock
    segments: dict[int, SegmentFile]
    orphans: dict[int, str]
    recovered: Recovered


def check(directory: str) -> DirectoryCheck:
    """Read all headers and all data of a directory. Changes nothing."""
    with _opened(directory) as contents:
        return _checked(contents)[0]


def repair(directory: str) -> DirectoryCheck:
    """Free the slots that a check finds bad, delete orphaned segments, and write the journal from the rest.

    Returns what the check found.
    """
    with _opened(directory) as contents:
        check, bad = _checked(contents)
        for number in contents.orphans:
            contents.segments[number].remove()
        for location in bad:
            contents.segments[location >> 32].erase(location & 0xFFFFFFFF)
        for number in contents.segments.keys() - contents.orphans.keys():
            contents.segments[number].extend()
        records = contents.recovered.records
        retained = records[~np.isin(locations_of(records), np.fromiter(bad, np.int64, len(bad)))]
        journal = SlotJournal(contents.path, contents.superblock.directory)
        journal.replace(Checkpoint(contents.recovered.tenants, retained))
        journal.close()
        return check


def usage(directory: str) -> DirectoryUsage:
    """Return the bytes of each tenant and size, from the journal or the headers."""
    with _opened(directory) as contents:
        records = contents.recovered.records
        sizes = {number: segment.slot_bytes for number, segment in contents.segments.items()}
        pairs = zip(records["tenant"].tolist(), records["segment"].tolist(), strict=True)
        counts = Counter((contents.recovered.tenants[tenant], sizes[segment]) for tenant, segment in pairs)
        by_tenant: dict[str, BlockSum] = {}
        by_size: dict[int, BlockSum] = {}
        for (tenant, size), blocks in sorted(counts.items()):
            by_tenant[tenant] = _added(by_tenant.get(tenant), blocks, blocks * size)
            by_size[size] = _added(by_size.get(size), blocks, blocks * size)
        files = sum(os.fstat(segment.fd).st_size for segment in contents.segments.values())
        return DirectoryUsage(directory, contents.superblock.node, files, by_tenant, dict(sorted(by_size.items())))


def _added(before: BlockSum | None, blocks: int, stored_bytes: int) -> BlockSum:
    return BlockSum(blocks + (before.blocks if before else 0), stored_bytes + (before.stored_bytes if before else 0))


@contextmanager
def _opened(directory: str) -> Iterator[_Contents]:
    path = Path(directory)
    if not path.is_dir() or read_superblock(path) is None:
        raise NoTierDirectory(f"{directory}: expected a directory of a tier")
    lock = DirectoryLock(path, _OWNER)
    segments: dict[int, SegmentFile] = {}
    try:
        superblock = read_superblock(path)
        assert superblock is not None
        orphans = {}
        for number in segment_numbers(path):
            segments[number] = segment = _open_segment(path, superblock, number)
            if (fault := segment.read_shape()) and os.fstat(segment.fd).st_size and read_page(segment.fd, 0) != ERASED:
                orphans[number] = fault
        yield _Contents(path, superblock, segments, orphans, recover(path, superblock, segments))
    finally:
        for segment in segments.values():
            segment.close()
        lock.release()


def _open_segment(path: Path, superblock: Superblock, number: int) -> SegmentFile:
    try:
        return SegmentFile(path, superblock, number, direct=True, create=False)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return SegmentFile(path, superblock, number, direct=False, create=False)


def _checked(contents: _Contents) -> tuple[DirectoryCheck, set[int]]:
    """Return the result, and the places of the bad slots."""
    records = contents.recovered.records
    expected = {
        location: (row["name"].tobytes(), int(row["sequence"]))
        for location, row in zip(locations_of(records).tolist(), records, strict=True)
    }
    stale = set(contents.recovered.stale)
    cluster = bytes.fromhex(contents.superblock.cluster)

    def of_segment(segment: SegmentFile) -> list[tuple[int, str]]:
        slots = range(segment.slots)
        locations = (location_of(segment.number, slot) for slot in slots)
        checked = ((location, _slot_fault(segment, location, cluster, expected, stale)) for location in locations)
        return [(location, reason) for location, reason in checked if reason]

    with ThreadPoolExecutor(_THREADS, "larder-tier-check") as pool:
        bad = dict(bad_slot for bad_slots in pool.map(of_segment, contents.segments.values()) for bad_slot in bad_slots)
    name = {number: segment.path.name for number, segment in contents.segments.items()}
    faults = [TierFault(name[number], None, reason) for number, reason in contents.orphans.items()]
    for number, segment in contents.segments.items():
        if segment.slots and (size := os.fstat(segment.fd).st_size) < segment.segment_bytes:
            faults.append(TierFault(name[number], None, f"expected {segment.segment_bytes} bytes, got {size}"))
    faults += [TierFault(name[location >> 32], location & 0xFFFFFFFF, reason) for location, reason in bad.items()]
    intact = [location for location in expected if location not in bad]
    result = DirectoryCheck(
        str(contents.path),
        contents.superblock.node,
        len(contents.segments),
        sum(os.fstat(segment.fd).st_size for segment in contents.segments.values()),
        len(intact),
        sum(contents.segments[location >> 32].slot_bytes for location in intact),
        contents.recovered.reason,
        faults,
    )
    return result, set(bad)


def _slot_fault(
    segment: SegmentFile, location: int, cluster: bytes, expected: dict[int, tuple[bytes, int]], stale: set[int]
) -> str:
    """Return what is wrong with a slot, or nothing."""
    slot = location & 0xFFFFFFFF
    entry = expected.get(location)
    try:
        page = bytes(read_page(segment.fd, segment.offset(slot)))
        if page == ERASED[: len(page)]:
            return "the header is missing" if entry else ""
        block = unpack_header(page, cluster)
        if (b"".join(block.name), block.sequence) != entry:
            if entry:
                return "the slot holds another block"
            return "a newer block has the same name" if location in stale else "the journal has no such block"
        if not data_matches(segment, slot, block.length, block.checksum):
            return "the data does not match its checksum"
    except HeaderError as error:
        return f"header: {error}"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return ""
