"""What the management plane finds: each type of finding in a state that shows it and not in one just below, and the
change that caused it."""

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.cli.support.printing.findings import lines, trouble
from app.ingest.refusal_runs import Refusal
from app.observe.events import LarderEvent
from app.schemas.views.alerts import AlertAnswer
from app.schemas.views.changes import ChangeAnswer
from app.schemas.views.findings import FINDING_TYPES, MAX_OF_TYPE, Finding
from app.schemas.views.overview import Overview
from app.services.base.principals import Principal
from app.services.views.diagnosis import FleetState, bounded, concerning, findings, likely_cause, visible
from dataplane.protocol.bounded import MAX_TIME_S
from tests.web.player import fixture

Json = dict[str, Any]
BUSY = fixture("busy")["overview"]
T = float(BUSY["at"]) - 100
RUNBOOK = Path(__file__).parents[3] / "docs" / "operate" / "runbook.md"


def overview(*patches: Callable[[Json], object]) -> Overview:
    """Return the busy state, in which all is well, after these changes."""
    raw = copy.deepcopy(BUSY)
    for patch in patches:
        patch(raw)
    return msgspec.convert(raw, Overview)


def put(path: str, value: object) -> Callable[[Json], None]:
    """Return what sets a value at a path such as `nodes.0.state`."""

    def patch(raw: Any) -> None:
        *parts, last = path.split(".")
        for part in parts:
            raw = raw[int(part)] if isinstance(raw, list) else raw[part]
        raw[int(last) if isinstance(raw, list) else last] = value

    return patch


def change(**fields: Any) -> ChangeAnswer:
    values: Json = {
        "audit_id": 7, "at": T, "actor": "alice", "action": "update", "kind": "quota", "name": "acme",
        "tenant": "acme", "node": "", "type": "quotas", "generation": 3,
        "summary": "quota acme: limit_bytes 8 GiB → 1 GiB",
        "fields": [{"name": "limit_bytes", "before": 8 << 30, "after": 1 << 30}], **fields,
    }  # fmt: skip
    return msgspec.convert(values, ChangeAnswer)


def event(name: str, at: float, node: str = "gpu-a1", **fields: Any) -> LarderEvent:
    return LarderEvent(name, at, 1, node, fields)


def condition(kind: str, ended_at: float | None = None) -> Json:
    return {"type": kind, "message": "it is so", "since": T, "ended_at": ended_at}


def alert(**fields: Any) -> AlertAnswer:
    texts = dict.fromkeys(("fingerprint", "severity", "tenant", "node", "summary", "runbook_url", "generator_url"), "")
    times = {"starts_at": T + 9, "ended_at": None, "received_at": T, "expires_at": T}
    rest = {"alertname": "Slow", "state": "firing", "labels": {}, "annotations": {}, "preceding_changes": []}
    return msgspec.convert({**texts, **times, **rest, **fields}, AlertAnswer)


def pool(**fields: int) -> Callable[[Json], None]:
    def patch(raw: Json) -> None:
        raw["pool"].update(fields)
        raw["nodes"][0]["stats"]["pool"].update(fields)

    return patch


def tier(**fields: Any) -> Callable[[Json], None]:
    return lambda raw: raw["nodes"][0]["stats"]["tiers"][0].update(fields)


def pin(**fields: Any) -> Callable[[Json], None]:
    return lambda raw: raw["pins"][0].update(fields)


def tenant(**fields: Any) -> Callable[[Json], None]:
    return lambda raw: raw["tenants"][0].update(fields)


def gateway(**fields: Any) -> Callable[[Json], None]:
    return lambda raw: raw["nodes"][1]["stats"]["gateway"].update(fields)


def status(applied: bool) -> Json:
    return {"accepted": True, "applied": applied, "nodes": {}, "conditions": []}


def nowhere(reason: str) -> Json:
    saying = {"type": "Effective", "status": "False", "reason": reason, "message": "", "since": T}
    at = {"observed_generation": 9, "state": "in_sync", "conditions": [saying]}
    return {**status(True), "nodes": {"gpu-a1": at}}


