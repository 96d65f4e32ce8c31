"""Each alert fires above its threshold and not below it, has node and tenant labels, and links to the runbook."""

import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.tools import ROOT, checked, declared, read_metrics, sections

RULES = ROOT / "deploy" / "prometheus" / "larder.rules.yml"
RUNBOOK = ROOT / "docs" / "operate" / "runbook.md"

GROUPS = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
RULE = {rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule}
DAY = 24 * 60

Series = dict[str, str]


@dataclass
class Case:
    """Series in promtool's notation, a value each `step` minutes. The alert fires at minute `at` with `labels`, and
    does not with the values of `below`."""

    labels: dict[str, str]
    fires: Series
    below: Series
    at: int = 30
    step: int = 1
    also_below: list[Series] = field(default_factory=list)


def labelled(name: str, **labels: str) -> str:
    return name + "{" + ", ".join(f'{label}="{value}"' for label, value in labels.items()) + "}"


NODE = {"node": "gpu-1"}
TENANT = {"node": "gpu-1", "tenant": "acme"}
PUSHED = {"node": "gpu-1", "type": "quotas"}
GATEWAY = {"node": "gpu-1", "gateway": "lmcache"}
TIER = {"node": "gpu-1", "tier": "disk"}
GPU = {"node": "gpu-1", "device": "GPU-7717ca5e"}
MANAGER = {"instance": "larder:8470"}
UP = {"job": "larder", **MANAGER}
REQUESTED = labelled("larder_tenant_requested_blocks_total", **TENANT)
REQUESTED_BY_DEFAULT = labelled("larder_tenant_requested_blocks_total", **NODE)
FOUND = labelled("larder_tenant_hit_blocks_total", **TENANT)
REFUSED = "larder_tenant_refused_blocks_total"
LAG = labelled("larder_generation_lag", **PUSHED, **MANAGER)
NACKED = labelled("larder_node_nacked", **PUSHED, **MANAGER)
OTHER_NACKED = labelled("larder_node_nacked", node="gpu-2", type="quotas", **MANAGER)
NODE_UP = labelled("larder_node_up", **NODE, **MANAGER)
OTHER_NODE_UP = labelled("larder_node_up", **NODE, instance="other:8470")
LEADER, FOLLOWER = (labelled("larder_manager_pushing", instance=name) for name in "ab")
PUSHES = partial(labelled, "larder_pushes_total", **MANAGER)
EXPIRES = labelled("larder_token_expires_timestamp_seconds", token="prometheus")


def compared(name: str, than: str, labels: dict[str, str], fires: int, below: int, limit: int) -> Case:
    """Return two gauges with the same labels."""
    return Case(
        labels,
        {labelled(name, **labels): f"{fires}x40", labelled(than, **labels): f"{limit}x40"},
        {labelled(name, **labels): f"{below}x40", labelled(than, **labels): f"{limit}x40"},
    )


def gauge(name: str, labels: dict[str, str], minutes: int, fires: int = 1, below: int = 0) -> Case:
    """Return a gauge that must have a value for some minutes."""
    series = labelled(name, **labels)
    return Case(
        labels,
        {series: f"{below}x{29 - minutes} {fires}x{minutes + 5}"},
        {series: f"{below}x40"},
        also_below=[{series: f"{below}x{30 - minutes} {fires}x{minutes + 5}"}] if minutes else [],
    )


def condition(kind: str, minutes: int) -> Case:
    """Return a condition of a node that lasts for some minutes; without it, there is no series."""
    series, other = (labelled("larder_node_condition", type=each, **NODE, **MANAGER) for each in (kind, "other"))
    short = [{series: f"_x{31 - minutes} 1x{minutes + 5}"}] if minutes else []
    return Case(NODE, {series: f"_x{30 - minutes} 1x{minutes + 5}"}, {other: "1x40"}, also_below=short)


def counted(name: str, labels: dict[str, str], fires: str, below: str) -> Case:
    """Return a counter with these values."""
    series = labelled(name, **labels)
    return Case(labels, {series: fires}, {series: below})


def grew(name: str, labels: dict[str, str]) -> Case:
    """Return a counter that increased within the last 15 minutes."""
    series = labelled(name, **labels)
    return Case(labels, {series: "7x20 8x20"}, {series: "7x40"}, also_below=[{series: "7x5 8x35"}])


def ratio(before: int, now: int, each: int = 1200) -> Series:
    """A tenant asks for `each` blocks in ten minutes; of a hundred, `before` are found for a day, and then `now`."""
    found = each * before // 100
    return {REQUESTED: f"0+{each}x180", FOUND: f"0+{found}x144 {found * 144}+{each * now // 100}x30"}


