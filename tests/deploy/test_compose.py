"""The compose files: valid, closed to the network, and in step with the settings."""

import json
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.demo.command import PIN, QUOTAS
from app.settings import check_bind, load
from dataplane.base.settings import Common
from dataplane.protocol.keys import chain
from dataplane.replay.load import MODEL
from dataplane.replay.sessions import SUPPORT, system_prompt
from dataplane.settings import load as load_data_plane

ROOT = Path(__file__).parents[2]
FILES = ["docker-compose.yml", "deploy/postgres.yml"]


def services(file: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))["services"]
    return found


def environment_of_larder(file: str) -> dict[str, str]:
    """Return the environment of a container if the operator sets only the password and the token."""
    found = services(file)["larder"]["environment"]
    text = {name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(value)) for name, value in found.items()}
    text = {name: re.sub(r"\$\{LARDER_ADMIN_TOKEN:\?[^}]*\}", "t" * 64, value) for name, value in text.items()}
    return {name: re.sub(r"\$\{\w+:\?[^}]*\}", "secret", value) for name, value in text.items()}


@pytest.mark.parametrize("file", FILES)
def test_the_compose_file_fits_the_compose_schema(file: str) -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(ROOT / file)]
    result = subprocess.run(check, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("file", FILES)
def test_every_port_is_published_on_the_loopback_address_alone(file: str) -> None:
    for name, service in services(file).items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name} publishes {port}"


@pytest.mark.parametrize("file", FILES)
def test_every_image_has_a_version(file: str) -> None:
    for name, service in services(file).items():
        image = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", service.get("image", "larder:overlay"))
        assert re.fullmatch(r"[\w./-]+:[\w.-]+", image), f"{name} runs {image}"
        assert not image.endswith(":latest")


def test_every_service_has_a_health_check() -> None:
    base = services("docker-compose.yml")
    for file in FILES:
        for name, service in services(file).items():
            assert "healthcheck" in service or "healthcheck" in base.get(name, {}), f"{name} has no healthcheck"


class Answering(BaseHTTPRequestHandler):
    """Answers with the status that its server has."""

    def do_GET(self) -> None:
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.end_headers()

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        pass


def test_health_checks_use_no_proxy_and_need_no_token() -> None:
    """Docker sets the proxies of its client's configuration in each container."""
    found = services("docker-compose.yml")
    commands = {name: service["healthcheck"].get("test", []) for name, service in found.items()}
    (image,) = re.findall(r"^HEALTHCHECK .*\\\n +CMD (.+)$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert all(words[words.index("-Y") + 1] == "off" for words in commands.values() if "wget" in words)
    proxy = dict.fromkeys(("http_proxy", "HTTP_PROXY", "all_proxy"), "http://127.0.0.1:1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever).start()
        port = str(server.server_port)
        try:
            for words, healthy in (
                (json.loads(image), {200, 401}),
                (commands["larder"], {200, 401}),
                (commands["vllm-cpu"], {200}),
            ):
                code = re.sub(r"\b(8470|8000)\b", port, words[-1])
                for status in (200, 401, 503):
                    server.status = status  # type: ignore[attr-defined]
                    check = subprocess.run([sys.executable, "-c", code], env=proxy, check=False)
                    assert (check.returncode == 0) == (status in healthy), (code, status)
        finally:
            server.shutdown()


def test_services_without_a_health_check_are_scraped() -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8"))
    targets = [job["static_configs"][0]["targets"][0] for job in config["scrape_configs"]]
    for name, service in services("docker-compose.yml").items():
        if service["healthcheck"].get("disable"):
            assert any(target.startswith(f"{name}:") for target in targets), name


def test_services_mount_existing_files_and_secrets_lie_outside_of_the_tree() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    for name, service in compose["services"].items():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (ROOT / source).exists(), f"{name}: {source}"
            else:
                assert source in compose["volumes"], f"{name}: {source}"
        assert set(service.get("secrets", [])) <= set(compose["secrets"])
    for secret in compose["secrets"].values():
        assert secret["file"].startswith("${LARDER_SECRETS:-"), secret


def test_grafana_reads_secrets_that_it_has() -> None:
    secrets = set(services("docker-compose.yml")["grafana"]["secrets"])
    text = "".join(path.read_text("utf-8") for path in (ROOT / "deploy/grafana/provisioning").rglob("*.yml"))
    text += str(services("docker-compose.yml")["grafana"]["environment"])
    assert set(re.findall(r"/run/secrets/(\w+)", text)) == secrets


def test_spans_reach_the_collector_and_the_trace_store() -> None:
    found = services("docker-compose.yml")
    config = yaml.safe_load((ROOT / "deploy/otel/collector.yml").read_text(encoding="utf-8"))
    receiver = config["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    sent = found["larder"]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"]
    assert sent == f"http://otel-collector:{receiver.rpartition(':')[2]}"
    (exporter,) = config["service"]["pipelines"]["traces"]["exporters"]
    assert config["exporters"][exporter]["endpoint"].partition(":")[0] in found


def test_the_demonstrations_records_are_those_of_larder_demo() -> None:
    document = yaml.safe_load((ROOT / "deploy/demo.yml").read_text(encoding="utf-8"))
    assert {each["tenant"]: (each["limit_bytes"], each["note"]) for each in document["quotas"]} == QUOTAS
    (pin,) = document["pins"]
    assert (pin["name"], pin["model"], pin["tenant"]) == (PIN, MODEL, SUPPORT)
    assert pin["keys"] == [key.hex() for key in chain(system_prompt(), SUPPORT)]


def test_the_containers_settings_are_settings_that_larder_knows() -> None:
    environ = {file: environment_of_larder(file) for file in FILES}
    settings = load(environ=environ["docker-compose.yml"])
    check_bind(settings, tokens_exist=False)
    common = settings.common
    assert (common.http_host, common.http_port) == ("0.0.0.0", Common().http_port)
    assert common.pool_bytes == 1 << 30
    assert common.database_url == "sqlite+aiosqlite:////var/lib/larder/larder.db"
    assert settings.app.allowed_hosts == "larder"
    assert not settings.app.anonymous_metrics, "Prometheus has a token"

    common = load(environ=environ["docker-compose.yml"] | environ["deploy/postgres.yml"]).common
    assert common.database_url == "postgresql+asyncpg://larder:secret@postgres:5432/larder"


def test_the_image_runs_as_a_user_without_rights_and_reports_its_health() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"^USER (.+)$", dockerfile, re.MULTILINE) == ["10001:10001"]
    assert "/readyz" in dockerfile[dockerfile.index("HEALTHCHECK") :]
    for image in re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE):
        assert ":" in image, f"{image} has no version"
        assert not image.endswith(":latest")


