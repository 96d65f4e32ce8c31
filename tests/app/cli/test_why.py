"""`larder why`: findings, alerts, preceding changes, and the sentences about the most likely cause."""

import json
import time
from typing import Any

import pytest

from app.cli.commands.views import why
from dataplane.protocol.control.messages import ControlRefused, ControlReply, ControlRequest
from dataplane.protocol.control.requests import FindRequests, RequestRecord, RequestsFound
from dataplane.protocol.events import TierLost
from dataplane.protocol.stats.tenants import TenantStats
from tests.app.callers import bearer, create_token, send
from tests.app.command import larder, output, refused
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane
from tests.app.views.test_alerts import alert, post, rfc

pytestmark = pytest.mark.anyio
T = 1_700_000_000.0


def event(name: str, at: float, node: str = "", **fields: Any) -> dict[str, Any]:
    return {"name": name, "at": at, "node": node, "actor": "", "fields": fields}


def test_events_that_differ_in_counts_alone_are_shown_at_their_ends() -> None:
    refused = [
        {**event("blocks.refused", T + n, "a", tenant="acme", reason="over_limit", blocks=n), "id": n}
        for n in range(9, 0, -1)
    ]
    other = {**event("blocks.refused", T, "a", tenant="acme", reason="pool_full"), "id": 5}
    assert [each["id"] for each in why._distinct([*refused, other])] == [9, 5, 1]


def test_events_of_normal_operation_are_dropped_before_others() -> None:
    exits = [{**event("dataplane.exited", T, "a", code=-9), "id": n} for n in range(3)]
    routine = [{**event("engine.attached", T, "a", client=n), "id": n} for n in range(3, 20)]
    shown = why._most_relevant([*reversed(routine), *reversed(exits)])
    assert [each["id"] for each in shown] == [19, 18, 17, 16, 15, 2, 1, 0]


def test_a_lost_node_is_an_event_of_every_tenant_and_of_no_other_node() -> None:
    lost = event("node.lost", T, "a")
    assert why._concerns_event(lost, "tenant", "acme")
    assert [why._concerns_event(lost, "node", name) for name in ("a", "b")] == [True, False]


def test_usage_of_a_tenant_is_unknown_while_no_node_reports() -> None:
    nodes = [{"name": "a", "state": "lost", "stats": None}]
    assert why._tenant({"limit_bytes": 1 << 30, "bytes": 0}, nodes) == [
        "limit 1 GiB; what it uses is not known, because no node reports",
        "nodes: a lost",
    ]


@pytest.fixture
def plane(new_plane: Plane) -> Plane:
    """Without the history of earlier tests, and without their tokens."""
    return new_plane


@pytest.fixture
def node(new_node: FakeNode) -> FakeNode:
    """The node of this plane."""
    return new_node


async def test_why_shows_the_chain_and_names_the_change(plane: Plane, node: FakeNode) -> None:
    await plane.until_state("in_sync")
    await plane.events_flow()
    runs = plane.app.parts.ingest.refusal_runs
    await plane.until(lambda: bool(runs._counts))  # what was refused before it looked has no time
    await plane.put_quota("acme", "8GiB")
    await plane.put_quota("acme", "1GiB")
    node.stats.tenants = [TenantStats("acme", bytes=1 << 30, limit_bytes=1 << 30, refused={"over_limit": 5})]
    await plane.until_event("refusals.started")
    reason = "disk is full: " + " ".join(map(str, range(40)))
    plane.app.parts.bus.publish(TierLost(time.time(), "disk", reason), node="node-a")
    await post(
        plane, alert(labels={"tenant": "acme"}, startsAt=rfc(time.time())), alert("Other", labels={"tenant": "x"})
    )
    await plane.stored_events("name=tier.lost")
    out = await output(plane, "why", "acme")
    text = " ".join(out.split())
    assert "Alerts (1)" in text
    assert "LarderTenantRefused (warning) fired at" in text
    assert "used 1 GiB of limit 1 GiB" in text
    assert "refused blocks by reason: over_limit 5" in text
    assert "quota acme: limit_bytes 8 GiB → 1 GiB by local (audit entry" in text
    assert "refusals.started" in text
    cause = text.split("Most likely: ")[1]
    assert cause.startswith("Blocks of tenant acme are refused (over_limit) on node node-a since ")
    assert "earlier: quota acme: limit_bytes 8 GiB → 1 GiB by local at " in cause
    code, out, _ = await larder(plane, "why", "node-a", "-o", "json")
    found = json.loads(out)
    assert (code, found["kind"], found["figures"]["state"]) == (0, "node", "in_sync")
    assert "refused (over_limit) on node node-a" in found["cause"]
    assert "blocks_refused" in [finding["code"] for finding in found["findings"]]

    assert "did you mean 'acme'?" in await refused(plane, 4, "why", "acne")
    assert "there is no node 'acme'" in await refused(plane, 4, "why", "acme", "--node")
    await plane.put_quota("node-a", "1GiB")
    assert "is a tenant and a node: add --tenant or --node" in await refused(plane, 2, "why", "node-a")
    assert reason in " ".join((await output(plane, "why", "node-a", "--node")).split())
    assert "tenant node-a" in await output(plane, "why", "node-a", "--tenant")


