"""Connections of a socket with a guard, on kernels that count the bytes of a connection and on others."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
import zmq
from structlog.testing import capture_logs

from dataplane.base.connection_guard import HANDSHAKE_BYTES, ConnectionGuard
from tests.dataplane.plane import WAIT_S

Kernel = Callable[[bytes], bytes]


def refused(_: bytes) -> bytes:
    raise OSError("no such option")


@pytest.mark.parametrize(
    ("kernel", "ended"),
    [
        pytest.param(lambda info: info, True, id="counts"),
        pytest.param(lambda info: info[:192], False, id="older than 4.19"),
        pytest.param(lambda info: info[:128].ljust(len(info), b"\0"), False, id="a sandbox: zeros"),
        pytest.param(refused, False, id="a sandbox: no TCP_INFO"),
    ],
)
def test_a_connection_whose_bytes_the_kernel_does_not_count_is_not_ended(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel, ended: bool
) -> None:
    class Socket(socket.socket):
        def getsockopt(self, level: int, option: int, nbytes: int = 0) -> bytes:  # type: ignore[override]
            return kernel(super().getsockopt(level, option, nbytes))

    monkeypatch.setattr(socket, "socket", Socket)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as server, context.socket(zmq.DEALER) as client:
        guard = ConnectionGuard(server, "control", known_bytes=HANDSHAKE_BYTES, max_s=0)
        try:
            server.linger = client.linger = 0
            client.connect(f"tcp://127.0.0.1:{server.bind_to_random_port('tcp://127.0.0.1')}")
            client.send(b"question")
            assert server.poll(int(WAIT_S * 1000)), "the client is connected"
            with capture_logs() as lines:
                guard.step()
            assert [line["event"] for line in lines] == ["peer.connection_ended"] * ended
        finally:
            guard.close()
