"""Whatever tenants, engines, operators and time do, no promise is broken; refusals are counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dataplane.core.blocks.blocks import Block
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.records import ALGORITHMS, Algorithm, QuotaSpec, Strength
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.layout import I64, U64, pack_keys
from dataplane.protocol.states import State
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, BenchEngine
from tests.sizes import size

SPACES = (make.space(dtype="bf16"), make.space("other"))
TENANTS = ("", "a", "b")
SLOT = 64 * make.KIB
SIZES = (SLOT, SLOT, SLOT, 16 * make.KIB, 300_000, 700_000)
CAPACITY = 4 * make.MIB
LARGEST = 6 * make.MIB
CHAINS = {
    tenant: [make.keys(length, (tenant, number)) for number, length in enumerate((6, 12, 32))] for tenant in TENANTS
}
for _chains in CHAINS.values():  # two that share a start
    _chains.append([*_chains[1][:6], *make.keys(6, ("branch", _chains[0][0]))])

slots = st.integers(0, CAPACITY // SLOT).map(lambda count: count * SLOT)
tenants = st.sampled_from(TENANTS)
picks = st.integers(0, 9)
chain_numbers = st.integers(0, 3)


@st.composite
def quota(draw: st.DrawFn) -> QuotaSpec:
    limit = draw(st.one_of(st.none(), slots))
    floor = draw(slots)
    return QuotaSpec(
        draw(tenants),
        limit_bytes=limit,
        floor_bytes=floor if limit is None else min(floor, limit),
        weight=draw(st.sampled_from([0.01, 1.0, 4.0])),
        pin_budget_bytes=draw(st.one_of(st.none(), slots)),
        store_rate_bytes=draw(st.one_of(st.none(), st.none(), st.sampled_from([SLOT // 2, 8 * SLOT]))),
        on_exceed=draw(st.sampled_from(["evict_self", "reject"])),
        mode=draw(st.sampled_from(["enforce", "enforce", "observe"])),
    )


scopes = st.one_of(
    tenants.map(lambda tenant: Scope(tenant=tenant)),
    st.sampled_from(SPACES).map(lambda space: Scope(model=space.model)),
    st.tuples(tenants, st.sampled_from(SPACES)).map(lambda both: Scope(tenant=both[0], space=both[1].identity())),
    st.tuples(tenants, chain_numbers, st.integers(1, 6)).map(
        lambda each: Scope(keys=make.packed(CHAINS[each[0]][each[1]][: each[2]]))
    ),
)


@dataclass
class Hold:
    """What an engine has leased, and where it was then."""

    engine: BenchEngine
    rows: dict[int, tuple[int, list[int]]]
    """Control word and row by descriptor."""


class TenancyMachine(RuleBasedStateMachine):
    """Engines of four tenants, and an operator who changes everything."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(CAPACITY, max_blocks=320, pin_budget_bytes=make.MIB, ttl_s=10, hint_max_s=60)
        self.alive: list[BenchEngine] = []
        self.closed: list[BenchEngine] = []
        self.open: list[tuple[BenchEngine, int]] = []
        self.held: list[Hold] = []
        self.generation = 0
        self.permanent: set[tuple[str, bytes]] = set()
        """Models and keys under permanent pins."""
        self.refused = 0
        self.written: dict[tuple[int, int], tuple[str, int, list[bytes]]] = {}
        """Of open reservations: whose, which space, and the chain."""
        self.invalid: set[tuple[int, int]] = set()
        """Those that an invalidation covers."""

    @initialize(
        specs=st.lists(quota(), min_size=1, max_size=3, unique_by=lambda spec: spec.tenant), pinned=chain_numbers
    )
    def a_busy_pool(self, specs: list[QuotaSpec], pinned: int) -> None:
        self.attach("one")
        self.attach("two")
        for tenant in TENANTS:
            for number in range(len(CHAINS[tenant])):
                self.write(0, tenant, number, SLOT, number % 2, "commit", (0, 0))
        self.quotas(specs)
        self.pins({"p": ("b", pinned, "permanent", None, False), "q": ("", pinned, "guaranteed", 30.0, True)})

    # ---- engines

    @rule(group=st.sampled_from(["one", "two"]))
    def attach(self, group: str) -> None:
        if len(self.alive) < 4:
            self.alive.append(self.bench.attach(*SPACES, group=group, pid=len(self.alive)))

    @precondition(lambda self: self.alive)
    @rule(
        pick=picks,
        tenant=tenants,
        number=chain_numbers,
        size=st.sampled_from(SIZES),
        space=st.integers(0, 1),
        finish=st.sampled_from(["commit", "commit", "commit", "some", "abort", "leave"]),
        hint=st.sampled_from([(0, 0), (0, 0), (5, 0), (0, 5), (0, 1000), (3, 20)]),
    )
    def write(
        self, pick: int, tenant: str, number: int, size: int, space: int, finish: str, hint: tuple[float, float]
    ) -> None:
        engine = self.engine(pick)
        floors, guaranteed = self._floors(besides=tenant), self._guaranteed()
        refused = self.bench.node.pool.tenants.get(tenant).refused_blocks
        granted = engine.reserve(CHAINS[tenant][number], size, tenant=tenant, space=space, ttl_s=hint[0], pin_s=hint[1])
        self._no_loss(floors, guaranteed)
        account = self.bench.node.pool.tenants.get(tenant)
        outcomes = granted.outcomes.tolist()
        if account.limit_bytes is not None and 0 in outcomes:
            assert account.bytes <= account.limit_bytes
        codes = sum(outcome not in (0, 254, 255) for outcome in outcomes)
        assert account.refused_blocks == refused + codes
        self.refused += codes
        if not granted.reservation:
            return
        if finish == "commit":
            engine.commit(granted.reservation)
        elif finish == "some":
            positions = [at for at, outcome in enumerate(outcomes) if outcome == 0]
            engine.commit(granted.reservation, positions[::2])
        elif finish == "abort":
            engine.abort(granted.reservation)
        else:
            self.open.append((engine, granted.reservation))
            self.written[engine.client, granted.reservation] = (tenant, space, CHAINS[tenant][number])
        self._no_loss(floors, guaranteed)

    @precondition(lambda self: self.open)
    @rule(pick=st.integers(0, 99), commits=st.booleans())
    def finish_later(self, pick: int, commits: bool) -> None:
        engine, reservation = self.open.pop(pick % len(self.open))
        if engine not in self.alive:
            return
        held = engine.bench.node.engines[engine.client].reservations.get(reservation)
        try:
            if commits:
                engine.commit(reservation)
                assert (engine.client, reservation) not in self.invalid
            else:
                engine.abort(reservation)
        except ProtocolError as error:
            expected = Code.RESERVATION_EXPIRED if held is None else Code.INVALIDATED
            assert error.code is expected  # noqa: PT017 (either outcome is right)

    @precondition(lambda self: self.alive)
    @rule(pick=picks, tenant=tenants, number=chain_numbers, space=st.integers(0, 1))
    def acquire(self, pick: int, tenant: str, number: int, space: int) -> None:
        engine = self.engine(pick)
        chain = CHAINS[tenant][number]
        hits = self.seen(engine, chain, space)
        if not hits:
            return
        before = len(engine._leased)
        assert engine.acquire(chain[:hits], space) == hits
        rows = {at: self.location(at) for at in engine._leased[before:]}
        self.held.append(Hold(engine, rows))

    @precondition(lambda self: self.alive)
    @rule(pick=picks)
    def release(self, pick: int) -> None:
        engine = self.engine(pick)
        engine.release()
        self.held = [hold for hold in self.held if hold.engine is not engine]

    @precondition(lambda self: len(self.alive) > 1)
    @rule(pick=picks, how=st.sampled_from(["die", "detach", "detach_cleanly"]))
    def leave(self, pick: int, how: str) -> None:
        engine = self.alive.pop(pick % len(self.alive))
        if how == "detach":
            engine.detach()
            self.closed.append(engine)
            return
        self.held = [hold for hold in self.held if hold.engine is not engine]
        engine.die() if how == "die" else engine.detach_cleanly()

    @precondition(lambda self: self.closed)
    @rule(pick=picks)
    def gone(self, pick: int) -> None:
        engine = self.closed.pop(pick % len(self.closed))
        self.held = [hold for hold in self.held if hold.engine is not engine]
        engine.die()

    # ---- operators and time

    @rule(specs=st.lists(quota(), max_size=4, unique_by=lambda spec: spec.tenant))
    def quotas(self, specs: list[QuotaSpec]) -> None:
        guaranteed = self._guaranteed() if not any(spec.limit_bytes is not None for spec in specs) else []
        self.generation += 1
        assert self.bench.apply(make.shares(*specs, generation=self.generation)) == []
        self._stay(guaranteed)
        tenants = self.bench.node.pool.tenants
        assert {tenant.salt for tenant in tenants.managed()} == {spec.tenant for spec in specs}

    @rule(
        chosen=st.dictionaries(
            st.sampled_from("pqrs"),
            st.tuples(
                tenants,
                chain_numbers,
                st.sampled_from(["soft", "guaranteed", "guaranteed", "permanent"]),
                st.one_of(st.none(), st.sampled_from([-1.0, 5.0, 30.0])),
                st.booleans(),
            ),
        )
    )
    def pins(self, chosen: dict[str, tuple[str, int, Strength, float | None, bool]]) -> None:
        self.generation += 1
        records = []
        permanent: set[tuple[str, bytes]] = set()
        for name, (tenant, number, strength, after, refreshed) in chosen.items():
            end = None if after is None or strength == "permanent" else self.bench.now + after
            chain = CHAINS[tenant][number]
            refresh_s = 10.0 if refreshed and end is not None else None
            pin = make.pin(name, chain, tenant=tenant, strength=strength, expires_at=end, refresh_s=refresh_s)
            records.append(pin)
            if strength == "permanent":
                permanent |= {(pin[0].model, key) for key in chain}
        self.permanent = permanent
        assert self.bench.apply(*make.pins(records, self.generation)) == []

    @rule(algorithm=st.sampled_from(ALGORITHMS), admission=st.booleans(), high=st.sampled_from([1.0, 1.0, 0.9, 0.7]))
    def policy(self, algorithm: Algorithm, admission: bool, high: float) -> None:
        self.generation += 1
        before = set(self.bench.node.pool.table.blocks)
        snapshot = make.policy(
            self.generation, algorithm=algorithm, admission=admission, high_watermark=high, low_watermark=min(high, 0.8)
        )
        assert self.bench.apply(snapshot) == []
        assert set(self.bench.node.pool.table.blocks) == before, "nothing cached is dropped"

    @precondition(lambda self: self.alive)
    @rule(scope=scopes)
    def invalidate(self, scope: Scope) -> None:
        readable = self._readable()
        stays = {block for block in readable if (SPACES[block.space - 1].model, block.key) in self.permanent}
        self.bench.node.invalidate(scope, self.bench.now)
        for number, (salt, at, chain) in self.written.items():
            packed = [scope.keys[first : first + 32] for first in range(0, len(scope.keys), 32)]
            if (
                scope.tenant in (None, salt)
                and scope.model in (None, SPACES[at].model)
                and scope.space in (None, SPACES[at].identity())
                and (not packed or packed[-1] in chain)
            ):
                self.invalid.add(number)
        left = self._readable()
        assert stays & readable <= left, "permanent pins are untouched"
        for block in readable - stays:
            space = SPACES[block.space - 1]
            covered = (
                (scope.tenant is None or block.tenant.salt == scope.tenant)
                and (scope.model is None or space.model == scope.model)
                and (scope.space is None or space.identity() == scope.space)
            )
            if not scope.keys:
                assert (block in left) is not covered
            elif block.key in scope.keys:
                assert block not in left
            elif self._reached(block, readable, scope.keys[-32:]):
                assert block not in left, "it was stored behind the prefix"
            elif not self._owns(block.tenant.salt, scope.keys) and self._reached(block, readable):
                assert block in left

    @rule(scope=scopes)
    def demote(self, scope: Scope) -> None:
        before = set(self.bench.node.pool.table.blocks)
        self.bench.node.demote(scope, self.bench.now)
        assert set(self.bench.node.pool.table.blocks) == before

    @rule()
    def resize(self) -> None:
        capacity = self.bench.node.options.capacity_bytes
        if capacity < LARGEST:
            self.bench.node.resize(capacity + make.MIB, self.bench.now)

    @rule(seconds=st.sampled_from([0.05, 0.05, 0.6, 4, 11]))
    def wait(self, seconds: float) -> None:
        floors = self._floors(besides=None)
        self.bench.now += seconds
        ends = [pin.expires_at for pin in self.bench.node.pool.pins.by_name.values()]
        ending = any(end is not None and end <= self.bench.now for end in ends)
        guaranteed = [] if ending or self.bench.node.pool.sweeps.active else self._guaranteed()
        owed = bool(self.bench.node.pool.sweeps.active or self.bench.node.pool.dead)
        hinted_out = self.bench.node.pool.evicted["hint"].blocks
        self.bench.node.tick(self.bench.now)
        self._stay(guaranteed)
        # A floor does not keep blocks that the tenant itself wants dropped.
        if not owed and hinted_out == self.bench.node.pool.evicted["hint"].blocks:
            self._no_loss(floors, [])

    # ---- what must hold

    @invariant()
    def accounts_are_consistent(self) -> None:
        assert self.bench.faults() == []

    @invariant()
    def leased_blocks_stay_in_place(self) -> None:
        for hold in self.held:
            for number, row in hold.rows.items():
                assert self.location(number) == row

    @invariant()
    def pins_stay_inside_the_budgets(self) -> None:
        pool = self.bench.node.pool
        permanent = dict.fromkeys(pool.tenants.by_salt.values(), 0)
        for block in pool.pins.guaranteed:
            if block in pool.pins.permanent:
                permanent[block.tenant] += block.charge
        assert pool.pins.pinned_bytes <= pool.pins.budget_bytes
        for tenant, bytes_permanent in permanent.items():
            budget = tenant.pin_budget_bytes
            assert budget is None or tenant.pinned_bytes <= max(budget, bytes_permanent)
        ready = [block for block in pool.table.blocks.values() if block.state is State.READY]
        for pin in pool.pins.by_name.values():
            held = [
                block
                for block in ready
                if not pin.expired
                and block.key in pin.keys
                and block not in pool.dead
                and (pool.spaces.model(block.space), block.tenant.salt) == (pin.model, pin.tenant)
            ]
            assert pin.resident == len(held)
            assert pin.guaranteed == len(pool.pins.guaranteed.intersection(held))
            assert pin.bytes == sum(block.charge for block in held)

    @invariant()
    def every_refusal_is_counted(self) -> None:
        stats = self.bench.node.stats(self.bench.now)
        assert sum(stats.refused.values()) == self.refused
        assert stats.totals.refused_blocks == self.refused
        assert sum(sum(tenant.refused.values()) for tenant in stats.tenants) == self.refused

    @invariant()
    def floors_fit(self) -> None:
        stats = self.bench.node.stats(self.bench.now)
        floors = sum(tenant.effective_floor_bytes for tenant in stats.tenants)
        assert floors <= stats.pool.capacity_bytes
        managed = [tenant for tenant in stats.tenants if tenant.managed and tenant.mode == "enforce"]
        if sum(tenant.floor_bytes for tenant in managed) <= stats.pool.capacity_bytes:
            assert all(tenant.effective_floor_bytes == tenant.floor_bytes for tenant in managed)

    @invariant()
    def invalid_blocks_are_not_readable(self) -> None:
        pool = self.bench.node.pool
        if self.bench.index.valid(*self._rows([])) is None and not pool.sweeps.active:
            assert not any(pool.sweeps.covers(block) for block in pool.table.blocks.values())

    def teardown(self) -> None:
        for engine in [*self.alive, *self.closed]:
            engine.die()
        self.generation += 3
        self.bench.apply(make.shares(generation=self.generation))
        self.bench.apply(*make.pins([], self.generation))
        self.bench.apply(make.policy(self.generation))
        self.bench.pass_time(1, times=40)
        pool = self.bench.node.pool
        assert pool.reserved_bytes == pool.quarantined_bytes == pool.pins.pinned_bytes == 0
        assert not pool.sweeps.active
        assert not pool.dead
        assert self.bench.faults() == []
        for scope in (Scope(tenant=tenant) for tenant in TENANTS):
            self.bench.node.invalidate(scope, self.bench.now)
        self.bench.pass_time(0.05, times=10)
        assert pool.used_bytes == 0
        assert all(account.bytes == 0 for account in pool.order.accounts())
        engine = self.bench.attach(SPACES[1])
        stored = engine.store([make.key("all of it")], self.bench.node.options.capacity_bytes)
        assert stored.written == 1, f"the whole pool is usable again: {stored.outcomes}"

    # ---- looking

    def engine(self, pick: int) -> BenchEngine:
        return self.alive[pick % len(self.alive)]

    def location(self, number: int) -> tuple[int, list[int]]:
        return int(self.bench.index.control[number]), self.bench.index.hot[number].tolist()

    def seen(self, engine: BenchEngine, chain: Sequence[bytes], space: int) -> int:
        return len(self.bench.index.leading_ready(pack_keys(list(chain)), engine.spaces[space])[0])

    def _rows(self, numbers: list[int]) -> tuple[I64, U64]:
        at = np.array(numbers or [0], np.int64)
        return at, self.bench.index.hot[at]

    def _readable(self) -> set[Block]:
        """READY blocks that a reader of their key finds."""
        pool = self.bench.node.pool
        listed = [
            block for block in pool.table.blocks.values() if block.state is State.READY and block.entry is not None
        ]
        if not listed:
            return set()
        valid = self.bench.index.valid(*self._rows([block.number for block in listed]))
        return {block for at, block in enumerate(listed) if valid is None or valid[at]}

    @staticmethod
    def _reached(block: Block, readable: set[Block], start: bytes = b"") -> bool:
        """Whether a look-up from the start of its chain, or from behind a key, comes to a block."""
        there = {(each.space, each.key): each for each in readable}
        while block.parent != start:
            if not block.parent:
                return False
            before = there.get((block.space, block.parent))
            if before is None:
                return False
            block = before
        return True

    @staticmethod
    def _owns(salt: str, packed: bytes) -> bool:
        return any(packed.startswith(chain[0]) for chain in CHAINS[salt])

    def _floors(self, besides: str | None) -> dict[str, int]:
        """Bytes that tenants with a floor may not fall below: what they have, at most the floor."""
        pool = self.bench.node.pool
        gone: dict[str, int] = {}
        for block in pool.dead:
            gone[block.tenant.salt] = gone.get(block.tenant.salt, 0) + block.charge
        return {
            tenant.salt: min(tenant.bytes - gone.get(tenant.salt, 0), tenant.account.floor_bytes)
            for tenant in pool.tenants.managed()
            if tenant.enforced and tenant.salt != besides
        }

    def _guaranteed(self) -> list[Block]:
        """Blocks under guaranteed pins, without those that an invalidation covers, which are freed bit by bit."""
        pool = self.bench.node.pool
        return [block for block in pool.pins.guaranteed if not pool.sweeps.covers(block)]

    def _no_loss(self, floors: dict[str, int], guaranteed: list[Block]) -> None:
        for salt, least in floors.items():
            assert self.bench.node.pool.tenants.get(salt).bytes >= least, salt
        self._stay(guaranteed)

    def _stay(self, guaranteed: list[Block]) -> None:
        blocks = self.bench.node.pool.table.blocks
        assert all(blocks.get(block.number) is block for block in guaranteed)


TestTenancy = TenancyMachine.TestCase
# Without shrinking a failure is reported within the time that a test has. To make one short, add `Phase.shrink`.
TestTenancy.settings = settings(
    max_examples=size(40, 10),
    stateful_step_count=40,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
