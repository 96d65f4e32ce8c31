"""The HTTP server ends in time, whatever its clients do."""

import asyncio
import contextlib
import socket
from typing import Any

import pytest
import uvicorn

from app.http.middleware.connections import ConnectionCounts
from app.http.middleware.server_protocol import protocol_of
from app.http.server import Server

pytestmark = pytest.mark.anyio
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Answers:
    """An ASGI application whose first answer is larger than all buffers, and whose second one is late."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        self.first = True

    async def __call__(self, scope: Any, _receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        body = b"x" * (16 << 20) if self.first else b"stopping"
        if not self.first:
            self.waiting.set()
            with contextlib.suppress(asyncio.CancelledError):  # as Larder does: a cancelled request is answered
                await asyncio.Event().wait()
        self.first = False
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def test_a_client_that_reads_nothing_does_not_hold_up_the_end() -> None:
    app = Answers()
    server = Server(
        uvicorn.Config(
            app,
            http=protocol_of(ConnectionCounts()),
            ws="none",
            lifespan="off",
            log_config=None,
            timeout_graceful_shutdown=1,
        )
    )
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        client.connect(listener.getsockname())
        client.sendall(GET + GET)
        await asyncio.wait_for(app.waiting.wait(), 60)
        server.should_exit = True
        await serving
        requests = set(server.server_state.tasks)
        if requests:
            _, requests = await asyncio.wait(requests, timeout=60)
        assert not requests