def test_the_image_copies_existing_files_that_dockerignore_permits() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    let_through = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE)
    for copied in re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.MULTILINE):
        for source in copied.split():
            assert (ROOT / source).exists(), source
            assert source.split("/")[0] in let_through, source


def test_the_image_is_called_after_the_version(version: str) -> None:
    assert services("docker-compose.yml")["larder"]["image"] == f"larder:{version}"


def test_the_holder_outlives_larders_container_and_shares_its_state_directory() -> None:
    holder, larder = (services("docker-compose.yml")[name] for name in ("holder", "larder"))
    assert holder["image"] == larder["image"]
    assert holder["environment"]["LARDER_STATE_DIR"] == larder["environment"]["LARDER_STATE_DIR"]
    assert set(holder["volumes"]) <= set(larder["volumes"])
    assert "restart" not in larder["depends_on"]["holder"], "a restart of the holder would restart Larder"
    assert holder["ulimits"]["nofile"] >= larder["ulimits"]["nofile"]
    environ = environment_of_larder("docker-compose.yml")
    assert load_data_plane(environ=environ).table.external_holder


def test_engines_reach_the_gateway_and_share_its_memory() -> None:
    found = services("docker-compose.yml")
    environ = environment_of_larder("docker-compose.yml")
    assert environ["LARDER_DATAPLANE__LMCACHE_HOST"] == "0.0.0.0"
    assert found["holder"]["ipc"] == "shareable"
    assert "shm_size" in found["holder"]
    assert found["larder"]["ipc"] == "service:holder"
    assert not any("5555" in port for port in found["larder"]["ports"]), "the gateway has no authentication"
    for name, profile in (("vllm-cpu", "cpu"), ("vllm-gpu", "gpu")):
        engine = found[name]
        assert engine["profiles"] == [profile]
        assert engine["ipc"] == "service:holder"
        assert "pid" not in engine, "the end of Larder would kill the engine"
        config = json.loads(engine["command"][engine["command"].index("--kv-transfer-config") + 1])
        options = config["kv_connector_extra_config"]
        assert options["lmcache.mp.host"] == "tcp://larder"
        assert str(options["lmcache.mp.port"]) == environ["LARDER_LMCACHE_PORT"]
