"""What the slots of a directory hold, from its journal, or from the headers of all slots if the journal cannot be used.

Both give the same result: the headers of erased slots are zeros, and a slot that was being changed when the process
ended is decided by its header in both cases. Data is not read, except to decide between two slots with one name.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dataplane.protocol.checksums import checksum
from dataplane.protocol.stored_blocks import StoredBlock
from dataplane.tiers.disk.alignment import read_page, read_slot, round_up
from dataplane.tiers.disk.segment_file import SegmentFile
from dataplane.tiers.disk.slot_journal import OPEN, RECORD, STORE, Checkpoint, JournalError, pack_record, read_journal
from dataplane.tiers.disk.superblock import Superblock
from dataplane.tiers.header import HEADER_BYTES, HeaderError, unpack_header

NAME_BYTES = 48
_THREADS = 4
_MAX_UNUSED_TENANTS = 1024
"""Names of tenants without blocks that a journal may carry along."""


class Recovered(NamedTuple):
    """The contents of a directory."""

    tenants: list[str]
    records: np.ndarray
    """A record STORE for each block, every name once."""
    stale: dict[int, bytes]
    """Packed names, by place, of blocks that a newer one replaced; their headers are to be erased."""
    journal_size: int
    """Size of a journal that says exactly this and can be continued, or 0."""
    reason: str
    """Why the headers were read, or nothing."""


def stored_size(length: int) -> int:
    """Return the size of a slot for a block of `length` bytes."""
    return HEADER_BYTES + round_up(length)


def location_of(segment: int, slot: int) -> int:
    """Return the number of a slot among all of a directory."""
    return segment << 32 | slot


def read_header(segment: SegmentFile, slot: int, cluster: bytes) -> StoredBlock | None:
    """Return the block that the header of a slot names, or None if there is none that fits. Raises OSError."""
    try:
        block = unpack_header(read_page(segment.fd, segment.offset(slot)), cluster)
    except HeaderError:
        return None
    return block if stored_size(block.length) == segment.slot_bytes else None


def data_matches(segment: SegmentFile, slot: int, length: int, expected: bytes) -> bool:
    """Return whether the data of a slot matches a checksum. Raises OSError."""
    data = memoryview(bytearray(length))
    header = read_slot(segment.fd, segment.offset(slot), data, direct=True)
    return header is not None and checksum(data) == expected


def recover(folder: Path, superblock: Superblock, segments: Mapping[int, SegmentFile]) -> Recovered:
    """Return what the slots hold. Raises OSError."""
    cluster = bytes.fromhex(superblock.cluster)
    reason = ""
    journal_size = 0
    try:
        journal = read_journal(folder, superblock.directory)
        last = _last(journal.records)
        checkpoint, undecided = _of_journal(journal.tenants, last, segments)
        exact = not undecided and len(checkpoint.records) == np.count_nonzero(last["op"] == STORE)
        journal_size = journal.size if exact else 0
        checkpoint = _joined(checkpoint, undecided, segments, cluster)
    except JournalError as error:
        reason = str(error)
        checkpoint = scan(segments.values(), cluster)
    newest, stale = _without_duplicates(checkpoint.records, segments)
    tenants = checkpoint.tenants
    used, numbers = np.unique(newest["tenant"], return_inverse=True)
    if len(tenants) > _MAX_UNUSED_TENANTS + len(used):
        tenants, newest["tenant"], journal_size = [tenants[number] for number in used], numbers, 0
    return Recovered(tenants, newest, stale, 0 if stale else journal_size, reason)


def scan(segments: Iterable[SegmentFile], cluster: bytes) -> Checkpoint:
    """Return a record for each slot whose header is valid. Raises OSError."""

    def of_segment(segment: SegmentFile) -> list[tuple[int, StoredBlock]]:
        blocks = ((slot, read_header(segment, slot, cluster)) for slot in range(segment.complete_slots()))
        return [(location_of(segment.number, slot), block) for slot, block in blocks if block is not None]

    with ThreadPoolExecutor(_THREADS, "larder-tier-scan") as pool:
        return _checkpoint([], [slot for slots in pool.map(of_segment, segments) for slot in slots])


def _checkpoint(tenants: list[str], slots: list[tuple[int, StoredBlock]]) -> Checkpoint:
    numbers = {tenant: number for number, tenant in enumerate(tenants)}
    packed = [
        pack_record(STORE, location >> 32, location & 0xFFFFFFFF, numbers.setdefault(block.tenant, len(numbers)), block)
        for location, block in slots
    ]
    return Checkpoint(list(numbers), np.frombuffer(b"".join(packed), RECORD))


def _last(records: np.ndarray) -> np.ndarray:
    """Return the last record of each slot."""
    _, from_end = np.unique(locations_of(records)[::-1], return_index=True)
    return records[len(records) - 1 - from_end]


def locations_of(records: np.ndarray) -> np.ndarray:
    """Return the places of records."""
    locations: np.ndarray = records["segment"].astype(np.int64) << 32 | records["slot"]
    return locations


def _of_journal(
    tenants: list[str], last: np.ndarray, segments: Mapping[int, SegmentFile]
) -> tuple[Checkpoint, list[int]]:
    """Return the blocks of the last records that fit the segments, and the slots that their headers decide."""
    numbers = np.array([*sorted(segments), 1 << 40], np.int64)  # the last is no segment: searches end there
    slots = np.array([*(segments[number].complete_slots() for number in sorted(segments)), 0])
    sizes = np.array([*(segments[number].slot_bytes for number in sorted(segments)), 0])
    at = np.searchsorted(numbers, last["segment"])
    last, at = last[exists := (numbers[at] == last["segment"]) & (last["slot"] < slots[at])], at[exists]
    size = HEADER_BYTES + -(-last["length"].astype(np.int64) // HEADER_BYTES) * HEADER_BYTES
    fits = (last["op"] == STORE) & (size == sizes[at]) & (last["tenant"] < len(tenants))
    undecided = locations_of(last[last["op"] == OPEN]).tolist()
    return Checkpoint(tenants, last[fits]), undecided


def _joined(
    checkpoint: Checkpoint, undecided: list[int], segments: Mapping[int, SegmentFile], cluster: bytes
) -> Checkpoint:
    """Add the blocks of the slots that their headers decide."""
    blocks = (
        (location, read_header(segments[location >> 32], location & 0xFFFFFFFF, cluster)) for location in undecided
    )
    decided = [(location, block) for location, block in blocks if block is not None]
    decided_checkpoint = _checkpoint(checkpoint.tenants, decided)
    return Checkpoint(
        decided_checkpoint.tenants,
        np.concatenate([checkpoint.records, decided_checkpoint.records]) if decided else checkpoint.records,
    )


def _without_duplicates(
    records: np.ndarray, segments: Mapping[int, SegmentFile]
) -> tuple[np.ndarray, dict[int, bytes]]:
    """Return the records without the older ones of a name, and the names of those by place. A newer block whose data
    is torn does not replace an older one."""
    records = records[np.argsort(records["sequence"], kind="stable")]
    names = split_names(records["name"].tobytes())
    newest = dict(zip(names, range(len(names)), strict=True))
    if len(newest) == len(names):
        return records, {}
    several = defaultdict(list)
    for row, name in enumerate(names):
        if newest[name] != row:
            several[name].append(row)
    dropped: list[int] = []
    for name, older in several.items():
        rows = [newest[name], *reversed(older)]
        winner = next((row for row in rows if _verified(records[row], segments)), rows[0])
        dropped += [row for row in rows if row != winner]
    stale = dict(zip(locations_of(records[dropped]).tolist(), (names[row] for row in dropped), strict=True))
    return np.delete(records, dropped), stale


def _verified(record: np.void, segments: Mapping[int, SegmentFile]) -> bool:
    segment = segments[int(record["segment"])]
    return data_matches(segment, int(record["slot"]), int(record["length"]), record["checksum"].tobytes())


def split_names(names: bytes) -> list[bytes]:
    """Return the names in their concatenation."""
    return [names[at : at + NAME_BYTES] for at in range(0, len(names), NAME_BYTES)]
