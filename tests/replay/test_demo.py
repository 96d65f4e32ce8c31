"""`larder demo`: everything starts, shows something, and is gone afterwards."""

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from rich.console import Console

from app.demo import command
from app.demo import s3 as demo_s3
from app.demo.command import DemoError, _wait_until_tier_serves, main
from app.demo.incidents import ACTOR
from dataplane.base import allowed_secrets
from dataplane.replay.sessions import SYSTEM_PROMPT_BLOCKS
from tests.dataplane.plane import wait_for
from tests.environ import clean_environ
from tests.forked import Forked, run
from tests.free_port import free_port

SMALL = clean_environ(LARDER_HTTP_PORT="0", LARDER_POOL_BYTES="64MiB", LARDER_LMCACHE_PORT="0")


def _children(pid: int) -> list[int]:
    found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return found + [below for child in found for below in _children(child)]


def _wait_for_ends(pidfds: Iterable[int]) -> None:
    for pidfd in pidfds:
        assert select.select([pidfd], [], [], 60)[0], "a child is still there"
        os.close(pidfd)


@pytest.mark.parametrize(
    ("number", "twice"),
    [(signal.SIGINT, False), pytest.param(signal.SIGTERM, True, marks=pytest.mark.full)],
    ids=["ctrl-c", "sigterm-twice"],
)
def test_a_demonstration_sets_quotas_and_a_pin_and_leaves_nothing_behind(socket_dir, number, twice):
    environ = {**SMALL, "TMPDIR": str(socket_dir)}
    with Forked("app.demo", "--rate", "60", env=environ, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        lines = iter(demo.stdout)
        url = next(line.split()[1] for line in lines if line.startswith("dashboard: "))
        summary = next(line for line in lines if "requests" in line)
        children = [os.pidfd_open(pid) for pid in _children(demo.pid)]
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as api:
            quotas = api.get("/api/v1/quotas").text
            pin = api.get("/api/v1/pins/support-system-prompt").text
        demo.send_signal(number)
        if twice:
            time.sleep(0.2)
            demo.send_signal(number)
        rest, _ = demo.communicate(timeout=60)
    assert demo.returncode == 0, summary + rest
    for tenant in ("chat", "support", "scanner"):
        assert tenant in summary
        assert f'"{tenant}"' in quotas
    assert str(SYSTEM_PROMPT_BLOCKS) in pin
    assert len(children) >= 5, "larder up, its data plane, the load and three engines"
    _wait_for_ends(children)
    assert not list(socket_dir.iterdir())


@pytest.mark.full
def test_a_demonstration_obeys_the_settings(socket_dir):
    """Those of the environment and of the file, authentication included; a port in use is replaced."""
    gateway = free_port()
    engine_socket = socket_dir / "engines.sock"
    config = socket_dir / "larder.toml"
    config.write_text(f"lmcache_port = {gateway}\n[app]\nauth = 'required'\n[dataplane]\nnode = 'shown'\n")
    environ = clean_environ(LARDER_POOL_BYTES="64MiB", LARDER_ENGINE_SOCKET=str(engine_socket))
    environ |= {"TMPDIR": str(socket_dir), "LARDER_CONFIG": str(config), "LARDER_STATE_DIR": "/nonexistent"}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        environ["LARDER_HTTP_PORT"] = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "app.demo"]
        with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as demo:
            assert demo.stdout is not None
            lines = iter(demo.stdout)
            assert next(lines).startswith(f"port {environ['LARDER_HTTP_PORT']} is in use")
            url = next(lines).split()[1]
            token = next(lines).split()[1]
            with httpx.Client(base_url=url, trust_env=False, timeout=60) as api:
                assert api.get("/api/v1/nodes").status_code == 401
                answer = api.get("/api/v1/nodes", headers={"Authorization": f"Bearer {token}"})
            demo.send_signal(signal.SIGTERM)
            rest, _ = demo.communicate(timeout=60)
    assert demo.returncode == 0, rest
    (node,) = answer.json()["items"]
    assert (node["name"], node["engine_socket"]) == ("shown", str(engine_socket))
    assert node["stats"]["gateway"]["url"] == f"tcp://127.0.0.1:{gateway}"
    assert not list(socket_dir.glob("larder-demo-*"))


@pytest.mark.full
def test_a_demonstration_creates_the_folder_of_its_state(socket_dir):
    folder = socket_dir / "not" / "yet"
    demo = run("app.demo", "--seconds", "1", "--state-dir", str(folder), env=SMALL, timeout=90)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert (folder / "larder.log").stat().st_size > 0
    assert folder.stat().st_mode & 0o777 == 0o700


def _shares(line: str) -> dict[str, int]:
    """Percentages by memory and tier in a summary line."""
    return {name: int(share) for name, share in re.findall(r"(memory|disk|s3) (\d+)%", line)}


def _listed(api: httpx.Client) -> dict[str, Any] | None:
    """The state of the S3 tier on its node, once it has been listed."""
    nodes = list(api.get("/api/v1/tiers/s3").json()["stats"].values())
    return nodes[0] if nodes and nodes[0]["listed_blocks"] is None else None


