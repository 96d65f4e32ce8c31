"""Alerts of Alertmanager and Grafana: storage, expiry, and preceding changes."""

import asyncio
import copy
import hashlib
import json
import re
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.schemas.views.alerts import MAX_STORED_BYTES
from app.services.usage import retention
from app.services.views import applied_changes
from app.services.views.alerts import PROCESS_ALERTS
from app.store.access import audit
from app.store.views import alerts as store
from tests.app.callers import create_token, send
from tests.app.command import output
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane, serving, settings_in
from tests.app.problems import accepted, fault_paths

pytestmark = pytest.mark.anyio
A = "/api/v1/alerts"
NEVER = "0001-01-01T00:00:00Z"


def rfc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def alert(name: str = "LarderTenantRefused", status: str = "firing", **fields: Any) -> dict[str, Any]:
    """One alert as Alertmanager sends it; `labels` are added."""
    labels = {"alertname": name, "severity": "warning", **fields.pop("labels", {})}
    return {
        "status": status,
        "labels": labels,
        "annotations": {"summary": "blocks are refused", "runbook_url": "https://runbook/refused"},
        "startsAt": rfc(time.time()),
        "endsAt": NEVER,
        "generatorURL": "http://prometheus:9090/graph?g0.expr=up",
        "fingerprint": hashlib.sha256(repr(labels).encode()).hexdigest()[:16],
        **fields,
    }