NODE, STATS = "nodes.0", "nodes.0.stats"
CLIENT = {"pid": 7, "release": "0.5", "unknown": "", "refused": 0, "reason": "", "connected": True}
GPU = copy.deepcopy(BUSY["nodes"][0]["stats"]["gpu_copy_pools"][0])
NOOP = change(kind="policy", tenant="", name="default", at=T, summary="policy default: algorithm lru → noop", fields=[])
NEVER = {"hit_blocks": 0, "requested_blocks": 10, "evicted_blocks": 9}
IN_USE = put("totals.evicted_blocks", 5_000)
RATIOS = [(T - 25, 0.9), (T - 15, 0.8), (T - 5, 0.85), (T + 15, 0.2), (T + 25, None), (T + 35, 0.3), (T + 45, 0.25)]
CHANGES = [change(at=T + n, audit_id=n) for n in range(10, 0, -1)]
FULL_PINS = pool(capacity_bytes=1000, pinned_bytes=96, pin_budget_bytes=100)
NOT_READY = put("ready", False)


def joining(raw: Any) -> None:
    """Let all nodes join."""
    for node in raw["nodes"]:
        node.update(state="joining")


CASES: dict[str, tuple[FleetState, FleetState]] = {
    "no_node": (FleetState(overview(put("nodes", []))), FleetState(overview())),
    "no_node_connected": (FleetState(overview(NOT_READY, joining)), FleetState(overview(NOT_READY))),
    "node_lost": (
        FleetState(overview(put(f"{NODE}.state", "lost"))),
        FleetState(overview(put(f"{NODE}.state", "behind"))),
    ),
    "crash_loop": (FleetState(overview(put(f"{NODE}.conditions", [condition("crash_loop")]))), FleetState(overview())),
    "thrashing": (FleetState(overview(put(f"{NODE}.conditions", [condition("thrashing")]))), FleetState(overview())),
    "tenant_at_limit": (
        FleetState(overview(tenant(tenant="acme", limit_bytes=100, bytes=250, limit_share=0.9)), changes=[change()]),
        FleetState(overview(tenant(tenant="acme", limit_bytes=100, bytes=250, limit_share=0.89)), changes=[change()]),
    ),
    "snapshot_refused": (
        FleetState(overview(put(f"{NODE}.state", "nacked"))),
        FleetState(overview(put(f"{NODE}.state", "in_sync"))),
    ),
    "gateway_unreachable": (
        FleetState(overview(gateway(problem="its name is gone"))),
        FleetState(overview(gateway(problem=""))),
    ),
    "gateway_client_refused": (
        FleetState(overview(gateway(clients=[{**CLIENT, "refused": 1}]))),
        FleetState(overview(gateway(clients=[CLIENT]))),
    ),
    "blocks_refused": (
        FleetState(overview(), refusals=[Refusal("gpu-a1", "acme", T, {"over_limit": 1})]),
        FleetState(overview()),
    ),
    "dataplane_exited": (
        FleetState(overview(), [event("dataplane.exited", T, code=-9)]),
        FleetState(overview(), [event("dataplane.exited", T, code=0)]),
    ),
    "tier_out_of_service": (
        FleetState(overview(tier(serves=False, state="not opened"))),
        FleetState(overview(tier(serves=False, state="opening"))),
    ),
    "tier_opening": (
        FleetState(overview(tier(serves=False, state="opening"))),
        FleetState(overview(tier(state="opening"))),
    ),
    "tier_not_listed": (
        FleetState(overview(tier(listing_fault="timed out"))),
        FleetState(overview(tier(listing_fault=""))),
    ),
    "tier_directory_full": (
        FleetState(overview(put(f"{STATS}.tier_directory_unlisted", 1))),
        FleetState(overview(put(f"{STATS}.tier_directory_unlisted", 0))),
    ),
    "hit_ratio_fell": (
        FleetState(overview(), changes=[NOOP], hit_ratio=RATIOS),
        FleetState(overview(), changes=[NOOP], hit_ratio=[(at, ratio and ratio / 6 + 0.5) for at, ratio in RATIOS]),
    ),
    "many_changes": (FleetState(overview(), changes=CHANGES), FleetState(overview(), changes=CHANGES[1:])),
    "node_draining": (FleetState(overview(put(f"{NODE}.draining", True))), FleetState(overview())),
    "cache_cold": (FleetState(overview(put(f"{STATS}.cold", True))), FleetState(overview(put(f"{STATS}.cold", False)))),
    "node_behind": (FleetState(overview(put(f"{NODE}.state", "behind"))), FleetState(overview())),
    "node_joining": (FleetState(overview(put(f"{NODE}.state", "joining"))), FleetState(overview())),
    "not_ready": (FleetState(overview(NOT_READY)), FleetState(overview(NOT_READY, put(f"{NODE}.state", "lost")))),
    "quotas_not_enforced": (FleetState(overview(put("armed", False))), FleetState(overview())),
    "clock_offset": (FleetState(overview(put(f"{NODE}.clock_offset_s", -9.0))), FleetState(overview())),
    "gpu_copies_fail": (
        FleetState(overview(put(f"{STATS}.gpu_copy_pools", [{**GPU, "problem": "out of memory"}]))),
        FleetState(overview(put(f"{STATS}.gpu_copy_pools", [GPU]))),
    ),
    "policy_evicts_nothing": (
        FleetState(overview(put(f"{STATS}.policy.algorithm", "noop"))),
        FleetState(overview(put(f"{STATS}.policy.algorithm", "mru"))),
    ),
    "tenant_over_limit": (
        FleetState(overview(tenant(over_limit=True))),
        FleetState(overview(tenant(over_limit=False))),
    ),
    "tenant_never_hits": (
        FleetState(overview(IN_USE, tenant(**NEVER, stored_blocks=1 << 40))),
        FleetState(overview(IN_USE, tenant(**NEVER, stored_blocks=1))),
    ),
    "pin_holds_nothing": (FleetState(overview(pin(holds_nothing=True))), FleetState(overview(pin(resident=0)))),
    "pin_in_tiers": (FleetState(overview(pin(only_in_tiers=1))), FleetState(overview(pin(only_in_tiers=0)))),
    "pin_unlisted": (FleetState(overview(pin(unlisted_tiers=["s3"]))), FleetState(overview(pin(unlisted_tiers=[])))),
    "pin_budget_full": (FleetState(overview(FULL_PINS)), FleetState(overview(FULL_PINS, pool(pinned_bytes=95)))),
    "pin_degraded": (FleetState(overview(pin(degraded=1))), FleetState(overview(pin(degraded=1, expired=True)))),
    "pin_without_gpu_copies": (
        FleetState(overview(pin(tier="gpu", gpu_copies=0, status=nowhere("NoGpuCopyPool")))),
        FleetState(overview(pin(tier="gpu", gpu_copies=0, status=nowhere("FewGpuCopies")))),
    ),
    "pin_not_applied": (
        FleetState(overview(pin(status=status(False), expired=False))),
        FleetState(overview(pin(status=status(False), expired=True))),
    ),
    "policy_not_applied": (
        FleetState(overview(put("policy.status", status(False)))),
        FleetState(overview(put("policy.status", status(True)))),
    ),
    "id_journal_fills": (
        FleetState(overview(put(f"{STATS}.id_journal_bytes", 80), put(f"{STATS}.id_journal_capacity_bytes", 100))),
        FleetState(overview(put(f"{STATS}.id_journal_bytes", 79), put(f"{STATS}.id_journal_capacity_bytes", 100))),
    ),
    "quarantine": (
        FleetState(overview(pool(capacity_bytes=100, quarantined_bytes=2))),
        FleetState(overview(pool(capacity_bytes=100, quarantined_bytes=1))),
    ),
    "alert_firing": (FleetState(overview(), alerts=[alert()]), FleetState(overview())),
}


