"""A real Prometheus and a real Alertmanager with the files of deploy/ watch the demonstration: every panel of Grafana's
dashboards has data, and an alert reaches its receiver and Larder. Grafana itself does not run here."""

import json
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import yaml

from dataplane.memory.named import PREFIX
from tests.app.command import run
from tests.deploy.tools import ROOT, declared, prometheus, read_metrics, require_tool, running
from tests.environ import clean_environ
from tests.free_port import free_port
from tests.lmcache.client import Client

DEPLOY = ROOT / "deploy"
DASHBOARDS = {path.stem: json.loads(path.read_bytes()) for path in (DEPLOY / "grafana" / "dashboards").iterdir()}
NEEDS_A_GPU = {"Memory of GPUs", "Copies", "GPU copies of pins"}
pytestmark = pytest.mark.timeout(600)
ALERT = "LarderGatewayNameRemoved"
TOKENS = list(range(1024))


def panels() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for name, dashboard in DASHBOARDS.items():
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                yield name, panel, target


QUERIES = [(name, panel["title"], target["expr"]) for name, panel, target in panels() if "expr" in target]


def test_panels_read_metrics_that_exist() -> None:
    read = set().union(*(read_metrics(expr) for _, _, expr in QUERIES))
    assert read - declared() == set()


def settled(holds: Callable[[], Any], what: str) -> Any:
    """Wait for something, and leave Prometheus some time between two looks."""
    deadline = time.monotonic() + 120
    while not (found := holds()):
        assert time.monotonic() < deadline, what
        time.sleep(0.2)
    return found


class Receiver(ThreadingHTTPServer):
    """Receiver of Alertmanager's webhooks."""

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.alerts += body["alerts"]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