def webhook(*alerts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The body that Alertmanager 0.25 posts."""
    return {
        "receiver": "larder",
        "status": "firing",
        "alerts": list(alerts),
        "groupLabels": {},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager:9093",
        "version": "4",
        "groupKey": "{}:{}",
        "truncatedAlerts": 0,
        **fields,
    }


async def post(plane: Plane, *alerts: dict[str, Any]) -> dict[str, Any]:
    taken: dict[str, Any] = accepted(await plane.http.post(A, json=webhook(*alerts)), 200)
    return taken


async def only(plane: Plane, query: str = "") -> dict[str, Any]:
    items = (await plane.get(f"{A}{query}"))["items"]
    assert len(items) == 1, items
    found: dict[str, Any] = items[0]
    return found


async def test_an_alert_fires_is_repeated_and_is_resolved(new_plane: Plane) -> None:
    fired = alert(labels={"tenant": "acme", "node": "node-a"})
    assert await post(new_plane, fired) == {"fired": 1, "resolved": 0, "repeated": 0, "truncated": 0}
    assert await post(new_plane, fired) == {"fired": 0, "resolved": 0, "repeated": 1, "truncated": 0}
    seen = await only(new_plane, "?state=firing&tenant=acme&node=node-a")
    assert (seen["alertname"], seen["severity"], seen["state"]) == ("LarderTenantRefused", "warning", "firing")
    assert (seen["tenant"], seen["node"], seen["summary"]) == ("acme", "node-a", "blocks are refused")
    assert seen["runbook_url"] == "https://runbook/refused"
    assert seen["ended_at"] is None
    event = await new_plane.until_event("alert.fired")
    assert (event["alertname"], event["tenant"]) == ("LarderTenantRefused", "acme")
    page = (await new_plane.http.get("/metrics")).text
    assert 'larder_alerts_firing{alertname="LarderTenantRefused",severity="warning"} 1.0' in page

    ended = {**fired, "status": "resolved", "endsAt": rfc(time.time())}
    assert (await post(new_plane, ended))["resolved"] == 1
    assert (await post(new_plane, ended))["repeated"] == 1
    assert (await only(new_plane))["state"] == "resolved"
    assert (await only(new_plane))["ended_at"] is not None
    assert (await new_plane.get(f"{A}?state=firing"))["items"] == []
    assert (await new_plane.until_event("alert.resolved"))["reason"] == "resolved"
    assert "larder_alerts_firing{" not in (await new_plane.http.get("/metrics")).text

    again = {**fired, "startsAt": rfc(time.time() + 60)}
    assert (await post(new_plane, again))["fired"] == 1
    assert (await post(new_plane, ended))["repeated"] == 1, "a late message about an earlier time"
    assert (await only(new_plane))["state"] == "firing"


async def test_the_command_line_lists_firing_alerts_and_the_change_before(new_plane: Plane, new_node: FakeNode) -> None:
    await new_plane.put_quota("acme", "1GiB")
    await post(new_plane, alert(labels={"tenant": "acme"}, startsAt=rfc(time.time() + 1)))
    await post(new_plane, alert("Over", "resolved", startsAt=rfc(time.time() - 60), endsAt=rfc(time.time())))
    out = await output(new_plane, "alerts", "-o", "wide")
    assert out.splitlines()[0] == "Alerts (1)"
    assert "LarderTenantRefused" in out
    assert "create quota acme: limit_bytes 1 GiB" in out
    assert "https://runbook/refused" in out
    assert (await output(new_plane, "alerts", "--state", "any", "--limit", "1")).startswith("Alerts (1 of 2)")
    assert (await output(new_plane, "alerts", "--node", "none")).startswith("Alerts (0)")


async def test_an_alert_with_an_earlier_start_is_the_same(new_plane: Plane) -> None:
    """Alertmanager merges alerts of one fingerprint, and takes the earlier start."""
    began = time.time() - 60
    fired = alert(startsAt=rfc(began))
    await post(new_plane, fired)
    assert (await post(new_plane, {**fired, "startsAt": rfc(began - 1)}))["repeated"] == 1
    ended = {**fired, "status": "resolved", "startsAt": rfc(began - 2), "endsAt": rfc(began + 5)}
    assert (await post(new_plane, ended))["resolved"] == 1
    assert ((await only(new_plane))["state"], (await only(new_plane))["ended_at"]) == (
        "resolved",
        pytest.approx(began + 5),
    )


async def test_the_webhook_of_grafana_is_accepted(new_plane: Plane) -> None:
    body = webhook(
        {
            **alert(labels={"grafana_folder": "Larder"}, startsAt="2026-01-31T12:00:00.123456789+02:00"),
            "values": {"A": 1.5},
            "valueString": "[ var='A' labels={} value=1.5 ]",
            "silenceURL": "http://grafana/alerting/silence/new",
            "dashboardURL": "",
            "panelURL": "",
        },
        version="1",
        orgId=1,
        title="[FIRING:1]",
        state="alerting",
        message="**Firing**",
    )
    assert accepted(await new_plane.http.post(A, json=body), 200)["fired"] == 1
    assert (await only(new_plane))["starts_at"] == pytest.approx(1769853600.123456)


async def test_an_alert_that_is_no_longer_sent_expires(socket_dir: Path) -> None:
    async with serving(settings_in(socket_dir, alert_expire_s=3600)) as plane:
        now = time.time()
        await post(plane, alert("ends", endsAt=rfc(now + 60)), alert("silent"), alert("sent", endsAt=rfc(now + 90_000)))
        service = plane.app.parts.views.alerts
        service._clock = lambda: now + 61
        await service.look()
        assert [each["alertname"] for each in (await plane.get(f"{A}?state=expired"))["items"]] == ["ends"]
        assert (await plane.until_event("alert.resolved"))["reason"] == "expired"
        service._clock = lambda: now + 3700
        await service.look()
        await service.look()
        assert (await plane.get(f"{A}?state=expired"))["total"] == 2
        assert (await only(plane, "?state=firing"))["alertname"] == "sent"
        assert service.firing() == {("sent", "warning"): 1}


async def test_ended_alerts_are_deleted_after_the_retention(socket_dir: Path) -> None:
    async with serving(settings_in(socket_dir, events_retention_days=1)) as plane:
        old = rfc(time.time() - 3 * 86_400)
        await post(plane, alert("old", "resolved", startsAt=old, endsAt=old), alert("new"))
        await plane.app.parts.usage.retention.tidy()
        assert (await only(plane))["alertname"] == "new"


async def test_a_stored_alert_has_a_bound_and_keeps_what_lists_show(new_plane: Plane) -> None:
    long = {f"a{number:02}": "\u00fc" * 1024 for number in range(60)}
    await post(new_plane, alert(annotations={**long, "summary": "the summary", "runbook_url": "https://r.example/"}))
    (stored,) = (await new_plane.get("/api/v1/alerts"))["items"]
    assert len(json.dumps([stored["labels"], stored["annotations"]])) <= MAX_STORED_BYTES + 4
    assert (stored["summary"], stored["runbook_url"]) == ("the summary", "https://r.example/")
    assert "a00" in stored["annotations"], "what fits is kept"


async def test_events_of_alerts_have_a_bound(new_plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    await post(new_plane, *(alert(labels={"number": str(number)}) for number in range(8)))
    await new_plane.app.parts.views.events.flush()
    before = (await new_plane.get("/api/v1/events/history?name=alert.*"))["total"]
    monkeypatch.setattr(retention, "MAX_KEPT_EVENTS", 5)
    await new_plane.app.parts.usage.retention.tidy()
    assert before > 5
    assert (await new_plane.get("/api/v1/events/history"))["total"] <= 5


async def test_ended_alerts_make_room_first(new_plane: Plane) -> None:
    await post(new_plane, alert("a"), alert("b", "resolved"), alert("c"))
    async with new_plane.app.parts.database.write() as session:
        await store.trim(session, 2)
    names = [each["alertname"] for each in (await new_plane.get(f"{A}?sort=alertname"))["items"]]
    assert names == ["a", "c"]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "version": ({"version": "3"}, "version"),
    "no alerts": ({"alerts": None}, "alerts"),
    "status": ({"status": "on"}, "alerts[0].status"),
    "no labels": ({"labels": {}}, "alerts[0].labels"),
    "label of a number": ({"labels": {"a": 1}}, "alerts[0].labels[...]"),
    "a long label": ({"labels": {"a": "x" * 1025}}, "alerts[0].labels.a"),
    "labels of 4 KiB": ({"labels": {f"l{n}": "x" * 1000 for n in range(5)}}, "alerts[0].labels"),
    "many labels": ({"labels": {f"l{n}": "" for n in range(65)}}, "alerts[0].labels"),
    "start": ({"startsAt": "yesterday"}, "alerts[0].startsAt"),
    "start without an offset": ({"startsAt": "2026-01-31T12:00:00"}, "alerts[0].startsAt"),
    "start of the year 1": ({"startsAt": NEVER}, "alerts[0].startsAt"),
    "start in ten years": ({"startsAt": "2099-01-31T12:00:00Z"}, "alerts[0].startsAt"),
    "end": ({"endsAt": "soon"}, "alerts[0].endsAt"),
    "fingerprint": ({"fingerprint": "a b"}, "alerts[0].fingerprint"),
    "a long fingerprint": ({"fingerprint": "a" * 65}, "alerts[0].fingerprint"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_bad_input_names_the_field(shared_plane: Plane, case: str) -> None:
    fields, path = WRONG[case]
    body: dict[str, Any] = webhook(alert())
    target: dict[str, Any] = body if path in body else body["alerts"][0]
    target.update(copy.deepcopy(fields))
    assert fault_paths(await shared_plane.http.post(A, json=body)) == [path]
    assert (await shared_plane.get(A))["items"] == []


async def test_too_many_alerts_and_too_large_bodies_are_refused(new_plane: Plane) -> None:
    assert fault_paths(await new_plane.http.post(A, json=webhook(*[alert()] * 1001)))[0] == "alerts"
    large = await new_plane.http.post(A, content=b"x" * (17 << 20), headers={"content-type": "application/json"})
    assert large.status_code == 413


async def test_texts_are_truncated_and_invisible_characters_escaped(new_plane: Plane) -> None:
    hostile = {"summary": "<b>\u202e\x00\x1b[31m</b>", "description": "x" * 5000, "runbook_url": "javascript:alert(1)"}
    await post(
        new_plane, alert(labels={"tenant": "a\x00\u200bb"}, annotations=hostile, generatorURL="file:///etc/passwd")
    )
    seen = await only(new_plane)
    assert seen["summary"] == "<b>\\u202e\\x00\\x1b[31m</b>", "HTML is escaped where it is shown"
    assert len(seen["annotations"]["description"]) == 1024
    assert (seen["runbook_url"], seen["generator_url"]) == ("", "")
    assert seen["tenant"] == "a\\x00\\u200bb"


async def test_a_webhook_of_long_invisible_texts_delays_no_other_request(new_plane: Plane) -> None:
    long: dict[str, Any] = {"annotations": {"description": "\u200b" * 4096}}
    sent = asyncio.create_task(post(new_plane, *(alert(f"a{number}", **long) for number in range(1000))))
    answered = 0
    while not sent.done():
        assert (await new_plane.http.get("/healthz")).status_code == 200
        answered += 1
    assert (await sent)["fired"] == 1000
    assert answered >= 5, "a loop that does all of it at once answers none meanwhile"


async def test_alerts_called_other_are_counted_with_the_rest(new_plane: Plane) -> None:
    named = [alert(f"a{number}") for number in range(60)]
    other = [alert("other", labels={"severity": "other", "number": str(number)}) for number in range(3)]
    await post(new_plane, *named, *other)
    page = (await new_plane.http.get("/metrics")).text
    assert page.count('larder_alerts_firing{alertname="other",severity="other"}') == 1
    assert 'larder_alerts_firing{alertname="other",severity="other"} 13.0' in page


async def test_a_token_for_alerts_may_post_alerts_and_nothing_else(new_guarded: Plane) -> None:
    token = await create_token(new_guarded, "alertmanager", "alerts")
    viewer = await create_token(new_guarded, "viewer")
    assert (await send(new_guarded, token, "POST", A, json=webhook(alert()))).status_code == 200
    assert (await send(new_guarded, viewer, "POST", A, json=webhook(alert()))).status_code == 403
    for method, path in (
        ("GET", A),
        ("GET", "/metrics"),
        ("GET", "/api/v1/whoami"),
        ("PUT", "/api/v1/quotas/acme"),
        ("POST", "/api/v1/tokens"),
    ):
        assert (await send(new_guarded, token, method, path)).status_code == 403, path
    refused = await send(new_guarded, "", "POST", "/api/v1/session", json={"token": token})
    assert refused.status_code == 403
    both = {"name": "x", "role": "alerts", "tenants": ["acme"]}
    assert (await new_guarded.http.post("/api/v1/tokens", json=both)).status_code == 422


async def test_an_alert_lists_the_changes_that_preceded_it(new_plane: Plane, new_node: FakeNode) -> None:
    await new_plane.put_quota("other", "1GiB")
    await new_plane.put_quota("acme", "8GiB")
    await new_plane.put_quota("acme", "1GiB")
    await new_plane.http.post("/api/v1/nodes/node-a/drain", json={"on": True})
    now = time.time()
    await new_plane.http.patch(
        "/api/v1/quotas/acme", json={"note": "later"}, headers={"content-type": "application/merge-patch+json"}
    )
    await post(
        new_plane,
        alert("of tenant", labels={"tenant": "acme"}, startsAt=rfc(now)),
        alert("of node", labels={"node": "node-a"}, startsAt=rfc(now)),
        alert("of another node", labels={"node": "node-b"}, startsAt=rfc(now)),
        alert("LarderNodeLost", labels={"node": "node-a"}, startsAt=rfc(now)),
        alert("before all", labels={"tenant": "acme"}, startsAt=rfc(now - 7200)),
    )
    found = {each["alertname"]: each["preceding_changes"] for each in (await new_plane.get(A))["items"]}
    lowered = found["of tenant"][1]
    assert lowered["summary"] == "quota acme: limit_bytes 8 GiB → 1 GiB"
    assert (lowered["actor"], lowered["generation"], lowered["tenant"]) == ("local", 3, "acme")
    assert {"name": "limit_bytes", "before": 8 << 30, "after": 1 << 30} in lowered["fields"]
    entry = (await new_plane.get("/api/v1/audit?name=acme&action=update"))["items"][-1]
    assert entry["id"] == lowered["audit_id"]
    assert [each["action"] for each in found["of tenant"]] == ["drain", "update", "create"]
    assert [each["action"] for each in found["of node"]] == ["drain", "update", "create", "create"]
    assert [each["kind"] for each in found["of another node"]] == ["quota"] * 3
    assert [each["action"] for each in found["LarderNodeLost"]] == ["drain"]
    assert found["before all"] == []


def test_alerts_about_processes_have_a_rule() -> None:
    rules = (Path(__file__).parents[3] / "deploy/prometheus/larder.rules.yml").read_text()
    assert set(re.findall(r"alert: (\w+)", rules)) >= PROCESS_ALERTS


async def test_alerts_share_reads_of_the_changes_before_them(new_plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0

    async def counted(*arguments: Any) -> list[audit.AuditRow]:
        nonlocal reads
        reads += 1
        return await applied(*arguments)

    applied = audit.applied
    monkeypatch.setattr(audit, "applied", counted)
    for number in range(60):
        await new_plane.put_quota(f"t{number}", "1GiB", wait="")
    now = time.time()
    await post(
        new_plane,
        *(alert(f"a{n}", labels={"node": "none", "tenant": "none"}, startsAt=rfc(now - n / 1e6)) for n in range(40)),
        *(alert(f"b{n}", labels={"tenant": f"t{n}"}, startsAt=rfc(now - n / 1e6)) for n in range(40)),
    )  # fmt: skip
    found = {each["alertname"]: each["preceding_changes"] for each in (await new_plane.get(A))["items"]}
    assert reads <= 3
    for n in range(40):
        assert found[f"a{n}"] == []
        assert [each["tenant"] for each in found[f"b{n}"]] == [f"t{n}"]


async def test_callers_limited_to_tenants_see_their_own_alerts_and_changes(new_guarded: Plane) -> None:
    mine = await create_token(new_guarded, "mine", "operator", tenants=["acme"])
    await new_guarded.put_quota("acme", "8GiB", wait="")
    await new_guarded.put_quota("other", "8GiB", wait="")
    await post(new_guarded, *(alert(labels={"tenant": name}) for name in ("acme", "other")), alert("fleet"))
    seen = (await send(new_guarded, mine, "GET", A)).json()
    assert [each["tenant"] for each in seen["items"]] == ["acme"]
    (change,) = seen["items"][0]["preceding_changes"]
    assert (change["actor"], change["audit_id"], change["tenant"]) == ("", None, "acme")
    notes = (await send(new_guarded, mine, "GET", "/api/v1/annotations")).json()
    assert [each["title"] for each in notes] == ["create quota acme"]


async def test_who_is_given_a_pin_of_another_tenant_does_not_see_what_it_was_there(new_guarded: Plane) -> None:
    mine = await create_token(new_guarded, "mine", "operator", tenants=["acme"])
    both = await create_token(new_guarded, "both", "operator", tenants=["acme", "rival"])
    await new_guarded.put_pin("given", tenant="rival", note="of rivals", wait="")
    await new_guarded.put_pin("given", tenant="acme", note="ours", wait="")
    await post(new_guarded, alert(labels={"tenant": "acme"}))

    async def texts(token: str) -> list[str]:
        paths = ("/api/v1/annotations", A, "/api/v1/series?name=used_bytes&range_s=60")
        answers = [await send(new_guarded, token, "GET", path) for path in paths]
        assert [answer.status_code for answer in answers] == [200] * 3, [answer.text for answer in answers]
        return [answer.text for answer in answers]

    for text in await texts(mine):
        assert "rival" not in text
    note, alerts, _ = await texts(mine)
    (shown,) = json.loads(note)
    assert (shown["title"], shown["change"]["fields"], shown["change"]["summary"]) == (
        "update pin given",
        [],
        "pin given",
    )
    assert json.loads(alerts)["items"][0]["preceding_changes"] == [shown["change"]]
    assert ["tenant rival → acme" in text for text in (await texts(both))[:2]] == [True, True]


async def test_alerts_are_paged(new_plane: Plane) -> None:
    await post(new_plane, *(alert(f"a{number}") for number in range(5)))
    first = await new_plane.get(f"{A}?sort=alertname&limit=3")
    rest = await new_plane.get(f"{A}?sort=alertname&limit=3&cursor={first['next_cursor']}")
    assert [each["alertname"] for each in (*first["items"], *rest["items"])] == [f"a{n}" for n in range(5)]
    assert (first["total"], rest["next_cursor"]) == (5, "")


async def test_changes_are_annotations(new_plane: Plane, new_node: FakeNode) -> None:
    began = int(time.time() * 1000)
    await new_plane.until_state("in_sync")
    await new_plane.put_quota("acme", "8GiB")
    await new_plane.http.post("/api/v1/nodes/node-a/drain", json={"on": True})
    quota, drain = await new_plane.get(f"/api/v1/annotations?from={began}&to={began + 3_600_000}")
    assert quota["title"] == "create quota acme by local"
    assert "limit_bytes 8 GiB" in quota["text"]
    assert quota["text"].endswith("generation 1 of quotas, acknowledged by 1 of 1 nodes")
    assert quota["tags"] == ["type:quota", "tenant:acme", "actor:local"]
    assert began - 1 <= quota["time"] <= quota["timeEnd"] <= began + 60_000
    assert drain["tags"] == ["type:node", "node:node-a", "actor:local"]
    tagged = await new_plane.get("/api/v1/annotations?tags=tenant:acme,%20type:quota")
    assert [each["change"]["audit_id"] for each in tagged] == [quota["change"]["audit_id"]]
    assert await new_plane.get(f"/api/v1/annotations?from={rfc(time.time() + 5)}&to={rfc(time.time() + 9)}") == []
    for query, path in (("from=x", "from"), ("to=-1", "to"), (f"from={began}&to=1000", "from")):
        assert fault_paths(await new_plane.http.get(f"/api/v1/annotations?{query}"))[0] == path


async def test_changes_of_a_tag_are_searched_in_a_thread_and_among_a_bounded_number(
    new_plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []
    threads: set[threading.Thread] = set()

    async def bounded(session: Any, since: float, until: float, max_rows: int, *where: Any) -> list[audit.AuditRow]:
        limits.append(max_rows)
        return await applied(session, since, until, max_rows, *where)

    def converted(*arguments: Any) -> Any:
        threads.add(threading.current_thread())
        return shown(*arguments)

    applied, shown = audit.applied, applied_changes.shown
    monkeypatch.setattr(audit, "applied", bounded)
    monkeypatch.setattr(applied_changes, "shown", converted)
    await new_plane.put_quota("acme", wait="")
    for query, expected in (
        ("limit=1000", 1000),
        ("limit=5&tags=tenant:acme", 100),
        ("limit=1000&tags=tenant:acme", 4000),
    ):
        (note,) = await new_plane.get(f"/api/v1/annotations?{query}")
        assert (note["change"]["tenant"], limits.pop()) == ("acme", expected)
    assert len(threads) >= 1
    assert threading.current_thread() not in threads


async def test_managers_that_receive_the_same_alert_concurrently_store_it_once(socket_dir: Path) -> None:
    url = f"sqlite+aiosqlite:///{socket_dir}/larder.db"
    async with serving(settings_in(socket_dir, url)) as one, serving(settings_in(socket_dir, url)) as other:
        same = alert()
        answers: list[httpx.Response] = await asyncio.gather(
            *(plane.http.post(A, json=webhook(same)) for plane in (one, other) for _ in range(5))
        )
        assert sum(answer.json()["fired"] for answer in answers) == 1
        assert (await only(other))["state"] == "firing"
        await other.app.parts.views.alerts.look()
        assert other.app.parts.views.alerts.firing() == {("LarderTenantRefused", "warning"): 1}


async def test_an_answer_lists_a_hundred_faults_and_counts_all(new_plane: Plane) -> None:
    refused = await new_plane.http.post(A, json=webhook(*[alert(fingerprint="!")] * 1000))
    problem = refused.json()
    assert refused.status_code == 422
    assert problem["detail"].endswith(" (and 999 more)")
    assert [fault["path"] for fault in problem["errors"]] == [f"alerts[{at}].fingerprint" for at in range(100)]
