"""`larder demo --incident`: each incident happens in a real Larder, and `larder why` names its cause."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from app.demo.incidents import INCIDENTS
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
