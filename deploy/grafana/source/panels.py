"""Panels of Grafana."""

from dataclasses import dataclass, field
from typing import Any

PROMETHEUS = {"type": "prometheus", "uid": "${datasource}"}


@dataclass
class Query:
    expr: str
    legend: str = ""
    exemplar: bool = False


@dataclass
class Panel:
    title: str
    description: str
    queries: list[Query]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    stacked: bool = False
    thresholds: list[tuple[float | None, str]] = field(default_factory=lambda: [(None, "green")])
    mappings: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Text and colour by value."""
    maximum: float | None = None
    decimals: int | None = None

    def model(self, number: int, x: int, y: int) -> dict[str, Any]:
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": PROMETHEUS,
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "targets": [self._target(*each) for each in zip("ABCDEFGH", self.queries, strict=False)],
            "fieldConfig": {"defaults": self._defaults(), "overrides": []},
            "options": self._options(),
            "transparent": False,
        } | ({"transformations": TABLE} if self.kind == "table" else {})

    def _target(self, ref: str, query: Query) -> dict[str, Any]:
        at_once = self.kind in ("stat", "bargauge", "table")
        return {
            "refId": ref,
            "datasource": PROMETHEUS,
            "expr": query.expr,
            "legendFormat": query.legend or "__auto",
            "instant": at_once,
            "range": not at_once,
            "exemplar": query.exemplar,
            "format": "table" if self.kind == "table" else "time_series",
        }

    def _defaults(self) -> dict[str, Any]:
        steps = [{"value": value, "color": color} for value, color in self.thresholds]
        found: dict[str, Any] = {
            "unit": self.unit,
            "min": 0,
            "thresholds": {"mode": "absolute", "steps": steps},
            "color": {"mode": "thresholds" if self.kind in ("stat", "state-timeline") else "palette-classic"},
            "links": self._links(),
        }
        if self.maximum is not None:
            found["max"] = self.maximum
        if self.decimals is not None:
            found["decimals"] = self.decimals
        if self.mappings:
            options = {
                value: {"text": text, "color": color, "index": index}
                for index, (value, (text, color)) in enumerate(self.mappings.items())
            }
            found["mappings"] = [{"type": "value", "options": options}]
        if self.kind == "timeseries":
            found["custom"] = {
                "fillOpacity": 30 if self.stacked else 8,
                "lineWidth": 1,
                "showPoints": "never",
                "stacking": {"mode": "normal" if self.stacked else "none"},
            }
        return found

    def _links(self) -> list[dict[str, Any]]:
        """Return links from a series to the dashboard of its node or tenant."""
        text = " ".join(query.legend for query in self.queries)
        return [
            {
                "title": f"{name.capitalize()} ${{__field.labels.{name}}}",
                "url": f"/d/larder-{name}?var-{name}=${{__field.labels.{name}}}&${{__url_time_range}}",
            }
            for name in ("node", "tenant")
            if f"{{{{{name}}}}}" in text
        ]

    def _options(self) -> dict[str, Any]:
        if self.kind == "timeseries":
            return {
                "legend": {
                    "showLegend": True,
                    "displayMode": "table",
                    "placement": "bottom",
                    "calcs": ["lastNotNull", "max"],
                },
                "tooltip": {"mode": "multi", "sort": "desc"},
            }
        if self.kind == "stat":
            return {
                "colorMode": "value",
                "graphMode": "area",
                "textMode": "auto",
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            }
        if self.kind == "bargauge":
            return {
                "displayMode": "basic",
                "orientation": "horizontal",
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            }
        if self.kind == "state-timeline":
            return {"mergeValues": True, "showValue": "never", "rowHeight": 0.9}
        return {"showHeader": True}


TABLE = [{"id": "organize", "options": {"excludeByName": {"Time": True}}}]
GOOD_IS_ONE = {"1": ("yes", "green"), "0": ("no", "red")}
BAD_IS_ONE = {"1": ("yes", "red"), "0": ("no", "green")}


def rows(*queries: tuple[str, str]) -> list[Query]:
    return [Query(*each) for each in queries]


def timeline(title: str, description: str, expr: str, legend: str, mappings: dict[str, tuple[str, str]]) -> Panel:
    return Panel(title, description, [Query(expr, legend)], kind="state-timeline", mappings=mappings)


def figure(title: str, description: str, expr: str, unit: str = "short", **given: Any) -> Panel:
    return Panel(title, description, [Query(expr)], unit, "stat", width=4, height=4, **given)
