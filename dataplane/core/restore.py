"""Restore the state of a data plane from the memory of a previous one that was killed.

The previous process stored its words in program order, so the memory holds a prefix of its intended stores. Every such
prefix has exactly one interpretation, and restoring again after a kill in the middle of the restoration gives the same
result:

* A RESERVED block, in the index or not: its owner may still write. It becomes QUARANTINED, with the owner that the
  recovery table names.
* An EVICTING block: its bytes are complete until it is FREE. It returns to READY.
* A READY block that is not in the index: it was invalidated or was being removed. It is freed as soon as no lease holds
  it.
* A READY block that is marked invalid: it is freed in the same way, even if the header entry that makes readers check
  the marks was not yet written.
* An index entry whose descriptor is FREE or has another key: it was written before its block, or was to be cleared
  after it. It is cleared.

Lease counters are adopted before any block is evicted. The restoration depends only on the three memories; the current
time and the state of processes are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dataplane.core.blocks.blocks import Block, BlockTable
from dataplane.core.blocks.slabs import SMALL_SLAB_BYTES, Slab, Slot, slot_bytes
from dataplane.core.engines.engines import Engine, Expulsion, OpenReservation
from dataplane.core.engines.rings import RingReader
from dataplane.core.journal.id_journal import EngineName, JournalContents
from dataplane.core.journal.recovery_table import ROW_HITS, ROW_PARENT, ROW_RESERVATION, ROW_TENANT_OWNER, ROW_USED
from dataplane.protocol.layout import (
    A_RING_TAIL,
    COLD_STORED_AT,
    H_INVALID,
    H_INVALID_COUNT,
    HOT_KEY,
    HOT_NBYTES,
    HOT_OFFSET,
    HOT_SPACE_SEGMENT,
    I64,
    INVALID_WORDS,
    MAX_INVALIDATIONS,
    U64,
    AreaMemory,
    IndexMemory,
    Mask,
)
from dataplane.protocol.states import STATE_MASK, BlockStep, State, advance

if TYPE_CHECKING:
    from dataplane.core.node import Node
    from dataplane.core.pool.pool import Pool
    from dataplane.core.tenants.tenant import Tenant

_LOW32 = np.uint64(0xFFFFFFFF)
_SHIFT32 = np.uint64(32)
_STATE = np.uint64(STATE_MASK)
_LAST_TAIL = 1 << 62
_LAST_TIMESTAMP = np.uint64(1 << 62)


class Contradiction(Exception):
    """The memory is not a prefix of any data plane's stores; the message says why. None of it may be used."""


@dataclass(frozen=True, slots=True)
class SurvivingMemory:
    """Memory that outlived the previous data plane."""

    journal: JournalContents
    segments: Mapping[int, int]
    """Size in bytes of each segment whose memory survived, by segment number."""
    area: Callable[[int], AreaMemory | None]
    """Callback that returns the area of a client, or None when the area did not survive."""
    alive: Callable[[EngineName], bool]
    """Callback that returns whether an engine's process still runs; a process whose pid was reused counts as gone."""


@dataclass(slots=True)
class Restored:
    """Result of a restoration."""

    blocks: int = 0
    """Number of READY blocks."""
    bytes: int = 0
    quarantined_blocks: int = 0
    engines: int = 0
    lost_blocks: int = 0
    """Number of READY blocks whose segment did not survive."""
    gone: list[int] = field(default_factory=list)
    """Clients whose processes have ended; the caller must call `process_gone` for each."""


def surviving_segments(
    journal: JournalContents, memory: IndexMemory, memfds: Mapping[int, int], named_bytes: int
) -> dict[int, int]:
    """Return the size in bytes of each segment whose memory survived: the memfds, and the ranges that lie within the
    first `named_bytes` of the named segment.

    Remove ranges without a block from `journal`, because another segment may have taken their place.
    """
    live = memory.hot[(memory.control & _STATE) != 0, HOT_SPACE_SEGMENT]
    used = set(_distinct((live >> _SHIFT32).astype(np.int64)))
    sizes = dict(memfds)
    for record in list(journal.segments.values()):
        if record.base is None:
            continue
        if record.number not in used:
            del journal.segments[record.number]
        elif record.base + record.nbytes <= named_bytes:
            sizes[record.number] = record.nbytes
    return sizes