def codes(state: FleetState) -> list[str]:
    return [finding.code for finding in findings(state)]


def test_nothing_is_wrong_in_the_busy_state() -> None:
    assert findings(FleetState(overview())) == []


@pytest.mark.parametrize("code", FINDING_TYPES)
def test_a_type_is_found_at_its_threshold_and_not_below(code: str) -> None:
    above, below = CASES[code]
    assert (code in codes(above), code in codes(below)) == (True, False)


def test_each_runbook_section_exists() -> None:
    headings = re.findall(r"(?m)^## (.*)$", RUNBOOK.read_text(encoding="utf-8"))
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert {declared.runbook for declared in FINDING_TYPES.values()} - {""} <= anchors


def test_the_worst_comes_first_and_what_ended_last() -> None:
    patches = (
        put(f"{NODE}.conditions", [condition("thrashing", T)]),
        tenant(over_limit=True),
        put("nodes.1.state", "lost"),
    )
    found = findings(FleetState(overview(*patches)))
    assert [(each.code, each.severity) for each in found] == [
        ("node_lost", "critical"), ("tenant_over_limit", "warning"), ("thrashing", "info"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "more", "what"),
    [
        (["acme"] * 10, False, "alice changed 1 quota of acme 10 times"),
        (["acme", "b"] * 5, False, "alice changed 2 quotas of acme, b 10 times"),
        ([f"t{n}" for n in range(10)], False, "alice changed 10 quotas of t0, t1, t2"),
        ([f"t{n}" for n in range(10)], True, "alice changed at least 10 quotas of t0, t1, t2"),
        (["acme"] * 1_000, True, "alice changed 1 quota of acme at least 1,000 times"),
    ],
)
def test_many_changes_differ_from_changes_of_many_records(names: list[str], more: bool, what: str) -> None:
    changes = [change(name=name, tenant=name, at=T - n / 100, audit_id=9_999 - n) for n, name in enumerate(names)]
    found = findings(FleetState(overview(), changes=changes, more_changes=more))
    assert [finding.what for finding in found if finding.code == "many_changes"] == [what]


