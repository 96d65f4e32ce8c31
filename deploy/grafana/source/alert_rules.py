"""Grafana's alert rules, derived from those of Prometheus."""

import re
from pathlib import Path
from typing import Any

import yaml

RULES = Path(__file__).parents[2] / "prometheus" / "larder.rules.yml"


def alert_rules() -> dict[str, Any]:
    """Return Grafana's rules, with the same queries, durations and texts. Grafana reads the series that Prometheus
    records."""
    groups = []
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]:
        alerts = [rule for rule in group["rules"] if "alert" in rule]
        if alerts:
            groups.append(
                {
                    "orgId": 1,
                    "name": group["name"],
                    "folder": "Larder",
                    "interval": "1m",
                    "rules": [alert_rule(rule) for rule in alerts],
                }
            )
    return {"apiVersion": 1, "groups": groups}


def alert_rule(rule: dict[str, Any]) -> dict[str, Any]:
    def query(ref: str, source: str, model: dict[str, Any]) -> dict[str, Any]:
        times = {"from": 600, "to": 0}
        return {"refId": ref, "datasourceUid": source, "relativeTimeRange": times, "model": model | {"refId": ref}}

    fires = {"type": "math", "expression": "is_number($A) || is_nan($A) || is_inf($A)"}
    return {
        "uid": re.sub(r"(?<=[a-z])(?=[A-Z])", "-", rule["alert"]).lower(),
        "title": rule["alert"],
        "condition": "B",
        "data": [
            query("A", "prometheus", {"expr": rule["expr"], "instant": True, "range": False}),
            query("B", "__expr__", fires | {"datasource": {"type": "__expr__", "uid": "__expr__"}}),
        ],
        "for": rule.get("for", "0s"),
        "noDataState": "OK",
        "execErrState": "Error",
        "labels": rule["labels"],
        "annotations": rule["annotations"],
        "isPaused": "${LARDER_GRAFANA_ALERTS_PAUSED}",
    }