def restore(node: Node, surviving: SurvivingMemory, now: float) -> Restored:
    """Fill a new node from the memory that a previous data plane wrote. Raise Contradiction."""
    pool = node.pool
    restored = Restored()
    used = {segment.space for segment in surviving.journal.segments.values()}
    used.update(number for engine in surviving.journal.engines.values() for number, _ in engine.spaces)
    for number, space in sorted(surviving.journal.spaces.items()):
        if number in used:
            pool.spaces.restore(number, space)
    _restore_engines(node, surviving, restored)
    timestamp = pool.table.memory.cold[:, COLD_STORED_AT].max()
    if timestamp > _LAST_TIMESTAMP:
        raise Contradiction(f"a block was stored at {int(timestamp)} ns")
    pool.sweeps.continue_after(int(timestamp))
    rows = _Rows(pool.table, surviving)
    restored.lost_blocks = rows.drop_unsound()
    # A tenant number without blocks may belong to a salt that has since got another number.
    tenants = {
        number: pool.tenants.restore(number, surviving.journal.tenants[number]) for number in _distinct(rows.tenant)
    }
    pool.table.names.only_tenants(tenants)
    slots = _restore_slabs(pool, rows, surviving)
    entries = rows.entries()
    blocks = _make_blocks(pool, rows, slots, entries, tenants)
    pool.table.restore(blocks)
    _settle(node, blocks, rows, restored, now)
    pool.table.memory.header[H_INVALID_COUNT : H_INVALID + INVALID_WORDS * MAX_INVALIDATIONS] = 0
    return restored


# ---- engines


def _restore_engines(node: Node, surviving: SurvivingMemory, restored: Restored) -> None:
    for client, name in sorted(surviving.journal.engines.items()):
        alive = surviving.alive(name)
        area = surviving.area(client)
        if area is None:
            if alive:
                raise Contradiction(f"the area of client {client} is missing, although its process is running")
            continue
        tail = int(area.header[A_RING_TAIL])
        engine = Engine(
            client=client,
            pid=name.pid,
            group=name.group,
            name=name.name,
            attached_at=name.attached_at,
            spaces=dict(name.spaces),
            space_list=[
                surviving.journal.spaces[number] for number, _ in name.spaces if number in surviving.journal.spaces
            ],
            ring=RingReader(area, tail=tail if tail <= _LAST_TAIL else 0),
            connected=False,
            started=name.started,
            gateway=name.gateway,
            expelled=_expulsion(name),
        )
        node.engines.adopt(engine, area)
        restored.engines += 1
        if not alive:
            restored.gone.append(client)
    engines = list(node.engines.values())
    for engine in engines:
        engine.waits_for = {other.client for other in engines if other.group == engine.group}


def _expulsion(name: EngineName) -> Expulsion:
    """Return the recorded expulsion state of an engine. Raise Contradiction for an unknown value."""
    try:
        return Expulsion(name.expelled)
    except ValueError as error:
        raise Contradiction(f"client {name.client}: {error}") from None


# ---- blocks


