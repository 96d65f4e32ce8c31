"""The tier over one or several directories: one budget, blocks striped by free space and bandwidth."""

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from math import inf
from time import monotonic
from typing import NamedTuple, TypeVar

from dataplane.base.units import format_size
from dataplane.protocol.checksums import checksum
from dataplane.protocol.stored_blocks import BlockName, Loaded, Outcome, StoredBlock
from dataplane.tiers.disk.alignment import MAX_ADJACENT
from dataplane.tiers.disk.directory import DiskDirectory
from dataplane.tiers.disk.parameters import PAGE_BYTES, DiskParameters
from dataplane.tiers.disk.recovery import stored_size
from dataplane.tiers.disk.slot_journal import packed_name
from dataplane.tiers.header import HeaderError, pack_header, unpack_header
from dataplane.tiers.registry import ParameterError, TierContext
from dataplane.tiers.tier import BlockLoad, BlockStore, TierError, TierHealth, TierUsage

T = TypeVar("T")
R = TypeVar("R")
CLOSE_S = 30.0
"""Time for calls under way at `close`; the files of calls that take longer stay open."""
_LISTED = 1024
_RUN_BYTES = 4 << 20
"""Bytes of a call for which one more thread is used."""
_MORE_FREE_BYTES = 1 << 20
"""A device that had no room for a segment is asked again when it has this much more."""


def check_parameters(parameters: DiskParameters, budget_bytes: int) -> None:
    """Raise ParameterError for parameters that contradict each other or the budget."""
    if budget_bytes < parameters.segment_bytes:
        size = format_size(parameters.segment_bytes)
        budget = format_size(budget_bytes)
        raise ParameterError(
            "budget_bytes", f"expected at least one segment of {size} (parameters.segment_bytes), got {budget}"
        )
    if len(set(parameters.directories)) != len(parameters.directories):
        raise ParameterError("directories", "expected each directory once")


def open_disk_tier(parameters: DiskParameters, context: TierContext) -> "DiskTier":
    """Open a tier. A directory that cannot be read or written is left out and shown in `health`.

    Raises ParameterError, and TierError if a directory is in use or of another cluster, or if none is usable.
    """
    check_parameters(parameters, context.budget_bytes)
    try:
        return DiskTier(parameters, context)
    except OSError as error:
        raise TierError(f"{error.filename or parameters.directories[0]}: {error.strerror}") from error


