"""Configuration of Prometheus and Alertmanager: it is valid, and its targets exist."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dataplane.base.settings import Common
from tests.deploy.tools import ROOT, checked

PROMETHEUS = ROOT / "deploy" / "prometheus" / "prometheus.yml"
ALERTMANAGER = ROOT / "deploy" / "alertmanager" / "alertmanager.yml"


def here(config: Path, folder: Path) -> Path:
    """A copy of a configuration whose secrets are files of `folder`."""

    def secret(match: re.Match[str]) -> str:
        (folder / match[1]).write_text("secret", encoding="ascii")
        return str(folder / match[1])

    file = folder / config.name
    text = re.sub(r"/run/secrets/(\w+)", secret, config.read_text(encoding="utf-8"))
    file.write_text(text, encoding="utf-8")
    return file


def test_the_configuration_and_its_rules_parse(tmp_path: Path) -> None:
    (tmp_path / "larder.rules.yml").write_bytes((PROMETHEUS.parent / "larder.rules.yml").read_bytes())
    assert "1 rule files found" in checked("promtool", "check", "config", here(PROMETHEUS, tmp_path))


def test_alertmanagers_configuration_parses(tmp_path: Path) -> None:
    found = checked("amtool", "check-config", here(ALERTMANAGER, tmp_path))
    assert "1 receivers" in found


def test_it_scrapes_where_larder_listens() -> None:
    larder = jobs()["larder"]
    assert larder["static_configs"][0]["targets"] == [f"larder:{Common().http_port}"]
    assert larder["metrics_path"] == "/metrics"


def jobs() -> dict[str, dict[str, Any]]:
    found = yaml.safe_load(PROMETHEUS.read_text(encoding="utf-8"))["scrape_configs"]
    return {job["job_name"]: job for job in found}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    return found


def test_it_scrapes_with_the_token_that_compose_mounts(compose: dict[str, Any]) -> None:
    (secret,) = compose["services"]["prometheus"]["secrets"]
    assert jobs()["larder"]["authorization"] == {"credentials_file": f"/run/secrets/{secret}"}


def test_all_targets_are_services_of_compose(compose: dict[str, Any]) -> None:
    for name, job in jobs().items():
        host = job["static_configs"][0]["targets"][0].partition(":")[0]
        assert host == "127.0.0.1" or host in compose["services"], name
    found = yaml.safe_load(PROMETHEUS.read_text(encoding="utf-8"))["alerting"]["alertmanagers"]
    assert found[0]["static_configs"][0]["targets"] == ["alertmanager:9093"]


def test_alertmanager_posts_to_larder_with_the_token_that_compose_mounts(compose: dict[str, Any]) -> None:
    (receiver,) = yaml.safe_load(ALERTMANAGER.read_text(encoding="utf-8"))["receivers"]
    (webhook,) = receiver["webhook_configs"]
    assert webhook["url"] == f"http://larder:{Common().http_port}/api/v1/alerts"
    (secret,) = compose["services"]["alertmanager"]["secrets"]
    credentials = webhook["http_config"]["authorization"]["credentials_file"]
    assert credentials == f"/run/secrets/{secret}"


def test_alerts_that_are_muted_and_that_mute_exist() -> None:
    config = yaml.safe_load(ALERTMANAGER.read_text(encoding="utf-8"))
    groups = yaml.safe_load((PROMETHEUS.parent / "larder.rules.yml").read_text(encoding="utf-8"))["groups"]
    alerts = {rule.get("alert") for group in groups for rule in group["rules"]}
    named = {
        name
        for rule in config["inhibit_rules"]
        for matcher in rule["source_matchers"] + rule["target_matchers"]
        for name in re.findall(r"Larder\w+", matcher)
    }
    assert named <= alerts