CASES = {
    "LarderDown": gauge("up", UP, 2, fires=0, below=1),
    "LarderDatabaseDown": gauge("larder_database_up", MANAGER, 1, fires=0, below=1),
    "LarderNoLeader": Case(
        {},
        {LEADER: "1x26 0x9", FOLLOWER: "0x40"},
        {LEADER: "1x28 0x9", FOLLOWER: "0x40"},
        also_below=[{LEADER: "1x40", FOLLOWER: "0x40"}],
    ),
    "LarderPushesStuck": Case(
        NODE,
        {PUSHES(state="timed_out", **NODE): "0x22 1x3 2x9", PUSHES(state="timed_out", node="gpu-2"): "0x22 1x15"},
        {PUSHES(state="timed_out", **NODE): "0x22 1x15"},
        also_below=[{PUSHES(state="acked", **NODE): "0+5x40"}],
    ),
    "LarderNodeLost": Case(
        NODE,
        {NODE_UP: "1x26 0x9", OTHER_NODE_UP: "0x40"},
        {NODE_UP: "1x28 0x9", OTHER_NODE_UP: "0x40"},
        also_below=[{NODE_UP: "1x40", OTHER_NODE_UP: "0x40"}],
    ),
    "LarderNodeNacked": Case(
        PUSHED,
        {NACKED: "0x20 1x20", OTHER_NACKED: "0x40"},
        {NACKED: "0x29 1x9"},
        also_below=[{LAG: "0x20 1x20", NACKED: "0x40"}],
    ),
    "LarderNodeBehind": Case(
        PUSHED,
        {LAG: "0x24 1x9", NODE_UP: "1x40", NACKED: "0x40", OTHER_NACKED: "1x40"},
        {LAG: "0x25 1x9", NODE_UP: "1x40", NACKED: "0x40"},
        also_below=[{LAG: "3x40", NODE_UP: "0x40", NACKED: "0x40"}, {LAG: "3x40", NODE_UP: "1x40", NACKED: "1x40"}],
    ),
    "LarderNodeDrifted": gauge("larder_node_drifted", PUSHED, 2),
    "LarderDataPlaneRestarts": condition("crash_loop", 0),
    "LarderNodeThrashing": condition("thrashing", 5),
    "LarderTenantOverLimit": compared("larder_tenant_bytes", "larder_tenant_limit_bytes", TENANT, 1001, 1000, 1000),
    "LarderStoresRefused": Case(
        {**TENANT, "reason": "pool_full"},
        {labelled(REFUSED, reason="pool_full", **TENANT): "0+61x40", REQUESTED: "0+1200x40"},
        {labelled(REFUSED, reason="pool_full", **TENANT): "0+59x40", REQUESTED: "0+1200x40"},
        also_below=[
            {labelled(REFUSED, reason="not_admitted", **TENANT): "0+600x40", REQUESTED: "0+1200x40"},
            {labelled(REFUSED, reason="draining", **TENANT): "0+600x40", REQUESTED: "0+1200x40"},
            {labelled(REFUSED, reason="pool_full", **TENANT): "0+5x40", REQUESTED: "0x40"},
        ],
    ),
    "LarderFloorNotEffective": compared(
        "larder_tenant_effective_floor_bytes", "larder_tenant_floor_bytes", TENANT, 999, 1000, 1000
    ),
    "LarderPoolFullOfPins": compared("larder_pool_pinned_bytes", "larder_pool_pin_budget_bytes", NODE, 951, 950, 1000),
    "LarderPinHoldsNothing": gauge("larder_pin_holds_nothing", {"pin": "system"}, 5),
    "LarderHitRatioCollapsed": Case(
        TENANT, ratio(80, 30), ratio(80, 50), at=DAY + 120, step=10, also_below=[ratio(10, 0), ratio(80, 30, each=500)]
    ),
    "LarderCacheCold": gauge("larder_cache_cold", NODE, 0),
    "LarderChecksumFailures": grew("larder_corrupt_blocks_total", NODE),
    "LarderIdJournalFills": compared(
        "larder_id_journal_bytes", "larder_id_journal_capacity_bytes", NODE, 801, 800, 1000
    ),
    "LarderEventsDropped": counted(
        "larder_events_dropped_total", {"plane": "data", "event": "blocks.refused", **NODE}, "0+61x40", "0+59x40"
    ),
    "LarderTokenExpires": Case(
        {"token": "prometheus"},
        {EXPIRES: f"{8 * 86400}x144"},
        {EXPIRES: f"{9 * 86400}x144"},
        at=5 * DAY + 60,
        step=60,
        also_below=[{EXPIRES: f"_x48 {8 * 86400}x96"}],
    ),
    "LarderGpuCopiesFail": gauge("larder_gpu_copy_pool_problem", GPU, 5),
    "LarderTierOutOfService": gauge("larder_tier_serves", TIER, 2, fires=0, below=1),
    "LarderGatewayUnreachable": gauge("larder_gateway_problem", GATEWAY, 1),
    "LarderGatewayNameRemoved": grew("larder_gateway_name_restored_total", GATEWAY),
    "LarderGatewayMemoryShort": gauge("larder_gateway_memory_short", GATEWAY, 5),
}
FURTHER = {
    "LarderDataPlaneRestarts": counted(  # of a data plane that never joined
        "larder_data_plane_restarts_total", MANAGER, "0x20 1x2 2x2 3x20", "0x20 1x2 2x20"
    ),
    "LarderEventsDropped": counted(
        "larder_events_dropped_total", {"plane": "management", "event": "quota.changed"}, "0+61x40", "0+59x40"
    ),
    "LarderGpuCopiesFail": counted("larder_gpu_copy_pool_failed_copies_total", GPU, "0x20 1x20", "0x40"),
    "LarderHitRatioCollapsed": Case(  # a fleet that has no day before
        TENANT,
        {REQUESTED: "0+120x300", FOUND: "0+96x120 11520+24x180"},
        {REQUESTED: "0+120x300", FOUND: "0+96x120 11520+60x180"},
        at=170,
    ),
    "LarderStoresRefused": Case(  # the default tenant has no label
        {**NODE, "reason": "over_limit"},
        {labelled(REFUSED, reason="over_limit", **NODE): "0+61x40", REQUESTED_BY_DEFAULT: "0x40"},
        {labelled(REFUSED, reason="over_limit", **NODE): "0+5x40", REQUESTED_BY_DEFAULT: "0x40"},
    ),
}