def test_the_demonstration_reports_why_its_s3_tier_is_not_in_service():
    refused = {"faults": {"node-a": [{"path": "tiers.s3", "message": "expected no such parameter"}]}}
    answers = iter([refused])
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=next(answers)))
    with httpx.Client(base_url="http://test", transport=transport) as api, pytest.raises(DemoError) as raised:
        _wait_until_tier_serves(api, "/api/v1/tiers/s3")
    assert str(raised.value) == "node-a refused the tier s3: tiers.s3: expected no such parameter"


@pytest.mark.parametrize(
    ("step", "request_line"),
    [
        (lambda api, folder, _: command._set_s3_tier(api, None, folder, folder), "GET http://test/api/v1/tiers/s3"),
        (
            lambda api, folder, children: command._scene(Console(), children, api, "http://test", folder),
            f"DELETE http://test/api/v1/tokens/{ACTOR}",
        ),
        (lambda api, *_: command._put(api, "/api/v1/quotas/a", {}), "PUT http://test/api/v1/quotas/a"),
    ],
    ids=["tier", "incident", "record"],
)
def test_the_demonstration_reports_an_api_that_does_not_answer(monkeypatch, step, request_line):
    def silent(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("timed out")

    def demo(console, children, configured, folder, *_, **__):
        with httpx.Client(base_url="http://test", transport=httpx.MockTransport(silent)) as api:
            step(api, folder, children)

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(command, "_demo", demo)
    monkeypatch.setenv("LARDER_HTTP_PORT", "0")
    ended = CliRunner().invoke(main, [])
    assert (ended.exit_code, ended.output) == (1, f"Error: {request_line}: timed out\n")


def test_the_demonstration_waits_until_its_s3_tier_serves(monkeypatch):
    monkeypatch.setattr("app.demo.command.READY_S", 0.3)
    stats = {"serves": False, "reason": "no answer"}
    tier = {"faults": {}, "status": {"nodes": {"node-a": {"state": "in_sync"}}}, "stats": {"node-a": stats}}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=tier))
    with httpx.Client(base_url="http://test", transport=transport) as api:
        with pytest.raises(DemoError, match="the tier s3 is not in service after 0 s: no answer"):
            _wait_until_tier_serves(api, "/api/v1/tiers/s3")
        stats["serves"] = True
        _wait_until_tier_serves(api, "/api/v1/tiers/s3")


@pytest.mark.full
def test_a_demonstration_with_s3_serves_from_all_tiers_and_continues_after_a_kill(socket_dir):
    environ = {**SMALL, "LARDER_POOL_BYTES": "16MiB", "LARDER_DATAPLANE__DISK_TIER_BYTES": "64MiB"}
    folder = socket_dir / "state"
    command = [sys.executable, "-m", "app.demo", "--s3", "--rate", "60", "--state-dir", str(folder)]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        each = (_shares(line) for line in demo.stdout if "requests" in line)
        shares = next(shares for shares in each if shares.get("disk") and shares.get("s3"))
        assert 0 < shares["memory"] < 100
        children = [os.pidfd_open(pid) for pid in _children(demo.pid)]
        demo.kill()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(child, signal.SIGKILL)
        _wait_for_ends(children)
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        lines = iter(demo.stdout)
        url = next(line.split()[1] for line in lines if line.startswith("dashboard: "))
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as api:
            tiers = api.get("/api/v1/tiers").json()["items"]
            listed = wait_for(lambda: _listed(api), "the S3 tier is listed")
        summary = next(line for line in lines if "requests" in line)
        demo.send_signal(signal.SIGTERM)
        rest, _ = demo.communicate(timeout=60)
    assert demo.returncode == 0, summary + rest
    assert [tier["name"] for tier in tiers] == ["s3"]
    log = (folder / "larder.log").read_text().splitlines()
    opened = [json.loads(line) for line in log if '"tier.opened"' in line]
    disks = [line["blocks"] for line in opened if line["tier"] == "disk"]
    assert len(disks) == 2
    assert disks[0] == 0
    assert disks[1] > 0, "the blocks on disk are still there"
    assert listed["blocks"] > 0, "the blocks in S3 are still there, and counted"
    assert ", 0 wrong" in summary


def test_a_node_of_the_demonstration_allows_the_key_of_its_s3_tier_and_the_defaults(socket_dir):
    parameters = demo_s3.record(1, socket_dir)["parameters"]
    for given in ("", "env:OTHER"):
        entries = demo_s3.allowed(socket_dir, given).split(",")
        assert list(allowed_secrets.faults(parameters, entries)) == []
        assert set(entries) >= ({given} if given else set(allowed_secrets.DEFAULT))
        assert all(allowed_secrets.is_entry(entry) for entry in entries)


def test_a_demonstration_with_s3_reports_what_to_install(monkeypatch):
    monkeypatch.setattr(demo_s3, "REQUIRED", ("moto", "no_such_module"))
    done = CliRunner().invoke(main, ["--s3"])
    assert done.exit_code == 1
    assert "--s3 needs no-such-module: pip install 'moto[s3]'" in done.output
