"""`larder demo`: everything starts, shows something, and is gone afterwards."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from dataplane.replay.sessions import SYSTEM_PROMPT_BLOCKS


def _children(pid: int) -> list[int]:
    found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return found + [below for child in found for below in _children(child)]


def test_a_demonstration_sets_quotas_and_a_pin_and_leaves_nothing_behind(socket_dir):
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LARDER_")}
    environ |= {"LARDER_HTTP_PORT": "0", "LARDER_POOL_BYTES": "64MiB", "LARDER_LMCACHE_PORT": "0"}
    environ |= {"TMPDIR": str(socket_dir)}
    command = [sys.executable, "-m", "app.demo", "--rate", "60"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        lines = iter(demo.stdout)
        url = next(line.split()[1] for line in lines if line.startswith("dashboard: "))
        summary = next(line for line in lines if "requests" in line)
        children = [os.pidfd_open(pid) for pid in _children(demo.pid)]
        with httpx.Client(base_url=url, trust_env=False) as api:
            quotas = api.get("/api/v1/quotas").text
            pin = api.get("/api/v1/pins/support-system-prompt").text
        demo.send_signal(signal.SIGINT)
        rest, _ = demo.communicate(timeout=30)
    assert demo.returncode == 0, summary + rest
    for tenant in ("chat", "support", "scanner"):
        assert tenant in summary
        assert f'"{tenant}"' in quotas
    assert str(SYSTEM_PROMPT_BLOCKS) in pin
    assert len(children) >= 5, "larder up, its data plane, the load and three engines"
    for child in children:
        assert select.select([child], [], [], 10)[0], "a child is still there"
        os.close(child)
    assert not list(socket_dir.iterdir())
