"""`larder why`: alerts, preceding changes, and the sentence about the most likely cause."""

import asyncio
import json
import time
from typing import Any

import pytest

from app.cli.commands.views import why
from app.cli.commands.views.causes import Evidence, cause
from dataplane.protocol.events import TierLost
from dataplane.protocol.stats.tenants import TenantStats
from tests.app.command import larder
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane
from tests.app.views.test_alerts import alert, post, rfc

pytestmark = pytest.mark.anyio
T = 1_700_000_000.0


def change(**fields: Any) -> dict[str, Any]:
    return {
        "audit_id": 7, "at": T, "actor": "alice", "action": "update", "kind": "quota", "name": "acme",
        "tenant": "acme", "node": "", "type": "quotas", "generation": 3, "summary": "quota acme: …",
        "fields": [{"name": "limit_bytes", "before": 8 << 30, "after": 1 << 30}], **fields,
    }  # fmt: skip


def event(name: str, at: float, node: str = "", **fields: Any) -> dict[str, Any]:
    return {"name": name, "at": at, "node": node, "actor": "", "fields": fields}


def node(name: str = "a", **fields: Any) -> dict[str, Any]:
    return {"name": name, "state": "in_sync", "draining": False, "faults": [], "stats": None, **fields}


REFUSED = event("refusals.started", T + 5, "a", tenant="acme", reason="over_limit")
FULL = {"limit_bytes": 100, "bytes": 95, "on_exceed": "evict_self"}
REJECTS = {"name": "on_exceed", "before": "evict_self", "after": "reject"}
ENDED = event("refusals.ended", T + 70, "a", tenant="acme", blocks=9)
DELETED = change(action="delete", at=T + 20, summary="delete quota acme", fields=[])
LOOP = {"type": "crash_loop", "message": "its data plane ended 3 times", "since": T, "ended_at": None}
KILLS = [event("dataplane.exited", T + 60, "a", code=-9), event("dataplane.exited", T + 50, "a", code=-9)]
NOOP = change(kind="policy", tenant="", at=T + 4, summary="policy default: lru → noop", fields=[])
RESIZED = change(kind="node", tenant="", node="b", at=T + 2, summary="resize node b")
TIER = {"kind": "tier", "name": "disk", "tenant": "", "summary": "tier disk: budget_bytes 1 GiB → 2 GiB"}
DISK = {"name": "disk", "serves": False, "reason": "I/O error"}
POOL = {"pinned_bytes": 60 << 20, "capacity_bytes": 64 << 20, "pin_budget_bytes": 60 << 20}
PINS = [change(kind="pin", action="create", audit_id=n, at=T + n) for n in range(12, 0, -1)]
GONE = {"kind": "pin", "action": "delete", "fields": []}
LEASED = node(
    stats={
        "pool": {"blocks": 512},
        "engines": [
            {"engine": "vllm", "client": 3, "pid": 77, "leased_blocks": 12},
            {"engine": "LMCache scheduler", "client": 4, "pid": 0, "leased_blocks": 500},
            {"engine": "idle", "client": 5, "pid": 78, "leased_blocks": 0},
        ],
    }
)
NO_ROOM = event("refusals.started", T + 5, "a", tenant="acme", reason="pool_full")
CASES = {
    "leases": (
        Evidence("tenant", "acme", nodes=[LEASED], events=[NO_ROOM]),
        "Node a can evict no more blocks, so that those of tenant acme are refused (pool_full) since 22:13:25Z. Of 512 "
        "blocks, engines lease: LMCache scheduler (client 4, no pid): 500 blocks; vllm (client 3, pid 77): 12 blocks. "
        "larder engines expel ends the leases of a process.",
    ),
    "leases of others": (Evidence("tenant", "other", nodes=[LEASED], events=[NO_ROOM]), ""),
    "limit": (
        Evidence("tenant", "acme", changes=[change()], events=[REFUSED]),
        "limit_bytes was lowered from 8 GiB to 1 GiB in the quota of tenant acme by alice at 22:13:20Z (audit "
        "entry 7), and its blocks are refused (over_limit) on node a since 22:13:25Z, 5 s later.",
    ),
    "limit of the node's tenant": (
        Evidence("node", "a", nodes=[node()], changes=[change()], events=[REFUSED]),
        "limit_bytes was lowered from 8 GiB to 1 GiB in the quota of tenant acme by alice at 22:13:20Z (audit "
        "entry 7), and its blocks are refused (over_limit) on node a since 22:13:25Z, 5 s later.",
    ),
    "limit of another tenant": (
        Evidence("tenant", "other", changes=[change()], events=[REFUSED]),
        "",
    ),
    "limit, and refusals before it": (
        Evidence("tenant", "acme", changes=[change(at=T + 60)], events=[REFUSED]),
        "",
    ),
    "limit, and refusals that ended": (
        Evidence("tenant", "acme", changes=[change()], events=[ENDED, REFUSED]),
        "limit_bytes was lowered from 8 GiB to 1 GiB in the quota of tenant acme by alice at 22:13:20Z (audit entry "
        "7), and its blocks were refused (over_limit) on node a from 22:13:25Z to 22:14:30Z, 5 s later.",
    ),
    "limit, and refusals of a node that died": (
        Evidence("node", "a", nodes=[node()], changes=[change()], events=[*KILLS, REFUSED]),
        "The data plane of node a exited 2 times from 22:14:10Z to 22:14:20Z (killed by signal 9); "
        "no change to the node preceded it.",
    ),
    "a deleted limit": (
        Evidence("node", "a", nodes=[node()], changes=[DELETED, change()], events=[{**REFUSED, "at": T + 60}, REFUSED]),
        "limit_bytes was lowered from 8 GiB to 1 GiB in the quota of tenant acme by alice at 22:13:20Z (audit entry "
        "7), and its blocks were refused (over_limit) on node a at 22:13:25Z, 5 s later.",
    ),
    "a deleted limit, and crashes": (
        Evidence("node", "a", nodes=[node()], changes=[DELETED, change()], events=[*KILLS, REFUSED]),
        "The data plane of node a exited 2 times from 22:14:10Z to 22:14:20Z (killed by signal 9); "
        "no change to the node preceded it.",
    ),
    "a crash loop, and a limit": (
        Evidence("node", "a", nodes=[node(conditions=[LOOP])], changes=[change()], events=[*KILLS, REFUSED]),
        "Node a is in a crash loop: its data plane ended 3 times. The data plane of node a exited 2 times from "
        "22:14:10Z to 22:14:20Z (killed by signal 9); no change to the node preceded it.",
    ),
    "a crash loop without events": (
        Evidence("node", "a", nodes=[node(conditions=[LOOP])]),
        "Node a is in a crash loop: its data plane ended 3 times.",
    ),
    "policy, and refusals that ended": (
        Evidence("node", "a", nodes=[node()], changes=[NOOP], events=[ENDED, REFUSED]),
        "Policy default: lru → noop by alice at 22:13:24Z (audit entry 7), and blocks of tenant acme were refused "
        "(over_limit) on node a from 22:13:25Z to 22:14:30Z, 1 s later.",
    ),
    "deleted pins": (
        Evidence("node", "a", nodes=[node(stats={"pool": POOL})], changes=[change(**{**GONE, "at": T + 30}), *PINS]),
        "",
    ),
    "limit, and a full pool": (
        Evidence(
            "tenant", "acme", changes=[change()],
            events=[event("refusals.started", T + 5, "a", tenant="acme", reason="pool_full")],
        ),
        "",
    ),
    "policy, and refusals after it": (
        Evidence(
            "tenant", "acme",
            changes=[change(kind="policy", tenant="", summary="policy default: lru → noop"), change(at=T - 9)],
            events=[event("refusals.started", T + 5, "a", tenant="acme", reason="pool_full")],
        ),
        "Policy default: lru → noop by alice at 22:13:20Z (audit entry 7), and blocks of tenant acme are "
        "refused (pool_full) on node a since 22:13:25Z, 5 s later.",
    ),
    "limit that evicts": (
        Evidence("tenant", "acme", FULL, changes=[change(actor="", audit_id=None)]),
        "limit_bytes was lowered from 8 GiB to 1 GiB in the quota of tenant acme at 22:13:20Z, and the tenant is at "
        "its limit: its own blocks are evicted.",
    ),
    "limit that rejects": (
        Evidence("tenant", "acme", {**FULL, "on_exceed": "reject"}, changes=[change()]),
        "limit_bytes was lowered from 8 GiB to 1 GiB in the quota of tenant acme by alice at 22:13:20Z (audit "
        "entry 7), and the tenant is at its limit: stores beyond it are refused.",
    ),
    "policy that evicts nothing, within a limit": (
        Evidence(
            "tenant", "acme", FULL,
            changes=[NOOP, change(at=T - 9)], events=[REFUSED],
        ),
        "Policy default: lru → noop by alice at 22:13:24Z (audit entry 7), and blocks of tenant acme are refused "
        "(over_limit) on node a since 22:13:25Z, 1 s later.",
    ),
    "policy, and a limit that rejects": (
        Evidence(
            "tenant", "acme",
            changes=[NOOP, change(fields=[*change()["fields"], REJECTS])],
            events=[REFUSED],
        ),
        "limit_bytes was lowered from 8 GiB to 1 GiB and on_exceed was changed from evict_self to reject in the quota "
        "of tenant acme by alice at 22:13:20Z (audit entry 7), and its blocks are refused (over_limit) on node a since "
        "22:13:25Z, 5 s later.",
    ),
    "a tenant that is to reject": (
        Evidence("tenant", "acme", changes=[change(fields=[REJECTS])], events=[{**REFUSED, "at": T}]),
        "on_exceed was changed from evict_self to reject in the quota of tenant acme by alice at 22:13:20Z (audit "
        "entry 7), and its blocks are refused (over_limit) on node a since 22:13:20Z, less than a second later.",
    ),
    "a policy that evicts nothing, and several tenants": (
        Evidence(
            "node", "a", nodes=[node()],
            changes=[change(
                kind="policy", name="default", tenant="", summary="create policy default: …",
                fields=[{"name": "algorithm", "before": None, "after": "noop"}],
            )],
            events=[event("refusals.started", T + 5, "a", tenant=name, reason="pool_full") for name in ("b", "a", "b")],
        ),
        "The algorithm of policy default was set to noop, which evicts nothing, by alice at 22:13:20Z (audit entry 7), "
        "and blocks of 2 tenants (a, b) are refused (pool_full) on node a since 22:13:25Z, 5 s later.",
    ),
    "stopped, and a limit before": (
        Evidence(
            "node", "a", nodes=[node(state="lost")], changes=[change()],
            events=[event("node.lost", T + 9, "a"), event("node.stopped", T + 6, "a"), REFUSED],
        ),
        "Node a is lost since 22:13:29Z: its data plane was stopped at 22:13:26Z and has not started again; "
        "no change to the node preceded it.",
    ),
    "crashes of a tenant at its limit": (
        Evidence(
            "tenant", "acme", FULL, nodes=[node()],
            changes=[change()],
            events=[event("dataplane.exited", T + 60, "a", code=1), event("dataplane.exited", T, "a", code=1)],
        ),
        "The data plane of node a exited 2 times from 22:13:20Z to 22:14:20Z (exit code 1); "
        "no change to the node preceded it.",
    ),
    "crashes": (
        Evidence(
            "node", "a", nodes=[node()],
            events=[event("dataplane.exited", T + 60, "a", code=-9), event("dataplane.exited", T, "a", code=-9)],
        ),
        "The data plane of node a exited 2 times from 22:13:20Z to 22:14:20Z (killed by signal 9); "
        "no change to the node preceded it.",
    ),
    "crashes, and lost": (
        Evidence(
            "node", "a", nodes=[node(state="lost")],
            events=[
                event("node.lost", T + 90, "a"),
                event("dataplane.exited", T + 60, "a", code=1),
                event("dataplane.exited", T, "a", code=1),
            ],
        ),
        "The data plane of node a exited 2 times from 22:13:20Z to 22:14:20Z (exit code 1); "
        "no change to the node preceded it. "
        "Node a is lost since 22:14:50Z: it neither receives snapshots nor reports. Its process or the network failed; "
        "no change to the node preceded it.",
    ),
    "lost": (
        Evidence("tenant", "acme", nodes=[node(), node("b", state="lost")], events=[event("node.lost", T, "b")]),
        "Node b is lost since 22:13:20Z: it neither receives snapshots nor reports. Its process or the network failed; "
        "no change to the node preceded it.",
    ),
    "crashes of a node that has no supervisor here": (
        Evidence(
            "tenant", "acme", nodes=[node(), node("b")], since=T,
            changes=[change(at=T + 99), change(kind="node", node="a", tenant=""), RESIZED],
            events=[
                event("node.joined", T + 60, "b", epoch="3"),
                event("node.joined", T + 20, "b", epoch="2"),
                event("node.lost", T + 9, "b"),
                event("node.joined", T + 5, "b", epoch="1"),
                event("node.joined", T - 60, "b", epoch="1"),
                event("node.joined", T - 99, "b", epoch="0"),
                event("node.joined", T + 60, "a", epoch="9"),
            ],
        ),
        "The data plane of node b exited 2 times from 22:13:29Z to 22:14:20Z (without notice: killed, or the machine "
        "failed); the latest change before: resize node b by alice at 22:13:22Z (audit entry 7).",
    ),
    "one crash of a node that has no supervisor here": (
        Evidence(
            "node", "b", nodes=[node("b")],
            events=[event("node.joined", T, "b", epoch="2"), event("node.joined", T - 60, "b", epoch="1")],
        ),
        "The data plane of node b exited once, at 22:13:20Z (without notice: killed, or the machine failed); no change "
        "to the node preceded it.",
    ),
    "planned stop of everything": (
        Evidence(
            "node", "b", nodes=[node("b")],
            events=[
                event("node.joined", T, "b", epoch="2"),
                event("dataplane.stopped", T - 1, "b"),
                event("node.joined", T - 60, "b", epoch="1"),
            ],
        ),
        "",
    ),
    "planned restart": (
        Evidence(
            "node", "b", nodes=[node("b")],
            events=[
                event("node.joined", T, "b", epoch="2"),
                event("node.stopped", T - 1, "b"),
                event("node.joined", T - 60, "b", epoch="1"),
            ],
        ),
        "",
    ),
    "tier that is out of service": (
        Evidence(
            "tenant", "acme", nodes=[node(), node("b", stats={"tiers": [DISK]})],
            changes=[change(at=T + 60), change(**TIER, at=T - 3)],
            events=[event("tier.lost", T, "b", tier="disk", reason="I/O error")],
        ),
        "Tier disk of node b is out of service since 22:13:20Z: I/O error; the node serves blocks only from its "
        "memory; the latest change before: tier disk: budget_bytes 1 GiB → 2 GiB by alice at 22:13:17Z (audit entry "
        "7).",
    ),
    "tier that is out of service for longer than is looked back": (
        Evidence(
            "node", "b", nodes=[node("b", stats={"tiers": [DISK, {"name": "s3", "serves": True}]})], since=T + 60,
            events=[event("tier.lost", T, "b", tier="disk", reason="I/O error")],
        ),
        "Tier disk of node b is out of service since 22:13:20Z: I/O error; the node serves blocks only from "
        "memory and from s3.",
    ),
    "tier that was out of service": (
        Evidence(
            "node", "b", nodes=[node("b", stats={"tiers": [{**DISK, "serves": True}]})],
            changes=[change(**{**TIER, "name": "other"})],
            events=[
                event("tier.recovered", T + 60, "b", tier="disk"),
                event("tier.lost", T, "b", tier="disk", reason="I/O error"),
            ],
        ),
        "Tier disk of node b was out of service from 22:13:20Z to 22:14:20Z: I/O error; "
        "no change to the node preceded it.",
    ),
    "drained": (
        Evidence("node", "a", nodes=[node(draining=True)], changes=[change(action="drain", kind="node", node="a")]),
        "Node a was drained by alice at 22:13:20Z (audit entry 7): it stores nothing more.",
    ),
    "pins": (
        Evidence(
            "node", "a",
            nodes=[node(stats={"pool": POOL})],
            changes=PINS,
        ),
        "alice created or changed 12 pins for acme from 22:13:21Z to 22:13:32Z, audit entries 1 to 12; pins keep "
        "60 MiB of 64 MiB, with a budget of 60 MiB.",
    ),
    "pins of another tenant": (
        Evidence("tenant", "b", nodes=[node(stats={"pool": {**POOL, "pinned_bytes": 1 << 20}})], changes=PINS),
        "",
    ),
    "pins of another tenant, which keep most of the pool": (
        Evidence("tenant", "b", nodes=[node(stats={"pool": POOL})], changes=PINS),
        "alice created or changed 12 pins for acme from 22:13:21Z to 22:13:32Z, audit entries 1 to 12; pins keep "
        "60 MiB of 64 MiB, with a budget of 60 MiB.",
    ),
    "pins of another tenant, which leave no room": (
        Evidence(
            "tenant", "b", nodes=[node(stats={"pool": {**POOL, "pinned_bytes": 1 << 20}})], changes=PINS,
            events=[event("refusals.started", T + 20, "a", tenant="b", reason="pool_full")],
        ),
        "alice created or changed 12 pins for acme from 22:13:21Z to 22:13:32Z, audit entries 1 to 12; pins keep "
        "1 MiB of 64 MiB, with a budget of 60 MiB.",
    ),
    "policy": (
        Evidence(
            "tenant", "acme",
            changes=[change(kind="policy", tenant="", summary="policy default: algorithm lru → fifo")],
            series={
                "at": [T - 25, T - 15, T - 5, T + 5, T + 15, T + 25],
                "hit_ratio": [0.9, 0.8, 0.85, 0.2, 0.2, 0.3],
            },
        ),
        "",
    ),
    "an alert and the change before": (
        Evidence(
            "tenant", "acme",
            alerts=[{"alertname": "Slow", "starts_at": T + 9, "preceding_changes": [change(summary="pin p: ttl_s 9")]}],
        ),
        "pin p: ttl_s 9 by alice at 22:13:20Z (audit entry 7): the latest change before Slow fired, 9 s later.",
    ),
    "nothing": (Evidence("tenant", "acme"), ""),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_rules_name_the_cause(case: str) -> None:
    evidence, sentence = CASES[case]
    assert cause(evidence) == sentence


def test_a_policy_after_which_the_hit_ratio_fell_is_named() -> None:
    policy = change(kind="policy", tenant="", summary="policy default: algorithm lru → fifo")
    series = {
        "at": [T - 25, T - 15, T - 5, T + 5, T + 15, T + 25, T + 35, T + 45],
        "hit_ratio": [0.9, 0.8, 0.85, 0.9, 0.2, None, 0.3, 0.25],
    }
    sentence = cause(Evidence("tenant", "acme", changes=[policy], series=series))
    assert sentence == (
        "Policy default: algorithm lru → fifo by alice at 22:13:20Z (audit entry 7), and the hit ratio fell from 85% "
        "to 25% since."
    )


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
    evidence = Evidence("tenant", "acme", {"limit_bytes": 1 << 30, "bytes": 0}, nodes=[node(state="lost")])
    assert why._tenant(evidence) == ["limit 1 GiB; what it uses is not known, because no node reports", "nodes: a lost"]


async def test_why_shows_the_chain_and_names_the_change(plane: Plane, node: FakeNode) -> None:
    await plane.until_state("in_sync")
    await plane.events_flow()
    runs = plane.app.parts.refusal_runs
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
    async with asyncio.timeout(60):
        while not (await plane.get("/api/v1/events/history?name=tier.lost"))["items"]:
            await asyncio.sleep(0.05)
    code, out, err = await larder(plane, "why", "acme")
    assert code == 0, err
    text = " ".join(out.split())
    assert "Alerts (1)" in text
    assert "LarderTenantRefused (warning) fired at" in text
    assert "used 1 GiB of limit 1 GiB" in text
    assert "refused blocks by reason: over_limit 5" in text
    assert "quota acme: limit_bytes 8 GiB → 1 GiB by local (audit entry" in text
    assert "refusals.started" in text
    assert text.split("Most likely: ")[1].startswith(
        "limit_bytes was lowered from 8 GiB to 1 GiB in the quota of tenant acme by local at "
    )
    code, out, _ = await larder(plane, "why", "node-a", "-o", "json")
    found = json.loads(out)
    assert (code, found["kind"], found["figures"]["state"]) == (0, "node", "in_sync")
    assert "refused (over_limit) on node node-a" in found["cause"]

    code, _, err = await larder(plane, "why", "acne")
    assert (code, "did you mean 'acme'?" in err) == (4, True)
    code, _, err = await larder(plane, "why", "acme", "--node")
    assert (code, "there is no node 'acme'" in err) == (4, True)
    await plane.put_quota("node-a", "1GiB")
    code, _, err = await larder(plane, "why", "node-a")
    assert (code, "is a tenant and a node: add --tenant or --node" in err) == (2, True)
    assert reason in " ".join((await larder(plane, "why", "node-a", "--node"))[1].split())
    assert "tenant node-a" in (await larder(plane, "why", "node-a", "--tenant"))[1]
