"""`larder up` here, and `larder dataplane` on other machines, as an operator starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.larder import free_port, until
from tests.fleet.network import Machine

WAIT_S = 30.0
PICKY = """
import sys
from dataplane.core import intent
from dataplane.protocol.codes import Code
held = intent.Intent.apply
def apply(self, snapshot, bodies, now):
    if snapshot.type == "quotas" and b"too-odd" in snapshot.body:
        return [intent._fault("quotas[0].tenant", Code.BAD_FIELD, "this node does not know such a tenant")]
    return held(self, snapshot, bodies, now)
intent.Intent.apply = apply
from dataplane.__main__ import main
sys.exit(main())
"""
"""A data plane of a release that refuses what others take."""


def clean_environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("LARDER_")}


@dataclass
class DataPlane:
    """A data plane on a machine of its own."""

    name: str
    machine: Machine
    folder: Path
    labels: str = ""
    picky: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def token_file(self) -> Path:
        return self.folder / "token"

    @property
    def socket(self) -> str:
        return str(self.folder / "engine.sock")

    def start(self) -> DataPlane:
        environ = {
            **clean_environ(),
            "LARDER_STATE_DIR": str(self.folder),
            "LARDER_LMCACHE_PORT": "0",
            "LARDER_POOL_BYTES": "8MiB",
            "LARDER_DATAPLANE__SEGMENT_BYTES": "2MiB",
            "LARDER_DATAPLANE__PREFAULT": "false",
            "LARDER_DATAPLANE__NODE": self.name,
            "LARDER_DATAPLANE__LABELS": self.labels,
            "LARDER_CONTROL_URL": "tcp://0.0.0.0:8472",
            "LARDER_EVENTS_URL": "tcp://0.0.0.0:8473",
            **self.settings,
        }
        program = ["-c", PICKY] if self.picky else ["-m", "app", "dataplane"]
        command = self.machine.command(sys.executable, *program, "--join-token-file", str(self.token_file))
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
        return self

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def ended(self) -> int:
        """The exit code, once it has ended."""
        assert self.process is not None
        return self.process.wait(timeout=WAIT_S)


class Fleet:
    """One management plane and its nodes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "app"
        self.folder.mkdir()
        self._root = folder
        self.port, self.join_port = free_port(), free_port()
        self.nodes: dict[str, DataPlane] = {}
        self.machines: list[Machine] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.api = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=10, trust_env=False)

    # ---- the management plane

    def start(self) -> None:
        environ = {
            **clean_environ(),
            "LARDER_STATE_DIR": str(self.folder),
            "LARDER_LMCACHE_PORT": "0",
            "LARDER_HTTP_PORT": str(self.port),
            "LARDER_APP__EMBEDDED_DATA_PLANE": "false",
            "LARDER_APP__JOIN_URL": f"tcp://0.0.0.0:{self.join_port}",
            "LARDER_APP__NODE_LOST_S": "2",
        }
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "app", "up"], env=environ, stdout=log, stderr=log
            )
        until(self._answers, "the management plane answers", WAIT_S)

    def _answers(self) -> bool:
        try:
            return self.api.get("/healthz").status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=WAIT_S) == 0

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def cli(self, *arguments: str) -> str:
        """What `larder …` prints; it must succeed."""
        environ = {**clean_environ(), "LARDER_URL": f"http://127.0.0.1:{self.port}"}
        done = subprocess.run(
            [sys.executable, "-m", "app", *arguments], env=environ, capture_output=True, text=True, check=False,
            timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def get(self, path: str) -> Any:
        answer = self.api.get(f"/api/v1/{path}")
        assert answer.is_success, answer.text
        return answer.json()

    def put_quota(self, tenant: str, limit: int, wait: str = "0s", **fields: Any) -> Any:
        answer = self.api.put(
            f"/api/v1/quotas/{tenant}",
            json={"limit_bytes": limit, **fields},
            params={"wait": wait},
            headers={"If-Match": "*"},
        )
        if answer.status_code == 412:  # it is not there yet
            answer = self.api.put(
                f"/api/v1/quotas/{tenant}", json={"limit_bytes": limit, **fields}, params={"wait": wait}
            )
        assert answer.is_success, answer.text
        return answer.json()

    # ---- nodes

    def machine(self) -> Machine:
        machine = Machine(len(self.machines))
        self.machines.append(machine)
        machine.make()
        return machine

    def token(self, machine: Machine, **fields: Any) -> str:
        body = {"addresses": [f"tcp://{machine.near}:{self.join_port}"], **fields}
        answer = self.api.post("/api/v1/join-tokens", json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["token"])

    def node(self, name: str, labels: str = "", *, picky: bool = False) -> DataPlane:
        """A machine with a data plane and a good token; not started."""
        machine = self.machine()
        folder = self._root / name
        folder.mkdir()
        node = self.nodes[name] = DataPlane(name, machine, folder, labels, picky)
        node.token_file.write_text(self.token(machine))
        return node

    def states(self) -> dict[str, str]:
        return {node["name"]: node["state"] for node in self.get("nodes")["items"]}

    def until_states(self, **wanted: str) -> None:
        seen: list[dict[str, str]] = []

        def there() -> bool:
            seen[:] = [self.states()]
            return seen[0] == wanted

        try:
            until(there, "states", WAIT_S)
        except AssertionError:
            raise AssertionError(f"expected {wanted}, got {seen[0]}\n{self.log()[-3000:]}") from None

    def applied(self, tenant: str) -> dict[str, bool]:
        """On which nodes the tenant's quota is applied."""
        nodes = self.get(f"quotas/{tenant}")["status"]["nodes"]
        return {name: at["conditions"][0]["status"] == "True" for name, at in nodes.items()}

    def until_applied(self, tenant: str, nodes: Sequence[str]) -> None:
        wanted = dict.fromkeys(nodes, True)
        until(lambda: self.applied(tenant) == wanted, f"{tenant} is applied on {nodes}", WAIT_S)

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()
        self.kill()
        self.api.close()
        for machine in self.machines:
            machine.remove()