def test_many_findings_of_one_type_are_counted() -> None:
    def over(raw: Json) -> None:
        raw["tenants"] = [{**raw["tenants"][0], "tenant": f"t{n}", "over_limit": True} for n in range(MAX_OF_TYPE + 5)]

    found = bounded(findings(FleetState(overview(over))))
    assert (len(found), found[-1].what) == (MAX_OF_TYPE, "6 more: tenant over limit")
    assert sum(each.count for each in found) == MAX_OF_TYPE + 5
    assert trouble(msgspec.to_builtins(found)) == f"{MAX_OF_TYPE + 5} times tenant over limit"


@pytest.mark.parametrize(("share", "excess"), [(1.5, " by 50 B on a node"), (0.5, ""), (None, "")])
def test_the_excess_over_a_limit_is_that_of_one_node(share: float | None, excess: str) -> None:
    patch = tenant(tenant="acme", over_limit=True, bytes=250, limit_bytes=100, limit_share=share)
    assert [each.what for each in findings(FleetState(overview(patch)))] == [f"Tenant acme is over its limit{excess}"]


class CountedNodes(list[Any]):
    """Nodes that count how often all of them are looked at."""

    passes = 0

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        return super().__iter__()


def refused(state: FleetState) -> list[tuple[float | None, float | None, str]]:
    return [(each.since, each.ended_at, each.detail) for each in findings(state) if each.code == "blocks_refused"]


