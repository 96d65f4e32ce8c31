"""The configuration of docs/operate/tls.md in a real nginx, and that of Prometheus in docs/operate/observability.md."""

import os
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.app.command import run
from tests.deploy.tools import ROOT, checked, prometheus, require_tool, running
from tests.e2e import larder as one_machine
from tests.e2e.larder import Larder, until
from tests.free_port import free_port

pytestmark = pytest.mark.full
NAME = "larder.example"
TOKEN = "an-admin-token-of-more-than-32-characters"


def block(page: str, language: str) -> str:
    """Return the first block of a language on a page."""
    text = (ROOT / "docs" / "operate" / page).read_text(encoding="utf-8")
    found = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found, page
    return found[1]


@dataclass
class Proxied:
    """A Larder behind the proxy."""

    larder: Larder
    url: str
    certificate: Path
    http: httpx.Client


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    require_tool("nginx")
    folder = tmp_path_factory.mktemp("proxy")
    certificate, key, port = folder / "larder.crt", folder / "larder.key", free_port()
    subject = ("-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME},IP:127.0.0.1")
    checked("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, *subject)
    settings = {
        "LARDER_APP__TRUSTED_PROXIES": "127.0.0.1",
        "LARDER_APP__ALLOWED_HOSTS": NAME,
        "LARDER_APP__ADMIN_TOKEN": TOKEN,
    }
    (folder / "state").mkdir()
    with one_machine.running(folder / "state", **settings) as larder:
        server = block("tls.md", "nginx")
        for old, new in (
            ("listen 443", f"listen 127.0.0.1:{port}"),
            ("/etc/nginx/larder.crt", str(certificate)),
            ("/etc/nginx/larder.key", str(key)),
            ("http://127.0.0.1:8470", larder.url),
        ):
            assert old in server
            server = server.replace(old, new)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        paths = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
        (folder / "nginx.conf").write_text(
            f"pid {folder}/nginx.pid;\nevents {{}}\nhttp {{\naccess_log off;\n{paths}{server}}}\n"
        )
        url = f"https://127.0.0.1:{port}"
        context = ssl.create_default_context(cafile=str(certificate))
        with (
            running(
                folder / "log", "nginx", "-e", folder / "error.log", "-c", folder / "nginx.conf", "-g", "daemon off;"
            ),
            httpx.Client(
                base_url=url,
                verify=context,
                trust_env=False,
                timeout=60,
                transport=httpx.HTTPTransport(verify=context, local_address="127.0.0.2"),
                headers={"Host": NAME, "Authorization": f"Bearer {TOKEN}"},
            ) as http,
        ):
            until(lambda: _answers(http), "the proxy")
            yield Proxied(larder, url, certificate, http)


def _answers(http: httpx.Client) -> bool:
    try:
        return http.get("/healthz").is_success
    except httpx.TransportError:
        return False


def test_the_server_sees_the_address_of_the_client(proxied: Proxied) -> None:
    assert proxied.http.get("/api/v1/whoami").json()["source"] == "127.0.0.2"


def test_a_request_without_a_token_and_a_foreign_name_are_refused(proxied: Proxied) -> None:
    assert proxied.http.get("/api/v1/whoami", headers={"Authorization": ""}).status_code == 401
    assert proxied.http.get("/api/v1/whoami", headers={"Host": "evil.example"}).status_code == 403


def test_the_session_cookie_is_secure(proxied: Proxied) -> None:
    answer = proxied.http.post("/api/v1/session", json={"token": TOKEN}, headers={"Origin": f"https://{NAME}"})
    assert answer.status_code == 200, answer.text
    assert "Secure" in answer.headers["set-cookie"]
    assert answer.headers["set-cookie"].startswith("__Host-")


def test_an_event_arrives_before_the_stream_ends(proxied: Proxied) -> None:
    with proxied.http.stream("GET", "/api/v1/events", headers={"Accept": "text/event-stream"}) as stream:
        assert stream.status_code == 200
        assert any(line.startswith("event: ") for line in stream.iter_lines())


def test_commands_reach_the_server_with_the_authoritys_certificate(proxied: Proxied) -> None:
    environ = {**os.environ, "LARDER_URL": proxied.url, "LARDER_TOKEN": TOKEN}
    assert run("whoami", env=environ).returncode == 6
    done = run("whoami", env={**environ, "SSL_CERT_FILE": str(proxied.certificate)})
    assert done.stdout == "admin (admin)\n", done.stderr


def test_prometheus_scrapes_through_the_proxy(proxied: Proxied, tmp_path: Path) -> None:
    config: dict[str, Any] = yaml.safe_load(block("observability.md", "yaml"))
    (job,) = config["scrape_configs"]
    (tmp_path / "token").write_text(TOKEN)
    job["authorization"]["credentials_file"] = str(tmp_path / "token")
    job["tls_config"] = {"ca_file": str(proxied.certificate)}
    job["static_configs"] = [{"targets": [proxied.url.removeprefix("https://")]}]
    job |= {"scrape_interval": "1s"}
    config["rule_files"] = [str(ROOT / "deploy" / "prometheus" / name) for name in config["rule_files"]]
    with prometheus(tmp_path, config) as scraping:
        until(lambda: scraping.query('up{job="larder"} == 1 and on() larder_pool_capacity_bytes > 0'), "a scrape")
