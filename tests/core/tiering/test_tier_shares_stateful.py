"""Whatever tenants, operators and tiers do: budgets and limits hold, and no tenant loses what is within its floor."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dataplane.protocol.control.records import QuotaSpec, Strength, TierQuota
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.stored_blocks import Outcome
from tests.core.tiering.tier_bench import PAGE, stored_size, tier, tier_bench
from tests.dataplane import factories as make
from tests.sizes import size

SIZE = stored_size(PAGE)
BUDGET = 16
TENANTS = ("", "a", "b")
CHAINS = {
    tenant: [make.keys(length, (tenant, number)) for number, length in enumerate((1, 3, 6, 12))] for tenant in TENANTS
}
tenants = st.sampled_from(TENANTS)
numbers = st.integers(0, 3)
blocks = st.integers(0, BUDGET + 4)


@st.composite
def shares(draw: st.DrawFn) -> QuotaSpec:
    limit = draw(st.one_of(st.none(), blocks))
    floor = draw(blocks)
    share = TierQuota((floor if limit is None else min(floor, limit)) * SIZE, None if limit is None else limit * SIZE)
    return QuotaSpec(
        draw(tenants),
        weight=draw(st.sampled_from([0.5, 1.0, 4.0])),
        pin_budget_bytes=draw(st.one_of(st.none(), st.integers(0, 6).map(lambda count: count * SIZE))),
        on_exceed=draw(st.sampled_from(["evict_self", "reject"])),
        mode=draw(st.sampled_from(["enforce", "enforce", "observe"])),
        tiers={"disk": share},
    )


class TierSharesMachine(RuleBasedStateMachine):
    """Tenants that fill one tier, and an operator who changes quotas and pins."""

    def __init__(self) -> None:
        super().__init__()
        self.run = tier_bench(48, tier(budget_blocks=BUDGET))
        self.contents = self.run.tiering.tiers[0].contents
        self.generation = 0

    @initialize(specs=st.lists(shares(), max_size=3, unique_by=lambda spec: spec.tenant))
    def begin(self, specs: list[QuotaSpec]) -> None:
        self.change_quotas(specs)

    @rule(specs=st.lists(shares(), max_size=3, unique_by=lambda spec: spec.tenant))
    def change_quotas(self, specs: list[QuotaSpec]) -> None:
        self.generation += 1
        self.run.quotas(*specs, generation=self.generation)
        self.tick()

    @rule(
        chosen=st.dictionaries(
            st.sampled_from("pq"), st.tuples(tenants, numbers, st.sampled_from(["soft", "guaranteed", "permanent"]))
        )
    )
    def change_pins(self, chosen: dict[str, tuple[str, int, Strength]]) -> None:
        self.generation += 1
        records = [
            make.pin(name, CHAINS[tenant][number], tenant=tenant, strength=strength)
            for name, (tenant, number, strength) in chosen.items()
        ]
        self.run.pins(*records, generation=self.generation)
        self.tick()

    @rule(tenant=tenants, number=numbers, outcome=st.sampled_from([Outcome.OK, Outcome.OK, Outcome.FAILED]))
    def store(self, tenant: str, number: int, outcome: Outcome) -> None:
        """No other tenant loses a block that is within its floor."""
        self.run.engine.store(CHAINS[tenant][number], PAGE, tenant=tenant)
        self.begin_copies(tenant)
        self.run.end_spills(outcome)
        self.begin_copies(tenant)
        self.tick()  # copies that began before a limit was lowered may have ended

    def begin_copies(self, tenant: str) -> None:
        """Begin copies of all tenants. What another tenant evicts for copies of its own is pending then."""
        before = {
            salt: (each.bytes + each.pending_bytes, each.account.floor_bytes)
            for salt, each in self.contents.tenants.items()
            if each.share is not None and salt != tenant
        }
        self.run.begin()
        for salt, (nbytes, floor) in before.items():
            now = self.contents.tenants[salt]
            assert now.bytes + now.pending_bytes >= min(nbytes, floor)

    @rule(tenant=tenants, number=numbers)
    def begin_to_copy(self, tenant: str, number: int) -> None:
        self.run.engine.store(CHAINS[tenant][number], PAGE, tenant=tenant)
        self.run.begin()

    @rule(tenant=tenants)
    def invalidate(self, tenant: str) -> None:
        self.run.invalidate(Scope(tenant=tenant))
        assert self.run.held(tenant) == 0
        self.tick()

    @rule()
    def tick(self) -> None:
        """Changed limits and budgets have taken effect after two ticks, apart from copies under way."""
        self.run.bench.pass_time(0.1)
        self.run.bench.pass_time(0.1)

    @invariant()
    def what_was_promised_holds(self) -> None:
        contents = self.contents
        assert contents.used_bytes <= contents.budget_bytes
        for tenant in contents.tenants.values():
            limit = None if tenant.share is None else tenant.share.limit_bytes
            if limit is not None:
                assert tenant.bytes == 0 or tenant.bytes + tenant.pending_bytes <= limit
        assert contents.pins.pinned_bytes <= contents.pins.budget_bytes
        assert self.run.bench.faults() == []


TestTierShares = TierSharesMachine.TestCase
TestTierShares.settings = settings(max_examples=size(60, 15), stateful_step_count=30, deadline=None)
