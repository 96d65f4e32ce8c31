"""`larder up` here, and `larder dataplane` on other machines, as an operator starts them."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.app.command import run
from tests.e2e.larder import until
from tests.environ import clean_environ
from tests.fleet.network import Machine, Network
from tests.forked import Forked

WAIT_S = 120.0
START_S = 90.0
"""A management plane takes three seconds of a core to start, and the cores may be busy."""
APPLIED_WITHIN = "30s"
"""The longest that a request may wait until what it writes is applied."""
FIRST_PORT = 20_000
PORTS = 16
"""A slot has this many ports, below those that the kernel gives to whoever asks for any."""
PAGE = 4096


class Process:
    """Something that an operator starts, kills, stops and starts again; its log goes on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        self.process: Forked | None = None

    def run(self, module: str, *arguments: str, environ: dict[str, str], namespaces: Sequence[str] = ()) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = Forked(
                module, *arguments, env=clean_environ(**environ), namespaces=namespaces, stdout=log, stderr=log
            )

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)

    def stop(self) -> None:
        """As an operator does; it must end cleanly."""
        self.signal(signal.SIGTERM)
        assert self.ended() == 0, self.log()[-3000:]

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def ended(self) -> int:
        """The exit code, once it has ended."""
        assert self.process is not None
        return self.process.wait(timeout=WAIT_S)