def test_refusals_that_last_keep_their_begin_when_the_manager_restarts() -> None:
    again = RUN._replace(since=T + 40)
    restarted = [event("refusals.started", T + 40, tenant="acme", reason="over_limit"), STARTED]
    assert refused(FleetState(overview(), events=restarted, refusals=[again])) == [(T + 5, None, "9 over_limit")]
    later = RUN._replace(since=T + 90)
    assert refused(FleetState(overview(), events=[ENDED, STARTED], refusals=[later])) == [
        (T + 90, None, "9 over_limit"),
        (T + 5, T + 70, ""),
    ]


@pytest.mark.parametrize("order", [1, -1])
def test_callers_that_see_no_nodes_have_one_finding_of_a_tenants_refusals(order: int) -> None:
    runs = [RUN._replace(node=""), RUN._replace(node="", since=T + 50)][::order]
    started = msgspec.structs.replace(STARTED, node="")
    assert refused(FleetState(overview(), events=[started], refusals=runs)) == [(T + 5, None, "18 over_limit")]


def test_nodes_are_not_searched_once_for_each_refusal() -> None:
    def passes(refusals: int) -> int:
        whole = overview()
        nodes = CountedNodes(whole.nodes)
        runs = [RUN._replace(tenant=f"t{n}") for n in range(refusals)]
        assert len(findings(FleetState(msgspec.structs.replace(whole, nodes=nodes), refusals=runs))) == refusals
        return nodes.passes

    assert passes(50) == passes(1)


def test_callers_of_one_tenant_see_neither_nodes_nor_other_tenants() -> None:
    patches = (tenant(tenant="acme", over_limit=True), put("tenants.1.over_limit", True), put(f"{NODE}.state", "lost"))
    found = findings(FleetState(overview(*patches)))
    assert len(found) == 3
    assert [each.subject.tenant for each in visible(found, Principal(salts=frozenset({"acme"})))] == ["acme"]
    assert visible(found, Principal()) == found


@pytest.mark.parametrize("at", [-1e300, 1e12, 1e300])
def test_a_time_that_no_clock_has_can_be_shown_by_every_client(at: float) -> None:
    ends = {**condition("thrashing", at), "since": at}
    start = min(max(at, 0.0), MAX_TIME_S)  # what a node may report
    patches = put(f"{STATS}.cold", True), put(f"{STATS}.start.at", start), put(f"{NODE}.conditions", [ends])
    found = findings(FleetState(overview(*patches)))
    assert "is cold since" in likely_cause(found)
    assert len(lines([msgspec.to_builtins(finding) for finding in found])) == len(found) == 2


# ---- the change before


def lost(name: str) -> Callable[[Json], object]:
    return lambda raw: [node.update(state="lost") for node in raw["nodes"] if node["name"] == name]


RUN = Refusal("gpu-a1", "acme", T + 5, {"over_limit": 9})
NO_ROOM = RUN._replace(blocks={"pool_full": 9})
STARTED = event("refusals.started", T + 5, tenant="acme", reason="over_limit")
ENDED = event("refusals.ended", T + 70, tenant="acme", blocks=9)
DELETED = change(action="delete", at=T + 20, summary="delete quota acme", fields=[])
REJECTS = {"name": "on_exceed", "before": "evict_self", "after": "reject"}
KILLS = [event("dataplane.exited", T + 60, code=-9), event("dataplane.exited", T + 50, code=-9)]
RESIZED = change(kind="node", tenant="", node="gpu-a1", at=T + 2, name="gpu-a1", summary="resize node gpu-a1")
LATE_NOOP = msgspec.structs.replace(NOOP, at=T + 4)
PINS = [change(kind="pin", action="create", name=f"p{n}", audit_id=n, at=T + n) for n in range(12, 0, -1)]
CROWDED = pool(pinned_bytes=60, capacity_bytes=64, pin_budget_bytes=0)
LEASED = put(
    f"{STATS}.engines",
    [{**BUSY["nodes"][0]["stats"]["engines"][0], "engine": "vllm", "client": 3, "pid": 77, "leased_blocks": 12}],
)
JOINS = [event("node.joined", T, epoch="2"), event("node.joined", T - 60, epoch="1")]
DISK = [event("tier.recovered", T + 60, tier="disk"), event("tier.lost", T, tier="disk", reason="I/O error")]
TIER_SET = change(kind="tier", name="disk", tenant="", at=T - 3, summary="tier disk: budget_bytes 1 GiB → 2 GiB")

