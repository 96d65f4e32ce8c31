"""What Prometheus reads: it parses, it scrapes where Larder listens, and the alert fires."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from dataplane.base.settings import Common
from tests.require import require

CONFIG = Path(__file__).parents[2] / "deploy" / "prometheus" / "prometheus.yml"


def promtool(*arguments: str) -> str:
    require(shutil.which("promtool"), "promtool is not installed (Debian: apt install prometheus)")
    result = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_configuration_and_its_rules_parse(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch()
    file = tmp_path / "prometheus.yml"
    shown = CONFIG.read_text(encoding="utf-8").replace("/run/secrets/prometheus_token", str(token))
    file.write_text(shown, encoding="utf-8")
    (tmp_path / "larder.rules.yml").write_bytes((CONFIG.parent / "larder.rules.yml").read_bytes())
    assert "1 rule files found" in promtool("check", "config", str(file))


def test_it_scrapes_where_larder_listens() -> None:
    jobs = {
        job["job_name"]: job for job in yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["scrape_configs"]
    }
    larder = jobs["larder"]
    assert larder["static_configs"][0]["targets"] == [f"larder:{Common().http_port}"]
    assert larder["metrics_path"] == "/metrics"


def test_it_scrapes_with_the_token_that_compose_mounts() -> None:
    compose = yaml.safe_load((CONFIG.parents[2] / "docker-compose.yml").read_text(encoding="utf-8"))
    (secret,) = compose["services"]["prometheus"]["secrets"]
    larder = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["scrape_configs"][0]
    assert larder["authorization"] == {"credentials_file": f"/run/secrets/{secret}"}
    assert not compose["secrets"][secret]["file"].startswith("."), "a secret lies outside of the tree"


@pytest.mark.parametrize(("problem", "alerts"), [("1x9", 1), ("0x9", 0), ("1x3 0x5", 0)])
def test_a_gpu_whose_gpu_copies_fail_for_long_is_told(tmp_path: Path, problem: str, alerts: int) -> None:
    of = {"node": "gpu-1", "device": "GPU-7717ca5e"}
    rules = (CONFIG.parent / "larder.rules.yml").read_text(encoding="utf-8")
    for label, value in of.items():
        rules = rules.replace(f"{{{{ $labels.{label} }}}}", value)
    (rule,) = [each for each in yaml.safe_load(rules)["groups"][0]["rules"] if "GpuCopies" in each["alert"]]
    expected = {"exp_labels": {"severity": "warning", **of}, "exp_annotations": rule["annotations"]}
    series = (
        "larder_gpu_copy_pool_problem{" + ", ".join(f'{name}="{value}"' for name, value in of.items()) + "}"
    )
    case = {
        "rule_files": [str(CONFIG.parent / "larder.rules.yml")],
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": series, "values": problem}],
                "alert_rule_test": [
                    {"eval_time": "8m", "alertname": "LarderGpuCopiesFail", "exp_alerts": [expected] * alerts}
                ],
            }
        ],
    }
    file = tmp_path / "case.yml"
    file.write_text(yaml.safe_dump(case), encoding="utf-8")
    promtool("test", "rules", str(file))


@pytest.mark.parametrize(
    ("alert", "series", "of", "values", "alerts"),
    [
        ("LarderCacheCold", "larder_cache_cold", {"node": "gpu-1"}, "0x6 1x3", 1),
        ("LarderCacheCold", "larder_cache_cold", {"node": "gpu-1"}, "1x3 0x6", 0),
        ("LarderPinHoldsNothing", "larder_pin_holds_nothing", {"pin": "system"}, "1x9", 1),
        ("LarderPinHoldsNothing", "larder_pin_holds_nothing", {"pin": "other"}, "7x9", 1),
        ("LarderPinHoldsNothing", "larder_pin_holds_nothing", {"pin": "system"}, "_x4 1x4", 0),
    ],
)
def test_a_cold_cache_and_a_pin_that_holds_nothing_are_told(
    tmp_path: Path, alert: str, series: str, of: dict[str, str], values: str, alerts: int
) -> None:
    ((label, value),) = of.items()
    rules = (CONFIG.parent / "larder.rules.yml").read_text(encoding="utf-8")
    rules = rules.replace(f"{{{{ $labels.{label} }}}}", value)
    (rule,) = [each for each in yaml.safe_load(rules)["groups"][0]["rules"] if each["alert"] == alert]
    expected = {"exp_labels": {"severity": "warning", **of}, "exp_annotations": rule["annotations"]}
    case = {
        "rule_files": [str(CONFIG.parent / "larder.rules.yml")],
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": f'{series}{{{label}="{value}"}}', "values": values}],
                "alert_rule_test": [
                    {"eval_time": "8m", "alertname": alert, "exp_alerts": [expected] * alerts}
                ],
            }
        ],
    }
    file = tmp_path / "case.yml"
    file.write_text(yaml.safe_dump(case), encoding="utf-8")
    promtool("test", "rules", str(file))


@pytest.mark.parametrize(("up", "alerts"), [("0x5", 1), ("1x5", 0)])
def test_the_alert_fires_when_larder_is_down_and_only_then(tmp_path: Path, up: str, alerts: int) -> None:
    instance = "larder:8470"
    expected = {"exp_labels": {"severity": "critical", "job": "larder", "instance": instance}}
    expected["exp_annotations"] = yaml.safe_load(
        (CONFIG.parent / "larder.rules.yml")
        .read_text(encoding="utf-8")
        .replace("{{ $labels.instance }}", instance)
    )["groups"][0]["rules"][0]["annotations"]
    case = {
        "rule_files": [str(CONFIG.parent / "larder.rules.yml")],
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": f'up{{job="larder", instance="{instance}"}}', "values": up}],
                "alert_rule_test": [
                    {"eval_time": "3m", "alertname": "LarderDown", "exp_alerts": [expected] * alerts}
                ],
            }
        ],
    }
    file = tmp_path / "case.yml"
    file.write_text(yaml.safe_dump(case), encoding="utf-8")
    promtool("test", "rules", str(file))
