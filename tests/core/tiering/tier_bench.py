"""A bench with tiers: the mover's work is done by the test, at once or when it likes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dataplane.core.tenants.eviction_queues import Rank
from dataplane.core.tiering.contents import TierEntry
from dataplane.core.tiering.loads import PlannedLoad
from dataplane.core.tiering.reencodings import PlannedReencoding
from dataplane.core.tiering.spills import PlannedCopy, PlannedSpill
from dataplane.core.tiering.tier_state import TierState, within_budget
from dataplane.core.tiering.tiering import Tiering
from dataplane.core.tiering.transfers import PlannedTransfer
from dataplane.protocol.control.records import PinSpec, QuotaSpec, TierQuota
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.engine import VERSION, Attach
from dataplane.protocol.spaces import Space
from dataplane.protocol.stats.pins import PinInTier
from dataplane.protocol.stored_blocks import BlockName, CopyEnd, Outcome, StoredBlock
from dataplane.protocol.tier_directory import TierDirectory, buckets_for, directory_bytes
from dataplane.protocol.tiers import TierSpec
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, BenchEngine

PAGE = 4096
HEADER = 4096
CHECKSUM = b"c" * 16


def _used_at(entry: TierEntry | None) -> float:
    assert entry is not None
    return entry.used_at


def stored_size(length: int) -> int:
    return HEADER + length


@dataclass
class TierBench:
    """A node with tiers whose stores are dictionaries."""

    bench: Bench
    engine: BenchEngine
    tiering: Tiering
    stores: dict[int, dict[BlockName, StoredBlock]] = field(default_factory=dict)
    spills: list[tuple[TierState, PlannedSpill]] = field(default_factory=list)
    """Copies that have begun."""
    loads: list[PlannedLoad] = field(default_factory=list)
    """Loads that have begun."""
    copies: list[tuple[TierState, PlannedCopy]] = field(default_factory=list)
    """Copies between tiers that a test has begun by itself."""
    growths: list[tuple[TierState, PlannedReencoding]] = field(default_factory=list)
    """Blocks that a test has begun to encode again."""
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
        self.bench.node.operator.invalidate(scope, self.now)
        self.sweep()

    def sweep(self) -> None:
        while self.tiering.sweep():
            pass

    def begin(self) -> None:
        """Begin all copies, loads and deletions that may begin, and carry out invalidations."""
        self.sweep()
        for tier in self.tiering.tiers:
            self.spills += [(tier, plan) for plan in self.spill(tier)]
            while names := self.tiering.take_deletions(tier):
                for name in names:
                    self.stores[tier.number].pop(name, None)
                self.tiering.deleted(tier, [])
        while transfers := self.tiering.transfers.next_batch(self.now):
            self._transfer(transfers)
        while batch := self.tiering.loads.next_batch(self.now):
            self.loads += batch

    def spill(self, tier: TierState, most: int = 1 << 20) -> list[PlannedSpill]:
        """Begin copies to a tier."""
        return self.tiering.spills.next_batch(tier, self.now, most)

    def _transfer(self, plans: Sequence[PlannedTransfer]) -> None:
        """Copy blocks from one tier to another, with the outcome `transferred`."""
        self.transfer_batches += 1
        lacking = [plan for plan in plans if plan.stored.name not in self.stores[plan.source.number]]
        self.tiering.transfers.not_loaded(lacking, [Outcome.MISSING] * len(lacking))
        plans = [plan for plan in plans if plan not in lacking]
        if self.transferred is Outcome.OK:
            for plan in plans:
                self.stores[plan.target.number][plan.stored.name] = plan.stored
        self.tiering.transfers.ended(plans, [CopyEnd(self.transferred)] * len(plans), self.now)

    def end_spills(self, outcome: Outcome = Outcome.OK, count: int | None = None) -> None:
        ending, self.spills = self.spills[:count], self.spills[len(self.spills[:count]) :]
        for tier, plan in ending:
            if outcome is Outcome.OK:
                self.stores[tier.number][plan.stored.name] = plan.stored
            self.tiering.spills.batch_ended(tier, [plan], [CopyEnd(outcome)], self.now)

    def end_loads(self, outcome: Outcome = Outcome.OK, count: int | None = None) -> None:
        ending, self.loads = self.loads[:count], self.loads[len(self.loads[:count]) :]
        for load in ending:
            found = self.stores[load.tier.number].get(load.name)
            reported = outcome if found is not None or outcome is not Outcome.OK else Outcome.MISSING
            self.tiering.loaded(load, reported, CHECKSUM, self.now)

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
        for _ in self.tiering.restoring(tier, retained, self.now):
            pass
        return beyond

    def evict_all(self) -> None:
        """Evict all blocks from memory."""
        node = self.bench.node
        node.room.evict(list(node.pool.table.blocks.values()), "room", self.now)
        assert not node.pool.table.blocks

    def ask(self, chain: Sequence[bytes], wait_s: float = 5.0, space: int = 0) -> None:
        keys = make.packed(chain)
        self.tiering.loads.request(self.engine.client, self.engine.spaces[space], keys, self.now + wait_s)

    def faults(self) -> list[str]:
        """Contradictions of the node, and between what it believes and what the stores hold."""
        return self.bench.faults()

    def tier_faults(self) -> list[str]:
        found: list[str] = []
        for tier in self.tiering.tiers:
            contents = tier.contents
            held = sum(entry.charge for entry in contents.entries.values())
            under_way = sum(charge for each, _, charge in self._under_way() if each is tier)
            if contents.used_bytes != held + under_way:
                found.append(f"{tier.spec.name}: {contents.used_bytes} used, {held} held, {under_way} under way")
            if contents.used_bytes > contents.budget_bytes:
                found.append(f"{tier.spec.name}: {contents.used_bytes} of {contents.budget_bytes} bytes")
            waiting_bytes = sum(block.nbytes for block, _ in (*tier.first, *tier.waiting))
            if tier.waiting_bytes != waiting_bytes:
                found.append(f"{tier.spec.name}: {waiting_bytes} bytes wait, {tier.waiting_bytes} are counted")
            missing = contents.entries.keys() - self.stores[tier.number].keys()
            if missing:
                found.append(f"{tier.spec.name}: {len(missing)} blocks are believed to be there")
            waiting = {*tier.deletions.names(), *self.deleting.get(tier.number, ())}
            spilling = {stored.name for each, stored, _ in self._under_way() if each is tier}
            forgotten = self.stores[tier.number].keys() - contents.entries.keys() - waiting - spilling
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
            *((tier, plan.stored, plan.charge) for tier, plan in (*self.spills, *self.copies)),
            *((tier, plan.stored, plan.growth) for tier, plan in self.growths),
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
            used = [_used_at(contents.numbered[number]) for number in merged]
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
                spaces = [self._identity(number) for number in self.spaces(pin.model)]
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

    def _identity(self, number: int) -> bytes:
        return bytes.fromhex(self.bench.node.pool.spaces.by_number[number].identity())

    def held(self, tenant: str, number: int = 0) -> int:
        """Blocks of a tenant in a tier."""
        known = self.tiering.tiers[number].contents.tenants.get(tenant)
        return 0 if known is None else known.blocks

    def quotas(self, *specs: QuotaSpec, generation: int = 1) -> None:
        assert self.bench.apply(make.shares(*specs, generation=generation)) == []

    def pins(self, *records: tuple[PinSpec, bytes], generation: int = 1) -> None:
        """Set all pins, and let the node look their blocks up."""
        assert self.bench.apply(*make.pins(records, generation)) == []
        self.bench.pass_time(0.1)


def tier_bench(blocks: int, *tiers: TierSpec, spaces: Sequence[Space] = (), **options: object) -> TierBench:
    """A pool of so many blocks of a page, and tiers."""
    return with_tiers(Bench(blocks * PAGE, **options), *tiers, spaces=spaces)  # type: ignore[arg-type]


def with_tiers(bench: Bench, *tiers: TierSpec, spaces: Sequence[Space] = ()) -> TierBench:
    """Give tiers to a node."""
    mover, _ = bench.node.attach(Attach(0, VERSION, "larder:tiers", []), 1, bench.now, gateway="tiers")
    buckets = buckets_for(4096)
    directory = TierDirectory.make(memoryview(bytearray(directory_bytes(buckets))), buckets)
    states = [TierState(number, spec, stored_size) for number, spec in enumerate(tiers)]
    tiering = Tiering(bench.node, mover.client, directory, states)
    bench.node.use_tiers(tiering)
    engine = bench.attach(*(spaces or (make.space(block_bytes=PAGE),)))
    run = TierBench(bench, engine, tiering, {state.number: {} for state in states})
    bench.checks.append(run.tier_faults)
    return run


def tier(name: str = "disk", budget_blocks: int = 1000, **fields: object) -> TierSpec:
    spec = {"type": "test", "budget_bytes": budget_blocks * stored_size(PAGE), **fields}
    return TierSpec(name=name, **spec)  # type: ignore[arg-type]


def quota(tenant: str, *, floor: int = 0, limit: int | None = None, name: str = "disk", **fields: object) -> QuotaSpec:
    """A quota in one tier, in blocks."""
    size = stored_size(PAGE)
    share = TierQuota(floor * size, None if limit is None else limit * size)
    return QuotaSpec(tenant, tiers={name: share}, **fields)  # type: ignore[arg-type]


def chance_of(seed: int) -> random.Random:
    return random.Random(seed)
