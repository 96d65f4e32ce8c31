"""What tests of deploy/ start and read."""

import json
import os
import re
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.environ import clean_environ
from tests.forked import AnyProcess, Forked
from tests.free_port import free_port
from tests.require import require

ROOT = Path(__file__).parents[2]
MODULES = {"dataplane": ("dataplane",)}
"""What a command of `larder` becomes."""
PACKAGES = {
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "amtool": "prometheus-alertmanager",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "nginx": "nginx-light",
    "openssl": "openssl",
    "systemd-analyze": "systemd",
}


def require_tool(name: str) -> None:
    require(shutil.which(name), f"{name} is not installed (Debian: apt install {PACKAGES[name]})")


def checked(tool: str, *arguments: str | Path, text: str = "") -> str:
    """Run a tool to its end, with text as its input. Return what it prints."""
    require_tool(tool)
    result = subprocess.run([tool, *arguments], input=text, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@contextmanager
def running(
    log: Path, *command: str | Path, environ: Mapping[str, str] = {}, group: bool = False
) -> Iterator[AnyProcess]:
    """Run a program, which must end well at SIGTERM unless the test ended it; with `group`, all of its group get it.
    Commands of `larder` run without their imports."""
    with log.open("ab") as output:
        options: dict[str, Any] = {"env": clean_environ(**environ), "cwd": log.parent, "start_new_session": True}
        options |= {"stdout": output, "stderr": output}
        program, *arguments = map(str, command)
        if program == "larder":
            arguments = [*MODULES.get(arguments[0], ("app", arguments[0])), *arguments[1:]]
            process: AnyProcess = Forked(*arguments, **options)
        else:
            process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        if process.returncode is None:
            (os.killpg if group else os.kill)(process.pid, signal.SIGTERM)
            try:
                code = process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(60)
                raise
            assert code == 0, log.read_text(errors="replace")


@dataclass
class Prometheus:
    """A running Prometheus."""

    http: httpx.Client

    def query(self, expr: str, **span: Any) -> list[dict[str, Any]]:
        """Return the series of an expression, now or at the steps of a span; none before it serves."""
        try:
            answer = self.http.get(f"/api/v1/query{'_range' if span else ''}", params={"query": expr, **span})
        except httpx.TransportError:
            return []
        if answer.status_code == 503:  # it starts
            return []
        assert answer.status_code == 200, answer.text
        return list(answer.json()["data"]["result"])


@contextmanager
def prometheus(folder: Path, config: dict[str, Any], *options: str) -> Iterator[Prometheus]:
    """Run Prometheus with a configuration; its files are in a folder."""
    require_tool("prometheus")
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    files = (f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/metrics")
    with (
        running(folder / "prometheus.log", "prometheus", *files, f"--web.listen-address={address}", *options),
        httpx.Client(base_url=f"http://{address}", trust_env=False, timeout=60) as http,
    ):
        yield Prometheus(http)


def answer(url: str, token: str = "") -> Any:
    """Return the JSON that a server answers; None if it does not serve."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answered:
            return json.load(answered)
    except OSError:
        return None


def node_in_sync(url: str, token: str = "") -> Any:
    """Return a node that is in sync; None if there is none."""
    nodes = answer(f"{url}/api/v1/nodes", token) or {"items": []}
    return next((each for each in nodes["items"] if each["state"] == "in_sync"), None)


def declared() -> set[str]:
    """Names of all series of the declared metrics."""
    page = ROOT / "docs" / "reference" / "metrics.md"
    found = re.findall(r"^\| `(\w+)` \| (\w+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    parts = {"histogram": ("_bucket", "_count", "_sum")}
    return {name + part for name, kind in found for part in parts.get(kind, ("",))}


def read_metrics(expressions: str) -> set[str]:
    return set(re.findall(r"\blarder_\w+", expressions))


def sections(page: Path) -> dict[str, str]:
    """Return the text below each heading, by the anchor that forges and MkDocs make of the heading."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    parts = re.split(r"^#+ (.*)$", text, flags=re.MULTILINE)[1:]
    return {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-"): below
        for title, below in zip(parts[::2], parts[1::2], strict=True)
    }
