"""A directory in use: which slot holds which block, which slots are free, and the journal of both.

Memory is guarded by the lock of the tier, which no I/O is done under; methods that need it held say so. A slot belongs
to the call that took it until it is indexed, and to the call that dropped it until it is free: only that call changes
its bytes and writes its records, so the records of a slot are in order.
"""

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, perf_counter

import numpy as np

from dataplane.base.durable_files import sync_folder
from dataplane.protocol.stored_blocks import BlockName, Outcome, StoredBlock
from dataplane.tiers.disk.alignment import read_page, read_slot, write_slots
from dataplane.tiers.disk.parameters import DiskParameters
from dataplane.tiers.disk.recovery import NAME_BYTES, location_of, locations_of, recover, split_names
from dataplane.tiers.disk.segment_file import SegmentFile, segment_numbers
from dataplane.tiers.disk.slot_journal import (
    FREE,
    OPEN,
    RECORD,
    RECORDS,
    STORE,
    TENANT,
    Checkpoint,
    SlotJournal,
    pack_record,
)
from dataplane.tiers.disk.superblock import DirectoryLock, open_superblock
from dataplane.tiers.header import NO_PARENT
from dataplane.tiers.registry import TierContext
from dataplane.tiers.tier import TierError

DETAILS = ("sequence", "length", "tenant", "checksum", "parent")
_SLOT = 0xFFFFFFFF
_FULL = (errno.ENOSPC, errno.EDQUOT)
_WEIGHT = 0.1
"""Share of the newest write in the measured bandwidth."""


