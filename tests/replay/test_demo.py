"""`larder demo`: everything starts, shows something, and is gone afterwards."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from dataplane.replay.sessions import SYSTEM_PROMPT_BLOCKS
from tests.free_port import free_port


def _children(pid: int) -> list[int]:
    found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return found + [below for child in found for below in _children(child)]


@pytest.mark.parametrize(
    ("number", "twice"), [(signal.SIGINT, False), (signal.SIGTERM, True)], ids=["ctrl-c", "sigterm-twice"]
)
def test_a_demonstration_sets_quotas_and_a_pin_and_leaves_nothing_behind(socket_dir, number, twice):
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
        demo.send_signal(number)
        if twice:
            time.sleep(0.2)
            demo.send_signal(number)
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


def test_a_demonstration_obeys_the_settings(socket_dir):
    """Those of the environment and of the file, authentication included; a port in use is replaced."""
    gateway = free_port()
    engine_socket = socket_dir / "engines.sock"
    config = socket_dir / "larder.toml"
    config.write_text(f"lmcache_port = {gateway}\n[app]\nauth = 'required'\n[dataplane]\nnode = 'shown'\n")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LARDER_")}
    environ |= {"LARDER_POOL_BYTES": "64MiB", "LARDER_ENGINE_SOCKET": str(engine_socket)}
    environ |= {"TMPDIR": str(socket_dir), "LARDER_CONFIG": str(config), "LARDER_STATE_DIR": "/nonexistent"}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        environ["LARDER_HTTP_PORT"] = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "app.demo"]
        with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as demo:
            assert demo.stdout is not None
            said = iter(demo.stdout)
            assert next(said).startswith(f"port {environ['LARDER_HTTP_PORT']} is in use")
            url = next(said).split()[1]
            token = next(said).split()[1]
            with httpx.Client(base_url=url, trust_env=False) as api:
                assert api.get("/api/v1/nodes").status_code == 401
                answer = api.get("/api/v1/nodes", headers={"Authorization": f"Bearer {token}"})
            demo.send_signal(signal.SIGTERM)
            rest, _ = demo.communicate(timeout=30)
    assert demo.returncode == 0, rest
    (node,) = answer.json()["items"]
    assert (node["name"], node["engine_socket"]) == ("shown", str(engine_socket))
    assert node["stats"]["gateway"]["url"] == f"tcp://127.0.0.1:{gateway}"
    assert not list(socket_dir.glob("larder-demo-*"))