class Stack:
    """The demonstration and its monitoring."""

    def __init__(self, folder: Path, enter: Callable[[Any], Any]) -> None:
        ports = {name: free_port() for name in ("larder", "gateway", "alertmanager")}
        self.began = time.time()
        self.memory = Path("/dev/shm") / f"{PREFIX}stack-{uuid4().hex[:12]}"
        self.receiver = enter(Receiver())
        threading.Thread(target=self.receiver.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{ports['larder']}"
        environ = {
            "LARDER_HTTP_PORT": str(ports["larder"]),
            "LARDER_LMCACHE_PORT": str(ports["gateway"]),
            "LARDER_POOL_BYTES": "64MiB",
            "LARDER_DATAPLANE__LMCACHE_SHM_NAME": self.memory.name.removeprefix(PREFIX),
            "LARDER_KV_EVENTS_URL": f"tcp://127.0.0.1:{free_port()}",
        }
        demo = ("-m", "app.demo", "--rate", "60", "--state-dir", folder / "state")
        enter(running(folder / "demo.log", sys.executable, *demo, environ=environ))
        self.api = enter(httpx.Client(base_url=self.url, trust_env=False, timeout=60))
        config = yaml.safe_load((DEPLOY / "alertmanager" / "alertmanager.yml").read_text(encoding="utf-8"))
        config["route"] |= {"group_wait": "1s", "group_interval": "2s"}
        (webhook,) = config["receivers"][0]["webhook_configs"]
        path = webhook["url"].removeprefix("http://larder:8470")
        del webhook["http_config"]  # on the loopback address Larder asks for no token
        addresses = [self.url + path, f"http://127.0.0.1:{self.receiver.server_port}/"]
        config["receivers"][0]["webhook_configs"] = [webhook | {"url": url} for url in addresses]
        (folder / "alertmanager.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
        address = f"127.0.0.1:{ports['alertmanager']}"
        enter(
            running(
                folder / "alertmanager.log",
                "prometheus-alertmanager",
                f"--config.file={folder}/alertmanager.yml",
                f"--storage.path={folder}/alerts",
                f"--web.listen-address={address}",
                "--cluster.listen-address=",
            )
        )
        config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
        (larder,) = [job for job in config["scrape_configs"] if job["job_name"] == "larder"]
        del larder["authorization"]
        larder["static_configs"] = [{"targets": [self.url.removeprefix("http://")]}]
        config["global"] = {"scrape_interval": "2s", "evaluation_interval": "1s"}
        config["scrape_configs"] = [larder]
        config["rule_files"] = [str(DEPLOY / "prometheus" / "larder.rules.yml")]
        config["alerting"]["alertmanagers"][0]["static_configs"] = [{"targets": [address]}]
        self.prometheus = enter(prometheus(folder, config, "--enable-feature=exemplar-storage"))
        self.gateway = f"tcp://127.0.0.1:{ports['gateway']}"

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Series with a value at some time since the start."""
        series = self.prometheus.query(expr, start=self.began, end=time.time(), step=1)
        return [line for line in series if any(math.isfinite(float(value)) for _, value in line["values"])]

    def values(self, expr: str, label: str) -> set[str]:
        """Values of a label of these series."""
        return {line["metric"][label] for line in self.query(expr) if label in line["metric"]}

    def node(self) -> str:
        (node,) = self.api.get("/api/v1/nodes").json()["items"]
        return str(node["name"])


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    require_tool("prometheus-alertmanager")
    folder = tmp_path_factory.mktemp("stack")
    with ExitStack() as entered:
        made = Stack(folder, entered.enter_context)
        entered.callback(made.receiver.shutdown)
        settled(lambda: made.query('larder_pin_holds_nothing or larder_tenant_bytes{tenant="chat"}'), "load")
        exercise(made)
        yield made


def exercise(made: Stack) -> None:
    """Load that the demonstration lacks: records of deploy/demo.yml, and a client of LMCache."""
    arguments = ("apply", "-f", str(DEPLOY / "demo.yml"), "--take-over", "--yes", "--url", made.url)
    applied = run(*arguments, env=clean_environ())
    assert applied.returncode == 0, applied.stdout + applied.stderr
    with Client(made.gateway) as client:
        client.register()

        def found() -> bool:
            """The demonstration fills the pool, and may evict what was just stored."""
            client.store(TOKENS)
            chunks = client.lookup(TOKENS)
            client.ask("end_session", "r")
            return chunks == 4

        settled(found, "what was stored")
        settled(lambda: made.query('larder_gateway_request_seconds_count{operation="lookup"} > 0'), "its figures")
        client.store([*range(2000, 3024)])
        client.lookup(TOKENS, "s")
        assert not client.commit_store(TOKENS, "t", data=b"bytes in a message")
        settled(lambda: made.query("larder_gateway_failures_total"), "a failure")
        client.commit_store(TOKENS, "t", data=b"bytes in a message")
    settled(lambda: made.query("increase(larder_tenant_refused_blocks_total[20s]) > 0"), "refusals")
    settled(lambda: made.query("increase(larder_tenant_evicted_blocks_total[20s]) > 0"), "evictions")
    made.memory.unlink()  # Larder puts it back, and warns
    settled(lambda: made.query(f'ALERTS{{alertname="{ALERT}", alertstate="firing"}}'), "the alert")


@pytest.mark.full
def test_an_alert_reaches_its_receiver_and_larder(stack: Stack) -> None:
    def arrived() -> list[dict[str, Any]]:
        return [alert for alert in stack.receiver.alerts if alert["labels"]["alertname"] == ALERT]

    alert = settled(arrived, "the alert")[0]
    assert alert["status"] == "firing"
    assert alert["labels"]["severity"] == "warning"
    assert alert["labels"]["node"] == stack.node()
    assert alert["annotations"]["runbook_url"].endswith("#the-name-in-devshm")
    assert stack.node() in alert["annotations"]["summary"]

    def stored() -> bool:
        return ALERT in {each["alertname"] for each in stack.api.get("/api/v1/alerts").json()["items"]}

    settled(stored, "the stored alert")


@pytest.mark.full
def test_every_panel_has_data(stack: Stack) -> None:
    for name, title, expr in QUERIES:
        if title not in NEEDS_A_GPU:
            query = substituted(expr)
            settled(partial(stack.query, query), f"{name}, {title}: {query}")


def substituted(expr: str) -> str:
    query = expr.replace("$__rate_interval", "10s").replace("$node", ".*").replace("$tenant", ".*")
    assert "$" not in query, query
    return query


@pytest.mark.full
def test_variables_have_values(stack: Stack) -> None:
    for name, dashboard in DASHBOARDS.items():
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
                assert match
                query, label = match.groups()
                expr = query.replace("$node", ".*")
                settled(partial(stack.values, expr, label), f"{name}: {variable['name']}")


@pytest.mark.full
def test_no_alert_fires_but_the_expected_ones(stack: Stack) -> None:
    fired = {each["metric"]["alertname"] for each in stack.query('ALERTS{alertstate="firing"}')}
    assert fired == {ALERT}