class DiskDirectory:
    """One directory of a disk tier."""

    def __init__(self, path: str, context: TierContext, parameters: DiskParameters, lock: threading.Lock) -> None:
        """Lock and recover a directory. Raises TierError if it may not be used, and OSError if it cannot."""
        self.path = Path(path)
        self.lock = lock
        self.index: dict[bytes, int] = {}
        """Place of each block by its packed name."""
        self.segments: dict[int, SegmentFile] = {}
        self.stored_bytes = 0
        """Bytes of all slots that are not free."""
        self.bandwidth = 0.0
        """Bytes per second of recent writes, 0 before the first."""
        self.writing_bytes = 0
        self.fault = ""
        """Why nothing is stored here at present."""
        self.journal_fault = ""
        self.device = 0
        self.device_free_bytes = 0
        """Free bytes of the device when they were last asked for."""
        self.min_free_bytes = 0
        """Free bytes that the device must have before another segment is tried."""
        self._available: dict[int, OrderedDict[int, SegmentFile]] = {}
        """Segments with a free slot and a used one, by slot size."""
        self._empty: OrderedDict[int, SegmentFile] = OrderedDict()
        self._undecided: set[int] = set()
        """Places of slots that are used and not indexed."""
        self._unerased: dict[bytes, set[int]] = {}
        """Places of slots that could not be erased, by packed name: the next start would index them."""
        self._unsynced: set[SegmentFile] = set()
        """Segments with slots that were erased, now or before the start, and have not been synced since."""
        self._tenants: list[str] = []
        self._tenant_numbers: dict[str, int] = {}
        self._journal_lock = threading.Lock()
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._owner = DirectoryLock(self.path, f"node {context.node}")
        try:
            self.superblock = open_superblock(self.path, context, parameters.segment_bytes)
            self.segment_bytes = self.superblock.segment_bytes
            self.direct = parameters.direct_io != "off" and _supports_direct_io(self._owner.path)
            if parameters.direct_io == "on" and not self.direct:
                raise TierError(f"{path}: the file system has no O_DIRECT, and direct_io is on")
            self._journal = SlotJournal(self.path, self.superblock.directory)
            self.recovered_by = self._recover()
        except BaseException:
            self.close(clean=False)
            raise

    def _recover(self) -> str:
        for number in segment_numbers(self.path):
            segment = SegmentFile(self.path, self.superblock, number, direct=self.direct, create=False)
            self.segments[number] = segment
            self._unsynced.add(segment)
            segment.read_shape()
        recovered = recover(self.path, self.superblock, self.segments)
        self._tenants = recovered.tenants
        self._tenant_numbers = {tenant: number for number, tenant in enumerate(recovered.tenants)}
        names = split_names(recovered.records["name"].tobytes())
        self.index = dict(zip(names, locations_of(recovered.records).tolist(), strict=True))
        self._undecided = set(recovered.stale)
        records = recovered.records[np.argsort(recovered.records["segment"], kind="stable")]
        for segment, (start, end) in zip(self.segments.values(), self._spans(records), strict=True):
            segment.extend()
            self._fill(segment, records[start:end])
        with self._start_of_journal():
            if recovered.journal_size:
                self._journal.resume(Checkpoint(recovered.tenants, recovered.records, recovered.journal_size))
            else:
                self._journal.replace(self._checkpoint())
        for location, key in recovered.stale.items():
            self.release(key, location)
        return recovered.reason

    def _spans(self, records: np.ndarray) -> list[tuple[int, int]]:
        """Return where the records of each segment are among records that are sorted by segment."""
        numbers = np.fromiter(self.segments, np.int64, len(self.segments))
        starts = np.searchsorted(records["segment"], numbers)
        ends = np.searchsorted(records["segment"], numbers, "right")
        return list(zip(starts.tolist(), ends.tolist(), strict=True))

    def _fill(self, segment: SegmentFile, records: np.ndarray) -> None:
        used = np.zeros(segment.slots, bool)
        used[records["slot"]] = True
        used[[location & _SLOT for location in self._undecided if location >> 32 == segment.number]] = True
        for field in DETAILS:
            segment.details[field][records["slot"]] = records[field]
        segment.free_all_but(used)
        self.stored_bytes += segment.used_slots * segment.slot_bytes
        if not segment.used_slots:
            self._empty[segment.number] = segment
        elif segment.free:
            self._available.setdefault(segment.slot_bytes, OrderedDict())[segment.number] = segment

    # --- memory, with the lock held

    def take(self, slot_bytes: int) -> int | None:
        """Take a free slot without I/O, and return its place, or None."""
        available = self._available.setdefault(slot_bytes, OrderedDict())
        if not available:
            numbers = (number for number, segment in self._empty.items() if segment.slot_bytes == slot_bytes)
            if (number := next(numbers, None)) is None:
                return None
            available[number] = self._empty.pop(number)
        segment = next(iter(available.values()))
        location = location_of(segment.number, segment.free.pop())
        if not segment.free:
            del available[segment.number]
        self._undecided.add(location)
        self.stored_bytes += slot_bytes
        self.writing_bytes += slot_bytes
        return location

    def block(self, name: BlockName, location: int) -> StoredBlock:
        """Return the block of an indexed slot."""
        row = self.segments[location >> 32].details[location & _SLOT]
        tenant = self._tenants[row["tenant"]]
        parent = row["parent"].tobytes()
        return StoredBlock(
            name,
            tenant,
            int(row["sequence"]),
            int(row["length"]),
            row["checksum"].tobytes(),
            b"" if parent == NO_PARENT else parent,
        )

    def sequence(self, location: int) -> int:
        return int(self.segments[location >> 32].details["sequence"][location & _SLOT])

    def tenant_number(self, tenant: str) -> int:
        number = self._tenant_numbers.setdefault(tenant, len(self._tenants))
        if number == len(self._tenants):
            self._tenants.append(tenant)
        return number

    def insert(self, key: bytes, location: int, block: StoredBlock) -> None:
        """Index a slot that was taken and written."""
        tenant = self.tenant_number(block.tenant)
        details = (block.sequence, block.length, tenant, block.checksum, block.parent or NO_PARENT)
        self.segments[location >> 32].details[location & _SLOT] = details
        self._undecided.discard(location)
        self.index[key] = location

    def drop(self, key: bytes) -> int:
        """Take a block out of the index, and return its place, which is to be released."""
        location = self.index.pop(key)
        self._undecided.add(location)
        return location

    def take_unerased(self, key: bytes) -> set[int]:
        """Return the places of slots of a name that could not be erased, which are to be released again."""
        return self._unerased.pop(key, set())

    def has_slot(self, slot_bytes: int) -> bool:
        """Return whether `take` would succeed."""
        return bool(self._available.get(slot_bytes)) or any(
            segment.slot_bytes == slot_bytes for segment in self._empty.values()
        )

    def unused_bytes(self) -> int:
        """Return the bytes that could still be stored here, as far as it is known."""
        return self.device_free_bytes + len(self.segments) * self.segment_bytes - self.stored_bytes

    # --- files, without the lock

    def begin(self, locations: Sequence[int]) -> None:
        """Record that the bytes of slots that were taken change from now on."""
        self._record(b"".join(pack_record(OPEN, location >> 32, location & _SLOT) for location in locations))

    def write(self, locations: Sequence[int], slots: Sequence[tuple[bytes, memoryview]]) -> None:
        """Write headers and data to adjacent slots, after `begin`. Raises OSError."""
        segment = self.segments[locations[0] >> 32]
        started = perf_counter()
        offset = segment.offset(locations[0] & _SLOT)
        write_slots(segment.fd, offset, slots, segment.slot_bytes, direct=self.direct)
        rate = len(slots) * segment.slot_bytes / max(perf_counter() - started, 1e-9)
        self.bandwidth += _WEIGHT * (rate - self.bandwidth) if self.bandwidth else rate

    def record_stores(self, stored: Sequence[tuple[int, StoredBlock]]) -> None:
        """Record which slots hold which blocks, before these are indexed."""
        with self._journal_lock:  # until the records are written: a checkpoint gives tenants other numbers
            with self.lock:
                tenants = [self.tenant_number(block.tenant) for _, block in stored]
            self._append(
                b"".join(
                    pack_record(STORE, location >> 32, location & _SLOT, tenant, block)
                    for (location, block), tenant in zip(stored, tenants, strict=True)
                )
            )

    def read(self, location: int, into: memoryview) -> memoryview | None:
        """Read the data of a slot, and return its header, or None if the file is too short. Raises OSError."""
        segment = self.segments[location >> 32]
        return read_slot(segment.fd, segment.offset(location & _SLOT), into, direct=self.direct)

    def release(self, key: bytes, location: int, *, again: bool = False) -> bool:
        """Erase and free the slot of a name that is not indexed. Return False if that fails: the slot stays used until
        it is released `again`, or until the next start."""
        segment = self.segments[location >> 32]
        slot = location & _SLOT
        self._record(pack_record(OPEN, segment.number, slot))
        try:
            segment.erase(slot)
        except OSError as error:
            if not again:
                self.failed("erase", error)
            with self.lock:
                self._unerased.setdefault(key, set()).add(location)
            return False
        self._record(pack_record(FREE, segment.number, slot))
        with self.lock:
            self._undecided.discard(location)
            self._unsynced.add(segment)
            self.stored_bytes -= segment.slot_bytes
            segment.free.append(slot)
            available = self._available.setdefault(segment.slot_bytes, OrderedDict())
            if segment.used_slots:
                available.setdefault(segment.number, segment)
            else:
                available.pop(segment.number, None)
                self._empty[segment.number] = segment
        return True

    def sync(self, deadline: float) -> Outcome:
        """Sync the segments with erased slots. After a failure, the kernel may have dropped what it could not write."""
        while self._unsynced:
            if monotonic() >= deadline:
                return Outcome.LATE
            with self.lock:
                segment = self._unsynced.pop()  # before the sync, which may miss what is erased meanwhile
            try:
                os.fdatasync(segment.fd)
            except OSError as error:
                self.failed("sync", error)
                return Outcome.FAILED
        return Outcome.OK

    def reshape(self, slot_bytes: int) -> bool:
        """Give an empty segment to a slot size. Return whether there was one. Raises OSError."""
        with self.lock:
            if not self._empty:
                return False
            _, segment = self._empty.popitem()
        try:
            if segment.slot_bytes != slot_bytes:
                segment.allocate(slot_bytes)
        finally:
            with self.lock:
                self._empty[segment.number] = segment
        return True

    def create_segment(self, slot_bytes: int) -> None:
        """Add a segment for a slot size. Raises OSError, ENOSPC if the device has no room."""
        number = max(self.segments, default=-1) + 1
        segment = SegmentFile(self.path, self.superblock, number, direct=self.direct, create=True)
        try:
            segment.allocate(slot_bytes)
        except OSError:
            segment.close()
            segment.remove()
            raise
        with self.lock:
            self.device_free_bytes = max(self.device_free_bytes - self.segment_bytes, 0)
            self.segments[number] = segment
            self._empty[number] = segment

    def remove_segments(self, numbers: set[int]) -> None:
        """Delete segments with all their blocks. Only for the start, before other calls. Raises OSError."""
        self.index = {key: location for key, location in self.index.items() if location >> 32 not in numbers}
        self._undecided = {location for location in self._undecided if location >> 32 not in numbers}
        for locations in self._unerased.values():
            locations.difference_update({location for location in locations if location >> 32 in numbers})
        for number in numbers:
            segment = self.segments.pop(number)
            self.stored_bytes -= segment.used_slots * segment.slot_bytes
            self._available.get(segment.slot_bytes, OrderedDict()).pop(number, None)
            self._empty.pop(number, None)
            self._unsynced.discard(segment)
            segment.remove()
            segment.close()
        sync_folder(self.path)
        with self._start_of_journal():
            self._journal.replace(self._checkpoint())

    def measure(self) -> int:
        """Return the bytes that the device has left. Raises OSError."""
        file_system = os.statvfs(self.path)
        self.device_free_bytes = file_system.f_bavail * file_system.f_frsize
        self.device = os.stat(self.path).st_dev
        return self.device_free_bytes

    def failed(self, operation: str, error: OSError) -> None:
        """Store nothing here until `probe` succeeds. A full device is no failure."""
        if not self.fault and error.errno not in _FULL:
            self.fault = f"{operation} failed: {error.strerror}"

    def probe(self) -> None:
        """Find out whether the directory can be written, and write the journal again if that failed before."""
        self.fault = ""
        try:
            self._owner.probe()
        except OSError as error:
            self.failed("probe", error)
            return
        if self.journal_fault:
            with self._journal_lock:
                try:
                    self._replace_journal()
                    self.journal_fault = ""
                except OSError as error:
                    self._journal_failed(error)

    def close(self, *, clean: bool = True) -> None:
        """Release the files. No call may be under way."""
        journal = getattr(self, "_journal", None)
        if journal is not None:
            try:
                if clean and not self.journal_fault:
                    journal.close()
            except OSError:
                pass  # the next start finds a journal that was not closed
            finally:
                journal.discard_file()
        for segment in self.segments.values():
            segment.close()
        self._owner.release()

    # --- the journal

    def _record(self, records: bytes) -> None:
        with self._journal_lock:
            self._append(records)

    def _append(self, records: bytes) -> None:
        """Write records, with the lock of the journal held."""
        if self.journal_fault:
            return
        try:
            for tenant in self._tenants[self._journal.tenants :]:
                self._journal.append(TENANT, tenant.encode())
            self._journal.append(RECORDS, records)
            if self._journal.is_long:
                self._replace_journal()
        except OSError as error:
            self._journal_failed(error)

    @contextmanager
    def _start_of_journal(self) -> Iterator[None]:
        """Run a block that makes the journal say what the slots hold, or go on without one if the device has no room
        for it."""
        try:
            yield
            self.journal_fault = ""
        except OSError as error:
            if error.errno not in _FULL:
                raise
            self._journal_failed(error)

    def _journal_failed(self, error: OSError) -> None:
        """Go on without a journal; the next start reads the headers."""
        self.journal_fault = f"the journal cannot be written: {error.strerror}"
        try:
            self._journal.abandon()
        except OSError as worse:  # the next start would believe the old journal: store nothing that it does not say
            self.failed("removal of the journal", worse)

    def _replace_journal(self) -> None:
        with self.lock:
            contents = self._checkpoint()
        self._journal.replace(contents)

    def _checkpoint(self) -> Checkpoint:
        """Return what the slots hold, after the tenants without blocks were forgotten. The lock and the lock of the
        journal are held, or no other call is under way."""
        locations = np.fromiter(self.index.values(), np.int64, len(self.index))
        records = np.zeros(len(locations), RECORD)
        records["op"] = STORE
        records["segment"] = locations >> 32
        records["slot"] = locations & _SLOT
        records["name"] = np.frombuffer(b"".join(self.index), f"V{NAME_BYTES}")
        records = records[np.argsort(locations)]
        for segment, (start, end) in zip(self.segments.values(), self._spans(records), strict=True):
            rows = segment.details[records["slot"][start:end]]
            for field in DETAILS:
                records[field][start:end] = rows[field]
        used, records["tenant"] = np.unique(records["tenant"], return_inverse=True)
        self._keep_tenants(used)
        undecided = b"".join(pack_record(OPEN, location >> 32, location & _SLOT) for location in self._undecided)
        return Checkpoint(self._tenants.copy(), np.concatenate([records, np.frombuffer(undecided, RECORD)]))

    def _keep_tenants(self, kept: np.ndarray) -> None:
        """Forget all tenants but those of some numbers, in ascending order, which get numbers from 0."""
        numbers = np.zeros(max(1, len(self._tenants)), np.uint32)
        numbers[kept] = np.arange(len(kept))
        for segment in self.segments.values():
            segment.details["tenant"] = numbers[segment.details["tenant"]]
        self._tenants = [self._tenants[number] for number in kept]
        self._tenant_numbers = {tenant: number for number, tenant in enumerate(self._tenants)}


def _supports_direct_io(file: Path) -> bool:
    """Return whether a page can be read with O_DIRECT. Raises OSError if nothing can be read at all."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    try:
        read_page(fd, 0)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    finally:
        os.close(fd)
    return True