class DataPlane(Process):
    """A data plane on a machine of its own."""

    def __init__(self, name: str, machine: Machine, folder: Path, labels: str = "") -> None:
        super().__init__(folder)
        self.name = name
        self.machine = machine
        self.labels = labels
        self.settings: dict[str, str] = {}
        self.altered = ""
        """Python that alters this data plane before it starts."""

    @property
    def token_file(self) -> Path:
        return self.folder / "token"

    @property
    def socket(self) -> str:
        return str(self.folder / "engine.sock")

    def start(self) -> DataPlane:
        environ = {
            "LARDER_STATE_DIR": str(self.folder),
            "LARDER_DATAPLANE__KEEP_MEMORY_S": "0",
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
        program = ("tests.fleet.altered", self.altered) if self.altered else ("dataplane",)
        arguments = (*program, "--join-token-file", str(self.token_file))
        self.run(*arguments, environ=environ, namespaces=[self.machine.namespace])
        return self


class Manager(Process):
    """One `larder up` with a join socket."""

    def __init__(self, folder: Path, port: int, environ: dict[str, str]) -> None:
        super().__init__(folder)
        self.port, self.join_port = port, port + 1
        self.environ = {
            "LARDER_STATE_DIR": str(folder),
            "LARDER_LMCACHE_PORT": "0",
            "LARDER_HTTP_PORT": str(port),
            "LARDER_APP__EMBEDDED_DATA_PLANE": "false",
            "LARDER_APP__JOIN_URL": f"tcp://0.0.0.0:{self.join_port}",
            **environ,
        }
        self.api = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)

    def launch(self) -> None:
        """Without waiting for anything."""
        self.run("app", "up", environ=self.environ)

    def start(self) -> Manager:
        self.launch()
        until(lambda: self.answers() or not self.alive, "the management plane answers", START_S)
        assert self.alive, self.log()[-3000:]
        return self

    def answers(self) -> bool:
        try:
            return self.api.get("/healthz").status_code == 200
        except httpx.TransportError:
            return False

    def cli(self, *arguments: str) -> str:
        """What `larder …` prints; it must succeed."""
        done = self.try_cli(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def try_cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`larder …` on the management plane's machine, with its settings."""
        return run(*arguments, env=clean_environ(**self.environ, LARDER_URL=f"http://127.0.0.1:{self.port}"))

    def ask(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        """The answer's body; a record is replaced in whatever state it is."""
        path = f"/api/v1/{path}"
        headers = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
        answer = self.api.request(method, path, json=body, params=query, headers=headers)
        if answer.status_code == 428:
            headers["If-Match"] = "*"
            answer = self.api.request(method, path, json=body, params=query, headers=headers)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def get(self, path: str) -> Any:
        return self.ask("GET", path)

    def put_quota(self, tenant: str, limit: int, wait: str = "0s", **fields: Any) -> Any:
        return self.ask("PUT", f"quotas/{tenant}", {"limit_bytes": limit, **fields}, wait=wait)

    def nodes(self) -> dict[str, Any]:
        return {node["name"]: node for node in self.get("nodes")["items"]}

    def states(self) -> dict[str, str]:
        return {name: node["state"] for name, node in self.nodes().items()}

    def until_states(self, **expected: str) -> None:
        seen: list[dict[str, str]] = []

        def there() -> bool:
            seen[:] = [self.states()]
            return seen[0] == expected

        try:
            until(there, "states", WAIT_S)
        except AssertionError:
            raise AssertionError(f"expected {expected}, got {seen[0]}\n{self.log()[-3000:]}") from None

    def applied(self, tenant: str) -> dict[str, bool]:
        """On which nodes the tenant's quota is applied."""
        nodes = self.get(f"quotas/{tenant}")["status"]["nodes"]
        return {name: at["conditions"][0]["status"] == "True" for name, at in nodes.items()}

    def until_applied(self, tenant: str, nodes: Sequence[str]) -> None:
        expected = dict.fromkeys(nodes, True)
        until(lambda: self.applied(tenant) == expected, f"{tenant} is applied on {nodes}", WAIT_S)

    def close(self) -> None:
        self.kill()
        self.api.close()


@dataclass
class Fleet:
    """Management planes that share a database and a key, and their nodes."""

    folder: Path
    network: Network
    managers: list[Manager] = field(default_factory=list)
    nodes: dict[str, DataPlane] = field(default_factory=dict)

    def manager(self, **environ: str) -> Manager:
        """One more; not started."""
        number = len(self.managers)
        port = FIRST_PORT + self.network.slot * PORTS + 2 * number
        made = Manager(self.folder / f"app{number}", port, environ)
        self.managers.append(made)
        return made

    @property
    def app(self) -> Manager:
        """The first one."""
        return self.managers[0]

    def token(self, machine: Machine, by: Manager | None = None, **fields: Any) -> str:
        """With the addresses of all join sockets, as the machine reaches them."""
        addresses = [f"tcp://{machine.near}:{manager.join_port}" for manager in self.managers]
        answer = (by or self.app).ask("POST", "join-tokens", {"addresses": addresses, **fields})
        return str(answer["token"])

    def node(self, name: str, labels: str = "", by: Manager | None = None, **fields: Any) -> DataPlane:
        """A machine with a data plane and a token; not started."""
        node = DataPlane(name, self.network.machine(), self.folder / name, labels)
        self.nodes[name] = node
        node.token_file.touch(mode=0o600)
        node.token_file.write_text(self.token(node.machine, by, **fields))
        return node

    def three(self) -> list[DataPlane]:
        """`a`, `b` and `c`, each in a zone of its name, in sync."""
        made = [self.node(name, f"zone={name}").start() for name in "abc"]
        self.app.until_states(a="in_sync", b="in_sync", c="in_sync")
        return made

    def restore(self) -> None:
        """As `three` left it, whatever a test did: every machine connected, every process running, no record, no
        other node."""
        for machine in self.network.machines:
            machine.heal()
        for process in (*self.managers, *self.nodes.values()):
            if process.alive:
                process.thaw()
        if not self.app.alive:
            self.app.start()
        for name in [name for name in self.nodes if name not in ("a", "b", "c")]:
            extra = self.nodes.pop(name)
            extra.kill()
            shutil.rmtree(extra.folder)
        for node in self.nodes.values():
            if not node.alive:
                node.start()
        for kind, key in (("quotas", "tenant"), ("pins", "name"), ("policies", "name")):
            for record in self.app.get(kind)["items"]:
                self.app.ask("DELETE", f"{kind}/{record[key]}")
        for name, known in self.app.nodes().items():
            if name not in self.nodes:
                self.app.ask("DELETE", f"nodes/{name}", force="true")
                continue
            if known["draining"]:
                self.app.ask("POST", f"nodes/{name}/drain", {"on": False})
            if known["own_labels"]:
                self.app.ask("PATCH", f"nodes/{name}", {"labels": dict.fromkeys(known["own_labels"])})
        self.app.until_states(**dict.fromkeys(self.nodes, "in_sync"))

    def close(self) -> None:
        for process in (*self.nodes.values(), *self.managers):
            process.kill()
        for manager in self.managers:
            manager.close()