class DiskTier:
    """A `Tier` on local disks."""

    def __init__(self, parameters: DiskParameters, context: TierContext) -> None:
        self._cluster = context.cluster
        self._budget_bytes = context.budget_bytes
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._calls = 0
        self._closed = False
        self._growing = threading.Lock()
        self._corrupt_blocks = 0
        self._failed: dict[str, str] = {}
        self._directories: list[DiskDirectory] = []
        self._pool = ThreadPoolExecutor(parameters.threads, "larder-tier-disk")
        self._threads = parameters.threads
        try:
            for path in parameters.directories:
                try:
                    self._directories.append(DiskDirectory(path, context, parameters, self._lock))
                except OSError as error:
                    self._failed[path] = f"cannot be opened: {error.strerror}"
            if not self._directories:
                raise TierError("; ".join(f"{path}: {reason}" for path, reason in self._failed.items()))
            self._keep_newest()
            self._fit_budget()
        except BaseException:
            self._pool.shutdown()
            for directory in self._directories:
                directory.close(clean=False)
            raise
        self._free_bytes: int | None = None
        self._measure()

    # --- the interface

    def stored_size(self, length: int) -> int:
        return stored_size(length)

    def lookup(self, names: Sequence[BlockName], deadline: float) -> list[StoredBlock | None]:
        with self._call(), self._lock:
            return [self._block(name) for name in names]

    def store(self, stores: Sequence[BlockStore], deadline: float) -> list[Outcome]:
        with self._call():
            if all(directory.fault for directory in self._directories):
                raise TierError(self._health().reason)
            runs = self._spread(lambda run: self._store_run(run, deadline), _runs(stores, self._threads))
            return [outcome for outcomes in runs for outcome in outcomes]

    def load(self, loads: Sequence[BlockLoad], deadline: float) -> list[Loaded]:
        with self._call():
            return self._spread(lambda load: self._load(load, deadline), loads)

    def delete(self, names: Sequence[BlockName], deadline: float) -> list[Outcome]:
        with self._call():
            return self._spread(lambda name: self._delete(name, deadline), names)

    def sync(self, deadline: float) -> Outcome:
        with self._call():
            if self._failed:
                return Outcome.FAILED  # nothing was deleted in a directory that was left out
            outcomes = (directory.sync(deadline) for directory in self._directories)
            return next((outcome for outcome in outcomes if outcome is not Outcome.OK), Outcome.OK)

    def blocks(self, deadline: float = inf) -> Iterator[StoredBlock]:
        with self._call():
            names_by_directory = [list(directory.index) for directory in self._directories]
        for names in names_by_directory:
            for at in range(0, len(names), _LISTED):
                listed = [BlockName(name[:16], name[16:]) for name in names[at : at + _LISTED]]
                with self._call(), self._lock:
                    blocks = [self._block(name) for name in listed]
                yield from (block for block in blocks if block is not None)

    def resize(self, budget_bytes: int) -> bool:
        """Change the budget, unless segment files exceed it."""
        with self._growing, self._lock:
            fits = self._segment_bytes() <= budget_bytes
            if fits:
                self._budget_bytes = budget_bytes
            return fits

    def usage(self) -> TierUsage:
        with self._lock:
            return TierUsage(
                sum(len(directory.index) for directory in self._directories),
                sum(directory.stored_bytes for directory in self._directories),
                self._budget_bytes,
                self._free_bytes,
                self._corrupt_blocks,
            )

    def health(self, deadline: float) -> TierHealth:
        try:
            with self._call():
                for directory in self._directories:
                    if monotonic() < deadline:
                        directory.probe()
                self._measure()
                return self._health()
        except TierError as error:
            return TierHealth(False, str(error))

    def close(self) -> None:
        with self._idle:
            already, self._closed = self._closed, True
            ended = self._idle.wait_for(lambda: self._calls == 0, CLOSE_S)
        self._pool.shutdown(wait=ended)
        if ended and not already:
            for directory in self._directories:
                directory.close()

    # --- one block

    def _find(self, key: bytes) -> tuple[DiskDirectory, int] | None:
        for directory in self._directories:
            if (location := directory.index.get(key)) is not None:
                return directory, location
        return None

    def _block(self, name: BlockName) -> StoredBlock | None:
        place = self._find(packed_name(name))
        return place[0].block(name, place[1]) if place else None

    def _store_run(self, stores: Sequence[BlockStore], deadline: float) -> list[Outcome]:
        """Store blocks one after the other, with one write for those whose slots are adjacent."""
        if monotonic() >= deadline:
            return [Outcome.LATE] * len(stores)
        outcomes = [Outcome.FAILED] * len(stores)
        slots_by_directory: dict[DiskDirectory, list[_TakenSlot]] = {}
        for at, store in enumerate(stores):
            header = self._header(store)
            if header is None:
                continue
            size = stored_size(store.block.length)
            place = self._take(size, [])
            if place is None:
                outcomes[at] = self._no_room([])
                continue
            holder, location = place
            data = memoryview(store.data).cast("B")
            slots_by_directory.setdefault(holder, []).append(_TakenSlot(at, location, header, data, store.block, size))
        for directory, slots in slots_by_directory.items():
            directory.begin([slot.location for slot in slots])
            written: list[_TakenSlot] = []
            failed: list[_TakenSlot] = []
            for group in _adjacent(slots):
                try:
                    directory.write([slot.location for slot in group], [(slot.header, slot.data) for slot in group])
                    written += group
                except OSError as error:
                    directory.failed("write", error)
                    failed += group
                finally:
                    with self._lock:
                        directory.writing_bytes -= sum(slot.size for slot in group)
            if written:
                self._commit(directory, [(slot.location, slot.block) for slot in written])
            for slot in written:
                outcomes[slot.at] = Outcome.OK
            for slot in failed:
                directory.release(packed_name(slot.block.name), slot.location)
                outcomes[slot.at] = self._store_elsewhere(slot, [directory])
        return outcomes

    def _header(self, store: BlockStore) -> bytes | None:
        """Return the header of a block; None if it cannot be stored."""
        block = store.block
        if memoryview(store.data).nbytes != block.length or stored_size(block.length) > self._max_slot_bytes():
            return None
        try:
            return pack_header(block, self._cluster)
        except ValueError:  # HeaderError, or a tenant that is not Unicode
            return None

    def _store_elsewhere(self, slot: "_TakenSlot", tried: list[DiskDirectory]) -> Outcome:
        """Store a block in a directory that is not in `tried`."""
        while (place := self._take(slot.size, tried)) is not None:
            directory, location = place
            directory.begin([location])
            try:
                directory.write([location], [(slot.header, slot.data)])
            except OSError as error:
                directory.failed("write", error)
                tried.append(directory)
                directory.release(packed_name(slot.block.name), location)
            else:
                self._commit(directory, [(location, slot.block)])
                return Outcome.OK
            finally:
                with self._lock:
                    directory.writing_bytes -= slot.size
        return self._no_room(tried)

    def _no_room(self, tried: Sequence[DiskDirectory]) -> Outcome:
        failed = any(directory.fault for directory in tried) or all(directory.fault for directory in self._directories)
        return Outcome.FAILED if failed else Outcome.FULL

    def _commit(self, directory: DiskDirectory, stored: Sequence[tuple[int, StoredBlock]]) -> None:
        """Index written slots, and release the slots that they replace. The higher sequence of a name stays."""
        directory.record_stores(stored)
        replaced: list[tuple[bytes, DiskDirectory, int]] = []
        with self._lock:
            for location, block in stored:
                key = packed_name(block.name)
                before = self._find(key)
                if before and before[0].sequence(before[1]) > block.sequence:
                    replaced.append((key, directory, location))
                    continue
                if before:
                    before[0].drop(key)
                    replaced.append((key, *before))
                directory.insert(key, location, block)
        for key, holder, location in replaced:
            holder.release(key, location)

    def _load(self, load: BlockLoad, deadline: float) -> Loaded:
        into = load.into.cast("B")
        key = packed_name(load.name)
        while monotonic() < deadline:
            with self._lock:
                place = self._find(key)
                if not place:
                    return Loaded(Outcome.MISSING)
                directory, location = place
                expected = directory.block(load.name, location)
            if expected.length == into.nbytes:
                try:
                    header = directory.read(location, into)
                except OSError:
                    return Loaded(Outcome.FAILED)
                if header is not None and self._matches(header, expected, into):
                    return Loaded(Outcome.OK, expected)
            with self._lock:
                unchanged = self._find(key) == place and directory.sequence(location) == expected.sequence
                if unchanged:
                    directory.drop(key)
                    self._corrupt_blocks += 1
            if unchanged:
                directory.release(key, location)
                return Loaded(Outcome.CORRUPT)
        return Loaded(Outcome.LATE)  # or replaced, again and again, while it was read

    def _matches(self, header: memoryview, expected: StoredBlock, data: memoryview) -> bool:
        try:
            return unpack_header(header, self._cluster) == expected and checksum(data) == expected.checksum
        except HeaderError:
            return False

    def _delete(self, name: BlockName, deadline: float) -> Outcome:
        if monotonic() >= deadline:
            return Outcome.LATE
        key = packed_name(name)
        with self._lock:
            place = self._find(key)
            if place:
                place[0].drop(key)
            unerased = [
                (directory, location) for directory in self._directories for location in directory.take_unerased(key)
            ]
        erased = [directory.release(key, location, again=True) for directory, location in unerased]
        if place:
            erased.append(place[0].release(key, place[1]))
        return Outcome.OK if all(erased) else Outcome.FAILED

    # --- slots

    def _max_slot_bytes(self) -> int:
        return max(directory.segment_bytes for directory in self._directories) - PAGE_BYTES

    def _take(self, size: int, tried: list[DiskDirectory]) -> tuple[DiskDirectory, int] | None:
        """Take a slot of the best directory, with a new segment if that needs one."""
        full: list[DiskDirectory] = []
        while ranked := [
            directory for directory in self._ranked(size) if directory not in tried and directory not in full
        ]:
            best = ranked[0]
            with self._lock:
                location = best.take(size)
            if location is not None:
                return best, location
            if not self._grow(best, size):
                full.append(best)
        return None

    def _ranked(self, size: int) -> list[DiskDirectory]:
        """Return the directories in service, best first: bandwidth and free space, over what is being written."""
        fastest = max((directory.bandwidth for directory in self._directories), default=0.0) or 1.0

        def score(directory: DiskDirectory) -> float:
            return (directory.bandwidth or fastest) * directory.unused_bytes() / (directory.writing_bytes + size)

        usable = [
            directory
            for directory in self._directories
            if not directory.fault and size <= directory.segment_bytes - PAGE_BYTES
        ]
        return sorted(usable, key=score, reverse=True) if len(usable) > 1 else usable

    def _grow(self, directory: DiskDirectory, size: int) -> bool:
        """Make a free slot in a directory, by an empty segment or a new one. Return whether that worked."""
        with self._growing:
            with self._lock:
                if directory.has_slot(size):
                    return True
                fits = self._segment_bytes() + directory.segment_bytes <= self._budget_bytes
            try:
                if directory.reshape(size):
                    return True
                if not fits or directory.measure() < max(directory.min_free_bytes, directory.segment_bytes):
                    return False
                directory.create_segment(size)
            except OSError as error:
                directory.failed("allocation", error)
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    directory.min_free_bytes = directory.device_free_bytes + _MORE_FREE_BYTES
                return False
            return True

    def _segment_bytes(self) -> int:
        return sum(len(directory.segments) * directory.segment_bytes for directory in self._directories)

    # --- the start

    def _keep_newest(self) -> None:
        """Keep the newest block of a name that several directories hold."""
        for number, directory in enumerate(self._directories):
            for other in self._directories[number + 1 :]:
                for key in directory.index.keys() & other.index.keys():
                    newer = directory.sequence(directory.index[key]) > other.sequence(other.index[key])
                    older = other if newer else directory
                    older.release(key, older.drop(key))

    def _fit_budget(self) -> None:
        """Remove segments until the budget holds: empty ones first, then those without recent blocks."""
        excess_bytes = self._segment_bytes() - self._budget_bytes
        if excess_bytes <= 0:
            return
        ordered = sorted(
            (int(segment.details["sequence"].max(initial=0)) if segment.used_slots else -1, position, number)
            for position, directory in enumerate(self._directories)
            for number, segment in directory.segments.items()
        )
        removed: dict[int, set[int]] = {}
        for _, position, number in ordered:
            if excess_bytes > 0:
                removed.setdefault(position, set()).add(number)
                excess_bytes -= self._directories[position].segment_bytes
        for position, numbers in removed.items():
            self._directories[position].remove_segments(numbers)

    # --- state

    @contextmanager
    def _call(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise TierError("the disk tier is closed")
            self._calls += 1
        try:
            yield
        finally:
            with self._idle:
                self._calls -= 1
                if not self._calls:
                    self._idle.notify_all()

    def _spread(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Do the work for each item, on several threads if there are several items, begun in their order."""
        if len(items) == 1 or self._threads == 1:
            return [work(item) for item in items]
        results: list[R | None] = [None] * len(items)
        numbered = iter(enumerate(items))  # threads share it: a step of it is atomic

        def work_on() -> None:
            for number, item in numbered:
                results[number] = work(item)

        futures = [self._pool.submit(work_on) for _ in range(min(self._threads, len(items)) - 1)]
        try:
            work_on()
        finally:
            for future in futures:
                if not future.cancel():
                    future.result()
        return results  # type: ignore[return-value]  # every item is done

    def _measure(self) -> None:
        for directory in self._directories:
            try:
                directory.measure()
            except OSError as error:
                directory.failed("statvfs", error)
        free = {directory.device: directory.device_free_bytes for directory in self._directories}
        self._free_bytes = sum(free.values())

    def _health(self) -> TierHealth:
        faults = [f"{path}: {reason}" for path, reason in self._failed.items()]
        for directory in self._directories:
            notes = [directory.fault, directory.journal_fault]
            if not directory.direct:
                notes.append("I/O is buffered, without O_DIRECT")
            faults += [f"{directory.path}: {note}" for note in notes if note]
        return TierHealth(any(not directory.fault for directory in self._directories), "; ".join(faults))


class _TakenSlot(NamedTuple):
    """A slot that was taken for a block of a call."""

    at: int
    """Position of the block in the call."""
    location: int
    header: bytes
    data: memoryview
    block: StoredBlock
    size: int


def _runs(stores: Sequence[BlockStore], threads: int) -> list[Sequence[BlockStore]]:
    """Divide a call among threads, so that small blocks share writes and large ones share threads."""
    total_bytes = sum(store.block.length for store in stores)
    count = max(1, min(threads, total_bytes // _RUN_BYTES, len(stores)))
    length = min(MAX_ADJACENT, -(-len(stores) // count)) or 1
    return [stores[at : at + length] for at in range(0, len(stores), length)]


def _adjacent(slots: Sequence[_TakenSlot]) -> Iterator[Sequence[_TakenSlot]]:
    """Yield the parts of `slots` that follow each other in one segment."""
    begin = 0
    for at in range(1, len(slots) + 1):
        if at == len(slots) or slots[at].location != slots[at - 1].location + 1:
            yield slots[begin:at]
            begin = at