def rendered(text: str, labels: dict[str, str]) -> str:
    """The annotation as Prometheus renders it."""

    def value(match: re.Match[str]) -> str:
        words = match[1].removeprefix("or ").split()
        found = [labels.get(word.removeprefix(".Labels."), "").strip() for word in words if "." in word]
        found += [word.strip('"') for word in words if word.startswith('"')]
        return next(filter(None, found), "")

    return re.sub(r"\{\{ (.*?) \}\}", value, text)


def groups_for(alert: str) -> list[dict[str, Any]]:
    """All groups with their recording rules and this alert: promtool evaluates each rule at each interval."""
    return [
        {**group, "rules": [rule for rule in group["rules"] if rule.get("alert") in (alert, None)]} for group in GROUPS
    ]


def rule_test(alert: str, case: Case, series: Series) -> dict[str, Any]:
    expected = [expectation(RULE[alert], case.labels)] if series is case.fires else []
    return {
        "interval": f"{case.step}m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": f"{case.at}m", "alertname": alert, "exp_alerts": expected}],
    }


def expectation(rule: dict[str, Any], labels: dict[str, str]) -> dict[str, Any]:
    annotations = {name: rendered(text, labels) for name, text in rule["annotations"].items()}
    return {"exp_labels": labels | rule["labels"], "exp_annotations": annotations}


def test_every_alert_has_a_case() -> None:
    assert set(CASES) == set(RULE)


def test_every_alert_fires_and_does_not_fire_just_below(tmp_path: Path) -> None:
    files: list[Path] = []
    for alert, case in [*CASES.items(), *FURTHER.items()]:
        rules, file = (tmp_path / f"{alert}-{len(files)}-{kind}.yml" for kind in ("rules", "case"))
        rules.write_text(yaml.safe_dump({"groups": groups_for(alert)}), encoding="utf-8")
        tests = {
            "rule_files": [str(rules)],
            "evaluation_interval": f"{case.step}m",
            "group_eval_order": [group["name"] for group in GROUPS],  # at random otherwise
            "tests": [rule_test(alert, case, series) for series in (case.fires, case.below, *case.also_below)],
        }
        file.write_text(yaml.safe_dump(tests), encoding="utf-8")
        files.append(file)
    checked("promtool", "test", "rules", *files)


@pytest.mark.parametrize("alert", RULE)
def test_an_alert_has_its_cause_its_location_and_the_action(alert: str) -> None:
    rule = RULE[alert]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    named = {label for label in CASES[alert].labels if label != "job"}
    labels = set(re.findall(r"\.Labels\.(\w+)", " ".join(rule["annotations"].values())))
    assert named <= labels
    page, _, heading = rule["annotations"]["runbook_url"].partition("#")
    assert page == f"http://127.0.0.1:8470/{RUNBOOK.relative_to(ROOT)}"
    section = sections(RUNBOOK)[heading]
    assert f"`{alert}`" in section, f"{page}#{heading} does not name {alert}"


def test_rules_have_no_dollar_sign_which_grafana_takes_for_a_variable_of_the_environment() -> None:
    assert "$" not in RULES.read_text(encoding="utf-8")


def test_rules_read_metrics_that_exist() -> None:
    recorded = {rule["record"] for group in GROUPS for rule in group["rules"] if "record" in rule}
    text = "\n".join(rule["expr"] for group in GROUPS for rule in group["rules"])
    for name in recorded:
        text = text.replace(name, "")
    assert read_metrics(text) - declared() == set()
