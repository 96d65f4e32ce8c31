"""Reserve, commit and abort: store blocks, and clean up blocks that were only partly written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dataplane.core.blocks.blocks import Block, IndexSlots
from dataplane.core.blocks.slabs import Slot, slot_bytes
from dataplane.core.engines.engines import Engine, OpenReservation
from dataplane.core.eviction.ancestors import chains_up_to
from dataplane.core.eviction.reclaimer import Reclaimer
from dataplane.core.journal.recovery_table import B_RESERVATION
from dataplane.core.packed_keys import check_keys
from dataplane.core.pool.hints import Hint
from dataplane.core.pool.pool import Pool
from dataplane.core.pool.sessions import SHARED, UNCLAIMED
from dataplane.core.tenants.tenant import Tenant
from dataplane.policies.admission import Admission
from dataplane.protocol.codes import Code, ProtocolError, ReserveOutcome
from dataplane.protocol.engine import CHECKSUM_BYTES, Commit, HintedReserve, Reserve, SessionReserve
from dataplane.protocol.events import BlocksRefused, BlocksStored, ReservationAborted, ReservationExpired
from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.layout import U64, pack_keys
from dataplane.protocol.salts import check_salt, shown
from dataplane.protocol.sessions import check_session
from dataplane.protocol.spaces import MAX_BLOCK_BYTES
from dataplane.protocol.states import STATE_MASK, BlockStep, State

MAX_OPEN_RESERVATIONS = 256
_READY = int(State.READY)


class GrantResult:
    """Answer to a reservation, with one entry per key."""

    __slots__ = ("offsets", "outcomes", "reservation", "segments")

    def __init__(self, keys: int) -> None:
        self.reservation = 0
        self.outcomes = np.zeros(keys, np.uint8)
        self.segments = np.zeros(keys, np.uint32)
        self.offsets = np.zeros(keys, np.uint64)


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """A request to store a chain of which some blocks are missing."""

    engine: Engine
    message: Reserve
    words: U64
    """Packed keys of the message."""
    index_slots: IndexSlots
    missing: list[int]
    """Positions of the missing blocks."""
    tenant: Tenant
    now: float
    from_tier: bool
    lines_up: bool
    session: int
    """Id of the session; SHARED if the request names none."""


class StoreService:
    """The writing side of the pool."""

    def __init__(
        self,
        pool: Pool,
        reclaimer: Reclaimer,
        reservation_ttl_s: float,
        requested: Callable[[Engine, Reserve, Tenant, U64, Sequence[Block], int, float], None],
    ) -> None:
        """`requested` is called for every chain that an engine wants to store, with its packed keys, the blocks before
        them and the number of leading blocks that were present."""
        self._pool = pool
        self._reclaimer = reclaimer
        self._ttl_s = reservation_ttl_s
        self._requested = requested
        self.draining = False
        """Whether all new blocks are refused."""
        self.refused_blocks: dict[str, int] = {}
        """Refused blocks by the name of the reason."""

    # ---- reserve

    def reserve(
        self,
        engine: Engine,
        message: Reserve,
        now: float,
        *,
        from_tier: bool = False,
        lines_up: bool = True,
        protected: set[Block] | None = None,
    ) -> GrantResult:
        """Reserve room for the missing blocks of a chain. Blocks that come from a tier pass no admission and no rate.
        `lines_up` says whether the commit makes the blocks before the chain as recent as the chain. `protected` are
        blocks of the chain that earlier calls have found, and that make no room; this call adds what it finds.

        Raise ProtocolError, and change nothing, if the request is invalid.
        """
        pool = self._pool
        words = self._check(engine, message)
        tenant = pool.tenants.get(message.tenant)
        blocks, index_slots = pool.table.look(words, message.space)
        blocks = self._without_invalid(blocks)
        parent = pool.table.find(pack_keys(message.parent), message.space)[0] if message.parent else None
        session = SHARED
        if isinstance(message, SessionReserve):
            session = pool.sessions.name(tenant.number, message.session, now)
        granted = GrantResult(len(words))
        missing, chain = _sorted_out(blocks, granted)
        present = ready = [block for _, block in chain]
        protected = set() if protected is None else protected
        if parent is not None:
            present = chains_up_to(pool.table, [parent], protected)[::-1] + ready
        if not from_tier:
            # The acquire of this request, or an earlier piece of it, already counted as the use of its blocks.
            counted = {block.number for block in present} if message.parent else engine.last_run
            pool.use_chain(present[::-1], counted, now)
            leading = next((number for number, (at, _) in enumerate(chain) if number != at), len(chain))
            before = present[: len(present) - len(ready)]
            self._requested(engine, message, tenant, words, before, leading, now)
            if pool.sessions or pool.tiers is not None:  # blocks that another engine is writing count, too
                pool.sessions.named([*before, *(block for block in blocks if block is not None)], session)
                if session != SHARED and present:
                    self._end_session(session, present[-1])
        protected.update(present)
        self._reclaimer.protect(protected)
        hint = Hint(message.ttl_s, message.pin_s) if isinstance(message, HintedReserve) else None
        if hint is not None and hint.pin_s:
            # A ttl must not shorten the life of blocks that were stored before.
            pinned, line = ([block for block in part if block.tenant is tenant] for part in (ready, present))
            pool.hint(Hint(pin_s=hint.pin_s), pinned, line, now)
        if not missing:
            return granted
        request = StoreRequest(engine, message, words, index_slots, missing, tenant, now, from_tier, lines_up, session)
        writing, refusal = self._grant(request)
        refused = missing[len(writing) :]
        if refused:
            assert refusal is not None
            granted.outcomes[refused] = refusal
            if not from_tier:
                self._refuse(request, refusal, refused)
        if writing:
            protected.update(writing.values())
            self._open_reservation(request, granted, [*blocks, parent], writing, chain, hint)
        return granted

    def _open_reservation(
        self,
        request: StoreRequest,
        granted: GrantResult,
        blocks: Sequence[Block | None],
        writing: dict[int, Block],
        chain: Sequence[tuple[int, Block]],
        hint: Hint | None,
    ) -> None:
        message, timestamp = request.message, self._pool.sweeps.timestamp(request.now)
        at_once = list(writing)
        granted.segments[at_once] = [block.slot.slab.segment.number for block in writing.values()]
        granted.offsets[at_once] = [block.slot.offset for block in writing.values()]
        for at, block in writing.items():
            block.timestamp = timestamp
            block.parent = message.keys[KEY_BYTES * (at - 1) : KEY_BYTES * at] if at else message.parent
            before = block.before = writing.get(at - 1) or blocks[at - 1]  # of the first one, the last of `blocks`
            if before is not None:
                before.children += 1
        granted.reservation = self._pool.table.recovery_table.highest(B_RESERVATION)
        request.engine.reservations[granted.reservation] = OpenReservation(
            number=granted.reservation,
            tenant=request.tenant,
            space=message.space,
            writing=writing,
            present={at: (block, block.control) for at, block in chain},
            deadline=request.now + self._ttl_s,
            keys=message.keys,
            parent=message.parent,
            before=blocks[-1] if request.lines_up else None,
            timestamp=timestamp,
            from_tier=request.from_tier,
            hint=hint,
            session=request.session,
        )

    def _end_session(self, session: int, last: Block) -> None:
        """Note the last block of a session's chain."""
        self._pool.sessions.ends_with(session, last, leads=self._pool.spaces.leads(last.space))

    def _without_invalid(self, blocks: list[Block | None]) -> list[Block | None]:
        """Treat blocks that an invalidation covers as missing, even before the sweep has reached them."""
        pool = self._pool
        if not pool.sweeps.active:
            return blocks
        covered = [
            block for block in blocks if block is not None and block.state is State.READY and pool.invalid(block)
        ]
        if not covered:
            return blocks
        pool.totals.invalidated_blocks += pool.mark_dead(covered)
        return [None if block in pool.dead else block for block in blocks]

    def _check(self, engine: Engine, message: Reserve) -> U64:
        if message.tenant not in self._pool.tenants.by_salt:
            check_salt(message.tenant)
        writes = engine.spaces.get(message.space)
        if writes is None:
            raise ProtocolError(Code.UNKNOWN_SPACE, f"space {message.space} is not attached", "space")
        if not writes:
            raise ProtocolError(Code.READ_ONLY_SPACE, f"space {message.space} is attached read-only", "space")
        block_bytes = self._pool.spaces.by_number[message.space].block_bytes
        most = block_bytes or MAX_BLOCK_BYTES
        if not 1 <= message.nbytes <= most:
            raise ProtocolError(Code.BAD_SIZE, f"expected 1 to {most} bytes, got {message.nbytes}", "nbytes")
        if message.parent and len(message.parent) != KEY_BYTES:
            raise ProtocolError(
                Code.BAD_KEYS, f"expected {KEY_BYTES} bytes, or none, got {len(message.parent)}", "parent"
            )
        if isinstance(message, SessionReserve):
            check_session(message.session)
        words = check_keys(message.keys)
        if message.parent and (words == pack_keys(message.parent)).all(axis=1).any():
            raise ProtocolError(Code.BAD_KEYS, "expected a key that is not among `keys`", "parent")
        return words

    def _grant(self, request: StoreRequest) -> tuple[dict[int, Block], Code | None]:
        """Return blocks for a leading part of the missing keys, by position, and why the rest is refused."""
        pool, engine, tenant, now = self._pool, request.engine, request.tenant, request.now
        space, nbytes = request.message.space, request.message.nbytes
        size = slot_bytes(nbytes, pool.spaces.by_number[space].block_bytes)
        if self.draining:
            return {}, Code.DRAINING
        if size > pool.slabs.most_bytes(named=pool.spaces.named(space)):
            return {}, Code.TOO_LARGE
        if len(engine.reservations) + len(engine.expired) >= MAX_OPEN_RESERVATIONS:
            return {}, Code.TOO_MANY_RESERVATIONS
        if not tenant.blocks and not pool.table.names.takes_tenant(tenant.number, tenant.salt):
            return {}, Code.TOO_MANY_TENANTS
        count, refusal = self._allowed(request, size)
        described = self._reclaimer.free_descriptors(tenant, count, now)
        if described < count:
            full = pool.used_bytes + size > pool.slabs.capacity_bytes
            count, refusal = described, Code.POOL_FULL if full else Code.NO_DESCRIPTOR
        slots, reason = self._reclaimer.take_slots(tenant, space, size, count, now)
        refusal = refusal if reason is None else reason
        writing = self._create_blocks(request, slots)
        if len(writing) < len(slots):
            refusal = Code.INDEX_FULL
        if tenant.rate is not None and not request.from_tier:
            tenant.rate.spend(size * len(writing))
        return writing, refusal

    def _allowed(self, request: StoreRequest, size: int) -> tuple[int, Code | None]:
        """Return how many missing blocks admission and the tenant's quota allow, and why the next one is refused."""
        tenant, now, count = request.tenant, request.now, len(request.missing)
        refusal: Code | None = None
        if self._pool.admission is not None and not request.from_tier:
            admitted = self._admitted(self._pool.admission, request)
            if admitted < count:
                count, refusal = admitted, Code.NOT_ADMITTED
        if tenant.spec is None or (request.from_tier and not tenant.enforced):
            return count, refusal
        paced = count if tenant.rate is None or request.from_tier else tenant.rate.granted(size, count, now)
        within = self._within_limit(tenant, size, paced, now)
        if not tenant.enforced:
            tenant.would_refuse_blocks += count - within
            return count, refusal
        if within < paced:
            return within, Code.OVER_LIMIT
        return within, Code.RATE_LIMITED if paced < count else refusal

    def _admitted(self, admission: Admission, request: StoreRequest) -> int:
        """Return how many leading missing blocks the admission filter admits. The filter sees all of them."""
        resident = len(self._pool.table.blocks)
        marks: list[int] = (request.words[request.missing, 0] ^ np.uint64(request.message.space)).tolist()
        seen = [admission.admits(mark, resident, request.now) for mark in marks]
        return seen.index(False) if False in seen else len(seen)

    def _within_limit(self, tenant: Tenant, size: int, count: int, now: float) -> int:
        """Return how many slots the tenant's limit allows.

        With `on_exceed` set to `evict_self`, the tenant's own oldest blocks are evicted first.
        """
        assert tenant.spec is not None
        limit = tenant.spec.limit_bytes
        if limit is None:
            return count
        most = min(count, limit // size)
        if tenant.spec.on_exceed == "evict_self":
            if not tenant.enforced:  # an observed limit evicts nothing
                return most
            if most > 0 and tenant.bytes + most * size > limit:
                self._reclaimer.shrink_tenant(tenant, limit - most * size, now)
        return max(0, min(most, (limit - tenant.bytes) // size))

    def _create_blocks(self, request: StoreRequest, slots: Sequence[Slot]) -> dict[int, Block]:
        """Return blocks for the first missing keys, one in each slot, as many as the index has room for; by
        position."""
        pool, message, tenant, index_slots = self._pool, request.message, request.tenant, request.index_slots
        chosen = request.missing[: len(slots)]
        writing: dict[int, Block] = {}
        entries = pool.table.free_entries(index_slots, chosen) if chosen else []
        marks: list[int] = (request.words[chosen, 0] ^ np.uint64(message.space)).tolist()
        for number, (at, slot, entry) in enumerate(zip(chosen, slots, entries, strict=True)):
            entry_slot = entry or self._reclaimer.make_entry(
                tenant, index_slots.buckets[at], set(filter(None, entries)), request.now
            )
            if entry_slot is None:
                self._reclaimer.give_slots(slots[number:])
                break
            key = message.keys[KEY_BYTES * at : KEY_BYTES * (at + 1)]
            writing[at] = pool.table.add(
                key, message.space, tenant, slot, message.nbytes, entry_slot, index_slots.tags[at], marks[number]
            )
        if writing:
            blocks = list(writing.values())
            recovery_table = pool.table.recovery_table
            number = recovery_table.highest(B_RESERVATION) + 1
            recovery_table.assigned(B_RESERVATION, number)
            pool.table.reserve(blocks, request.words[list(writing)], request.engine.client, number)
            pool.charge(tenant, blocks)
            pool.sessions.stored(blocks, UNCLAIMED if request.from_tier else request.session)
        return writing

    def _refuse(self, request: StoreRequest, code: Code, positions: Sequence[int]) -> None:
        message, tenant, now = request.message, request.tenant, request.now
        name, blocks = code.name.lower(), len(positions)
        refused_keys = (message.keys[KEY_BYTES * at : KEY_BYTES * (at + 1)] for at in positions)
        self._pool.removals.note_keys(refused_keys, message.space, name, now)
        tenant.refuse(code, blocks)
        self._pool.usage.refused(tenant, message.space, name, blocks)
        self._pool.totals.refused_blocks += blocks
        self.count_refused(code, blocks)
        self._pool.emit(
            BlocksRefused(now, request.engine.client, shown(tenant.salt), name, blocks, blocks * message.nbytes)
        )

    def count_refused(self, code: Code, blocks: int) -> None:
        """Count blocks that an engine was refused."""
        name = code.name.lower()
        self.refused_blocks[name] = self.refused_blocks.get(name, 0) + blocks

    # ---- the end of a reservation

    def commit(self, engine: Engine, message: Commit, now: float) -> int:
        """Publish blocks of a reservation, abort the rest, and return the number published.

        Raise ProtocolError on failure.
        """
        reservation = self._open(engine, message.reservation)
        if reservation.invalid:
            self.abort(engine, reservation.number, now)
            raise ProtocolError(
                Code.INVALIDATED,
                "its blocks were invalidated while they were being written; nothing was published",
                "reservation",
            )
        slots, checksums = self._check_commit(reservation, message)
        del engine.reservations[reservation.number]
        published = [reservation.writing.pop(at) for at in slots]
        self._pool.table.publish(published, checksums, now)
        if self._pool.changes is not None:
            self._pool.changes.changed(published)
        self._line_up(reservation, dict(zip(slots, published, strict=True)), now)
        if reservation.from_tier:
            self._drop(engine, reservation, now)
            return len(published)
        if published and reservation.session != SHARED:
            self._end_session(reservation.session, published[slots.index(max(slots))])
            self._pool.demote(self._pool.sessions.first_victims(reservation.session, published))
        if self._pool.tiers is not None:
            self._pool.tiers.stored(published)
        size = sum(block.nbytes for block in published)
        reservation.tenant.stored_blocks += len(published)
        self._pool.usage.stored(reservation.tenant, reservation.space, len(published), size)
        self._pool.totals.stored_blocks += len(published)
        self._pool.totals.stored_bytes += size
        engine.stored_bytes += size
        if published:
            self._pool.emit(
                BlocksStored(
                    now,
                    engine.client,
                    self._pool.spaces.model(reservation.space),
                    shown(reservation.tenant.salt),
                    len(published),
                    size,
                )
            )
        self._drop(engine, reservation, now)
        return len(published)

    def _open(self, engine: Engine, number: int) -> OpenReservation:
        reservation = engine.reservations.get(number)
        if reservation is not None:
            return reservation
        self._release_expired(engine, number)
        raise ProtocolError(
            Code.RESERVATION_EXPIRED, f"reservation {number} passed its deadline; nothing was published", "reservation"
        )

    def _check_commit(self, reservation: OpenReservation, message: Commit) -> tuple[list[int], U64 | None]:
        if len(message.slots) % 4:
            raise ProtocolError(Code.BAD_SLOTS, f"expected u32 positions, got {len(message.slots)} bytes", "slots")
        slots = np.frombuffer(message.slots, np.uint32).tolist() if message.slots else list(reservation.writing)
        if len(set(slots)) != len(slots) or not all(at in reservation.writing for at in slots):
            raise ProtocolError(Code.BAD_SLOTS, "expected positions that were to be written, each once", "slots")
        if not message.checksums:
            return slots, None
        if len(message.checksums) != CHECKSUM_BYTES * len(slots):
            raise ProtocolError(
                Code.BAD_CHECKSUMS,
                f"expected {CHECKSUM_BYTES} bytes for each of {len(slots)} slots, got {len(message.checksums)}",
                "checksums",
            )
        return slots, np.frombuffer(message.checksums, np.uint64).reshape(-1, 2)

    def _line_up(self, reservation: OpenReservation, fresh: dict[int, Block], now: float) -> None:
        """Put the whole chain, with what comes before the reservation's keys, into the eviction queue tail first, so
        that ancestors outlive descendants."""
        pool = self._pool
        present = reservation.present
        lined_up: list[Block] = []
        for at in sorted(fresh.keys() | present.keys(), reverse=True):
            if at in fresh:
                block = fresh[at]
                pool.publish(block, now)
            else:
                block, control = present[at]
                if pool.table.blocks.get(block.number) is not block or block.control != control:
                    continue
                pool.refresh(block, now)
            lined_up.append(block)
        if reservation.before is not None:
            before = chains_up_to(pool.table, [reservation.before])
            for block in before:
                pool.refresh(block, now)
            lined_up += before
        if lined_up:
            pool.table.used(lined_up, now)
        if reservation.hint is not None:
            tenant_blocks = [block for block in reversed(lined_up) if block.tenant is reservation.tenant]
            pool.hint(reservation.hint, [fresh[at] for at in sorted(fresh)], tenant_blocks, now)

    def abort(self, engine: Engine, number: int, now: float) -> None:
        """Abort a reservation, or release the quarantined bytes of an expired one. Raise ProtocolError if unknown."""
        reservation = engine.reservations.pop(number, None)
        if reservation is not None:
            self._drop(engine, reservation, now)
            return
        self._release_expired(engine, number)

    def _release_expired(self, engine: Engine, number: int) -> None:
        """Release the quarantined bytes of an expired reservation: its owner is back and no longer writes them. Raise
        ProtocolError if there is none of this number."""
        expired = engine.expired.pop(number, None)
        if expired is None:
            raise ProtocolError(
                Code.UNKNOWN_RESERVATION, f"reservation {number} is not open on this connection", "reservation"
            )
        self.release_quarantined(expired)

    def _drop(self, engine: Engine, reservation: OpenReservation, now: float) -> None:
        """Abort the blocks of a reservation that were not published."""
        blocks = len(reservation.writing)
        size = self._free(reservation, BlockStep.ABORT)
        if not blocks or reservation.from_tier:
            return
        self._pool.totals.aborted_blocks += blocks
        self._pool.emit(ReservationAborted(now, engine.client, shown(reservation.tenant.salt), blocks, size))

    def expire(self, engine: Engine, now: float) -> None:
        """Quarantine the blocks of reservations whose deadline has passed."""
        for number in [number for number, reservation in engine.reservations.items() if reservation.deadline <= now]:
            reservation = engine.reservations.pop(number)
            size = self._pool.quarantine(reservation.writing.values())
            engine.expired[number] = reservation
            self._pool.emit(
                ReservationExpired(now, engine.client, engine.pid, engine.group, len(reservation.writing), size)
            )

    def lose_owner(self, engine: Engine) -> int:
        """Quarantine all blocks that an engine was writing when its connection closed. Return their number."""
        blocks = 0
        for number, reservation in list(engine.reservations.items()):
            self._pool.quarantine(reservation.writing.values())
            engine.expired[number] = reservation
            blocks += len(reservation.writing)
        engine.reservations.clear()
        return blocks

    def release_all(self, engine: Engine) -> tuple[int, int]:
        """Release all quarantined bytes of an engine, which no process can access. Return (blocks, bytes)."""
        blocks = size = 0
        for reservation in engine.expired.values():
            blocks += len(reservation.writing)
            size += self.release_quarantined(reservation)
        engine.expired.clear()
        return blocks, size

    def release_quarantined(self, reservation: OpenReservation) -> int:
        """Release the quarantined bytes of a reservation, and return their number."""
        return self._free(reservation, BlockStep.RELEASE)

    def _free(self, reservation: OpenReservation, step: BlockStep) -> int:
        size = sum(block.charge for block in reservation.writing.values())
        for block in reservation.writing.values():
            self._pool.release(block, step)
        reservation.writing.clear()
        return size


def _sorted_out(blocks: Sequence[Block | None], granted: GrantResult) -> tuple[list[int], list[tuple[int, Block]]]:
    """Return the positions of missing blocks, and the READY blocks with their positions.

    Set the outcomes of the blocks that are present.
    """
    missing: list[int] = []
    ready: list[tuple[int, Block]] = []
    for at, block in enumerate(blocks):
        if block is None:
            missing.append(at)
        elif block.control & STATE_MASK == _READY:
            ready.append((at, block))
            granted.outcomes[at] = ReserveOutcome.PRESENT
        else:
            granted.outcomes[at] = ReserveOutcome.BUSY
    return missing, ready
