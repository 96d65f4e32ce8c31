"""Why a tenant's tokens were computed although a cache could have had them, over all nodes."""

from app.services.records.tenant_totals import OTHER, TenantTotals
from dataplane.protocol.stats.tenants import TenantStats


def test_missed_tokens_are_summed_by_reason_and_unknown_reasons_together() -> None:
    totals = TenantTotals()
    totals.add(TenantStats("acme", missed_tokens={"evicted": 5, "never_stored": 2}))
    totals.add(TenantStats("acme", missed_tokens={"evicted": 1, "a new reason": 3, "another": 4}))
    assert totals.missed_tokens == {"evicted": 6, "never_stored": 2, OTHER: 7}
    assert not totals.is_empty
