"""The tier `redis` beside a bare socket that sends SET and GET for the same values, without headers to verify.

The bare socket is a stricter baseline than a client library: redis-py's `get` is several times slower than it.
"""

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.harness.result import Result
from benchmarks.harness.setting import Setting
from benchmarks.tiers.shared_transfers import CLUSTER, SIZES, Batch, measure
from dataplane.tiers.header import HEADER_BYTES
from dataplane.tiers.registry import TierContext, open_tier

_TIMEOUT_S = 30.0


def run(setting: Setting) -> list[Result]:
    """Ratio to the bare socket of a tier with its default parameters, on a server of its own."""
    results = []
    with _server() as port, socket.create_connection(("127.0.0.1", port), _TIMEOUT_S) as bare:
        bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tier = open_tier("redis", {"servers": [f"127.0.0.1:{port}"]}, TierContext(CLUSTER, "bench", 0))
        try:
            for size in SIZES:
                batch = Batch(size)
                results += measure(
                    "redis",
                    tier,
                    batch,
                    lambda batch=batch: _bare_store(bare, batch),  # type: ignore[misc]
                    lambda batch=batch: _bare_load(bare, batch),  # type: ignore[misc]
                    setting.effort.rounds,
                )
        finally:
            tier.close()
    return results


def _bare_store(bare: socket.socket, batch: Batch) -> None:
    for number, (header, data) in enumerate(zip(batch.headers, batch.data, strict=True)):
        key = b"bare-%d" % number
        value = b"$%d\r\n" % (len(header) + len(data))
        bare.sendall(b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n%b%b" % (len(key), key, value, header))
        bare.sendall(data)
        bare.sendall(b"\r\n")
        _read(bare, memoryview(bytearray(len(b"+OK\r\n"))))


def _bare_load(bare: socket.socket, batch: Batch) -> None:
    line = memoryview(bytearray(len(b"$%d\r\n" % (HEADER_BYTES + batch.block_bytes)) + HEADER_BYTES))
    end = memoryview(bytearray(2))
    for number, into in enumerate(batch.into):
        key = b"bare-%d" % number
        bare.sendall(b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(key), key))
        for part in (line, into, end):
            _read(bare, part)


def _read(bare: socket.socket, into: memoryview) -> None:
    received_bytes = 0
    while received_bytes < len(into):
        received = bare.recv_into(into[received_bytes:])
        if not received:
            raise RuntimeError("redis-server closed the connection")
        received_bytes += received


@contextmanager
def _server() -> Iterator[int]:
    """Run redis-server on a free port. Raises RuntimeError if it is not installed or does not start."""
    binary = shutil.which("redis-server")
    if not binary:
        raise RuntimeError("redis-server is not installed (Debian: apt install redis-server)")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder:
        options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder]
        process = subprocess.Popen([binary, "--port", str(port), *options], stdout=subprocess.DEVNULL)
        try:
            _wait_for(port, process)
            yield port
        finally:
            process.terminate()
            process.wait(_TIMEOUT_S)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("redis-server did not start") from None
            time.sleep(0.02)
