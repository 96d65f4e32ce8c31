"""The dashboard's fixtures are what the API says: each is decoded with the app's own shapes."""

from collections import Counter
from typing import Any

import msgspec
import pytest

from app.observe.series import SERIES
from app.schemas.access.audit import AuditList
from app.schemas.access.tokens import SessionAnswer, TokenList
from app.schemas.cache.blocks import BlockList
from app.schemas.cache.sessions import AgentSessionList
from app.schemas.fleet.managers import ManagerList
from app.schemas.fleet.nodes import NodeIpcList
from app.schemas.fleet.pushes import PushList
from app.schemas.records.ceilings import CeilingList
from app.schemas.records.policies import PolicyList
from app.schemas.records.prefill_rates import RateList
from app.schemas.records.prefixes import PrefixList
from app.schemas.records.tiers import TierList
from app.schemas.records.tokenizers import TokenizerList
from app.schemas.usage.reports import UsageReport
from app.schemas.views.alerts import AlertList
from app.schemas.views.changes import Annotation
from app.schemas.views.events import EventList
from app.schemas.views.overview import Overview
from app.schemas.views.series import Mark
from tests.web.player import FIXTURES, fixture
from tests.web.recorded_findings import found_in

NAMES = sorted(file.stem for file in FIXTURES.glob("*.json"))

ANSWERS: dict[str, Any] = {
    "alerts": AlertList,
    "annotations": list[Annotation],
    "blocks": BlockList,
    "ceilings": CeilingList,
    "events/history": EventList,
    "ipc": NodeIpcList,
    "managers": ManagerList,
    "policies": PolicyList,
    "pushes": PushList,
    "rates": RateList,
    "sessions": AgentSessionList,
    "tiers": TierList,
    "tokenizers": TokenizerList,
    "tokens": TokenList,
}


def test_the_busy_state_has_something_on_every_page():
    assert set(fixture("busy")["answers"]) == set(ANSWERS)


def test_every_state_that_the_page_must_show_has_a_fixture():
    assert NAMES == ["busy", "cold", "empty", "fresh", "lost", "nacked", "over-limit", "tenant", "thousand-tenants"]


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
    assert msgspec.to_builtins(msgspec.convert(loaded.get("marks", []), list[Mark])) == loaded.get("marks", [])
    for path, answer in loaded.get("answers", {}).items():
        assert msgspec.to_builtins(msgspec.convert(answer, ANSWERS[path])) == answer, path


@pytest.mark.parametrize("name", NAMES)
def test_a_fixture_has_what_the_management_plane_finds_in_it(name):
    assert msgspec.to_builtins(found_in(fixture(name))) == fixture(name)["overview"]["findings"]


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