CAUSES: dict[str, tuple[FleetState, dict[str, str], Sequence[str]]] = {
    "a limit": (
        FleetState(overview(), changes=[change()], refusals=[RUN]),
        {"tenant": "acme"},
        [
            "Blocks of tenant acme are refused (over_limit) on node gpu-a1 since ",
            "9 over_limit",
            "5 s earlier",
            "quota acme: limit_bytes 8 GiB → 1 GiB by alice at ",
            "(audit entry 7)",
        ],
    ),
    "a limit of a tenant of the node": (
        FleetState(overview(), changes=[change()], refusals=[RUN]),
        {"node": "gpu-a1"},
        ["quota acme"],
    ),
    "a limit of another tenant": (FleetState(overview(), changes=[change()], refusals=[RUN]), {"tenant": "b"}, []),
    "a limit after the refusals": (
        FleetState(overview(), changes=[change(at=T + 60)], refusals=[RUN]),
        {"tenant": "acme"},
        ["refused", "~quota acme"],
    ),
    "refusals that ended": (
        FleetState(overview(), [ENDED, STARTED], [change()]),
        {"tenant": "acme"},
        ["were refused (over_limit)", " from ", "quota acme"],
    ),
    "refusals of a node that died": (
        FleetState(overview(), [*KILLS, STARTED], [change()]),
        {"node": "gpu-a1"},
        ["The data plane of node gpu-a1 exited 2 times from ", "killed by signal 9", "~quota acme"],
    ),
    "a limit that was deleted": (
        FleetState(overview(), [ENDED, STARTED], [DELETED, change()]),
        {"node": "gpu-a1"},
        ["were refused", "8 GiB → 1 GiB"],
    ),
    "a limit that was deleted before": (
        FleetState(overview(), changes=[DELETED, change()], refusals=[RUN._replace(since=T + 60)]),
        {"tenant": "acme"},
        ["~8 GiB"],
    ),
    "a policy after the limit": (
        FleetState(overview(), changes=[LATE_NOOP, change()], refusals=[RUN]),
        {"tenant": "acme"},
        ["policy default: algorithm lru → noop"],
    ),
    "a policy after a limit that rejects": (
        FleetState(overview(), changes=[LATE_NOOP, change(fields=[REJECTS])], refusals=[RUN]),
        {"tenant": "acme"},
        ["quota acme"],
    ),
    "a policy, and a full pool": (
        FleetState(overview(), changes=[NOOP, change(at=T - 9)], refusals=[NO_ROOM]),
        {"tenant": "acme"},
        ["refused (pool_full)", "noop"],
    ),
    "a limit, and a full pool": (
        FleetState(overview(), changes=[change()], refusals=[NO_ROOM]),
        {"tenant": "acme"},
        ["~quota acme"],
    ),
    "leases": (
        FleetState(overview(LEASED), refusals=[NO_ROOM]),
        {"tenant": "acme"},
        ["engines lease: vllm (client 3, pid 77): 12 blocks", "larder engines expel"],
    ),
    "many pins, and a full pool": (
        FleetState(overview(CROWDED), changes=PINS, refusals=[Refusal("gpu-a1", "b", T + 20, {"pool_full": 1})]),
        {"tenant": "b"},
        ["alice created 12 pins of acme", "audit entries 1 to 12", "pins keep 60 B of 64 B"],
    ),
    "many pins of another tenant": (FleetState(overview(), changes=PINS), {"tenant": "b"}, []),
    "many pins that keep most of the pool": (
        FleetState(overview(CROWDED), changes=PINS),
        {"tenant": "b"},
        ["alice created 12 pins"],
    ),
    "many pins that were deleted": (
        FleetState(
            overview(CROWDED),
            changes=[change(kind="pin", action="delete", name=each.name, at=T + 30) for each in PINS[:3]] + PINS,
        ),
        {"tenant": "b"},
        [],
    ),
    "a tenant that evicts its own blocks": (
        FleetState(
            overview(tenant(tenant="acme", limit_bytes=100, bytes=95, limit_share=0.95, on_exceed="evict_self")),
            changes=[change()],
        ),
        {"tenant": "acme"},
        ["Tenant acme is at its limit since ", "its own blocks are evicted", "quota acme"],
    ),
    "a stopped node": (
        FleetState(
            overview(lost("gpu-a1")), [event("node.lost", T + 9), event("node.stopped", T + 6)], [change(), RESIZED]
        ),
        {"node": "gpu-a1"},
        ["Node gpu-a1 is lost since ", "its data plane was stopped at ", "resize node gpu-a1"],
    ),
    "another node": (FleetState(overview(lost("gpu-a2"))), {"node": "gpu-a1"}, []),
    "a lost node, for a tenant": (FleetState(overview(lost("gpu-a2"))), {"tenant": "acme"}, ["Node gpu-a2 is lost"]),
    "a crash loop": (
        FleetState(overview(put(f"{NODE}.conditions", [condition("crash_loop")])), KILLS, [RESIZED], since=T - 9),
        {"node": "gpu-a1"},
        ["Node gpu-a1 is in a crash loop since ", "it is so, the last one killed by signal 9", "resize node"],
    ),
    "a node without a supervisor": (
        FleetState(overview(), JOINS),
        {"node": "gpu-a1"},
        ["exited once at ", "without notice: killed"],
    ),
    "a planned restart": (
        FleetState(overview(), [JOINS[0], event("node.stopped", T - 1), JOINS[1]]),
        {"node": "gpu-a1"},
        [],
    ),
    "a tier": (
        FleetState(overview(tier(name="disk", serves=False, reason="I/O error")), DISK[1:], [change(), TIER_SET]),
        {"tenant": "acme"},
        [
            "Tier disk of node gpu-a1 is out of service since ",
            "I/O error; the node serves blocks only from its memory",
            "tier disk: budget",
        ],
    ),
    "a tier that recovered": (
        FleetState(overview(tier(name="disk")), DISK, [msgspec.structs.replace(TIER_SET, name="other")]),
        {"node": "gpu-a1"},
        ["~tier other"],
    ),
    "a drain": (
        FleetState(
            overview(put(f"{NODE}.draining", True)),
            changes=[change(action="drain", kind="node", node="gpu-a1", tenant="")],
        ),
        {"node": "gpu-a1"},
        ["Node gpu-a1 drains since ", "it receives the request to drain", "by alice"],
    ),
    "an alert": (
        FleetState(
            overview(),
            alerts=[alert(tenant="acme", preceding_changes=[msgspec.to_builtins(change(summary="pin p: ttl_s 9"))])],
        ),
        {"tenant": "acme"},
        ["Alert Slow fires since ", "9 s earlier: pin p: ttl_s 9 by alice"],
    ),
    "a fall of the hit ratio": (
        FleetState(overview(), changes=[NOOP], hit_ratio=RATIOS),
        {"tenant": "acme"},
        ["The hit ratio fell from 85% to 25%", "noop"],
    ),
    "nothing": (FleetState(overview()), {"tenant": "acme"}, []),
}


@pytest.mark.parametrize("case", CAUSES)
def test_the_likely_cause_names_the_change_before(case: str) -> None:
    """`~`: the sentences do not have it; without a text, no cause is found."""
    state, query, texts = CAUSES[case]
    found: list[Finding] = concerning(findings(state), query.get("tenant"), query.get("node"))
    cause = likely_cause(found)
    assert bool(cause) == bool(texts) or all(text.startswith("~") for text in texts), cause
    for text in texts:
        assert (text.removeprefix("~") in cause) != text.startswith("~"), cause
