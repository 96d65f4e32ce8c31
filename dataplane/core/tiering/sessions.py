"""What operators do with sessions: list them, release and retain their blocks in memory, and prefetch those in tiers.

The chain of a session is found from its last block backwards, through the parents that memory and tiers know.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite

import numpy as np

from dataplane.core.blocks.blocks import Block
from dataplane.core.eviction.ancestors import with_ancestors
from dataplane.core.journal.recovery_table import ROW_USED
from dataplane.core.pool.hints import Hint
from dataplane.core.pool.pool import Pool
from dataplane.core.pool.sessions import SessionRecord
from dataplane.core.tenants.eviction_queues import Rank
from dataplane.core.tenants.tenant import Tenant
from dataplane.core.tiering.tiering import Tiering
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.sessions import (
    MAX_LISTED_SESSIONS,
    MAX_PREFETCH_S,
    ActOnSession,
    ListSessions,
    SessionActed,
    SessionsListed,
    SessionState,
)
from dataplane.protocol.engine import MAX_KEYS_PER_REQUEST
from dataplane.protocol.layout import (
    COLD_STORED_AT,
    COLD_TENANT,
    HOT_KEY,
    HOT_NBYTES,
    HOT_SPACE_SEGMENT,
    I64,
    Mask,
    is_ready,
    longest_prefix,
    pack_keys,
)
from dataplane.protocol.salts import check_salt
from dataplane.protocol.sessions import check_session
from dataplane.protocol.spaces import Space
from dataplane.protocol.stored_blocks import BlockName
from dataplane.protocol.tiers import MEMORY

MAX_CHAIN = 16_384
"""Most blocks of a chain that are followed back."""
LOOKED_AT = 4096
"""Blocks of chains after which one answer lists no further session."""
MAX_RETAINED = 8192
"""Most private blocks that one request retains: those that were used most recently, ancestors first."""
MAX_LOADED_RATIO = 0.5
"""Fraction of the pool that one prefetch loads at most, so that it does not evict what it has just loaded."""
_LOW32 = np.uint64((1 << 32) - 1)


class SessionActions:
    """Requests of operators about sessions."""

    def __init__(self, pool: Pool, tiering: Tiering | None) -> None:
        self._pool, self._tiering = pool, tiering

    def act(self, message: ActOnSession, now: float) -> SessionActed:
        """Release, retain or prefetch the blocks of a session. Raise ProtocolError."""
        check_salt(message.tenant)
        check_session(message.session)
        least, most = (0.0, 0.0) if message.action == "release" else (1e-3, MAX_PREFETCH_S)
        if message.action == "retain":
            most = self._pool.hints.max_s
            if not most:
                raise ProtocolError(
                    Code.UNSUPPORTED, "this node retains nothing: its setting dataplane.hint_max_s is 0", "action"
                )
        if not isfinite(message.seconds) or message.seconds < least:
            raise ProtocolError(Code.BAD_FIELD, f"expected {least:g} seconds or more, got {message.seconds}", "seconds")
        seconds = min(message.seconds, most)
        tenant = self._pool.tenants.by_salt.get(message.tenant)
        record = None if tenant is None else self._pool.sessions.find(tenant.number, message.session)
        if tenant is None or record is None:
            return SessionActed(message.nonce, found=False)
        answer = SessionActed(message.nonce, found=True)
        if message.action == "release":
            self._release(record, tenant, now, answer)
        elif message.action == "retain":
            self._retain(record, tenant, seconds, now, answer)
        else:
            self._prefetch(record, tenant, now + seconds, now, answer)
        return answer

    # ---- blocks in memory

    def _release(self, record: SessionRecord, tenant: Tenant, now: float, answer: SessionActed) -> None:
        """Make the private blocks of a session that no pin of an operator holds the first victims, last block of its
        chain first: some at once, the rest in the next steps of a sweep."""
        pool = self._pool
        numbers = self._private(record, tenant)
        numbers = numbers[~self._of_shared_prefixes(numbers, np.full(len(numbers), record.space))]
        if pool.pins.marked:
            numbers = np.setdiff1d(numbers, [block.number for block in pool.pins.marked])
        if len(numbers):
            pool.sweeps.begin("demote", numbers, now)
        answer.blocks, answer.bytes = len(numbers), pool.sweeps.stored_bytes(numbers)
        pool.totals.released_session_blocks += answer.blocks
        pool.sessions.release(record)

    def _retain(self, record: SessionRecord, tenant: Tenant, seconds: float, now: float, answer: SessionActed) -> None:
        """Evict the chain of a session after the other blocks of its tenant, within the tenant's share of hinted
        pins."""
        pool = self._pool
        numbers = self._private(record, tenant)
        turn = pool.table.recovery_table.rows[numbers, ROW_USED].argsort(kind="stable")
        private = [pool.table.blocks[number] for number in numbers[turn[-MAX_RETAINED:]].tolist()]
        tail = [record.tail] if record.tail else []
        ends = [block for _, blocks in self._in_memory(record, tail) for block in blocks if block is not None]
        wanted = dict.fromkeys([*private, *ends])
        states = [block for block in wanted if pool.spaces.by_number[block.space].tail_blocks]
        others = [block for block in wanted if not pool.spaces.by_number[block.space].tail_blocks]
        # States are of use without those before them, and a hit needs the newest ones.
        newest = [block for block in states if block.key == states[-1].key]
        line = [*dict.fromkeys([*newest, *with_ancestors(pool.table, others, set(private)), *reversed(states)])]
        omitted = len(numbers) - len(set(private).intersection(line))
        chain = [block for block in line if block.tenant is tenant and pool.readable(block, block.control)]
        pool.end_demotion(chain, now)
        refused = pool.hint(Hint(pin_s=seconds), chain, chain, now)
        answer.blocks, answer.refused_blocks = len(chain) - refused, refused + omitted
        answer.bytes = sum(block.nbytes for block in chain if pool.hints.rank(block) is Rank.HINTED)
        if answer.blocks:
            pool.sessions.retain(record, now + seconds)

    def _private(self, record: SessionRecord, tenant: Tenant) -> I64:
        """Return the descriptors of the readable blocks that a session owns."""
        pool, memory = self._pool, self._pool.table.memory
        numbers = pool.sessions.owned(record)
        cold = memory.cold[numbers]
        chosen = is_ready(memory.control[numbers]) & (cold[:, COLD_STORED_AT] != 0)
        chosen &= cold[:, COLD_TENANT] == np.uint64(tenant.number)
        if pool.dead:
            chosen &= ~np.isin(numbers, [block.number for block in pool.dead])
        private: I64 = numbers[chosen]
        return private

    def _of_shared_prefixes(self, numbers: I64, chains: I64) -> Mask:
        """Return which of the READY blocks that sessions own are states at the end of a prefix that is not private.
        Requests that share a prefix store its keys in the leading space only, so the owner there counts. `chains`: for
        each block, the space of its session's chain."""
        pool, memory = self._pool, self._pool.table.memory
        rows = memory.hot[numbers]
        spaces = rows[:, HOT_SPACE_SEGMENT] & _LOW32
        of_states = [number for number in np.unique(spaces).tolist() if pool.spaces.by_number[number].tail_blocks]
        is_state = np.isin(spaces, of_states)
        is_shared = np.zeros(len(numbers), np.bool_)
        for chain in np.unique(chains[is_state]).tolist():
            at = np.flatnonzero(is_state & (chains == chain))
            leading, _ = memory.find(rows[at, HOT_KEY:HOT_SPACE_SEGMENT], chain)
            is_shared[at] = (leading >= 0) & ~pool.sessions.have_one_owner(numbers[at], leading)
        return is_shared

    # ---- blocks in tiers

    def _prefetch(
        self, record: SessionRecord, tenant: Tenant, deadline: float, now: float, answer: SessionActed
    ) -> None:
        """Ask for the blocks of a session that tiers hold and memory does not, in each space of its model."""
        keys, whole = self._chain(record)
        pool, tiering = self._pool, self._tiering
        pool.sessions.keep(record)
        if not whole or tiering is None:
            return
        budget_bytes, planned_bytes = MAX_LOADED_RATIO * pool.slabs.capacity_bytes, 0
        for identity, blocks in self._in_memory(record, keys):
            pool.end_demotion([block for block in blocks if block is not None], now)
            sizes: dict[int, int] = {}
            for at, nbytes in self._missing(tiering, identity, keys, blocks, tenant):
                if planned_bytes + nbytes > budget_bytes:
                    break  # no later block of the chain is of use
                planned_bytes += nbytes
                sizes[at] = nbytes
            space = tiering.loads.attach(identity) if sizes else None
            for part in _parts(list(sizes)):
                # The key before the first block tells what the block continues.
                chain = b"".join(keys[max(0, part[0] - 1) : part[-1] + 1])
                loads = tiering.loads
                if space is None or loads.request(loads.client, space, chain, deadline, tenant.salt) is None:
                    answer.refused_blocks += len(part)
                else:
                    answer.blocks += len(part)
                    answer.bytes += sum(sizes[at] for at in part)
        pool.totals.prefetched_session_blocks += answer.blocks

    def _missing(
        self, tiering: Tiering, identity: bytes, keys: Sequence[bytes], blocks: Sequence[Block | None], tenant: Tenant
    ) -> Iterator[tuple[int, int]]:
        """Yield the position and the bytes of each block that memory lacks of those that the longest usable prefix of a
        chain needs in a space."""
        catalog = tiering.catalog
        space = catalog.declared(identity) or Space("")
        sources = [
            catalog.source(BlockName(identity, key), tenant.salt) if block is None else None
            for key, block in zip(keys, blocks, strict=True)
        ]
        held = np.array([(block or source) is not None for block, source in zip(blocks, sources, strict=True)])
        for at in space.needed(longest_prefix([held], [space.tail_blocks])):
            source = sources[at]
            if source is not None:
                yield at, source.nbytes

    def _chain(self, record: SessionRecord, most: int = MAX_CHAIN) -> tuple[list[bytes], bool]:
        """Return the last `most` keys of a session's chain, first block first, as far as memory and tiers know it, and
        whether these are all of them."""
        table, identity = self._pool.table, self._identity(record)
        keys: list[bytes] = []
        key, block = record.tail, None
        while key and len(keys) < most:
            stored = None
            if block is None and self._tiering is not None:
                stored = self._tiering.catalog.stored(BlockName(identity, key))
            if block is None and stored is None:
                block = table.find(pack_keys([key]), record.space)[0]
                if block is None:
                    break
            keys.append(key)
            if block is None:
                assert stored is not None
                key = stored.parent
                continue
            key, before = block.parent, block.before
            block = before if before is not None and before.entry is not None else None
        return keys[::-1], not key

    def _identity(self, record: SessionRecord) -> bytes:
        """Return the identity of a session's space; empty if the node has forgotten it."""
        space = self._pool.spaces.declared(record.space)
        return b"" if space is None else bytes.fromhex(space.identity())

    def _in_memory(self, record: SessionRecord, keys: Sequence[bytes]) -> Iterator[tuple[bytes, list[Block | None]]]:
        """Yield the identity of each space of a session's model, with the READY blocks of these keys there."""
        pool = self._pool
        declared = pool.spaces.declared(record.space)
        if declared is None or not keys:
            return
        numbers = {pool.spaces.identities[number]: number for number in pool.spaces.of_model(declared.model)}
        identities = dict.fromkeys((bytes.fromhex(declared.identity()), *numbers))
        if self._tiering is not None:
            identities |= dict.fromkeys(self._tiering.catalog.spaces_of_model.get(declared.model, ()))
        words = pack_keys(list(keys))
        for identity in identities:
            found = pool.table.find(words, numbers[identity]) if identity in numbers else [None] * len(keys)
            yield identity, [each if each is not None and pool.readable(each, each.control) else None for each in found]

    # ---- lists

    def page(self, message: ListSessions, now: float) -> SessionsListed:
        """Return the next sessions. Raise ProtocolError."""
        if not 1 <= message.limit <= MAX_LISTED_SESSIONS:
            raise ProtocolError(Code.BAD_FIELD, f"expected 1 to {MAX_LISTED_SESSIONS}, got {message.limit}", "limit")
        if message.session:
            check_session(message.session)
        pool, number = self._pool, None
        if message.tenant is not None:
            check_salt(message.tenant)
            tenant = pool.tenants.by_salt.get(message.tenant)
            number = 0 if tenant is None else tenant.number
        records = pool.sessions.page(number, message.session, message.after, message.limit + 1)
        more = len(records) > message.limit
        records = records[: message.limit]
        private = self._private_bytes(records)
        salts = {each.number: each.salt for each in pool.tenants.by_salt.values()}
        listed: list[SessionState] = []
        looked_at = 0
        for at, record in enumerate(records):
            if looked_at >= LOOKED_AT:
                more, records = True, records[:at]
                break
            if record.tenant not in salts:  # the node has forgotten the tenant, which has no blocks
                continue
            state, count = self._state(record, salts[record.tenant], private[at])
            if state.retained_until <= now:
                state.retained_until = 0
            looked_at += count
            listed.append(state)
        return SessionsListed(message.nonce, listed, records[-1].order if more and records else 0)

    def _private_bytes(self, records: Sequence[SessionRecord]) -> list[int]:
        """Return the bytes of the READY blocks that each session owns, without states of shared prefixes."""
        memory = self._pool.table.memory
        numbers, places = self._pool.sessions.owned_by_each(records)
        ready = is_ready(memory.control[numbers])
        numbers, places = numbers[ready], places[ready]
        chains = np.array([record.space for record in records], np.int64)[places]
        private = ~self._of_shared_prefixes(numbers, chains)
        sizes = memory.hot[numbers[private], HOT_NBYTES].astype(np.float64)
        return [int(size) for size in np.bincount(places[private], sizes, len(records))]

    def _state(self, record: SessionRecord, salt: str, private_bytes: int) -> tuple[SessionState, int]:
        """Return the state of a session, and the number of blocks that were looked at."""
        declared = self._pool.spaces.declared(record.space)
        spaces = 1 if declared is None else len(self._pool.spaces.of_model(declared.model))
        keys, _ = self._chain(record, max(1, 2 * LOOKED_AT // max(1, spaces)))
        state = SessionState(
            tenant=salt,
            session=record.name,
            model="" if declared is None else declared.model,
            started_at=record.started_at,
            used_at=record.used_at,
            released=record.released,
            retained_until=record.retained_until,
            chunks=len(keys),
            bytes={},
            private_bytes=private_bytes,
        )
        looked_at = 1
        for identity, blocks in self._in_memory(record, keys):
            looked_at += len(keys)
            held = [block.nbytes for block in blocks if block is not None and block.tenant.salt == salt]
            _add(state.bytes, MEMORY, sum(held))
            for tier in () if self._tiering is None else self._tiering.tiers:
                entries = (tier.entry_of(BlockName(identity, key)) for key in keys)
                sizes = [entry.stored.length for entry in entries if entry is not None and entry.stored.tenant == salt]
                _add(state.bytes, tier.spec.name, sum(sizes))
        return state, looked_at


def _add(sizes: dict[str, int], place: str, nbytes: int) -> None:
    if nbytes:
        sizes[place] = sizes.get(place, 0) + nbytes


def _parts(positions: Sequence[int]) -> Iterator[list[int]]:
    """Yield positions in order, in parts whose span fits one request."""
    part: list[int] = []
    for at in positions:
        if part and at - part[0] >= MAX_KEYS_PER_REQUEST - 1:
            yield part
            part = []
        part.append(at)
    if part:
        yield part
