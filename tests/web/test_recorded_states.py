"""The dashboard's fixtures are what the API says: each is decoded with the app's own shapes."""

from collections import Counter

import msgspec
import pytest

from app.observe.series import SERIES
from app.schemas.access.audit import AuditList
from app.schemas.access.tokens import SessionAnswer
from app.schemas.records.prefixes import PrefixList
from app.schemas.usage.reports import UsageReport
from app.schemas.views.overview import Overview
from tests.web.player import FIXTURES, fixture

NAMES = sorted(file.stem for file in FIXTURES.glob("*.json"))


def test_every_state_that_the_page_must_show_has_a_fixture():
    assert NAMES == [
        "busy",
        "cold",
        "empty",
        "fresh",
        "lost",
        "nacked",
        "over-limit",
        "tenant",
        "thousand-tenants",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_fixture_has_the_shape_of_the_api_and_nothing_else(name):
    loaded = fixture(name)
    overview = msgspec.convert(loaded["overview"], Overview)
    assert msgspec.to_builtins(overview) == loaded["overview"]
    assert set(loaded["history"]) <= {"at", *SERIES}
    assert msgspec.to_builtins(msgspec.convert(loaded["prefixes"], PrefixList)) == loaded["prefixes"]
    assert msgspec.to_builtins(msgspec.convert(loaded["usage"], UsageReport)) == loaded["usage"]
    assert msgspec.to_builtins(msgspec.convert(loaded["audit"], AuditList)) == loaded["audit"]
    assert msgspec.to_builtins(msgspec.convert(loaded["session"], SessionAnswer)) == loaded["session"]


@pytest.mark.parametrize("name", NAMES)
def test_a_fixture_adds_up(name):
    overview = msgspec.convert(fixture(name)["overview"], Overview)
    pool = overview.pool
    assert pool.used_bytes == pool.ready_bytes + pool.reserved_bytes + pool.quarantined_bytes
    assert pool.used_bytes <= pool.capacity_bytes
    assert pool.pinned_bytes <= min(pool.ready_bytes, pool.pin_budget_bytes or pool.capacity_bytes)
    assert [t.bytes for t in overview.tenants] == sorted((t.bytes for t in overview.tenants), reverse=True)
    pins = Counter(pin.tenant for pin in overview.pins)
    assert all(tenant.pins == pins[tenant.tenant] for tenant in overview.tenants)
    assert all(pin.guaranteed <= pin.resident <= pin.resolved for pin in overview.pins)
    assert [event.at for event in overview.recent] == sorted(event.at for event in overview.recent)
