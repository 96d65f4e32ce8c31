"""A bench with tiers: the mover's work is done by the test, at once or when it likes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from dataplane.core.tenants.eviction_queues import Rank
from dataplane.core.tiering.catalog import Catalog, SpaceRecords
from dataplane.core.tiering.jobs import JobBlock, JobState, TierJob
from dataplane.core.tiering.tier_order import TierEntry
from dataplane.core.tiering.tier_state import TierState, within_budget
from dataplane.core.tiering.tiering import Tiering
from dataplane.protocol.control.moves import Move, MoveState
from dataplane.protocol.control.records import PinSpec, QuotaSpec, TierQuota
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.engine import VERSION, Attach
from dataplane.protocol.spaces import Space
from dataplane.protocol.stats.pins import PinInTier
from dataplane.protocol.stored_blocks import BlockName, CopyEnd, Loaded, Outcome, StoredBlock
from dataplane.protocol.tier_directory import TierDirectory, buckets_for, directory_bytes
from dataplane.protocol.tiers import TierSpec
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, BenchEngine

PAGE = 4096
HEADER = 4096
CHECKSUM = b"c" * 16


def stored_size(length: int) -> int:
    return HEADER + length


@dataclass(eq=False)
class Loading:
    """A block that is being loaded. Its job ends with its last block."""

    job: TierJob
    block: JobBlock
    results: dict[JobBlock, Loaded]
    """Results of the job so far."""

    @property
    def name(self) -> BlockName:
        return self.block.name

    @property
    def tier(self) -> TierState:
        assert self.job.source is not None
        return self.job.source


def stored_of(block: JobBlock) -> StoredBlock:
    assert block.stored is not None
    return block.stored


def target_of(job: TierJob) -> TierState:
    assert job.target is not None
    return job.target


class RecordingCatalog(Catalog):
    """A catalog that records which blocks tiers evict."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.evicted: list[BlockName] = []

    def evict(self, tier: TierState, entry: TierEntry) -> None:
        self.evicted.append(entry.stored.name)
        super().evict(tier, entry)


