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


def state(*patches: Callable[[Json], object], **parts: Any) -> FleetState:
    """Return the busy state of a fleet after these changes, with these parts beside its overview."""
    return FleetState(overview(*patches), **parts)


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
    "no_node": (state(put("nodes", [])), state()),
    "no_node_connected": (state(NOT_READY, joining), state(NOT_READY)),
    "node_lost": (state(put(f"{NODE}.state", "lost")), state(put(f"{NODE}.state", "behind"))),
    "crash_loop": (state(put(f"{NODE}.conditions", [condition("crash_loop")])), state()),
    "thrashing": (state(put(f"{NODE}.conditions", [condition("thrashing")])), state()),
    "tenant_at_limit": (
        state(tenant(tenant="acme", limit_bytes=100, bytes=250, limit_share=0.9), changes=[change()]),
        state(tenant(tenant="acme", limit_bytes=100, bytes=250, limit_share=0.89), changes=[change()]),
    ),
    "snapshot_refused": (state(put(f"{NODE}.state", "nacked")), state(put(f"{NODE}.state", "in_sync"))),
    "gateway_unreachable": (state(gateway(problem="its name is gone")), state(gateway(problem=""))),
    "gateway_client_refused": (state(gateway(clients=[{**CLIENT, "refused": 1}])), state(gateway(clients=[CLIENT]))),
    "blocks_refused": (state(refusals=[Refusal("gpu-a1", "acme", T, {"over_limit": 1})]), state()),
    "dataplane_exited": (
        state(events=[event("dataplane.exited", T, code=-9)]),
        state(events=[event("dataplane.exited", T, code=0)]),
    ),
    "tier_out_of_service": (state(tier(serves=False, state="not opened")), state(tier(serves=False, state="opening"))),
    "tier_opening": (state(tier(serves=False, state="opening")), state(tier(state="opening"))),
    "tier_not_listed": (state(tier(listing_fault="timed out")), state(tier(listing_fault=""))),
    "tier_directory_full": (
        state(put(f"{STATS}.tier_directory_unlisted", 1)),
        state(put(f"{STATS}.tier_directory_unlisted", 0)),
    ),
    "hit_ratio_fell": (
        state(changes=[NOOP], hit_ratio=RATIOS),
        state(changes=[NOOP], hit_ratio=[(at, ratio and ratio / 6 + 0.5) for at, ratio in RATIOS]),
    ),
    "many_changes": (state(changes=CHANGES), state(changes=CHANGES[1:])),
    "node_draining": (state(put(f"{NODE}.draining", True)), state()),
    "cache_cold": (state(put(f"{STATS}.cold", True)), state(put(f"{STATS}.cold", False))),
    "node_behind": (state(put(f"{NODE}.state", "behind")), state()),
    "node_joining": (state(put(f"{NODE}.state", "joining")), state()),
    "not_ready": (state(NOT_READY), state(NOT_READY, put(f"{NODE}.state", "lost"))),
    "quotas_not_enforced": (state(put("armed", False)), state()),
    "clock_offset": (state(put(f"{NODE}.clock_offset_s", -9.0)), state()),
    "gpu_copies_fail": (
        state(put(f"{STATS}.gpu_copy_pools", [{**GPU, "problem": "out of memory"}])),
        state(put(f"{STATS}.gpu_copy_pools", [GPU])),
    ),
    "policy_evicts_nothing": (
        state(put(f"{STATS}.policy.algorithm", "noop")),
        state(put(f"{STATS}.policy.algorithm", "mru")),
    ),
    "tenant_over_limit": (state(tenant(over_limit=True)), state(tenant(over_limit=False))),
    "tenant_never_hits": (
        state(IN_USE, tenant(**NEVER, stored_blocks=1 << 40)),
        state(IN_USE, tenant(**NEVER, stored_blocks=1)),
    ),
    "pin_holds_nothing": (state(pin(holds_nothing=True)), state(pin(resident=0))),
    "pin_in_tiers": (state(pin(only_in_tiers=1)), state(pin(only_in_tiers=0))),
    "pin_unlisted": (state(pin(unlisted_tiers=["s3"])), state(pin(unlisted_tiers=[]))),
    "pin_budget_full": (state(FULL_PINS), state(FULL_PINS, pool(pinned_bytes=95))),
    "pin_degraded": (state(pin(degraded=1)), state(pin(degraded=1, expired=True))),
    "pin_without_gpu_copies": (
        state(pin(tier="gpu", gpu_copies=0, status=nowhere("NoGpuCopyPool"))),
        state(pin(tier="gpu", gpu_copies=0, status=nowhere("FewGpuCopies"))),
    ),
    "pin_not_applied": (
        state(pin(status=status(False), expired=False)),
        state(pin(status=status(False), expired=True)),
    ),
    "policy_not_applied": (state(put("policy.status", status(False))), state(put("policy.status", status(True)))),
    "id_journal_fills": (
        state(put(f"{STATS}.id_journal_bytes", 80), put(f"{STATS}.id_journal_capacity_bytes", 100)),
        state(put(f"{STATS}.id_journal_bytes", 79), put(f"{STATS}.id_journal_capacity_bytes", 100)),
    ),
    "quarantine": (
        state(pool(capacity_bytes=100, quarantined_bytes=2)),
        state(pool(capacity_bytes=100, quarantined_bytes=1)),
    ),
    "alert_firing": (state(alerts=[alert()]), state()),
}


