"""Plans copies to tiers: makes jobs of blocks that sources want to be copied.

From memory, several jobs for each tier are under way at a time. From tiers, there is one for each target at a time, and
it begins only while no engine waits for a load, unless it is urgent. A request whose target takes no blocks now delays
no other.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dataplane.core.blocks.blocks import Block
from dataplane.core.tiering.catalog import Catalog
from dataplane.core.tiering.jobs import URGENT, CopyRequest, JobBlock, JobReason, JobTable, TierJob
from dataplane.core.tiering.tier_order import TierEntry
from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.checksums import NONE
from dataplane.protocol.layout import COLD_CHECKSUM, pack_keys
from dataplane.protocol.stored_blocks import BlockName, StoredBlock

MAX_WAITING_BLOCKS = 1 << 16
"""Maximum number of blocks of memory that wait for a tier because of its record, and because of pins."""
BATCH_BLOCKS, BATCH_BYTES = 64, 32 << 20
"""Maximum number of blocks in a job, and the bytes after which no block is added to it: the size of the buffer for jobs
from tier to tier."""
URGENT_BYTES = 8 << 20
"""The same for a job that begins while engines wait for loads, which then wait for it: the size of one of theirs."""
PRESENT = "present"
"""Why a block was not encoded again: it has the form that the record asks for."""


class Copies:
    """Plans copies to tiers."""

    def __init__(self, catalog: Catalog, table: JobTable, client: int) -> None:
        """`client` is the mover's engine, for which no request waits."""
        self._catalog, self._table, self._client = catalog, table, client
        self._pool = catalog.pool
        self._requests: dict[tuple[TierState, JobReason], CopyRequest] = {}
        """What records and pins want to be copied from memory."""

    # ---- from memory

    def propose(self, tier: TierState, reason: JobReason, blocks: Iterable[Block]) -> None:
        """Let blocks wait for a tier that neither holds them nor has them wait already: for SPILL or for PIN. A block
        that was stored again takes the place of its older one."""
        request = self._request(tier, reason)
        requests = [self._request(tier, job_reason) for job_reason in (JobReason.SPILL, JobReason.PIN)]
        for block in blocks:
            space = self._catalog.identity(block.space)
            if space is None:
                continue
            name = BlockName(space, block.key)
            waits = [copy_request for copy_request in requests if name in copy_request.waiting]
            for copy_request in waits:
                older = copy_request.waiting[name]
                if older is not None and not self._pool.readable(*older):
                    copy_request.wait(name, (block, block.control))
            if waits or tier.entry_of(name) is not None:
                continue
            if not tier.serves:
                tier.refuse("away", name)
            elif len(request.waiting) >= MAX_WAITING_BLOCKS:
                tier.refuse("waiting", name)
            else:
                self._table.wait(request, name, (block, block.control))

    def _propose_again(self, tier: TierState) -> None:
        """Propose blocks of memory whose older ones were invalidated while they were being copied."""
        if tier.again:
            names, tier.again = tier.again, []
            spaces = self._pool.spaces.by_identity
            numbered = [(name, spaces[name.space]) for name in names if name.space in spaces]
            blocks = (self._pool.table.find(pack_keys([name.key]), space)[0] for name, space in numbered)
            ready = [block for block in blocks if block is not None and self._pool.readable(block, block.control)]
            self.propose(tier, JobReason.SPILL, ready)

    @property
    def crowded(self) -> bool:
        """Whether too many blocks of pins wait for a tier to add others."""
        requests = [self._request(tier, JobReason.PIN) for tier in self._catalog.tiers if tier.serves]
        return any(len(request.waiting) >= MAX_WAITING_BLOCKS // 2 for request in requests)

    def forget(self, tier: TierState) -> None:
        """Let nothing wait for a tier that was removed because of its record or of pins."""
        for reason in (JobReason.SPILL, JobReason.PIN):
            request = self._requests.pop((tier, reason), None)
            if request is not None:
                self._table.cancel(request)

    def _request(self, tier: TierState, reason: JobReason) -> CopyRequest:
        request = self._requests.get((tier, reason))
        if request is None:
            request = self._requests[tier, reason] = CopyRequest(reason, None, tier)
        return request

    def next_from_memory(self, tier: TierState, now: float, most: int = BATCH_BLOCKS) -> TierJob | None:
        """Return the next job that copies blocks of memory, which are leased from now on, to a tier."""
        self._propose_again(tier)
        requests = sorted(self._table.of_target(tier), key=lambda request: request.reason is not JobReason.PIN)
        for request in requests:
            blocks: list[JobBlock] = []
            nbytes = 0
            while len(blocks) < most and nbytes < BATCH_BYTES:
                planned = self._from_memory(request, now)
                if planned is None:
                    break
                blocks.append(planned)
                nbytes += planned.nbytes
            if blocks or not request.waiting:
                self._table.turn_ended(request)
            if blocks:
                numbers = [job_block.block.number for job_block in blocks if job_block.block is not None]
                self._pool.leases.hold(numbers, self._pool.table.max_blocks)
                return TierJob(request.reason, None, tier, blocks, request.began)
            if request.waiting:
                break  # smaller blocks of other requests would take the room that its next block waits for
        return None

    def _from_memory(self, request: CopyRequest, now: float) -> JobBlock | None:
        """Plan the next block of a request that may be copied; None if none may be copied now."""
        tier = request.target
        while request.waiting:
            name, waiting_block = next(iter(request.waiting.items()))
            assert waiting_block is not None
            block, control = waiting_block
            if not self._pool.readable(block, control):
                request.take(name)
                continue
            charge = tier.stored_size(block.nbytes)
            full = tier.spilling_bytes and tier.spilling_bytes + charge > tier.spec.max_bytes_in_flight
            if full or name in tier.deleting:
                return None
            request.take(name)
            if name in tier.arriving or tier.entry_of(name) is not None:
                continue
            stored = self._stored(tier, name, block)
            charged = self._catalog.admit(tier, stored, now, self._catalog.is_used_in_memory, since=request.began)
            if charged is not None:
                segment, offset = block.slot.slab.segment.number, block.slot.offset
                form = self._catalog.form(block.space)
                return JobBlock(name, block.nbytes, stored, charged, block, segment, offset, form=form)
        return None

    def _stored(self, tier: TierState, name: BlockName, block: Block) -> StoredBlock:
        cold = self._pool.table.memory.cold
        checksum = cold[block.number, COLD_CHECKSUM : COLD_CHECKSUM + 2].tobytes()
        writer = self._catalog.writer if tier.shared else 0
        return StoredBlock(
            name,
            block.tenant.salt,
            block.timestamp,
            block.nbytes,
            b"" if checksum == NONE else checksum,
            block.parent,
            writer,
        )

    # ---- from tiers

    def next_from_tier(self, now: float) -> TierJob | None:
        """Return the next job that copies blocks from one tier to another, or encodes those of one again. There is none
        for a target to which such a job is under way. While engines wait for loads, only urgent ones begin."""
        table = self._table
        idle = table.loads.has_only(self._client)
        for request in list(table.copies):
            if request.source is None or request.target in table.crossing:
                continue
            if not idle and request.reason not in URGENT:
                continue
            blocks = self._from_tier(request, now, BATCH_BYTES if idle else URGENT_BYTES)
            table.turn_ended(request)
            if blocks:
                job = TierJob(request.reason, request.source, request.target, blocks, request.began)
                table.crossing[request.target] = job
                return job
        return None

    def _from_tier(self, request: CopyRequest, now: float, most_bytes: int) -> list[JobBlock]:
        target = request.target
        blocks: list[JobBlock] = []
        nbytes = 0
        spaces = self._pool.spaces.by_identity
        while request.waiting and len(blocks) < BATCH_BLOCKS and nbytes < most_bytes:
            name = next(iter(request.waiting))
            busy = target.spilling_bytes >= target.spec.max_bytes_in_flight or name in target.deleting
            if busy and target.serves:
                break
            request.take(name)
            target.watched.setdefault(name, "")  # another move of the block may have ended
            planned = self._of_tier(request, name, now)
            if planned is not None:
                stored, charge = planned
                form = self._catalog.form(spaces.get(name.space))
                blocks.append(JobBlock(name, stored.length, stored, charge, form=form))
                nbytes += stored.length
        return blocks

    def _of_tier(self, request: CopyRequest, name: BlockName, now: float) -> tuple[StoredBlock, int] | None:
        """Reserve room for a block that a tier holds, and return it and its charge; None if it is not copied."""
        source, target = request.source, request.target
        assert source is not None
        entry = source.entry_of(name)
        if source is target:
            return self._to_encode(target, name, entry, now)
        if entry is None or target.entry_of(name) is not None:
            return None
        if not (source.serves and target.serves):
            target.refuse("away", name)
            return None
        if name in target.arriving:
            return None
        stored = msgspec.structs.replace(entry.stored, writer=self._catalog.writer if target.shared else 0)
        if stored.length > self._pool.slabs.capacity_bytes:
            target.refuse("size", name)
            return None
        charge = self._catalog.admit(target, stored, now, lambda entry: False, since=request.began)
        return None if charge is None else (stored, charge)

    def _to_encode(
        self, tier: TierState, name: BlockName, entry: TierEntry | None, now: float
    ) -> tuple[StoredBlock, int] | None:
        """Reserve the bytes by which a block may grow. No other block is evicted for it."""
        if entry is None or name in tier.arriving or not tier.serves:
            tier.note("gone" if tier.serves else "away", name)
            return None
        if entry.encoding == tier.spec.compress:
            tier.note(PRESENT, name)
            return None
        growth = 0
        if tier.spec.compress == "none" or entry.encoding == "fp8":  # a lossless codec undoes what fp8 saved
            growth = max(0, tier.stored_size(entry.stored.length) - entry.charge)
            victims = tier.contents.victims(growth, entry.stored.tenant, now, lambda entry: False)
            if victims:  # it has none, or only at the cost of other blocks
                tier.note(victims if isinstance(victims, str) else "budget", name)
                return None
        self._catalog.take(tier, entry.stored, growth)
        return entry.stored, growth
