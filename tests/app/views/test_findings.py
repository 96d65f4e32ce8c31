"""`GET /api/v1/findings`, and the findings of the overview."""

import time
from collections import Counter

import pytest

from app.errors import StoreUnavailable
from app.services.views import evidence, overview
from app.services.views.evidence import LOOK_BACK_S, STATES_BEFORE_S, EvidenceReader
from app.store.views import events
from app.store.views.events import EventRow
from dataplane.protocol.stats.pins import PinStats
from dataplane.protocol.stats.tenants import TenantStats
from tests.app.callers import create_token, send
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane

pytestmark = pytest.mark.anyio
F = "/api/v1/findings"


async def test_refusals_after_a_tightened_quota_are_found_with_the_change(new_plane: Plane, new_node: FakeNode) -> None:
    await new_plane.report(new_node)  # since the quotas are applied
    assert await new_plane.get(F) == {"items": [], "total": 0, "cause": ""}
    runs = new_plane.app.parts.ingest.refusal_runs
    await new_plane.until(lambda: bool(runs._counts))  # what was refused before it looked has no time
    await new_plane.put_quota("acme", "8GiB")
    await new_plane.put_quota("acme", "1GiB")
    stats = [TenantStats("acme", bytes=2 << 30, limit_bytes=1 << 30, over_limit=True, refused={"over_limit": 5})]
    await new_plane.report(new_node, tenants=stats)
    await new_plane.until(lambda: bool(runs.lasting(lambda node, tenant: True)))
    answer = await new_plane.get(f"{F}?tenant=acme")
    assert [item["code"] for item in answer["items"]] == ["blocks_refused", "tenant_over_limit"]
    (first, _) = answer["items"]
    assert (first["severity"], first["subject"]["node"], first["detail"]) == ("warning", "node-a", "5 over_limit")
    assert first["likely_change"]["summary"] == "quota acme: limit_bytes 8 GiB → 1 GiB"
    assert "earlier: quota acme: limit_bytes 8 GiB → 1 GiB by local at " in answer["cause"]
    assert (await new_plane.get(f"{F}?tenant=rival"))["items"] == []
    later = await new_plane.get(f"{F}?tenant=acme&since={time.time() + 9}")
    assert [item["likely_change"] for item in later["items"]] == [None, None]
    refused = await new_plane.http.get(f"{F}?since=x")
    assert (refused.status_code, "since" in refused.text) == (422, True)
    shown = (await new_plane.get("/api/v1/overview"))["findings"]
    assert {"blocks_refused", "tenant_over_limit"} <= {finding["code"] for finding in shown}


