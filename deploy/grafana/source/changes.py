"""Applied changes from Larder's annotations: marks in every panel, and a table."""

from typing import Any

from source.panels import PROMETHEUS

CHANGES = {"type": "yesoreyeram-infinity-datasource", "uid": "larder"}


def feed(ref: str) -> dict[str, Any]:
    columns = {"time": "timestamp_epoch", "timeEnd": "timestamp_epoch", "title": "string", "text": "string"}
    return {
        "refId": ref,
        "datasource": CHANGES,
        "type": "json",
        "source": "url",
        "parser": "backend",
        "format": "table",
        "url": "/api/v1/annotations?from=${__from}&to=${__to}",
        "url_options": {"method": "GET", "data": ""},
        "root_selector": "",
        "columns": [{"selector": name, "text": name, "type": kind} for name, kind in columns.items()],
        "filters": [],
    }


def changes(width: int = 8) -> dict[str, Any]:
    """Return a table of the changes in the shown period."""
    return {
        "type": "table",
        "title": "Changes",
        "description": "Changes and who made them. Look for the last change before an alert started.",
        "datasource": CHANGES,
        "gridPos": {"h": 8, "w": width},
        "targets": [feed("A")],
        "fieldConfig": {"defaults": {}, "overrides": []},
        "options": {"showHeader": True, "sortBy": [{"displayName": "time", "desc": True}]},
        "transformations": [{"id": "organize", "options": {"excludeByName": {"timeEnd": True}}}],
        "transparent": False,
    }


def annotations() -> list[dict[str, Any]]:
    return [
        {
            "name": "Annotations & Alerts",
            "type": "dashboard",
            "datasource": {"type": "grafana", "uid": "-- Grafana --"},
            "enable": True,
            "hide": True,
            "iconColor": "rgba(0, 211, 255, 1)",
            "builtIn": 1,
        },
        {
            "name": "Changes",
            "datasource": CHANGES,
            "enable": True,
            "hide": False,
            "iconColor": "purple",
            "target": feed("Anno"),
        },
        {
            "name": "Changes (without the plugin)",
            "datasource": PROMETHEUS,
            "enable": False,
            "hide": False,
            "iconColor": "purple",
            "expr": "max by (type) (delta(larder_desired_generation[1m])) > 0",
            "titleFormat": "{{type}} changed",
            "tagKeys": "type",
            "step": "60s",
        },
        {
            "name": "Alerts",
            "datasource": PROMETHEUS,
            "enable": True,
            "hide": False,
            "iconColor": "red",
            "expr": 'max by (alertname, node, tenant) (ALERTS{alertstate="firing", alertname=~"Larder.*"})',
            "titleFormat": "{{alertname}}",
            "textFormat": "{{tenant}} {{node}}",
            "tagKeys": "alertname,node,tenant",
            "step": "60s",
        },
    ]
