"""`larder demo --incident`: each incident happens in a real Larder, and `larder why` names its cause."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from app.demo.command import PlannedIncident
from app.demo.incidents import FLOOD_PINS, INCIDENTS, Scene
from tests.app.command import run
from tests.environ import clean_environ
from tests.forked import Forked

CAUSES = {
    "noisy-tenant": (
        "scanner",
        r"Blocks of tenant scanner are refused \(\w+\) on node shown since \S+Z: .+\. The latest change before it, "
        r"(\d+ s|less than a second) earlier: quota scanner: limit_bytes 48 MiB .+ by bob at .+ \(audit entry \d+\)\.",
    ),
    "pin-flood": (
        "shown",
        r"bob created \d\d pins of \w+.* (from \S+Z to|since) \S+Z: audit entries \d+ to \d+; pins keep .+\.",
    ),
    "partition": ("shown", r"Node shown is lost since \S+Z: .+"),
    "bad-policy": (
        "chat",
        r"(Blocks of tenant chat are refused \(\w+\) on node shown since|The hit ratio fell from) .+ policy default.+"
        r"by bob at \S+Z \(audit entry \d+\)\.",
    ),
    "crash-loop": (
        "shown",
        r"(The data plane of node shown exited \d times from \S+Z to|Node shown is in a crash loop since) \S+Z: .*"
        r"killed by signal 9.+\.",
    ),
    "disk-failure": (
        "shown",
        r"Tier disk of node shown is out of service since \S+Z: .+; the node serves blocks only from its memory\..*",
    ),
}
"""Tenant or node for `larder why`, and the expected sentence."""


def why(url: str, token: str, name: str) -> str:
    environ = {**os.environ, "LARDER_URL": url, "LARDER_TOKEN": token}
    done = run("why", name, "-o", "json", env=environ)
    found = re.search(r'"cause": "(.*)"', done.stdout)
    return found[1] if found else ""


class ScriptedApi:
    """An API that refuses its call number `bad`, counted from 1; 0 for none."""

    def __init__(self, bad: int, error: int | Exception) -> None:
        self.calls = 0
        self.accepted: list[str] = []
        self._bad, self._error = bad, error
        self.client = httpx.Client(transport=httpx.MockTransport(self._answer), base_url="http://larder")

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.calls += 1
        if self.calls == self._bad:
            if isinstance(self._error, Exception):
                raise self._error
            return httpx.Response(self._error)
        if request.method == "PUT":
            self.accepted.append(request.url.path)
            return httpx.Response(200)
        if request.url.path == "/api/v1/prefixes":
            labels = (f"{number}" for number in range(2 * FLOOD_PINS))
            return httpx.Response(200, json={"items": [{"label": label, "tenant": "chat"} for label in labels]})
        # Each look finds the next data plane, so that those that were killed are not counted twice.
        return httpx.Response(200, json={"items": [{"name": "shown", "pid": 1_000 + self.calls}]})


def happened(incident: str, bad: int, error: int | Exception, folder: Path, kills: list[int]) -> tuple[object, int]:
    """What an incident did until its last step and at the end, and how often it called the API."""
    disk = folder / "disk-tier"
    disk.mkdir(exist_ok=True)
    api, lines = ScriptedApi(bad, error), list[str]()
    scene = Scene(api.client, api.client, lines.append, disk)
    kills.clear()
    planned = PlannedIncident(incident, 0.0)
    away = False
    while planned.at_s < float("inf"):
        planned.at_s = 0.0
        planned.step(scene)
        away |= not disk.exists()
    scene.end()
    assert disk.exists()
    return (api.accepted, lines, kills[:], away), api.calls


@pytest.mark.parametrize("error", [httpx.ReadTimeout("slow"), httpx.ConnectError("away"), 503])
@pytest.mark.parametrize("incident", INCIDENTS)
def test_an_incident_happens_in_full_whichever_answer_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, incident: str, error: int | Exception
) -> None:
    kills: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: kills.append(number))
    expected, calls = happened(incident, 0, error, tmp_path, kills)
    for bad in range(1, calls + 1):
        assert happened(incident, bad, error, tmp_path, kills)[0] == expected


def test_a_demonstration_that_stops_gives_the_disk_back(tmp_path: Path) -> None:
    api, disk = ScriptedApi(0, 503), tmp_path / "disk-tier"
    disk.mkdir()
    scene = Scene(api.client, api.client, list[str]().append, disk)
    next(INCIDENTS["disk-failure"](scene))
    assert not disk.exists()
    scene.end()
    assert disk.exists()


@pytest.mark.full
@pytest.mark.parametrize("incident", INCIDENTS)
def test_why_names_the_cause_of_an_incident(socket_dir: Path, incident: str) -> None:
    name, expected = CAUSES[incident]
    environ = clean_environ(LARDER_HTTP_PORT="0", LARDER_POOL_BYTES="64MiB", LARDER_LMCACHE_PORT="0")
    environ |= {"TMPDIR": str(socket_dir), "LARDER_DATAPLANE__NODE": "shown"}
    options = ["--rate", "60", "--incident", incident, "--incident-at", "8"]
    with Forked("app.demo", *options, env=environ, stdout=subprocess.PIPE, text=True) as demo:
        try:
            assert demo.stdout is not None
            lines = iter(demo.stdout)
            url = next(line.split()[1] for line in lines if line.startswith("dashboard: "))
            token = next(line.split()[1] for line in lines if line.startswith("token: "))
            next(line for line in lines if " incident: " in line)
            end, cause = time.monotonic() + 150, ""
            while re.fullmatch(expected, cause) is None:
                assert time.monotonic() < end, cause
                time.sleep(0.5)
                cause = why(url, token, name)
        finally:
            demo.send_signal(signal.SIGTERM)
            rest, _ = demo.communicate(timeout=60)
    assert demo.returncode == 0, rest
    assert not list(socket_dir.iterdir())
