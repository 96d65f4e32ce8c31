"""Applies what happened to the blocks of jobs, to the catalog and to the pool. Nothing else does."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dataplane.core.engines.engines import Engine
from dataplane.core.engines.storing import StoreService
from dataplane.core.tiering.catalog import Catalog
from dataplane.core.tiering.jobs import JobBlock, JobReason, JobState, JobTable, TierJob
from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.engine import Commit
from dataplane.protocol.stored_blocks import CopyEnd, Loaded, Outcome, StoredBlock

MAX_AHEAD_S = 60.0
"""A block of a shared tier is not loaded if its recorded time is further in the future than this, because invalidations
would not cover it."""
HUNG = "hung"
"""Why a block was not moved: a call of one of the tiers did not return."""
OTHER = "other"
"""Why a block was not encoded again: another node has stored it meanwhile."""


class Outcomes:
    """Ends jobs."""

    def __init__(self, catalog: Catalog, table: JobTable, storing: StoreService, engine: Engine) -> None:
        """`engine` is the mover's, which owns the memory that is loaded into."""
        self._catalog, self._table, self._storing, self._engine = catalog, table, storing, engine
        self._pool = catalog.pool

    def loaded(self, job: TierJob, results: Sequence[Loaded], now: float) -> None:
        """Apply the results of a load, one for each block. `TierJob.blocks` are then those that are left to be stored
        in the target; a job without any, or whose target is gone, has ended."""
        if job.target is None:
            self._loaded_into_memory(job, results, now)
        elif job.state is JobState.HUNG:
            job.to(JobState.ENDED)
        else:
            self._loaded_into_buffer(job, job.target, results, now)
        self._catalog.wake()

    def cancelled(self, job: TierJob, now: float) -> None:
        """Release the memory of a load that was cancelled before it began."""
        assert job.source is not None
        job.source.loading_bytes -= job.nbytes
        self._publish(job, {}, now)
        self._catalog.wake()

    def stored(self, job: TierJob, copy_ends: Sequence[CopyEnd], now: float) -> None:
        """Apply the ends of the copies to the target, one for each block that was left, and end the job."""
        target = job.target
        assert target is not None
        self._pool.leases.release([job_block.block.number for job_block in job.blocks if job_block.block is not None])
        self._end(job)
        before = target.counters.spilled_blocks
        apply = self._encoded if job.reason is JobReason.ENCODE else self._copied
        pairs = zip(job.blocks, copy_ends, strict=True)
        self._catalog.list_blocks(
            target, [block for job_block, end in pairs if (block := apply(job, job_block, end, now))]
        )
        if job.reason is JobReason.CASCADE:
            target.counters.cascaded_blocks += target.counters.spilled_blocks - before

    def hung(self, job: TierJob) -> None:
        """Wait no longer for a call between tiers. Blocks that are being loaded are given up, and will not be stored.
        The room of those that are being stored stays reserved until `stored`, because the call may still store them."""
        source, target = job.source, job.target
        assert source is not None
        assert target is not None
        loading = job.state is JobState.LOADING
        job.to(JobState.HUNG)
        del self._table.crossing[target]
        for block in job.blocks:
            target.note(HUNG, block.name)
            if loading:
                self._catalog.arrived(target, block.name)
                source.lose("late", block.name)
            else:
                target.arriving[block.name].hung = True
        if loading:
            job.blocks = []
        self._catalog.wake()

    def _end(self, job: TierJob) -> None:
        job.to(JobState.ENDED)
        if job.target is not None and self._table.crossing.get(job.target) is job:
            del self._table.crossing[job.target]
        self._catalog.wake()

    # ---- loads into memory

    def _loaded_into_memory(self, job: TierJob, results: Sequence[Loaded], now: float) -> None:
        tier = job.source
        assert tier is not None
        tier.loading_bytes -= job.nbytes
        arrived: dict[int, bytes] = {}
        for block, result in zip(job.blocks, results, strict=True):
            reason = self._covered(job, tier, block, result.block, now)
            if reason:
                self._catalog.existence.forget(block.name)
                tier.lose(reason, block.name)
            elif result.outcome is Outcome.OK and result.block is not None:
                arrived[block.position] = result.block.checksum
                tier.counters.loaded_blocks += 1
                tier.counters.loaded_bytes += block.nbytes
                tier.contents.touch(block.name, now)
                self._catalog.existence.used(block.name, now)
            else:
                tier.lose(result.outcome.value, block.name)
                if result.outcome in (Outcome.MISSING, Outcome.CORRUPT):
                    self._catalog.forget(tier, block.name)
        self._publish(job, arrived, now)

    def _covered(self, job: TierJob, tier: TierState, block: JobBlock, stored: StoredBlock | None, now: float) -> str:
        """Return why a block of a shared tier must not be published; empty if it may be."""
        if not tier.shared or stored is None:
            return ""
        if self.is_ahead(stored, now):
            return "clock"
        at = job.positions.of_key[block.name.key]
        dead = any(tombstone.covers_behind(stored, at, job.positions) for tombstone in tier.tombstones())
        return "invalidated" if dead or stored.tenant != job.tenant else ""

    def is_ahead(self, block: StoredBlock, now: float) -> bool:
        """Return whether the sequence of a block is later than any node can have assigned."""
        return block.sequence > self._pool.sweeps.timestamp(now) + int(MAX_AHEAD_S * 1e9)

    def _publish(self, job: TierJob, arrived: dict[int, bytes], now: float) -> None:
        """Publish the blocks that arrived, with their checksums by position, and release the memory of the others."""
        tier = job.source
        assert tier is not None
        self._end(job)
        for block in job.blocks:
            key = job.space, block.name.key
            if self._table.loading.get(key) is job:  # otherwise it hung, and another job has loaded the block
                del self._table.loading[key]
        slots = sorted(arrived)
        reservation = self._engine.reservations.get(job.reservation)
        published = [] if reservation is None else [reservation.writing[at] for at in slots]
        try:
            if not slots:
                self._storing.abort(self._engine, job.reservation, now)
                return
            positions = b"".join(at.to_bytes(4, "little") for at in slots)
            checksums = b"".join(arrived[at] for at in slots)
            self._storing.commit(self._engine, Commit(0, job.reservation, positions, checksums), now)
            self._pool.arrivals.add(published, tier.spec.name)
        except ProtocolError:  # it expired or was invalidated meanwhile, and its memory is released
            tier.lose("late", *(block.name for block in job.blocks if block.position in arrived))

    # ---- copies

    def _loaded_into_buffer(self, job: TierJob, target: TierState, results: Sequence[Loaded], now: float) -> None:
        source = job.source
        assert source is not None
        intact: list[JobBlock] = []
        for block, result in zip(job.blocks, results, strict=True):
            reason = _not_as_expected(job, block, result)
            if not reason:
                intact.append(block)
                continue
            self._catalog.arrived(target, block.name)
            target.note(reason, block.name)
            if reason == OTHER or source.entry_of(block.name) is None:
                continue  # it was evicted or invalidated meanwhile
            if job.reason is not JobReason.ENCODE:
                source.lose(reason, block.name)
            if reason in (Outcome.MISSING.value, Outcome.CORRUPT.value) and not source.closing:
                self._catalog.forget(source, block.name)
        job.blocks = intact
        if not intact:
            self._end(job)
        elif target.closing:
            self.stored(job, [CopyEnd(Outcome.FAILED)] * len(intact), now)

    def _copied(self, job: TierJob, block: JobBlock, end: CopyEnd, now: float) -> StoredBlock | None:
        """Apply the end of a copy. Return the block if the tier holds it from now on."""
        target, stored = job.target, block.stored
        assert target is not None
        assert stored is not None
        dead = self._catalog.arrived(target, block.name)
        if dead and not target.closing:
            target.again.append(block.name)
        if end.outcome is not Outcome.OK:
            target.refuse(end.outcome.value, block.name)
            if target.closing:
                return None
            if end.outcome is Outcome.FULL:
                self._make_room(job, target, block, now)
            else:  # the tier may hold the block all the same, or part of it
                target.deletions.append(block.name)
            return None
        target.counters.spilled_blocks += 1
        target.counters.spilled_bytes += block.nbytes
        if reason := end.not_compressed:
            target.counters.not_compressed[reason] = target.counters.not_compressed.get(reason, 0) + 1
        if target.closing:
            return None
        if dead:
            target.deletions.append(block.name)
            return None
        charge = block.charge if end.charge is None else end.charge
        self._catalog.add(target, stored, charge, now, end.encoding)
        self._catalog.existence.stored(block.name)
        return stored

    def _make_room(self, job: TierJob, target: TierState, block: JobBlock, now: float) -> None:
        """Evict as many bytes as the refused block needs. The tier's room is smaller than its budget, for example
        because it is divided into pieces for blocks of one size."""
        assert block.stored is not None
        if target.listed_blocks is not None:
            return
        target.contents.was_full()
        salt = block.stored.tenant
        victims = target.contents.victims(0, salt, now, lambda entry: False, at_least=block.charge)
        if not isinstance(victims, str) and all(victim.used_at < job.since for victim in victims):
            for victim in victims:
                self._catalog.evict(target, victim)

    def _encoded(self, job: TierJob, block: JobBlock, end: CopyEnd, now: float) -> StoredBlock | None:
        """Apply the end of a block that its tier has encoded again. FULL, and FAILED with a reason, mean that it was
        left as it is. After another failure, it may have either form, and is charged for the larger one."""
        tier, stored = job.target, block.stored
        assert tier is not None
        assert stored is not None
        dead = self._catalog.arrived(tier, block.name)
        if tier.closing:
            return None
        entry = tier.contents.entries.get(block.name)
        is_unchanged = end.outcome is Outcome.FULL or bool(end.not_compressed)
        if dead or (not is_unchanged and entry is None):  # it was forgotten meanwhile, and stored again
            tier.deletions.append(block.name)
        elif not is_unchanged and entry is not None and entry.stored.sequence == stored.sequence:
            charge, encoding = entry.charge + block.charge, entry.encoding
            if end.outcome is Outcome.OK:
                charge = tier.stored_size(block.nbytes) if end.charge is None else end.charge
                encoding = end.encoding
            # The same object: the end of a listing compares it.
            self._catalog.add(tier, entry.stored, charge, now, encoding)
        if dead or entry is None:
            tier.note("gone", block.name)
        elif end.outcome is not Outcome.OK:
            tier.note(end.not_compressed or end.outcome.value, block.name)
        return None


def _not_as_expected(job: TierJob, block: JobBlock, result: Loaded) -> str:
    """Return why a loaded block is not stored, and otherwise note the checksum of the loaded bytes, which a lossy codec
    of the source changes. Another node may have replaced a block of a shared tier."""
    loaded, expected = result.block, block.stored
    if result.outcome is not Outcome.OK or loaded is None:
        return result.outcome.value
    assert expected is not None
    if job.reason is JobReason.ENCODE:
        if (loaded.tenant, loaded.sequence) != (expected.tenant, expected.sequence):
            return OTHER
        block.stored = loaded
        return ""
    block.stored = msgspec.structs.replace(expected, checksum=loaded.checksum)
    by_same_writer = msgspec.structs.replace(block.stored, writer=loaded.writer)
    return "" if loaded == by_same_writer else Outcome.MISSING.value
