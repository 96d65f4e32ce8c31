"""Property tests: no counter of a tenant falls."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.observe import bounded
from app.observe.bounded import BoundedTenants
from app.observe.page import OTHER
from dataplane.protocol.stats.tenants import TenantStats

NAMES = [f"t{number}" for number in range(8)] + [OTHER]
LISTED = 6
"""Tenants that the node lists; it reports the sum of the others."""


def counters(tenant: TenantStats) -> dict[str, int]:
    return {"hits": tenant.hit_blocks, **tenant.refused}


class Node:
    """Model of a node's counters: it forgets tenants, and lists the largest ones."""

    def __init__(self) -> None:
        self.tenants: dict[str, TenantStats] = {}
        self.unlisted_hits = 0

    def turn(self, moves: Iterable[tuple[str, int, int, str]]) -> None:
        listed = {tenant.tenant for tenant in self.ranked()[:LISTED]}
        for name, size, hits, reason in moves:
            self.unlisted_hits += hits if name in self.tenants and name not in listed else 0
            if size == 0:
                self.tenants.pop(name, None)
                continue
            before = self.tenants.get(name, TenantStats(name))
            refused = {**before.refused, reason: before.refused.get(reason, 0) + 1}
            self.tenants[name] = TenantStats(name, bytes=size, hit_blocks=before.hit_blocks + hits, refused=refused)

    def report(self) -> tuple[list[TenantStats], TenantStats | None]:
        ranked = self.ranked()
        rest = TenantStats(OTHER, hit_blocks=self.unlisted_hits)
        return ranked[:LISTED], rest if len(ranked) > LISTED else None

    def ranked(self) -> list[TenantStats]:
        return sorted(self.tenants.values(), key=lambda tenant: -tenant.bytes)


moves = st.tuples(st.sampled_from(NAMES), st.integers(0, 9), st.integers(0, 5), st.sampled_from(["limit", "room"]))
turns = st.lists(st.lists(moves, max_size=12), min_size=2, max_size=12)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "TENANT_LABELS", 3)


def series(tenants: BoundedTenants[str]) -> dict[tuple[str, str], int]:
    labels = [tenant.tenant for tenant in tenants.named] + [OTHER]
    return {(label, key): value for label in labels for key, value in tenants.counts(label).items()}


@given(turns)
def test_no_series_ever_falls(turns: list[list[tuple[str, int, int, str]]]) -> None:
    node, tenants = Node(), BoundedTenants(counters)
    highest: dict[tuple[str, str], int] = {}
    for turn in turns:
        node.turn(turn)
        tenants.update(*node.report())
        shown = series(tenants)
        assert all(value >= highest.get(name, 0) for name, value in shown.items())
        assert len(tenants.named) <= 3
        assert OTHER not in {tenant.tenant for tenant in tenants.named}
        highest |= shown


@given(turns)
def test_every_hit_is_counted_once(turns: list[list[tuple[str, int, int, str]]]) -> None:
    """While a node lists all tenants and forgets none. A new series starts with what `other` has counted before: rates
    do not see how it starts."""
    node, tenants = Node(), BoundedTenants(counters)
    before: dict[str, int] = {}
    hits: dict[str, int] = {}
    for turn in turns:
        node.turn([(name, size + 1, hits, reason) for name, size, hits, reason in turn if name in NAMES[:6]])
        tenants.update(*node.report())
        after = {name: counts.get("hits", 0) for name, counts in tenants._shown.items()}
        after[OTHER] = tenants.counts(OTHER).get("hits", 0)
        started = after.keys() - before.keys()
        new_hits = {name: each.hit_blocks - hits.get(name, 0) for name, each in node.tenants.items()}
        grown = sum(value - before.get(name, 0) for name, value in after.items() if name not in started - {OTHER})
        assert grown == sum(count for name, count in new_hits.items() if name not in started)
        before = after
        hits = {name: each.hit_blocks for name, each in node.tenants.items()}


def test_tenants_of_equal_size_do_not_alternate() -> None:
    tenants = BoundedTenants(counters)
    for turn in range(6):
        tenants.update([TenantStats(name, bytes=100 + (turn + n) % 6) for n, name in enumerate(NAMES[:6])], None)
        if turn == 0:
            first = {tenant.tenant for tenant in tenants.named}
        assert {tenant.tenant for tenant in tenants.named} == first
    tenants.update([TenantStats("t9", bytes=1000), *(TenantStats(name, bytes=100) for name in NAMES[:6])], None)
    assert "t9" in {tenant.tenant for tenant in tenants.named}


def test_a_tenant_that_a_node_reports_twice_has_one_series() -> None:
    tenants = BoundedTenants(counters)
    tenants.update([TenantStats("a", bytes=1), TenantStats("a", bytes=2), TenantStats(OTHER)], None)
    assert [tenant.tenant for tenant in tenants.named] == ["a"]
