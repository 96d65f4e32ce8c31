"""Real Redis servers for tests: one alone, with a password, with TLS, or three that form a cluster."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from tests.free_port import free_port
from tests.require import require

TIMEOUT_S = 120.0
"""A server that starts on a busy machine takes long."""
SLOTS = 16_384


def redis_binary() -> str:
    """Return the path of the server; skip the test, or fail it in CI, if there is none."""
    found = shutil.which("redis-server")
    require(found, "redis-server is not installed (Debian: apt install redis-server)")
    assert found
    return found


class RedisServer:
    """A server in a folder of its own. `start` may follow `kill`; nothing is kept then."""

    def __init__(self, *options: str, tls: bool = False, client_certificates: bool = False, **client: Any) -> None:
        self._binary = redis_binary()
        self.folder = Path(tempfile.mkdtemp(prefix="larder-redis-"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._client = client
        if tls:
            self.certificate = make_certificate(self.folder)
            key = str(self.folder / "key.pem")
            demand = "yes" if client_certificates else "no"
            ports = ["--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", demand]
            files = ["--tls-cert-file", str(self.certificate), "--tls-key-file", key]
            self._options = [*ports, *files, "--tls-ca-cert-file", str(self.certificate), *options]
            own = {"ssl_certfile": str(self.certificate), "ssl_keyfile": key}
            self._client |= {"ssl": True, "ssl_ca_certs": str(self.certificate), **own}
        else:
            self._options = ["--port", str(self.port), *options]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        common = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(self.folder)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binary, *common, *self._options], stdout=log, stderr=subprocess.STDOUT
            )
        with self.client() as client:
            wait_until(lambda: self._answers(client), "redis-server answers")

    def client(self) -> Any:
        """Return a client of redis-py."""
        return redis.Redis(host="127.0.0.1", port=self.port, socket_timeout=TIMEOUT_S, **self._client)

    def _answers(self, client: Any) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()
        try:
            client.ping()
        except redis.AuthenticationError:
            return True
        except (redis.ConnectionError, redis.TimeoutError):
            return False
        return True

    def kill(self) -> None:
        """End the server at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(TIMEOUT_S)
            self._process = None

    def stop(self) -> None:
        """End the server and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder)


@contextmanager
def redis_server(*options: str, **more: Any) -> Iterator[RedisServer]:
    """Run a server."""
    server = RedisServer(*options, **more)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextmanager
def redis_cluster() -> Iterator[list[RedisServer]]:
    """Run three servers that form a cluster and share its slots."""
    # The others count a server as gone after this time, and then serve no slot at all.
    patient = ["--cluster-node-timeout", "600000"]
    servers = [RedisServer("--cluster-enabled", "yes", "--cluster-port", str(free_port()), *patient) for _ in range(3)]
    try:
        for server in servers:
            server.start()
        clients = [server.client() for server in servers]
        try:
            _join(servers, clients)
        finally:
            for client in clients:
                client.close()
        yield servers
    finally:
        for server in servers:
            server.stop()


def _join(servers: Sequence[RedisServer], clients: Sequence[Any]) -> None:
    share = SLOTS // len(servers)
    for number, client in enumerate(clients):
        last = SLOTS if number == len(servers) - 1 else (number + 1) * share
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", number * share, last - 1)
        for server in servers:
            bus = server.client()
            port = bus.config_get("cluster-port")["cluster-port"]
            bus.close()
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", server.port, port)
    for client in clients:
        wait_until(lambda client=client: _complete(client, len(servers)), "the cluster is complete")


def _complete(client: Any, servers: int) -> bool:
    info = client.execute_command("CLUSTER INFO")
    nodes = int(info["cluster_known_nodes"]) if isinstance(info, dict) else 0
    return nodes == servers and info["cluster_state"] == "ok" and int(info["cluster_size"]) == servers


def wait_until(condition: Any, what: str) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {TIMEOUT_S:g} s: {what}"
        time.sleep(0.01)


def make_certificate(folder: Path) -> Path:
    """Make a throw-away key and a certificate for 127.0.0.1 that signs itself."""
    openssl = shutil.which("openssl")
    require(openssl, "openssl is not installed (Debian: apt install openssl)")
    assert openssl
    certificate = folder / "certificate.pem"
    subject = ["-subj", "/CN=larder-test", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subject += ["-addext", "basicConstraints=critical,CA:FALSE"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(certificate)]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run([openssl, "req", "-x509", *key, *subject, *files], check=True, capture_output=True)
    return certificate


def unused_address() -> str:
    """Return an address where nothing listens."""
    return f"127.0.0.1:{free_port()}"