def record(request: str, at: float, tenant: str = "acme", **fields: Any) -> RequestRecord:
    known = {
        "engine": "vllm 1", "model": "tiny", "prompt_tokens": 1000, "engine_tokens": 16, "loaded_tokens": {"disk": 512},
        "missed_tokens": 472, "reason": "evicted", "cause": "room", "cause_at": T, **fields,
    }  # fmt: skip
    return RequestRecord(request=request, tenant=tenant, at=at, **known)


async def test_why_says_what_a_request_got_and_why_not_more(plane: Plane, node: FakeNode) -> None:
    await plane.until_state("in_sync")
    odd = "ünder/../x?y=1&z=%00\t"
    records = [record("cmpl-1-0-abc", T + 5), record("cmpl-1-1-def", T + 6, "rival"), record(odd, T)]

    def answer(message: ControlRequest) -> ControlReply | None:
        if not isinstance(message, FindRequests):
            return None
        return RequestsFound(message.nonce, [each for each in records if each.request.startswith(message.request)])

    node.answers = answer
    out = await output(plane, "why", "--request", "cmpl-1")
    text = " ".join(out.split())
    assert text.index("request cmpl-1-1-def") < text.index("request cmpl-1-0-abc"), "newest first"
    assert "16 in the engine's own cache, 512 loaded from a disk tier, 472 missed" in text
    assert "first missing: evicted (room) at " in text
    code, out, _ = await larder(plane, "why", "--request", odd, "-o", "json")
    (found,) = json.loads(out)["items"]
    assert (code, found["request"], found["loaded_tokens"]) == (0, odd, {"disk": 512})

    for arguments, expected, message in (
        (["--request", "cmpl-9"], 4, "no node has a record of request 'cmpl-9'"),
        (["--request", "x" * 257], 1, "256"),
        (["--request", ""], 1, "id"),
        (["acme", "--request", "cmpl-1"], 2, "either TENANT|NODE or --request ID"),
        (["--since", "2h", "--request", "cmpl-1"], 2, "--request cannot be combined with --since"),
        (["--node", "--request", "cmpl-1"], 2, "cannot be combined with --node"),
        ([], 2, "either TENANT|NODE or --request ID"),
    ):
        code, _, err = await larder(plane, "why", *arguments)
        assert (code, message in err) == (expected, True), err
    node.answers = lambda message: ControlRefused("unsupported", "what is find_requests?", "", message.nonce)
    message = await refused(plane, 1, "why", "--request", "cmpl-1")
    assert "no node that answered has a record of request 'cmpl-1': node-a: " in message
    node.answers = answer
    plane.http.headers.update(bearer(await create_token(plane, "root", "admin")))
    limited = await create_token(plane, "limited", tenants=["acme"])
    seen = (await send(plane, limited, "GET", "/api/v1/requests?id=cmpl-1")).json()
    assert [each["tenant"] for each in seen["items"]] == ["acme"]