@dataclass
class TierBench:
    """A node with tiers whose stores are dictionaries."""

    bench: Bench
    engine: BenchEngine
    tiering: Tiering
    evicted: list[BlockName]
    """Blocks that tiers evicted."""
    stores: dict[int, dict[BlockName, StoredBlock]] = field(default_factory=dict)
    spills: list[TierJob] = field(default_factory=list)
    """Copies from memory that have begun, of one block each."""
    loads: list[Loading] = field(default_factory=list)
    """Blocks of loads that have begun."""
    copies: list[TierJob] = field(default_factory=list)
    """Copies between tiers that a test has begun by itself."""
    deleting: dict[int, list[BlockName]] = field(default_factory=dict)
    """Blocks that a test has begun to delete, by the number of their tier."""
    transferred: Outcome = Outcome.OK
    """Outcome of stores of blocks from another tier."""
    transfer_batches: int = 0

    @property
    def now(self) -> float:
        return self.bench.now

    def invalidate(self, scope: Scope) -> None:
        """Invalidate a scope, and carry it out in all tiers."""
        self.bench.node.invalidate(scope, self.now)
        self.sweep()

    def sweep(self) -> None:
        while self.catalog.sweep():
            pass

    @property
    def catalog(self) -> Catalog:
        return self.tiering.catalog

    def begin(self) -> None:
        """Begin all copies, loads and deletions that may begin, and carry out invalidations."""
        self.sweep()
        for tier in self.tiering.tiers:
            self.spills += self.spill(tier)
            while names := self.catalog.take_deletions(tier):
                for name in names:
                    self.stores[tier.number].pop(name, None)
                self.catalog.deleted(tier, [])
        while job := self.tiering.copies.next_from_tier(self.now):
            self.transfer(job)
        self.begin_loads()

    def begin_loads(self, most: int | None = None) -> int:
        """Begin jobs that load blocks into memory, and return their number."""
        begun = 0
        for job in islice(self.tiering.loads.next_jobs(self.now), most):
            job.to(JobState.LOADING)
            results: dict[JobBlock, Loaded] = {}
            self.loads += [Loading(job, block, results) for block in job.blocks]
            begun += 1
        return begun

    def begin_job(self) -> bool:
        """Begin the next job that loads blocks into memory."""
        return self.begin_loads(1) == 1

    def spill(self, tier: TierState, most: int = 1 << 20) -> list[TierJob]:
        """Begin copies to a tier, one job for each block."""
        jobs: list[TierJob] = []
        while len(jobs) < most and (job := self.tiering.copies.next_from_memory(tier, self.now, 1)):
            job.to(JobState.STORING)
            jobs.append(job)
        return jobs

    def load_from_tier(self, job: TierJob) -> None:
        """Do the first half of a copy from one tier to another."""
        assert job.source is not None
        job.to(JobState.LOADING)
        found = [self.stores[job.source.number].get(block.name) for block in job.blocks]
        results = [Loaded(Outcome.MISSING) if each is None else Loaded(Outcome.OK, each) for each in found]
        self.tiering.outcomes.loaded(job, results, self.now)

    def transfer(self, job: TierJob) -> None:
        """Copy blocks from one tier to another, with the outcome `transferred`."""
        self.transfer_batches += 1
        self.load_from_tier(job)
        if job.state is JobState.LOADING:
            job.to(JobState.STORING)
            self.end_copy(job, CopyEnd(self.transferred))

    def end_copy(self, job: TierJob, end: CopyEnd) -> None:
        """End a copy, all of whose blocks have this end."""
        if end.outcome is Outcome.OK:
            for block in job.blocks:
                self.stores[target_of(job).number][block.name] = stored_of(block)
        self.tiering.outcomes.stored(job, [end] * len(job.blocks), self.now)

    def end_spills(self, outcome: Outcome = Outcome.OK, count: int | None = None) -> None:
        ending, self.spills = self.spills[:count], self.spills[len(self.spills[:count]) :]
        for job in ending:
            self.end_copy(job, CopyEnd(outcome))

    def end_loads(self, outcome: Outcome = Outcome.OK, count: int | None = None) -> None:
        ending, self.loads = self.loads[:count], self.loads[len(self.loads[:count]) :]
        for load in ending:
            found = self.stores[load.tier.number].get(load.name)
            result = Loaded(outcome)
            if outcome is Outcome.OK:
                loaded = None if found is None else msgspec.structs.replace(found, checksum=CHECKSUM)
                result = Loaded(Outcome.MISSING) if loaded is None else Loaded(Outcome.OK, loaded)
            load.results[load.block] = result
            if len(load.results) == len(load.job.blocks):
                self.tiering.outcomes.loaded(load.job, [load.results[each] for each in load.job.blocks], self.now)

    def settle(self) -> None:
        """Do everything, until nothing is left."""
        for _ in range(1000):
            self.begin()
            if not self.spills and not self.loads:
                return
            self.end_spills()
            self.end_loads()
        raise AssertionError("it never settles")

    def pass_time(self, seconds: float, times: int = 1) -> None:
        """Pass time, and do everything after each step."""
        for _ in range(times):
            self.bench.pass_time(seconds)
            self.settle()

    def store(self, chain: Sequence[bytes], tenant: str = "", space: int = 0) -> None:
        """Store a chain, and copy it to the tiers."""
        self.engine.store(chain, PAGE, tenant=tenant, space=space)
        self.settle()

    def restore(self, blocks: Iterable[StoredBlock], number: int = 0) -> list[BlockName]:
        """Add blocks to a tier as if it was opened with them. Return the names of those beyond its budget, which it
        deletes."""
        tier = next(each for each in self.tiering.tiers if each.number == number)
        retained, beyond = within_budget(blocks, tier.stored_size, tier.spec.budget_bytes)
        self.stores.setdefault(number, {}).update((stored.name, stored) for stored in retained)
        for _ in self.catalog.restoring(tier, retained, (), self.now):
            pass
        return beyond

    def hold(self, chain: Sequence[bytes], number: int = 0, space: Space | None = None) -> None:
        """Let a tier hold a chain that is not in memory, of the engine's first space by default."""
        identity = self.identity() if space is None else bytes.fromhex(space.identity())
        assert self.restore(stored_chain(identity, chain), number) == []

    def keys_in(self, number: int) -> set[bytes]:
        """Return the keys of the blocks that a tier holds."""
        return {name.key for name in self.stores[number]}

    def evict_all(self) -> None:
        """Evict all blocks from memory."""
        node = self.bench.node
        node.room.evict(list(node.pool.table.blocks.values()), "room", self.now)
        assert not node.pool.table.blocks

    def ask(self, chain: Sequence[bytes], wait_s: float = 5.0, space: int = 0) -> None:
        keys = make.packed(chain)
        self.tiering.loads.request(self.engine.client, self.engine.spaces[space], keys, self.now + wait_s)

    def tier_faults(self) -> list[str]:
        """Contradictions between what the node believes and what the stores hold, which `Bench.faults` returns too."""
        found: list[str] = []
        for tier in self.tiering.tiers:
            contents = tier.contents
            stored = sum(entry.charge for entry in contents.entries.values())
            under_way = sum(charge for each, _, charge in self._under_way() if each is tier)
            if contents.used_bytes != stored + under_way:
                found.append(f"{tier.spec.name}: {contents.used_bytes} used, {stored} held, {under_way} under way")
            if contents.used_bytes > contents.budget_bytes:
                found.append(f"{tier.spec.name}: {contents.used_bytes} of {contents.budget_bytes} bytes")
            requests = list(self.tiering.table.of_target(tier))
            held = {name: each[0] for request in requests for name, each in request.waiting.items() if each is not None}
            waiting = len(held), sum(block.nbytes for block in held.values())
            if self.tiering.table.waiting(tier) != waiting:
                found.append(f"{tier.spec.name}: {waiting} wait, {self.tiering.table.waiting(tier)} are counted")
            missing = contents.entries.keys() - self.stores[tier.number].keys()
            if missing:
                found.append(f"{tier.spec.name}: {len(missing)} blocks are believed to be there")
            deletions = {*tier.deletions, *self.deleting.get(tier.number, ())}
            spilling = {block.name for each, block, _ in self._under_way() if each is tier}
            forgotten = self.stores[tier.number].keys() - contents.entries.keys() - deletions - spilling
            if forgotten and not tier.shared:  # the blocks of other nodes stay
                found.append(f"{tier.spec.name}: {len(forgotten)} blocks are there for ever")
            by_tenant: dict[str, int] = {}
            for entry in contents.entries.values():
                by_tenant[entry.stored.tenant] = by_tenant.get(entry.stored.tenant, 0) + entry.charge
            reported = {salt: tenant.bytes for salt, tenant in contents.tenants.items() if tenant.bytes}
            if by_tenant != reported:
                found.append(f"{tier.spec.name}: tenants {reported}, blocks {by_tenant}")
            found += [f"{tier.spec.name}: {each}" for each in self._share_faults(tier)]
            found += [f"{tier.spec.name}: {each}" for each in self._pin_faults(tier)]
        return found

    def _under_way(self) -> list[tuple[TierState, StoredBlock, int]]:
        """Tiers, blocks that are being stored there, and the room that was taken for them."""
        return [
            (target_of(job), stored_of(block), block.charge)
            for job in (*self.spills, *self.copies)
            for block in job.blocks
        ]

    def _share_faults(self, tier: TierState) -> list[str]:
        contents = tier.contents
        by_account = {id(account): 0 for account in contents._order.accounts()}
        pending = dict.fromkeys(contents.tenants, 0)
        for each, stored, charge in self._under_way():
            if each is tier and charge:
                pending[stored.tenant] = pending.get(stored.tenant, 0) + charge
        for tenant in contents.tenants.values():
            by_account[id(tenant.account)] += tenant.bytes
        reported = {id(account): account.bytes for account in contents._order.accounts()}
        taken = {salt: tenant.pending_bytes for salt, tenant in contents.tenants.items()}
        found = [] if reported == by_account else ["accounts and tenants disagree"]
        if taken != pending:
            found.append(f"taken {taken}, under way {pending}")
        unlimited = [tenant for tenant in contents.tenants.values() if tenant.share is None]
        for rank in Rank:
            merged = list(contents._order.common.queue.victims(rank, self.now))
            mine = [number for tenant in unlimited for number in tenant.queue.victims(rank, self.now)]
            used = [contents.numbered[number].used_at for number in merged]
            if sorted(merged) != sorted(mine) or used != sorted(used):
                found.append(f"the common queue has {merged} of rank {rank.name}, its tenants have {mine}")
        for entry in contents.entries.values():
            expected = None if entry.guaranteed else entry.tenant.queue
            if entry.queue is not expected:
                found.append("a block is in the wrong eviction queue")
        return found

    def _pin_faults(self, tier: TierState) -> list[str]:
        contents, pins = tier.contents, self.bench.node.pool.pins
        guaranteed = [entry for entry in contents.entries.values() if entry.guaranteed]
        found = []
        if contents.pins.pinned_bytes != sum(entry.charge for entry in guaranteed):
            found.append("pinned bytes and guaranteed blocks disagree")
        for tenant in contents.tenants.values():
            mine = [entry for entry in guaranteed if entry.tenant is tenant]
            if set(tenant.guaranteed) != set(mine) or tenant.pinned_bytes != sum(e.charge for e in mine):
                found.append(f"guaranteed blocks of {tenant.salt!r}")
        for pin in pins.by_name.values():
            if pin.bundle is None:
                continue
            held = [entry for entry in contents.entries.values() if pin.bundle in entry.bundles]
            reported = pin.bundle.tiers.get(tier.spec.name, PinInTier())
            if reported != PinInTier(
                len(held), sum(entry.charge for entry in held), sum(entry.guaranteed for entry in held)
            ):
                found.append(f"pin {pin.name}: {reported}, {len(held)} blocks are marked")
            if not self.tiering.pinned_chains:
                spaces = [self.identity(number) for number in self.spaces(pin.model)]
                names = {BlockName(space, key) for space in spaces for key in pin.keys}
                expected = {
                    entry
                    for name in names
                    if (entry := contents.entries.get(name)) is not None and entry.stored.tenant == pin.tenant
                }
                if expected != set(held):
                    found.append(f"pin {pin.name}: {len(held)} blocks are marked, {len(expected)} are its")
        return found

    def spaces(self, model: str) -> list[int]:
        return self.bench.node.pool.spaces.of_model(model)

    def identity(self, number: int = 0) -> bytes:
        """The identity of a space by its number; by default of the engine's first one."""
        return bytes.fromhex(self.bench.node.pool.spaces.by_number[number or self.engine.spaces[0]].identity())

    def held(self, tenant: str, number: int = 0) -> int:
        """Blocks of a tenant in a tier."""
        account = self.tiering.tiers[number].contents.tenants.get(tenant)
        return 0 if account is None else account.blocks

    def fill(self, tenant: str, blocks: int, name: object = "fill") -> None:
        """Store blocks and copy them to the tiers, one by one."""
        for number in range(blocks):
            self.store(make.keys(1, (name, tenant, number)), tenant)
            self.bench.now += 0.001

    def change(self, name: str, **fields: object) -> None:
        """Change the record of a tier."""
        for tier in self.tiering.tiers:
            if tier.spec.name == name:
                tier.spec = msgspec.structs.replace(tier.spec, **fields)

    def begin_move(self, tier: str = "disk", scope: Scope | None = None, **fields: Any) -> MoveState:
        """Begin a move of a scope, by default of the blocks of the default tenant; `fields` are those of `Move`."""
        return self.tiering.moves.start(Move("n", scope or Scope(tenant=""), tier, **fields), self.now)

    def end_move(self, state: MoveState, steps: int = 200) -> MoveState:
        """Pass time until a move has ended."""
        for _ in range(steps):
            self.pass_time(0.05)
            if state.ended_at is not None:
                assert self.tiering.moves._active or not any(tier.watched for tier in self.tiering.tiers)
                return state
        raise AssertionError(f"the move does not end: {state}")

    def move(self, tier: str = "disk", scope: Scope | None = None, **fields: Any) -> MoveState:
        return self.end_move(self.begin_move(tier, scope, **fields))

    def quotas(self, *specs: QuotaSpec, generation: int = 1) -> None:
        assert self.bench.apply(make.shares(*specs, generation=generation)) == []

    def pins(self, *records: tuple[PinSpec, bytes], generation: int = 1) -> None:
        """Set all pins, and let the node look their blocks up."""
        assert self.bench.apply(*make.pins(records, generation)) == []
        self.bench.pass_time(0.1)


