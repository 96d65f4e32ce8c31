"""`larder demo --incident`: each incident happens in a real Larder, and `larder why` names its cause."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from app.incidents import INCIDENTS
from tests.app.command import run
from tests.environ import clean_environ
from tests.forked import Forked

CAUSES = {
    "noisy-tenant": (
        "scanner",
        r"limit_bytes was lowered from 48 MiB to 4 MiB and on_exceed was changed from evict_self to reject in the "
        r"quota of tenant scanner by bob at \S+Z \(audit entry "
        r"\d+\), and its blocks are refused \(\w+\) on node shown since \S+Z, (\d+ s|less than a second) later\.",
    ),
    "pin-flood": (
        "shown",
        r"bob created or changed \d\d pins for \w+.* from \S+Z to \S+Z, audit entries \d+ to \d+; pins keep .+\.",
    ),
    "partition": ("shown", r"Node shown is lost since \S+Z: .+"),
    "bad-policy": (
        "chat",
        r"The algorithm of policy default was set to noop, which evicts nothing, by bob at \S+Z \(audit entry "
        r"\d+\), and (blocks of tenant chat are refused \(\w+\) on node shown since|the hit ratio fell from) .+",
    ),
    "crash-loop": (
        "shown",
        r"The data plane of node shown exited \d times from \S+Z to \S+Z \(killed by signal 9\); "
        r".+\.",
    ),
    "disk-failure": (
        "shown",
        r"Tier disk of node shown is out of service since \S+Z: .+; the node serves blocks only from its memory; "
        r".+\.",
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