def codes(fleet: FleetState) -> list[str]:
    return [finding.code for finding in findings(fleet)]


def test_nothing_is_wrong_in_the_busy_state() -> None:
    assert findings(state()) == []


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
    problems = findings(state(*patches))
    assert [(problem.code, problem.severity) for problem in problems] == [
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
    problems = findings(state(changes=changes, more_changes=more))
    assert [finding.what for finding in problems if finding.code == "many_changes"] == [what]


def test_many_findings_of_one_type_are_counted() -> None:
    def over(raw: Json) -> None:
        raw["tenants"] = [{**raw["tenants"][0], "tenant": f"t{n}", "over_limit": True} for n in range(MAX_OF_TYPE + 5)]

    problems = bounded(findings(state(over)), {})
    assert (len(problems), problems[-1].what) == (MAX_OF_TYPE, "6 more: tenant over limit")
    assert sum(problem.count for problem in problems) == MAX_OF_TYPE + 5
    assert trouble(msgspec.to_builtins(problems)) == f"{MAX_OF_TYPE + 5} times tenant over limit"


@pytest.mark.parametrize(("share", "excess"), [(1.5, " by 50 B on a node"), (0.5, ""), (None, "")])
def test_the_excess_over_a_limit_is_that_of_one_node(share: float | None, excess: str) -> None:
    patch = tenant(tenant="acme", over_limit=True, bytes=250, limit_bytes=100, limit_share=share)
    assert [problem.what for problem in findings(state(patch))] == [f"Tenant acme is over its limit{excess}"]


class CountedNodes(list[Any]):
    """Nodes that count how often all of them are looked at."""

    passes = 0

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        return super().__iter__()


def refused(fleet: FleetState) -> list[tuple[float | None, float | None, str]]:
    return [(run.since, run.ended_at, run.detail) for run in findings(fleet) if run.code == "blocks_refused"]


def test_refusals_that_last_keep_their_begin_when_the_manager_restarts() -> None:
    again = RUN._replace(since=T + 40)
    restarted = [event("refusals.started", T + 40, tenant="acme", reason="over_limit"), STARTED]
    assert refused(state(events=restarted, refusals=[again])) == [(T + 5, None, "9 over_limit")]
    later = RUN._replace(since=T + 90)
    assert refused(state(events=[ENDED, STARTED], refusals=[later])) == [
        (T + 90, None, "9 over_limit"),
        (T + 5, T + 70, ""),
    ]


@pytest.mark.parametrize("order", [1, -1])
def test_callers_that_see_no_nodes_have_one_finding_of_a_tenants_refusals(order: int) -> None:
    runs = [RUN._replace(node=""), RUN._replace(node="", since=T + 50)][::order]
    started = msgspec.structs.replace(STARTED, node="")
    assert refused(state(events=[started], refusals=runs)) == [(T + 5, None, "18 over_limit")]


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
    problems = findings(state(*patches))
    assert len(problems) == 3
    assert [problem.subject.tenant for problem in visible(problems, Principal(salts=frozenset({"acme"})))] == ["acme"]
    assert visible(problems, Principal()) == problems


@pytest.mark.parametrize("at", [-1e300, 1e12, 1e300])
def test_a_time_that_no_clock_has_can_be_shown_by_every_client(at: float) -> None:
    ends = {**condition("thrashing", at), "since": at}
    start = min(max(at, 0.0), MAX_TIME_S)  # what a node may report
    patches = put(f"{STATS}.cold", True), put(f"{STATS}.start.at", start), put(f"{NODE}.conditions", [ends])
    problems = findings(state(*patches))
    assert "is cold since" in likely_cause(problems)
    assert len(lines([msgspec.to_builtins(finding) for finding in problems])) == len(problems) == 2


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

ACME, GPU_A1 = {"tenant": "acme"}, {"node": "gpu-a1"}

CAUSES: dict[str, tuple[FleetState, dict[str, str], Sequence[str]]] = {
    "a limit": (
        state(changes=[change()], refusals=[RUN]),
        ACME,
        [
            "Blocks of tenant acme are refused (over_limit) on node gpu-a1 since ",
            "9 over_limit",
            "5 s earlier",
            "quota acme: limit_bytes 8 GiB → 1 GiB by alice at ",
            "(audit entry 7)",
        ],
    ),
    "a limit of a tenant of the node": (state(changes=[change()], refusals=[RUN]), GPU_A1, ["quota acme"]),
    "a limit of another tenant": (state(changes=[change()], refusals=[RUN]), {"tenant": "b"}, []),
    "a limit after the refusals": (
        state(changes=[change(at=T + 60)], refusals=[RUN]),
        ACME,
        ["refused", "~quota acme"],
    ),
    "refusals that ended": (
        state(events=[ENDED, STARTED], changes=[change()]),
        ACME,
        ["were refused (over_limit)", " from ", "quota acme"],
    ),
    "refusals of a node that died": (
        state(events=[*KILLS, STARTED], changes=[change()]),
        GPU_A1,
        ["The data plane of node gpu-a1 exited 2 times from ", "killed by signal 9", "~quota acme"],
    ),
    "a limit that was deleted": (
        state(events=[ENDED, STARTED], changes=[DELETED, change()]),
        GPU_A1,
        ["were refused", "8 GiB → 1 GiB"],
    ),
    "a limit that was deleted before": (
        state(changes=[DELETED, change()], refusals=[RUN._replace(since=T + 60)]),
        ACME,
        ["~8 GiB"],
    ),
    "a policy after the limit": (
        state(changes=[LATE_NOOP, change()], refusals=[RUN]),
        ACME,
        ["policy default: algorithm lru → noop"],
    ),
    "a policy after a limit that rejects": (
        state(changes=[LATE_NOOP, change(fields=[REJECTS])], refusals=[RUN]),
        ACME,
        ["quota acme"],
    ),
    "a policy, and a full pool": (
        state(changes=[NOOP, change(at=T - 9)], refusals=[NO_ROOM]),
        ACME,
        ["refused (pool_full)", "noop"],
    ),
    "a limit, and a full pool": (state(changes=[change()], refusals=[NO_ROOM]), ACME, ["~quota acme"]),
    "leases": (
        state(LEASED, refusals=[NO_ROOM]),
        ACME,
        ["engines lease: vllm (client 3, pid 77): 12 blocks", "larder engines expel"],
    ),
    "many pins, and a full pool": (
        state(CROWDED, changes=PINS, refusals=[Refusal("gpu-a1", "b", T + 20, {"pool_full": 1})]),
        {"tenant": "b"},
        ["alice created 12 pins of acme", "audit entries 1 to 12", "pins keep 60 B of 64 B"],
    ),
    "many pins of another tenant": (state(changes=PINS), {"tenant": "b"}, []),
    "many pins that keep most of the pool": (state(CROWDED, changes=PINS), {"tenant": "b"}, ["alice created 12 pins"]),
    "many pins that were deleted": (
        state(
            CROWDED,
            changes=[change(kind="pin", action="delete", name=record.name, at=T + 30) for record in PINS[:3]] + PINS,
        ),
        {"tenant": "b"},
        [],
    ),
    "a tenant that evicts its own blocks": (
        state(
            tenant(tenant="acme", limit_bytes=100, bytes=95, limit_share=0.95, on_exceed="evict_self"),
            changes=[change()],
        ),
        ACME,
        ["Tenant acme is at its limit since ", "its own blocks are evicted", "quota acme"],
    ),
    "a stopped node": (
        state(
            lost("gpu-a1"),
            events=[event("node.lost", T + 9), event("node.stopped", T + 6)],
            changes=[change(), RESIZED],
        ),
        GPU_A1,
        ["Node gpu-a1 is lost since ", "its data plane was stopped at ", "resize node gpu-a1"],
    ),
    "another node": (state(lost("gpu-a2")), GPU_A1, []),
    "a lost node, for a tenant": (state(lost("gpu-a2")), ACME, ["Node gpu-a2 is lost"]),
    "a crash loop": (
        state(put(f"{NODE}.conditions", [condition("crash_loop")]), events=KILLS, changes=[RESIZED], since=T - 9),
        GPU_A1,
        ["Node gpu-a1 is in a crash loop since ", "it is so, the last one killed by signal 9", "resize node"],
    ),
    "a node without a supervisor": (state(events=JOINS), GPU_A1, ["exited once at ", "without notice: killed"]),
    "a planned restart": (state(events=[JOINS[0], event("node.stopped", T - 1), JOINS[1]]), GPU_A1, []),
    "a tier": (
        state(tier(name="disk", serves=False, reason="I/O error"), events=DISK[1:], changes=[change(), TIER_SET]),
        ACME,
        [
            "Tier disk of node gpu-a1 is out of service since ",
            "I/O error; the node serves blocks only from its memory",
            "tier disk: budget",
        ],
    ),
    "a tier that recovered": (
        state(tier(name="disk"), events=DISK, changes=[msgspec.structs.replace(TIER_SET, name="other")]),
        GPU_A1,
        ["~tier other"],
    ),
    "a drain": (
        state(put(f"{NODE}.draining", True), changes=[change(action="drain", kind="node", node="gpu-a1", tenant="")]),
        GPU_A1,
        ["Node gpu-a1 drains since ", "it receives the request to drain", "by alice"],
    ),
    "an alert": (
        state(alerts=[alert(tenant="acme", preceding_changes=[msgspec.to_builtins(change(summary="pin p: ttl_s 9"))])]),
        ACME,
        ["Alert Slow fires since ", "9 s earlier: pin p: ttl_s 9 by alice"],
    ),
    "a fall of the hit ratio": (
        state(changes=[NOOP], hit_ratio=RATIOS),
        ACME,
        ["The hit ratio fell from 85% to 25%", "noop"],
    ),
    "nothing": (state(), ACME, []),
}


@pytest.mark.parametrize("case", CAUSES)
def test_the_likely_cause_names_the_change_before(case: str) -> None:
    """`~`: the sentences do not have it; without a text, no cause is found."""
    fleet, query, texts = CAUSES[case]
    concerned: list[Finding] = concerning(findings(fleet), query.get("tenant"), query.get("node"))
    cause = likely_cause(concerned)
    assert bool(cause) == bool(texts) or all(text.startswith("~") for text in texts), cause
    for text in texts:
        assert (text.removeprefix("~") in cause) != text.startswith("~"), cause
