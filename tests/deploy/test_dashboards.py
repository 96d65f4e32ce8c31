"""Grafana's files: generated from their sources, valid by the schema of Grafana 11.6, and complete. Runs no Grafana."""

import itertools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.require import require

DEPLOY = Path(__file__).parents[2] / "deploy"
GRAFANA = DEPLOY / "grafana"
MADE = ["dashboards", "provisioning/alerting/rules.yml"]
DASHBOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))
OF_DATA_SOURCES = {"step", "tagKeys", "textFormat", "titleFormat", "target"}
"""Fields of marks that belong to their data source, and that the schema of dashboards does not have."""


@pytest.fixture(params=DASHBOARDS, ids=lambda path: path.stem)
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(request.param.read_bytes())
    return found


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def test_the_files_follow_from_their_sources(tmp_path: Path) -> None:
    command = [sys.executable, str(GRAFANA / "build.py"), str(tmp_path)]
    subprocess.run(command, check=True, timeout=60)
    made = {str(path.relative_to(tmp_path)): path.read_text("utf-8") for path in tmp_path.rglob("*.*")}
    committed = [path for name in MADE for path in [GRAFANA / name, *(GRAFANA / name).glob("*")] if path.is_file()]
    assert made == {str(path.relative_to(GRAFANA)): path.read_text("utf-8") for path in committed}, (
        "run: python deploy/grafana/build.py"
    )


def test_the_address_of_larder_is_written_into_both_sets_of_rules(tmp_path: Path) -> None:
    for name in ("grafana", "prometheus"):
        shutil.copytree(DEPLOY / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, str(tmp_path / "grafana" / "build.py"), "--larder-url"]
    for url in ("https://larder.example", "https://proxy.example/larder/"):
        subprocess.run([*build, url], check=True, timeout=60)
        for file in (tmp_path / "prometheus" / "larder.rules.yml", tmp_path / "grafana" / MADE[1]):
            links = re.findall(r"runbook_url: (\S+)#", file.read_text(encoding="utf-8"))
            assert set(links) == {f"{url.rstrip('/')}/docs/operate/runbook.md"}
    refused = subprocess.run([*build, "larder.example"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert "expected a URL such as https://larder.example, got 'larder.example'" in refused.stderr


def test_dashboards_have_grafanas_schema(dashboard: dict[str, Any]) -> None:
    require(
        find_spec("grafana_foundation_sdk"),
        "grafana-foundation-sdk is not installed: .venv/bin/python -m pip install -r tests/deploy/requirements.txt",
    )
    import_module("grafana_foundation_sdk.cog.plugins").register_default_plugins()
    model = import_module("grafana_foundation_sdk.models.dashboard").Dashboard
    encoder = import_module("grafana_foundation_sdk.cog.encoder").JSONEncoder
    understood = json.loads(encoder().encode(model.from_json(dashboard)))
    assert list(not_understood(dashboard, understood)) == []


def not_understood(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of values that are missing from the other one or differ there."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name, value in ours.items():
            if path.startswith(".annotations") and name in OF_DATA_SOURCES:
                continue
            yield from not_understood(value, theirs.get(name, "nothing"), f"{path}.{name}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, both in enumerate(zip(ours, theirs, strict=True)):
            yield from not_understood(*both, f"{path}[{index}]")
    elif ours != theirs:
        yield f"{path}: {ours!r}, understood as {theirs!r}"


def test_panels_have_descriptions_and_legends(dashboard: dict[str, Any]) -> None:
    for panel in panels(dashboard):
        assert panel["title"], panel["id"]
        assert panel["description"].endswith((".", "?")), panel["title"]
        queries = [target for target in panel["targets"] if "expr" in target]
        if panel["type"] in ("timeseries", "bargauge", "state-timeline"):
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            for target in queries:
                assert target["legendFormat"] != "__auto", panel["title"]
                labels = target["expr"].partition("by (")[2].partition(")")[0]
                in_legend = [label for label in labels.split(", ") if f"{{{{{label}}}}}" in target["legendFormat"]]
                of_one = {"larder-node": "node", "larder-tenant": "tenant"}.get(dashboard["uid"], "")
                left_out = set(labels.split(", ")) - {*in_legend, of_one, "le", "gateway", "space", ""}
                summed = target["expr"].startswith(("sum", "histogram", "topk")) or " / " in target["expr"]
                assert summed or not left_out, f"{panel['title']}: the legend leaves out {left_out}"


def test_panels_have_a_place_and_a_number_each(dashboard: dict[str, Any]) -> None:
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(numbers) == len(set(numbers))
    for one, other in itertools.combinations([panel["gridPos"] for panel in dashboard["panels"]], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)


def test_every_dashboard_marks_changes_and_alerts(dashboard: dict[str, Any]) -> None:
    marks = {each["name"]: each for each in dashboard["annotations"]["list"] if each["enable"]}
    assert marks["Changes"]["target"]["url"].startswith("/api/v1/annotations?")
    assert "ALERTS{" in marks["Alerts"]["expr"]


def test_links_between_dashboards_lead_somewhere() -> None:
    uids = {json.loads(path.read_bytes())["uid"] for path in DASHBOARDS}
    for path in DASHBOARDS:
        for panel in panels(json.loads(path.read_bytes())):
            for link in panel["fieldConfig"]["defaults"].get("links", []):
                assert link["url"].split("?")[0].removeprefix("/d/") in uids


def test_data_sources_are_provisioned(dashboard: dict[str, Any]) -> None:
    file = GRAFANA / "provisioning" / "datasources" / "larder.yml"
    provisioned = {each["uid"]: each for each in yaml.safe_load(file.read_text("utf-8"))["datasources"]}
    for panel in panels(dashboard):
        source = panel["datasource"]
        if source["uid"] != "${datasource}":
            assert provisioned[source["uid"]]["type"] == source["type"]
    linked = provisioned["prometheus"]["jsonData"]["exemplarTraceIdDestinations"][0]["datasourceUid"]
    assert linked in provisioned


def test_grafanas_rules_are_those_of_prometheus() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "larder.rules.yml").read_text("utf-8"))
    made = yaml.safe_load((GRAFANA / "provisioning" / "alerting" / "rules.yml").read_text("utf-8"))
    theirs = {rule["title"]: rule for group in made["groups"] for rule in group["rules"]}
    ours = {rule["alert"]: rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    assert set(theirs) == set(ours)
    assert len({rule["uid"] for rule in theirs.values()}) == len(theirs)
    for name, rule in ours.items():
        (query, condition), same = theirs[name]["data"], theirs[name]
        assert query["model"]["expr"] == rule["expr"]
        assert condition["refId"] == same["condition"]
        assert same["for"] == rule.get("for", "0s")
        assert (same["labels"], same["annotations"]) == (rule["labels"], rule["annotations"])
        assert len(same["uid"]) <= 40