async def test_a_tenant_beyond_the_largest_is_found_when_it_is_named(
    new_guarded: Plane, new_node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await new_guarded.until_state("in_sync")
    monkeypatch.setattr(overview, "MAX_ROWS", 1)
    over = [
        TenantStats(name, bytes=size, limit_bytes=1, over_limit=True) for name, size in (("acme", 99), ("rival", 9))
    ]
    await new_guarded.report(new_node, tenants=over)
    for name in ("acme", "rival"):
        answer = await new_guarded.get(f"{F}?tenant={name}")
        assert [(item["code"], item["subject"]["name"]) for item in answer["items"]] == [("tenant_over_limit", name)]
    token = await create_token(new_guarded, "reader", tenants=["acme"])
    assert (await send(new_guarded, token, "GET", f"{F}?tenant=rival")).json()["items"] == []


async def test_all_pins_with_a_problem_are_found_and_the_rest_is_counted(
    new_guarded: Plane, new_node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "MAX_ROWS", 1)
    names = [f"p{number:02}" for number in range(30)]
    pin = {"model": "m", "tenant": "acme", "keys": ["ab" * 32]}
    pins = {**dict.fromkeys(names, pin), "q": {**pin, "tenant": "rival", "selector": {"zone": "none"}}}
    applied = await new_guarded.http.post(
        "/api/v1/apply", json={"document": {"apiVersion": "larder/v1", "pins": pins}, "managed_by": "git"}
    )
    assert applied.status_code == 200, applied.text
    await new_guarded.until_state("in_sync")
    reported = [PinStats(name, 1, 0, 0, 0) for name in names[:-1]]
    await new_guarded.report(new_node, pins=[*reported, PinStats(names[-1], 1, 1, 1, 0, degraded=1)])
    token = await create_token(new_guarded, "reader", tenants=["acme"])
    for path, name in ((F, "items"), (f"{F}?tenant=acme", "items"), ("/api/v1/overview", "findings")):
        for answer in (await new_guarded.get(path), (await send(new_guarded, token, "GET", path)).json()):
            counts: Counter[str] = Counter()
            for item in answer[name]:
                counts[item["code"]] += item["count"]
            assert (counts["pin_holds_nothing"], counts["pin_degraded"]) == (29, 1), path
    found = (await new_guarded.get(F))["items"]
    assert [each["subject"]["name"] for each in found if each["code"] == "pin_not_applied"] == ["q"]
    of_node = (await new_guarded.get(f"{F}?node=node-a"))["items"]
    assert "pin" not in {each["subject"]["kind"] for each in of_node}


async def test_a_lost_node_is_found(new_plane: Plane, new_node: FakeNode) -> None:
    await new_plane.until_state("in_sync")
    await new_node.stop()
    await new_plane.until_state("lost")
    answer = await new_plane.get(f"{F}?node=node-a")
    assert answer["items"][0]["code"] == "node_lost"
    assert answer["cause"].startswith("Node node-a is lost since ")
    assert answer["items"][0]["runbook"] == "/docs/operate/runbook.md#a-node-is-lost"


async def test_a_token_of_one_tenant_sees_findings_about_it_alone(new_guarded: Plane, new_node: FakeNode) -> None:
    await new_guarded.until_state("in_sync")
    token = await create_token(new_guarded, "reader", tenants=["acme"])
    over = [TenantStats(name, bytes=9, limit_bytes=1, over_limit=True) for name in ("acme", "rival")]
    await new_guarded.report(new_node, tenants=over, id_journal_bytes=9, id_journal_capacity_bytes=9)
    whole = (await new_guarded.get(F))["items"]
    assert {item["code"] for item in whole} == {"tenant_over_limit", "id_journal_fills"}
    for path, name in ((F, "items"), ("/api/v1/overview", "findings")):
        seen = await send(new_guarded, token, "GET", path)
        assert [item["subject"]["tenant"] for item in seen.json()[name]] == ["acme"]
        assert "rival" not in seen.text
    assert (await send(new_guarded, token, "GET", f"{F}?tenant=rival")).json()["items"] == []
    assert (await send(new_guarded, token, "GET", f"{F}?node=node-a")).json()["items"] == []


def reader_of(plane: Plane) -> EvidenceReader:
    parts = plane.app.parts
    changes, runs = parts.views.applied_changes, parts.ingest.refusal_runs
    return EvidenceReader(parts.database, parts.fleet, changes, runs, parts.records.pins)


async def test_states_are_looked_for_in_a_bounded_time(new_plane: Plane) -> None:
    now, database, reader = time.time(), new_plane.app.parts.database, reader_of(new_plane)
    ages_s = (LOOK_BACK_S + 60, STATES_BEFORE_S + LOOK_BACK_S + 60)
    async with database.write() as session:
        await events.append(
            session, [EventRow(at=now - age_s, name="node.lost", node="gone", fields={}) for age_s in ages_s]
        )
    seen = await reader.after(now - LOOK_BACK_S)
    assert [event.at for event in seen.events if event.node == "gone"] == [pytest.approx(now - ages_s[0])]


async def test_the_overview_shows_what_was_read_last_while_events_cannot_be_read(
    new_plane: Plane, new_node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await new_plane.until_state("in_sync")
    reader = reader_of(new_plane)
    read = await reader.recent()

    async def fail(*_: object) -> None:
        raise StoreUnavailable("the database did not answer")

    monkeypatch.setattr(events, "between", fail)
    monkeypatch.setattr(evidence, "SHARED_S", -1.0)
    assert await reader.recent() is read
    assert (await new_plane.http.get("/api/v1/overview")).status_code == 200
    assert (await new_plane.http.get(F)).status_code == 503