def tier_bench(
    blocks: int,
    *tiers: TierSpec,
    spaces: Sequence[Space] = (),
    writer: int = 0,
    known: SpaceRecords | None = None,
    **options: object,
) -> TierBench:
    """A pool of so many blocks of a page, and tiers."""
    return with_tiers(Bench(blocks * PAGE, **options), *tiers, spaces=spaces, writer=writer, known=known)  # type: ignore[arg-type]


def with_tiers(
    bench: Bench, *tiers: TierSpec, spaces: Sequence[Space] = (), writer: int = 0, known: SpaceRecords | None = None
) -> TierBench:
    """Give tiers to a node."""
    mover, _ = bench.node.attach(Attach(0, VERSION, "larder:tiers", []), 1, bench.now, gateway="tiers")
    buckets = buckets_for(4096)
    directory = TierDirectory.make(memoryview(bytearray(directory_bytes(buckets))), buckets)
    states = [TierState(number, spec, stored_size) for number, spec in enumerate(tiers)]
    node = bench.node
    catalog = RecordingCatalog(
        node.pool, directory, known or SpaceRecords(), lambda tombstone: None, lambda call: call(), lambda: None, writer
    )
    tiering = Tiering(catalog, node.storing, node.room, mover, node.emit)
    for state in states:
        tiering.add_tier(state)
    node.use_tiers(tiering)
    engine = bench.attach(*(spaces or (make.space(block_bytes=PAGE),)))
    run = TierBench(bench, engine, tiering, catalog.evicted, {state.number: {} for state in states})
    bench.checks.append(run.tier_faults)
    return run


def tier(name: str = "disk", budget_blocks: int = 1000, **fields: object) -> TierSpec:
    spec = {"type": "test", "budget_bytes": budget_blocks * stored_size(PAGE), **fields}
    return TierSpec(name=name, **spec)  # type: ignore[arg-type]


def stored_chain(space: bytes, chain: Sequence[bytes], tenant: str = "", sequence: int = 0) -> list[StoredBlock]:
    """Blocks of a chain as a tier stores them, each behind the one before. Sequences count from 1 unless given."""
    return [
        StoredBlock(BlockName(space, key), tenant, sequence or at, PAGE, CHECKSUM, parent)
        for at, (parent, key) in enumerate(zip([b"", *chain], chain, strict=False), 1)
    ]


def quota(tenant: str, *, floor: int = 0, limit: int | None = None, name: str = "disk", **fields: object) -> QuotaSpec:
    """A quota in one tier, in blocks."""
    size = stored_size(PAGE)
    share = TierQuota(floor * size, None if limit is None else limit * size)
    return QuotaSpec(tenant, tiers={name: share}, **fields)  # type: ignore[arg-type]
