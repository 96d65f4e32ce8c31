"""LMCache's own command line, against LMCache's server and against Larder."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.peers import servers
from benchmarks.peers.servers import Server
from tests.peers.conftest import MiB
from tests.peers.scripting import ran

pytestmark = pytest.mark.timeout(600)
TOKEN = "an-admin-token-that-is-long-enough-0123456789"


class CommandLine:
    """Runs commands, in order."""

    def __init__(self, python: Path, server: Server) -> None:
        self._python = python
        self._server = server

    def __call__(self, *commands: str) -> list[dict[str, Any]]:
        """Exit code and output of each."""
        lists = [[*command.split(" "), "--url", self._server.http_url] for command in commands]
        done: list[dict[str, Any]] = ran(self._python, "commands", json.dumps(lists), timeout_s=300)
        return done

    def run(self, *commands: str) -> list[dict[str, Any]]:
        """What each tells as JSON; all must succeed."""
        found = []
        for command, done in zip(commands, self(*(f"{command} --format json" for command in commands)), strict=True):
            assert done["code"] == 0, f"{command}: {done['said']}"
            found.append(json.loads(done["said"][done["said"].index("{") :])["metrics"])
        return found


@pytest.fixture
def command_line(lmcache_python: Path, server: Server) -> CommandLine:
    return CommandLine(lmcache_python, server)


def test_quotas_are_set_shown_listed_and_deleted(command_line: CommandLine):
    found = command_line.run(
        "quota set acme --limit-gb 1.5",
        "quota get acme",
        "quota set _default --limit-gb 2",
        "quota get _default",
        "quota list",
        "quota delete acme",
        "quota delete acme",
        "quota get acme",
        "quota delete _default",
    )
    set_acme, acme, _, default, listed, removed, again, gone, _ = found
    assert (set_acme["cache_salt"], set_acme["limit_gb"], set_acme["status"]) == ("acme", 1.5, "ok")
    assert (acme["cache_salt"], acme["limit_gb"], acme["exists"]) == ("acme", 1.5, True)
    assert (default["cache_salt"], default["limit_gb"], default["exists"]) == ("_default", 2.0, True)
    assert {each["cache_salt"]: each["limit_gb"] for each in listed["quotas"]} == {"acme": 1.5, "_default": 2.0}
    assert (removed["status"], again["status"], gone["exists"]) == ("removed", "not_found", False)


def test_the_server_is_pinged_described_and_cleared(lmcache_python: Path, server: Server, command_line: CommandLine):
    ran(lmcache_python, "fill", server.rpc_url)
    pinged, described = command_line.run("ping kvcache", "describe kvcache")
    assert pinged["status"] == "OK"
    assert (described["health"], described["chunk_size"]) == ("OK", 256)
    assert described["l1_capacity_gb"] == 0.5
    assert described["cached_objects"] == 4
    refused, cleared = command_line("quota set acme --limit-gb -1", "kvcache clear")
    assert (refused["code"], "OK" in cleared["said"], cleared["code"]) == (1, True, 0)
    assert ran(lmcache_python, "fill", server.rpc_url) == {"hit": 0}


def test_without_a_token_the_command_line_is_refused_where_one_is_needed(lmcache_python: Path):
    with servers.larder(64 * MiB, {"LARDER_APP__ADMIN_TOKEN": TOKEN}) as server:
        refused, pinged = CommandLine(lmcache_python, server)("quota set acme --limit-gb 1", "ping kvcache")
        assert (refused["code"], pinged["code"]) == (1, 0)
        with httpx.Client(base_url=server.http_url, trust_env=False, timeout=60) as http:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            assert http.get("/quota", headers=headers).json() == {"users": {}}
            assert http.put("/quota/acme", json={"limit_gb": 1}, headers=headers).json()["status"] == "ok"


def test_salts_that_the_command_line_does_not_quote_arrive_at_larder(lmcache_python: Path, larder: Server):
    salts = ["50%", "a.b:c;d,e'f", "100%25"]
    done = CommandLine(lmcache_python, larder)(*(f"quota set {salt} --limit-gb 2" for salt in salts))
    assert [each["code"] for each in done] == [0, 0, 0]
    with httpx.Client(base_url=larder.http_url, trust_env=False, timeout=60) as http:
        assert set(http.get("/quota").json()["users"]) == {"50%", "a.b:c;d,e'f", "100%"}
