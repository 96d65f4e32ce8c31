"""Events for the begin and the end of refusals, and of the time of a tenant over its limit."""

from typing import Any

import msgspec
import pytest

from app.http.routes.views.events import EventMessages
from app.ingest.refusal_runs import NO_ROOM, QUIET_S, RefusalRuns
from app.services.base.principals import Principal
from app.services.base.redaction import visible_events
from dataplane.protocol.codes import Code
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.pool import PoolStats, Totals
from dataplane.protocol.stats.tenants import TenantStats
from tests.app.event_bus import event_bus


class Reports:
    """A node that reports one tenant; time passes between reports."""

    def __init__(self) -> None:
        self.now = 0.0
        self.bus = event_bus()
        self.runs = RefusalRuns(self.bus, lambda: self.now)
        self.others: list[TenantStats] = []

    def report(self, seconds: float = 1.0, **fields: object) -> list[tuple[str, dict]]:
        """Return the events that a report causes after some seconds."""
        self.now += seconds
        self.bus.ring.clear()
        tenant = msgspec.structs.replace(TenantStats("acme"), **fields)
        node = NodeStats(
            at=self.now, node="a", epoch="e", uptime_s=0.0, armed=True, pool=PoolStats(), totals=Totals(), refused={},
            tenants=[tenant, *self.others], other_tenants=None, pins=[], engines=[], observed={},
        )  # fmt: skip
        self.runs.look([node])
        return [(event.name, event.fields) for event in self.bus.ring]

    def silence(self, seconds: float) -> list[str]:
        self.now += seconds
        self.bus.ring.clear()
        self.runs.look([])
        return [event.name for event in self.bus.ring]


@pytest.fixture
def node() -> Reports:
    reports = Reports()
    reports.report()
    return reports


def test_a_run_of_refusals_ends_after_a_minute_without_one(node: Reports) -> None:
    began = {"tenant": "acme", "reason": "pool_full", "holder": "", "holder_bytes": 0}
    assert node.report(refused={"pool_full": 2}) == [("refusals.started", began)]
    assert node.report(QUIET_S - 1, refused={"pool_full": 5}) == []
    assert node.report(QUIET_S, refused={"pool_full": 5}) == []
    assert node.report(1, refused={"pool_full": 5}) == [("refusals.ended", {"tenant": "acme", "blocks": 5})]
    assert node.report(1, refused={"pool_full": 5}) == []
    assert node.report(1, refused={"pool_full": 6})[0][0] == "refusals.started"


@pytest.mark.parametrize(("reason", "holder"), [*((reason, "bulk") for reason in sorted(NO_ROOM)), ("over_limit", "")])
def test_refusals_for_want_of_room_name_the_tenant_that_holds_most(node: Reports, reason: str, holder: str) -> None:
    node.others = [TenantStats("bulk", bytes=90), TenantStats("small", bytes=5)]
    node.report(bytes=10)
    ((_, fields),) = node.report(bytes=10, refused={reason: 2})
    assert (fields["holder"], fields["holder_bytes"]) == (holder, 90 if holder else 0)
    event = next(iter(node.bus.ring))
    limited = Principal(actor="ci", role="operator", salts=frozenset({"acme"}))
    assert [seen.fields["holder"] for seen in visible_events([event], limited)] == [""]
    whole = Principal(actor="root")
    assert [seen.fields["holder"] for seen in visible_events([event], whole)] == [holder]


@pytest.mark.parametrize("first", [0, 1])
def test_a_stream_shows_what_its_reader_may_see_whoever_read_before(node: Reports, first: int) -> None:
    node.others = [TenantStats("bulk", bytes=90)]
    node.report(bytes=10)
    node.report(bytes=10, refused={"pool_full": 2})
    event = msgspec.structs.replace(next(iter(node.bus.ring)), actor="root")
    readers = [Principal(actor="ci", role="operator", salts=frozenset({"acme"})), Principal(actor="root")]
    messages: Any = EventMessages(node.bus, overview=None)  # type: ignore[arg-type]
    for reader in readers[first:] + readers[:first]:
        (seen,) = visible_events([event], reader)
        shown = msgspec.json.decode(messages.event(seen).decode().split("data: ", 1)[1].splitlines()[0])
        sees_all = reader.salts is None
        assert (shown["fields"]["holder"], shown["fields"]["holder_bytes"], shown["actor"]) == (
            ("bulk", 90, "root") if sees_all else ("", 0, "")
        )


def test_every_reason_for_want_of_room_is_a_code() -> None:
    assert {code.upper() for code in NO_ROOM} <= set(Code.__members__)


def test_a_tenant_over_its_limit_is_reported_once_and_when_it_is_within_it_again(node: Reports) -> None:
    over = {"over_limit": True, "bytes": 9, "limit_bytes": 8}
    assert node.report(**over) == [("limit.exceeded", {"tenant": "acme", "held_bytes": 9, "limit_bytes": 8})]
    assert node.report(bytes=8, limit_bytes=8) == []
    assert node.report(**over) == []
    assert node.report(QUIET_S, bytes=8, limit_bytes=8) == []
    assert node.report(bytes=8, limit_bytes=8) == [("limit.restored", {"tenant": "acme", "held_bytes": 8})]


def test_only_wanted_runs_are_listed(node: Reports) -> None:
    node.report(refused={"pool_full": 2})
    assert [(run.node, run.tenant) for run in node.runs.lasting(lambda _, tenant: tenant == "acme")] == [("a", "acme")]
    assert node.runs.lasting(lambda name, _: name != "a") == []


def test_a_node_that_stopped_reporting_has_no_end(node: Reports) -> None:
    node.report(refused={"pool_full": 2}, over_limit=True, limit_bytes=0)
    assert node.silence(QUIET_S + 1) == []
    assert node.report(refused={"pool_full": 2}) == []