class _Rows:
    """Rows of all descriptors that are not FREE, least recently used first. Each array has one item per block."""

    def __init__(self, table: BlockTable, surviving: SurvivingMemory) -> None:
        memory, recovery_table = table.memory, table.recovery_table
        self._memory = memory
        self._surviving = surviving
        numbers: I64 = np.flatnonzero((memory.control & _STATE) != 0)
        used = recovery_table.rows[numbers, ROW_USED]
        self._take(numbers[np.argsort(used, kind="stable")], recovery_table.rows)
        if len(self.state) and int(self.state.max()) > max(State):
            raise Contradiction(f"a block is in state {int(self.state.max())}")

    def _take(self, numbers: I64, recovery_rows: U64) -> None:
        hot = self._memory.hot[numbers]
        self._recovery_rows = recovery_rows
        self.numbers = numbers
        self.control = hot[:, 0]
        self.state = self.control & _STATE
        self.keys = hot[:, HOT_KEY : HOT_KEY + 4]
        self.space = (hot[:, HOT_SPACE_SEGMENT] & _LOW32).astype(np.int64)
        self.segment = (hot[:, HOT_SPACE_SEGMENT] >> _SHIFT32).astype(np.int64)
        self.offset = hot[:, HOT_OFFSET].astype(np.int64)
        self.nbytes = hot[:, HOT_NBYTES].astype(np.int64)
        rows = recovery_rows[numbers]
        self.used = rows[:, ROW_USED]
        self.hits = rows[:, ROW_HITS]
        self.tenant = (rows[:, ROW_TENANT_OWNER] & _LOW32).astype(np.int64)
        self.owner = (rows[:, ROW_TENANT_OWNER] >> _SHIFT32).astype(np.int64)
        self.reservation = rows[:, ROW_RESERVATION].astype(np.int64)
        self.parents = rows[:, ROW_PARENT:]

    def drop_unsound(self) -> int:
        """Free blocks whose segment did not survive and return the number of READY ones among them.

        Raise Contradiction when a block contradicts its segment or tenant.
        """
        journal = self._surviving.journal
        surviving_segments = np.array(
            [number for number in journal.segments if number in self._surviving.segments], np.int64
        )
        sound = np.isin(self.segment, surviving_segments)
        for number in _distinct(self.segment[sound]):
            record, nbytes = journal.segments[number], self._surviving.segments[number]
            in_segment = self.segment == number
            if record.nbytes != nbytes:
                raise Contradiction(f"segment {number} has {nbytes} bytes, the id journal says {record.nbytes}")
            block_ends = self.offset[in_segment] + self.nbytes[in_segment]
            if (
                (self.space[in_segment] != record.space).any()
                or int(self.offset[in_segment].min()) < 0
                or int(self.nbytes[in_segment].min()) < 1
                or int(block_ends.max()) > nbytes
            ):
                raise Contradiction(f"a block is out of bounds or in the wrong space in segment {number}")
            if record.space not in journal.spaces:
                raise Contradiction(f"segment {number} is of space {record.space}, which has no record")
        if not np.isin(self.tenant[sound], np.array(sorted(journal.tenants), np.int64)).all():
            raise Contradiction("a block's tenant has no record")
        lost = int(np.count_nonzero(~sound & (self.state >= State.READY) & (self.state <= State.EVICTING)))
        for number, control in zip(self.numbers[~sound].tolist(), self.control[~sound].tolist(), strict=True):
            for step in _WAY_OUT[control & STATE_MASK]:
                control = advance(control, step)
            self._memory.hot[number, 0] = control
        if not sound.all():
            self._take(self.numbers[sound], self._recovery_rows)
        return lost

    def entries(self) -> I64:
        """Return the position of each block's entry in the index, -1 for none. Clear entries that belong to no
        block."""
        memory = self._memory
        flat = memory.entries.reshape(-1)
        at: I64 = np.flatnonzero(flat)
        descriptor = (flat[at] & _LOW32).astype(np.int64) - 1
        row = np.full(memory.max_blocks + 1, -1, np.int64)
        listed = self.state != State.QUARANTINED
        row[self.numbers[listed]] = np.flatnonzero(listed)
        row_of_entry = row[
            np.where((descriptor >= 0) & (descriptor < memory.max_blocks), descriptor, memory.max_blocks)
        ]
        is_known = row_of_entry >= 0
        buckets, tags = self._index_slots()
        chosen = row_of_entry[is_known]
        bucket = (at[is_known] // memory.entries.shape[1]).astype(np.uint64)
        matches = (buckets[chosen] == bucket[:, None]).any(axis=1) & (tags[chosen] == flat[at[is_known]] >> _SHIFT32)
        first = np.full(len(self.numbers), -1, np.int64)
        first[chosen[::-1]] = np.arange(len(chosen) - 1, -1, -1)
        surviving = matches & (first[chosen] == np.arange(len(chosen)))
        positions = np.full(len(self.numbers), -1, np.int64)
        positions[chosen[surviving]] = at[is_known][surviving]
        stray = np.concatenate((at[~is_known], at[is_known][~surviving]))
        flat[stray] = 0
        return positions

    def _index_slots(self) -> tuple[U64, U64]:
        buckets = np.zeros((len(self.numbers), 2), np.uint64)
        tags = np.zeros(len(self.numbers), np.uint64)
        for space in _distinct(self.space):
            chosen = self.space == space
            buckets[chosen], tags[chosen] = self._memory.buckets_and_tags(self.keys[chosen], space)
        return buckets, tags

    def invalid(self) -> Mask:
        """Return which blocks an invalidation covers. Its sweep ended with the previous data plane."""
        marked: Mask = self._memory.cold[self.numbers, COLD_STORED_AT] == 0
        valid = self._memory.valid(self.numbers, self._memory.hot[self.numbers])
        return marked if valid is None else marked | ~valid


_WAY_OUT: dict[int, tuple[BlockStep, ...]] = {
    State.RESERVED: (BlockStep.ABORT,),
    State.READY: (BlockStep.EVICT, BlockStep.FREE),
    State.EVICTING: (BlockStep.FREE,),
    State.QUARANTINED: (BlockStep.RELEASE,),
}


# ---- slabs


def _restore_slabs(pool: Pool, rows: _Rows, surviving: SurvivingMemory) -> list[Slot]:
    """Rebuild segments and slabs from the blocks and return the slot of each block. Raise Contradiction."""
    size = _slot_sizes(pool, rows)
    numbers = _distinct(rows.segment)
    segments = {}
    small = np.zeros(len(rows.numbers), np.bool_)
    for number in numbers:
        record = surviving.journal.segments[number]
        try:
            segments[number] = pool.slabs.restore_segment(
                number, record.space, record.nbytes, small=record.small, base=record.base
            )
        except ValueError as error:
            raise Contradiction(f"segment {number}: {error}") from None
        small[rows.segment == number] = record.small
    start = np.where(small, rows.offset // SMALL_SLAB_BYTES * SMALL_SLAB_BYTES, 0)
    index, remainder = np.divmod(rows.offset - start, size)
    if remainder.any():
        raise Contradiction("a block is not aligned to a slot")
    order = np.lexsort((rows.offset, rows.segment))
    slot_ends = rows.offset[order] + size[order]
    in_same_segment = rows.segment[order][1:] == rows.segment[order][:-1]
    if (in_same_segment & (slot_ends[:-1] > rows.offset[order][1:])).any():
        raise Contradiction("two blocks overlap")
    changes = np.flatnonzero(~in_same_segment | (start[order][1:] != start[order][:-1])) + 1
    bounds = [0, *changes.tolist(), len(order)] if len(order) else [0]
    slab_of: list[Slab | None] = [None] * len(order)
    for first, last in pairwise(bounds):
        slab_rows = order[first:last]
        sample = int(slab_rows[0])
        if (size[slab_rows] != size[sample]).any():
            raise Contradiction("a slab has blocks of two slot sizes")
        try:
            slab = pool.slabs.restore_slab(
                segments[int(rows.segment[sample])],
                int(start[sample]),
                int(size[sample]),
                set(index[slab_rows].tolist()),
            )
        except ValueError as error:
            raise Contradiction(str(error)) from None
        for at in slab_rows.tolist():
            slab_of[at] = slab
    return [
        Slot(slab, index, offset)
        for slab, index, offset in zip(slab_of, index.tolist(), rows.offset.tolist(), strict=True)
        if slab is not None
    ]


def _slot_sizes(pool: Pool, rows: _Rows) -> I64:
    """Return the slot size in bytes of each block. Compute it once per distinct size, because blocks share few
    sizes."""
    sizes = np.zeros(len(rows.numbers), np.int64)
    for space in _distinct(rows.space):
        block_bytes = pool.spaces.by_number[space].block_bytes
        in_space = rows.space == space
        distinct_bytes = np.array(_distinct(rows.nbytes[in_space]), np.int64)
        slots = np.array([slot_bytes(nbytes, block_bytes) for nbytes in distinct_bytes.tolist()], np.int64)
        sizes[in_space] = slots[np.searchsorted(distinct_bytes, rows.nbytes[in_space])]
    return sizes


def _distinct(values: I64) -> list[int]:
    """Return the distinct values in ascending order.

    `numpy.unique` imports masked arrays on its first use, which takes longer than this whole function.
    """
    ordered = np.sort(values)
    changes = np.ones(len(ordered), np.bool_)
    changes[1:] = ordered[1:] != ordered[:-1]
    distinct: list[int] = ordered[changes].tolist()
    return distinct


# ---- block objects


def _make_blocks(
    pool: Pool, rows: _Rows, slots: list[Slot], entries: I64, tenants: Mapping[int, Tenant]
) -> list[Block]:
    keys, parents = rows.keys.tobytes(), rows.parents.tobytes()
    width = pool.table.memory.entries.shape[1]
    rooted: list[bool] = (rows.parents != 0).any(axis=1).tolist()
    timestamps = pool.table.memory.cold[rows.numbers, COLD_STORED_AT].tolist()
    blocks = []
    for at, (number, control, space, tenant, slot, nbytes, entry, hits, used) in enumerate(
        zip(
            rows.numbers.tolist(),
            rows.control.tolist(),
            rows.space.tolist(),
            rows.tenant.tolist(),
            slots,
            rows.nbytes.tolist(),
            entries.tolist(),
            rows.hits.tolist(),
            rows.used.tolist(),
            strict=True,
        )
    ):
        block = Block(
            number,
            slot.slab.slot_bytes,
            int.from_bytes(keys[32 * at : 32 * at + 8], "little") ^ space,
            control,
            space,
            keys[32 * at : 32 * at + 32],
            tenants[tenant],
            slot,
            nbytes,
            divmod(entry, width) if entry >= 0 else None,
        )
        block.hits, block.used_at, block.timestamp = hits, used / 1e9, timestamps[at]
        if rooted[at]:
            block.parent = parents[32 * at : 32 * at + 32]
        slot.slab.blocks.add(number)
        blocks.append(block)
    return blocks


def _settle(node: Node, blocks: list[Block], rows: _Rows, restored: Restored, now: float) -> None:
    """Charge the blocks to their tenants and handle each one by its state, least recently used first."""
    pool = node.pool
    charged: dict[tuple[Tenant, int], list[Block]] = {}
    for block in blocks:
        charged.setdefault((block.tenant, block.space), []).append(block)
    for (tenant, _), tenant_blocks in charged.items():
        pool.charge(tenant, tenant_blocks)
    invalid = rows.invalid().tolist()
    owners = zip(rows.owner.tolist(), rows.reservation.tolist(), strict=True)
    ready: list[Block] = []
    dead: list[Block] = []
    for block, state, (owner, reservation), swept in zip(blocks, rows.state.tolist(), owners, invalid, strict=True):
        if state == State.RESERVED or state == State.QUARANTINED:
            _quarantine(node, block, owner, reservation)
            continue
        if state == State.EVICTING:
            pool.table.step((block,), BlockStep.PUT_BACK)
        ready.append(block)
        if block.entry is None or swept:
            dead.append(block)
    insert = pool.order.insert
    # As in a commit, but pins are added later and the recovery table is already up to date.
    for block in ready:
        insert(block, block.used_at)
    pool.reserved_bytes -= sum([block.charge for block in ready])
    restored.blocks, restored.bytes = len(ready), sum([block.nbytes for block in ready])
    restored.quarantined_blocks = len(blocks) - restored.blocks
    if dead:
        before = len(pool.table.blocks)
        pool.mark_dead(dead)
        pool.reap(now)
        restored.blocks -= before - len(pool.table.blocks)


def _quarantine(node: Node, block: Block, owner: int, reservation: int) -> None:
    """Keep a block that its owner could still write, or release it when the owner is gone."""
    pool = node.pool
    if block.state is State.RESERVED:
        pool.quarantine((block,))
    else:
        pool.reserved_bytes -= block.charge
        pool.quarantined_bytes += block.charge
    engine = node.engines.get(owner)
    if engine is None:
        pool.release(block, BlockStep.RELEASE)
        return
    reservation_of_block = engine.expired.get(reservation)
    if reservation_of_block is None:
        reservation_of_block = engine.expired[reservation] = OpenReservation(
            number=reservation, tenant=block.tenant, space=block.space, writing={}, present={}, deadline=0.0
        )
    reservation_of_block.writing[len(reservation_of_block.writing)] = block
