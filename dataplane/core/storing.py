"""Reserve, commit, abort: how a block comes to be, and how a half-made one goes away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import numpy as np

from dataplane.core.blocks import Block
from dataplane.core.engines import Engine, Reservation
from dataplane.core.pool import Pool
from dataplane.core.quotas import Tenant
from dataplane.core.slabs import Slot, slot_bytes
from dataplane.protocol.codes import Code, Outcome, ProtocolError
from dataplane.protocol.engine import CHECKSUM_BYTES, MAX_KEYS_PER_REQUEST, Commit, Reserve
from dataplane.protocol.events import BlocksRefused, BlocksStored, ReservationAborted, ReservationExpired
from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.layout import U64, pack_keys
from dataplane.protocol.salts import check_salt, shown
from dataplane.protocol.spaces import MAX_BLOCK_BYTES
from dataplane.protocol.states import State, Step

MAX_OPEN_RESERVATIONS = 256


class Granted:
    """Answer to a reservation, one entry a key."""

    __slots__ = ("offsets", "outcomes", "reservation", "segments")

    def __init__(self, keys: int) -> None:
        self.reservation = 0
        self.outcomes = np.zeros(keys, np.uint8)
        self.segments = np.zeros(keys, np.uint32)
        self.offsets = np.zeros(keys, np.uint64)


class Storing:
    """The writing side of the pool."""

    def __init__(self, pool: Pool, reservation_ttl_s: float, refused: Callable[[Code, int], None]) -> None:
        self._pool = pool
        self._ttl_s = reservation_ttl_s
        self._numbers = count(1)
        self._count_refused = refused

    # ---- reserve

    def reserve(self, engine: Engine, message: Reserve, now: float) -> Granted:
        """Room for the missing blocks of a chain. Raises ProtocolError; then nothing was done."""
        pool = self._pool
        words = self._check(engine, message)
        tenant = pool.tenants.get(message.tenant)
        found = pool.table.find(words, message.space)
        granted = Granted(len(words))
        chain = [
            (at, block) for at, block in enumerate(found) if block is not None and block.state is State.READY
        ]
        for _, block in reversed(chain):
            pool.order.touch(block, now)
        pool.spare(block for _, block in chain)
        missing: list[int] = []
        for at, held in enumerate(found):
            if held is None:
                missing.append(at)
            else:
                granted.outcomes[at] = Outcome.PRESENT if held.state is State.READY else Outcome.BUSY
        if not missing:
            return granted
        writing, refusal = self._grant(engine, message, words, missing, tenant, now)
        for at in missing[len(writing) :]:
            assert refusal is not None
            granted.outcomes[at] = refusal
        if refusal is not None:
            self._refuse(engine, tenant, refusal, len(missing) - len(writing), message.nbytes, now)
        for at, block in writing.items():
            granted.segments[at] = block.slot.slab.segment.number
            granted.offsets[at] = block.slot.offset
        if writing:
            granted.reservation = next(self._numbers)
            engine.reservations[granted.reservation] = Reservation(
                number=granted.reservation,
                tenant=tenant,
                space=message.space,
                writing=writing,
                chain=[(block, block.control) for _, block in chain],
                positions=[at for at, _ in chain],
                deadline=now + self._ttl_s,
            )
        return granted

    def _check(self, engine: Engine, message: Reserve) -> U64:
        check_salt(message.tenant)
        writes = engine.spaces.get(message.space)
        if writes is None:
            raise ProtocolError(Code.UNKNOWN_SPACE, f"space {message.space} is not attached", "space")
        if not writes:
            raise ProtocolError(Code.READ_ONLY_SPACE, f"space {message.space} is attached read-only", "space")
        block_bytes = self._pool.spaces.by_number[message.space].block_bytes
        most = block_bytes or MAX_BLOCK_BYTES
        if not 1 <= message.nbytes <= most:
            raise ProtocolError(
                Code.BAD_SIZE,
                f"expected 1 to {most} bytes, got {message.nbytes}",
                "nbytes",
            )
        return check_keys(message.keys)

    def _grant(
        self, engine: Engine, message: Reserve, words: U64, missing: list[int], tenant: Tenant, now: float
    ) -> tuple[dict[int, Block], Code | None]:
        """Blocks for a leading part of the missing keys, and why the rest is refused."""
        pool = self._pool
        size = slot_bytes(message.nbytes, pool.spaces.by_number[message.space].block_bytes)
        wanted = len(missing)
        if size > pool.slabs.capacity_bytes:
            return {}, Code.TOO_LARGE
        if len(engine.reservations) + len(engine.expired) >= MAX_OPEN_RESERVATIONS:
            return {}, Code.TOO_MANY_RESERVATIONS
        refusal: Code | None = None
        allowed = self._within_limit(tenant, size, wanted, now)
        if allowed < wanted:
            wanted, refusal = allowed, Code.OVER_LIMIT
        described = pool.free_descriptors(wanted, now)
        if described < wanted:
            wanted, refusal = described, Code.NO_DESCRIPTOR
        slots, reason = pool.take_slots(message.space, size, wanted, now)
        if reason is not None:
            refusal = reason
        chosen = missing[: len(slots)]
        writing, placed = self._place(message, words, chosen, slots, tenant, now)
        if placed is not None:
            refusal = placed
        return writing, refusal

    def _within_limit(self, tenant: Tenant, size: int, wanted: int, now: float) -> int:
        """How many slots the tenant's limit allows, after its own oldest blocks made way."""
        limit = tenant.limit_bytes
        if limit is None:
            return wanted
        most = min(wanted, limit // size)
        if most > 0 and tenant.bytes + most * size > limit:
            self._pool.shrink_tenant(tenant, limit - most * size, now)
        return max(0, min(most, (limit - tenant.bytes) // size))

    def _place(
        self,
        message: Reserve,
        words: U64,
        chosen: list[int],
        slots: Sequence[Slot],
        tenant: Tenant,
        now: float,
    ) -> tuple[dict[int, Block], Code | None]:
        pool = self._pool
        picked = words[chosen]
        writing: dict[int, Block] = {}
        refusal: Code | None = None
        entries, tags, buckets = pool.table.free_entries(picked, message.space)
        for number, (at, slot, entry) in enumerate(zip(chosen, slots, entries, strict=True)):
            place = entry or pool.make_entry(buckets[number], set(filter(None, entries)), now)
            if place is None:
                pool.give_slots(slots[number:])
                refusal = Code.INDEX_FULL
                break
            key = message.keys[KEY_BYTES * at : KEY_BYTES * (at + 1)]
            writing[at] = pool.table.add(
                key, message.space, tenant, slot, message.nbytes, place, tags[number]
            )
        if writing:
            blocks = list(writing.values())
            pool.table.reserve(blocks, picked[: len(blocks)])
            pool.charge(tenant, blocks)
        return writing, refusal

    def _refuse(
        self, engine: Engine, tenant: Tenant, code: Code, blocks: int, nbytes: int, now: float
    ) -> None:
        tenant.refused_blocks += blocks
        self._pool.totals.refused_blocks += blocks
        self._count_refused(code, blocks)
        self._pool.emit(
            BlocksRefused(now, engine.client, shown(tenant.salt), code.name.lower(), blocks, blocks * nbytes)
        )

    # ---- the end of a reservation

    def commit(self, engine: Engine, message: Commit, now: float) -> int:
        """Publish blocks of a reservation and abort the rest; returns published blocks. Raises ProtocolError."""
        reservation = self._open(engine, message.reservation)
        slots, checksums = self._check_commit(reservation, message)
        del engine.reservations[reservation.number]
        kept = [reservation.writing.pop(at) for at in slots]
        self._pool.table.publish(kept, checksums, now)
        self._line_up(reservation, dict(zip(slots, kept, strict=True)), now)
        size = sum(block.nbytes for block in kept)
        reservation.tenant.stored_blocks += len(kept)
        self._pool.totals.stored_blocks += len(kept)
        self._pool.totals.bytes_in += size
        if kept:
            self._pool.emit(
                BlocksStored(
                    now,
                    engine.client,
                    self._pool.spaces.model(reservation.space),
                    shown(reservation.tenant.salt),
                    len(kept),
                    size,
                )
            )
        self._drop(engine, reservation, now)
        return len(kept)

    def _open(self, engine: Engine, number: int) -> Reservation:
        reservation = engine.reservations.get(number)
        if reservation is not None:
            return reservation
        expired = engine.expired.pop(number, None)
        if expired is None:
            raise ProtocolError(
                Code.UNKNOWN_RESERVATION,
                f"reservation {number} is not open on this connection",
                "reservation",
            )
        # The owner woke up and is done with the bytes: they need no quarantine any more.
        self.release_quarantined(expired)
        raise ProtocolError(
            Code.RESERVATION_EXPIRED,
            f"reservation {number} passed its deadline; nothing was published",
            "reservation",
        )

    def _check_commit(self, reservation: Reservation, message: Commit) -> tuple[list[int], U64 | None]:
        if len(message.slots) % 4:
            raise ProtocolError(
                Code.BAD_SLOTS, f"expected u32 positions, got {len(message.slots)} bytes", "slots"
            )
        slots = (
            np.frombuffer(message.slots, np.uint32).tolist() if message.slots else list(reservation.writing)
        )
        if len(set(slots)) != len(slots) or not all(at in reservation.writing for at in slots):
            raise ProtocolError(
                Code.BAD_SLOTS, "expected positions that were to be written, each once", "slots"
            )
        if not message.checksums:
            return slots, None
        if len(message.checksums) != CHECKSUM_BYTES * len(slots):
            raise ProtocolError(
                Code.BAD_CHECKSUMS,
                f"expected {CHECKSUM_BYTES} bytes for each of {len(slots)} slots, got {len(message.checksums)}",
                "checksums",
            )
        return slots, np.frombuffer(message.checksums, np.uint64).reshape(-1, 2)

    def _line_up(self, reservation: Reservation, fresh: dict[int, Block], now: float) -> None:
        """Order the whole chain tail first, so that ancestors outlive descendants."""
        pool = self._pool
        present = dict(zip(reservation.positions, reservation.chain, strict=True))
        for at in sorted(fresh.keys() | present.keys(), reverse=True):
            if at in fresh:
                pool.publish(fresh[at], now)
                continue
            block, control = present[at]
            if pool.table.blocks.get(block.number) is block and block.control == control:
                pool.order.touch(block, now)

    def abort(self, engine: Engine, number: int, now: float) -> None:
        """Give a reservation up; an expired one releases its quarantined bytes. Raises ProtocolError."""
        reservation = engine.reservations.pop(number, None)
        if reservation is not None:
            self._drop(engine, reservation, now)
            return
        expired = engine.expired.pop(number, None)
        if expired is None:
            raise ProtocolError(
                Code.UNKNOWN_RESERVATION,
                f"reservation {number} is not open on this connection",
                "reservation",
            )
        self.release_quarantined(expired)

    def _drop(self, engine: Engine, reservation: Reservation, now: float) -> None:
        """Abort what is left of a reservation."""
        left = list(reservation.writing.values())
        if not left:
            return
        size = sum(block.charge for block in left)
        for block in left:
            self._pool.release(block, Step.ABORT)
        reservation.writing.clear()
        self._pool.totals.aborted_blocks += len(left)
        self._pool.emit(
            ReservationAborted(now, engine.client, shown(reservation.tenant.salt), len(left), size)
        )

    def expire(self, engine: Engine, now: float) -> None:
        """Quarantine reservations whose deadline passed."""
        for number in [number for number, held in engine.reservations.items() if held.deadline <= now]:
            reservation = engine.reservations.pop(number)
            size = self._pool.quarantine(reservation.writing.values())
            engine.expired[number] = reservation
            self._pool.emit(
                ReservationExpired(
                    now, engine.client, engine.pid, engine.group, len(reservation.writing), size
                )
            )

    def lose_owner(self, engine: Engine) -> int:
        """The connection closed: quarantine everything the engine was writing. Returns quarantined blocks."""
        blocks = 0
        for number, reservation in list(engine.reservations.items()):
            self._pool.quarantine(reservation.writing.values())
            engine.expired[number] = reservation
            blocks += len(reservation.writing)
        engine.reservations.clear()
        return blocks

    def release_all(self, engine: Engine) -> tuple[int, int]:
        """Nobody can touch an engine's quarantined bytes any more: (blocks, bytes) given back."""
        blocks = size = 0
        for reservation in engine.expired.values():
            blocks += len(reservation.writing)
            size += self.release_quarantined(reservation)
        engine.expired.clear()
        return blocks, size

    def release_quarantined(self, reservation: Reservation) -> int:
        """Give a reservation's quarantined bytes back; returns how many."""
        size = sum(block.charge for block in reservation.writing.values())
        for block in reservation.writing.values():
            self._pool.release(block, Step.RELEASE)
        reservation.writing.clear()
        return size


def check_keys(keys: bytes) -> U64:
    """Packed keys of a request as words [n, 4], or ProtocolError(BAD_KEYS)."""
    number, rest = divmod(len(keys), KEY_BYTES)
    if rest or not 1 <= number <= MAX_KEYS_PER_REQUEST:
        raise ProtocolError(
            Code.BAD_KEYS,
            f"expected 1 to {MAX_KEYS_PER_REQUEST} keys of {KEY_BYTES} bytes, got {len(keys)} bytes",
            "keys",
        )
    if number > 1 and len({keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)}) != number:
        raise ProtocolError(Code.BAD_KEYS, "expected each key once", "keys")
    return pack_keys(keys)
