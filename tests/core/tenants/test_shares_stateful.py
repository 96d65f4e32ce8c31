"""A pool of a few blocks that everybody wants: after every step it is computed again, from the descriptors in shared
memory and the records alone, who might have lost what, and who might have been refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.records import QuotaSpec, Strength
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.layout import HOT_KEY, pack_keys
from dataplane.protocol.states import STATE_MASK, State
from tests.core.tenancy import PAGE, bench_of
from tests.dataplane import factories as make
from tests.dataplane.bench_node import BenchEngine
from tests.sizes import size

BLOCKS, LARGEST, PIN_BLOCKS = 16, 24, 5
TENANTS = ("a", "b", "c", "d")
LENGTHS = (2, 3, 5, 8, 1)
CHAINS = {tenant: [make.keys(length, (tenant, length)) for length in LENGTHS] for tenant in TENANTS}
OWNERS = {
    pack_keys([key]).tobytes(): (tenant, key) for tenant, chains in CHAINS.items() for chain in chains for key in chain
}

EVERYTHING = [(tenant, number) for tenant in TENANTS for number in range(len(LENGTHS))]
FINISHES = ("commit", "commit", "abort", "leave")

STRENGTHS: tuple[Strength, ...] = ("soft", "soft", "soft", "guaranteed", "permanent")

tenants = st.sampled_from(TENANTS)
picks = st.integers(0, 99)
numbers = st.integers(0, len(LENGTHS) - 1)
floors = st.sampled_from([0, 2, 4, 6, 9])
limits = st.sampled_from([None, None, None, 3, 5, 7])


@st.composite
def quotas(draw: st.DrawFn) -> tuple[QuotaSpec, ...]:
    any_at_all = draw(st.integers(0, 5))
    return tuple(
        QuotaSpec(
            tenant,
            floor_bytes=floor * PAGE if limit is None else min(floor, limit) * PAGE,
            limit_bytes=None if limit is None else limit * PAGE,
            weight=draw(st.sampled_from([0.125, 1.0, 4.0])),
            pin_budget_bytes=draw(st.sampled_from([None, 0, PAGE, 3 * PAGE])),
            store_rate_bytes=draw(st.sampled_from([None, None, None, 2 * PAGE, 4 * PAGE])),
            on_exceed=draw(st.sampled_from(["evict_self", "reject"])),
            mode=draw(st.sampled_from(["enforce", "enforce", "enforce", "observe"])),
        )
        for tenant, floor, limit in [(name, draw(floors), draw(limits)) for name in TENANTS[:3]]
        if any_at_all and draw(st.integers(0, 3))
    )


@dataclass(frozen=True)
class Row:
    """A block as shared memory shows it, and how the core ranks it."""

    number: int
    key: bytes
    tenant: str
    control: int
    guaranteed: bool

    @property
    def ready(self) -> bool:
        return self.control & STATE_MASK == State.READY


@dataclass
class View:
    """The pool at one moment."""

    rows: dict[int, Row]
    leased: set[int]
    demoted: set[bytes]
    count: Counter[str] = field(init=False)

    def __post_init__(self) -> None:
        self.count = Counter(row.tenant for row in self.rows.values())

    def evictable(self) -> list[Row]:
        """What may go if its tenant must give."""
        return [row for row in self.rows.values() if row.ready and not row.guaranteed and row.number not in self.leased]

    def lost(self, after: View) -> list[Row]:
        """What was there and is not any more."""
        same = STATE_MASK ^ ((1 << 64) - 1)
        return [
            row
            for number, row in self.rows.items()
            if number not in after.rows or (after.rows[number].control ^ row.control) & same
        ]


class SharesMachine(RuleBasedStateMachine):
    """Three tenants with records that change, one without, and not enough room."""

    def __init__(self) -> None:
        super().__init__()
        self.bench, self.engine = bench_of(BLOCKS, max_blocks=64, pin_budget_bytes=PIN_BLOCKS * PAGE, ttl_s=3)
        self.reader: BenchEngine = self.bench.attach(make.space())
        self.specs: dict[str, QuotaSpec] = {}
        self.pinned: list[tuple[str, int, Strength]] = []
        self.open: list[int] = []
        self.buckets: dict[str, tuple[Fraction, float]] = {}
        self.refused: Counter[str] = Counter()
        self.generation = 0

    @initialize(specs=quotas(), start=st.permutations(EVERYTHING), late=st.booleans())
    def a_full_pool(self, specs: tuple[QuotaSpec, ...], start: list[tuple[str, int]], late: bool) -> None:
        if not late:
            self.records(specs)
        for tenant, number in start[:8]:
            self.write(tenant, number, "commit")
        if late:
            self.records(specs)

    # ---- what happens

    @rule(asks=st.lists(st.tuples(tenants, numbers), min_size=2, max_size=6), last=st.sampled_from(FINISHES))
    def compete(self, asks: list[tuple[str, int]], last: str) -> None:
        for at, (tenant, number) in enumerate(asks):
            self.write(tenant, number, "commit" if at < len(asks) - 1 else last)

    @rule(tenant=tenants)
    def want_everything(self, tenant: str) -> None:
        for number in range(len(LENGTHS)):
            self.write(tenant, number, "commit")

    def write(self, tenant: str, number: int, finish: str) -> None:
        chain = CHAINS[tenant][number]
        before = self.look()
        allowed = self.allowance(tenant)
        granted = self.engine.reserve(chain, PAGE, tenant=tenant)
        after = self.look()
        outcomes = granted.outcomes.tolist()
        written, missing = outcomes.count(0), sum(outcome not in (254, 255) for outcome in outcomes)
        codes = [outcome for outcome in outcomes if outcome not in (0, 254, 255)]
        self.refused[tenant] += len(codes)
        self.no_loss_within_a_floor(before, after, tenant)
        self.limits_hold(before, after, tenant, chain, codes, written)
        self.paced(tenant, allowed, missing, written, codes)
        if Code.POOL_FULL in codes or Code.FRAGMENTED in codes:
            self.nothing_could_go(after, tenant, chain)
        if not after.leased:
            self.shares_decide(before, after, tenant, chain)
        self.soft_goes_last(before, after, chain)
        if granted.reservation and finish == "commit":
            self.engine.commit(granted.reservation)
        elif granted.reservation and finish == "abort":
            self.engine.abort(granted.reservation)
        elif granted.reservation:
            self.open.append(granted.reservation)

    @precondition(lambda self: self.open)
    @rule(pick=st.integers(0, 9), commits=st.booleans())
    def finish_later(self, pick: int, commits: bool) -> None:
        reservation = self.open.pop(pick % len(self.open))
        try:
            self.engine.commit(reservation) if commits else self.engine.abort(reservation)
        except ProtocolError as error:
            assert error.code is Code.RESERVATION_EXPIRED  # noqa: PT017 (either outcome is right)

    @rule(pick=picks, count=st.integers(1, 6))
    def acquire(self, pick: int, count: int) -> None:
        for tenant, number in self.there(pick, count):
            self.reader.acquire(CHAINS[tenant][number])

    @rule()
    def release(self) -> None:
        self.reader.release()

    @rule(specs=quotas())
    def records(self, specs: tuple[QuotaSpec, ...]) -> None:
        before = self.look()
        for spec in specs:
            was = self.specs.get(spec.tenant)
            if spec.store_rate_bytes is None:
                self.buckets.pop(spec.tenant, None)
            elif was is None or was.store_rate_bytes != spec.store_rate_bytes:
                self.buckets[spec.tenant] = Fraction(spec.store_rate_bytes, PAGE), self.bench.now
        self.specs = {spec.tenant: spec for spec in specs}
        for tenant in [tenant for tenant in self.buckets if tenant not in self.specs]:
            del self.buckets[tenant]
        self.generation += 1
        assert self.bench.apply(make.shares(*specs, generation=self.generation)) == []
        self.only_limits_took(before, self.look(), all_of_it=True)

    @rule(pick=picks, strengths=st.lists(st.sampled_from(STRENGTHS), max_size=6))
    def pins(self, pick: int, strengths: list[Strength]) -> None:
        before = self.look()
        self.generation += 1
        chosen = self.there(pick, len(strengths))
        self.pinned = [(*each, strength) for each, strength in zip(chosen, strengths, strict=False)]
        records = [
            make.pin(f"{tenant}{number}", CHAINS[tenant][number], tenant=tenant, strength=strength)
            for tenant, number, strength in self.pinned
        ]
        assert self.bench.apply(*make.pins(records, self.generation)) == []
        assert before.lost(self.look()) == []

    @rule(tenant=tenants)
    def demote(self, tenant: str) -> None:
        before = self.look()
        self.bench.node.demote(Scope(tenant=tenant), self.bench.now)
        assert before.lost(self.look()) == [], "nothing is dropped"

    @precondition(lambda self: self.bench.node.options.capacity_bytes < LARGEST * PAGE)
    @rule(more=st.sampled_from([2, 4]))
    def resize(self, more: int) -> None:
        before = self.look()
        self.bench.node.resize(self.bench.node.options.capacity_bytes + more * PAGE, self.bench.now)
        assert before.lost(self.look()) == []

    @rule(seconds=st.sampled_from([0.25, 0.5, 1, 4]))
    def wait(self, seconds: float) -> None:
        before = self.look()
        self.bench.pass_time(seconds)
        self.only_limits_took(before, self.look(), all_of_it=seconds >= 1)

    # ---- what must hold after a step

    def no_loss_within_a_floor(self, before: View, after: View, asking: str) -> None:
        floors = self.floors()
        for row in before.lost(after):
            assert row.ready, "what is being written stays"
            assert row.number not in before.leased
            assert not row.guaranteed
        for tenant, floor in floors.items():
            if tenant != asking:
                assert after.count[tenant] >= min(before.count[tenant], floor), f"{tenant} is within its floor"

    def limits_hold(
        self, before: View, after: View, asking: str, chain: Sequence[bytes], codes: Sequence[int], written: int
    ) -> None:
        limit = self.limit(asking)
        if limit is not None and written:
            assert after.count[asking] <= limit
        if Code.OVER_LIMIT not in codes:
            return
        assert limit is not None
        assert before.count[asking] + written >= limit
        if self.specs[asking].on_exceed == "evict_self":
            own = sum(row.tenant == asking and row.key not in chain for row in before.evictable())
            assert written >= limit - (before.count[asking] - own), "its own could have made way"

    def paced(self, asking: str, allowed: int | None, missing: int, written: int, codes: Sequence[int]) -> None:
        if allowed is None:
            assert Code.RATE_LIMITED not in codes
            return
        if self.enforced(asking):
            assert written <= allowed
            if Code.RATE_LIMITED in codes:
                assert written == allowed, "all that the rate lets through"
        left, at = self.buckets[asking]
        self.buckets[asking] = left - min(written, missing, allowed), at

    def nothing_could_go(self, after: View, asking: str, chain: Sequence[bytes]) -> None:
        """Room is refused only when nothing may go that is not spared, held, pinned or within a floor."""
        floors, used = self.floors(), self.by_account(after)
        for row in after.evictable():
            if row.key in chain:
                continue
            account = self.account(row.tenant)
            assert account != self.account(asking), "its own could have gone"
            assert used[account] <= floors.get(account, 0), f"{account} borrows"

    def shares_decide(self, before: View, after: View, asking: str, chain: Sequence[bytes]) -> None:
        """Whoever lost a block had the largest share then, among those that could give one above their floor."""
        lost = before.lost(after)
        floors, had, gone = self.floors(), self.by_account(before), self.sums(lost)
        softly = self.softly()
        could = self.sums(
            row
            for row in after.evictable()
            if row.key not in chain and row.key not in softly and row.number in before.rows
        )
        for loser in self.sums(row for row in lost if row.key not in before.demoted):
            limit = self.limit(loser) if loser else None
            left = had[loser] - gone[loser]
            if limit is not None and had[loser] > limit and left >= limit:
                continue  # it gave what it had above its limit
            if limit is not None and loser == asking and self.specs[asking].on_exceed == "evict_self":
                continue  # its limit took them
            share = Fraction(left + 1) / self.weight(loser)
            for other in could.keys() - {loser}:
                theirs = had[other] - gone[other]
                if theirs > floors.get(other, 0):
                    assert left >= floors.get(loser, 0), f"{loser} gave of its floor while {other} borrows"
                    assert share >= Fraction(theirs) / self.weight(other), f"{other} has more than {loser}"

    def soft_goes_last(self, before: View, after: View, chain: Sequence[bytes]) -> None:
        """No block under a soft pin goes while its account has others."""
        softly = self.softly()
        gone = {self.account(row.tenant) for row in before.lost(after) if row.key in softly - before.demoted}
        for row in after.evictable():
            if row.key not in chain and row.key not in softly and row.number in before.rows:
                assert self.account(row.tenant) not in gone, "others could have gone first"

    def only_limits_took(self, before: View, after: View, *, all_of_it: bool) -> None:
        """Time and new records take what is above a limit, from whoever is, and no more."""
        for tenant, count in Counter(row.tenant for row in before.lost(after)).items():
            limit = self.limit(tenant)
            assert limit is not None, f"{tenant} has no limit"
            assert before.count[tenant] - count >= limit
        for row in after.evictable() if all_of_it else ():
            limit = self.limit(row.tenant)
            assert limit is None or after.count[row.tenant] <= limit, "it may stay no longer"

    # ---- what must always hold

    @invariant()
    def accounts_are_consistent(self) -> None:
        assert self.bench.faults() == []

    @invariant()
    def everybody_is_charged_for_what_is_there(self) -> None:
        view, pool = self.look(), self.bench.node.pool
        used = self.by_account(view)
        assert pool.order.common.bytes == used[""] * PAGE
        for tenant in pool.tenants.by_salt.values():
            assert tenant.bytes == view.count[tenant.salt] * PAGE
            assert tenant.account.bytes == used[self.account(tenant.salt)] * PAGE
            assert tenant.refused_blocks == self.refused[tenant.salt]
        stats = self.bench.node.stats(self.bench.now)
        assert sum(stats.refused.values()) == stats.totals.refused_blocks == self.refused.total()

    @invariant()
    def floors_are_what_the_pool_can_keep(self) -> None:
        floors = self.floor_bytes()
        for each in self.bench.node.stats(self.bench.now).tenants:
            assert each.effective_floor_bytes == floors.get(each.tenant, 0)
        accounts = {tenant.salt: tenant.account for tenant in self.bench.node.pool.tenants.managed()}
        for name, floor in floors.items():
            assert accounts[name].floor_bytes == floor

    @invariant()
    def pins_hold_what_the_budgets_allow(self) -> None:
        view = self.look()
        expected = {
            key: strength
            for tenant, number, strength in self.pinned
            for key in CHAINS[tenant][number]
            if strength != "soft"
        }
        permanent = {
            key for tenant, number, strength in self.pinned for key in CHAINS[tenant][number] if strength == "permanent"
        }
        guaranteed = Counter(row.tenant for row in view.rows.values() if row.guaranteed)
        pool = self.bench.node.options.capacity_bytes * PIN_BLOCKS // BLOCKS // PAGE
        assert guaranteed.total() <= pool
        there = Counter(row.tenant for row in view.rows.values() if row.ready and row.key in expected)
        everything_fits = there.total() <= pool
        for tenant in TENANTS:
            budget = self.pin_budget(tenant)
            forever = sum(row.guaranteed and row.key in permanent for row in view.rows.values() if row.tenant == tenant)
            assert budget is None or guaranteed[tenant] <= max(budget, forever)
            if everything_fits and (budget is None or there[tenant] <= budget):
                assert guaranteed[tenant] == there[tenant]

    def teardown(self) -> None:
        self.reader.die()
        self.engine.die()
        self.bench.pass_time(4)
        assert self.bench.faults() == []
        assert not self.bench.node.pool.reserved_bytes
        assert not self.bench.node.pool.quarantined_bytes

    # ---- the records and the pool, reckoned apart

    def there(self, pick: int, count: int) -> list[tuple[str, int]]:
        """Some of the chains that have a start in the pool."""
        present = {row.key for row in self.look().rows.values() if row.ready}
        chains = [(tenant, number) for tenant, number in EVERYTHING if CHAINS[tenant][number][0] in present]
        return [chains[(pick + at) % len(chains)] for at in range(min(count, len(chains)))]

    def look(self) -> View:
        memory, pool = self.bench.index, self.bench.node.pool
        blocks = pool.table.blocks
        rows = {}
        for number, control in enumerate(memory.control.tolist()):
            if control & STATE_MASK:
                tenant, key = OWNERS[memory.hot[number, HOT_KEY : HOT_KEY + 4].tobytes()]
                rows[number] = Row(number, key, tenant, control, blocks[number] in pool.pins.guaranteed)
        demoted = {block.key for block in blocks.values() if block.queue is not None and block.rank == 0}
        return View(rows, set(self.reader._leased), demoted)

    def enforced(self, tenant: str) -> bool:
        return tenant in self.specs and self.specs[tenant].mode == "enforce"

    def limit(self, tenant: str) -> int | None:
        """The limit that binds, in blocks."""
        limit = self.specs[tenant].limit_bytes if self.enforced(tenant) else None
        return None if limit is None else limit // PAGE

    def floor_bytes(self) -> dict[str, int]:
        """What each tenant with a quota in force is guaranteed: the same part of each if there is too little."""
        capacity = self.bench.node.options.capacity_bytes
        expected = {name: spec.floor_bytes for name, spec in self.specs.items() if spec.mode == "enforce"}
        scale = min(Fraction(1), Fraction(capacity, max(1, sum(expected.values()))))
        return {name: int(floor * scale) for name, floor in expected.items()}

    def floors(self) -> dict[str, int]:
        """Blocks that others may not evict from a tenant: without one of them it would be below its floor."""
        return {name: -(-floor // PAGE) for name, floor in self.floor_bytes().items()}

    def pin_budget(self, tenant: str) -> int | None:
        if not self.enforced(tenant):
            return None
        spec = self.specs[tenant]
        bounds = [] if spec.pin_budget_bytes is None else [spec.pin_budget_bytes // PAGE]
        if spec.limit_bytes is not None:
            bounds.append(spec.limit_bytes * 9 // 10 // PAGE)
        return min(bounds, default=None)

    def account(self, tenant: str) -> str:
        """With whom a tenant shares; the empty string: with everybody whose quota is not in force."""
        return tenant if self.enforced(tenant) else ""

    def by_account(self, view: View) -> Counter[str]:
        return self.sums(view.rows.values())

    def sums(self, rows: Iterable[Row]) -> Counter[str]:
        return Counter(self.account(row.tenant) for row in rows)

    def weight(self, account: str) -> Fraction:
        return Fraction(self.specs[account].weight) if account else Fraction(1)

    def softly(self) -> set[bytes]:
        """Keys under some pin: what of them is not guaranteed is the last to go."""
        return {key for tenant, number, _ in self.pinned for key in CHAINS[tenant][number]}

    def allowance(self, tenant: str) -> int | None:
        """Blocks that the tenant's rate lets through now; None: it has no rate."""
        if tenant not in self.buckets:
            return None
        left, at = self.buckets[tenant]
        rate = Fraction(self.specs[tenant].store_rate_bytes or 0, PAGE)
        left = min(rate, left + Fraction(self.bench.now - at) * rate)
        self.buckets[tenant] = left, self.bench.now
        return int(left)


TestShares = SharesMachine.TestCase
# Without shrinking a failure is reported within the time that a test has. To make one short, add `Phase.shrink`.
TestShares.settings = settings(
    max_examples=size(80, 10),
    stateful_step_count=30,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
