"""uvicorn's server for a process that handles signals itself and must end in time."""

import contextlib
import socket
from collections.abc import Iterator

import uvicorn


class Server(uvicorn.Server):
    """uvicorn without signal handling: uvicorn would raise the signals again at its end, and the exit code would not be
    0. A client that does not read its answers does not delay the end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        # Otherwise tasks would wait for the client, also those that were cancelled: uvicorn and Larder answer these.
        for connection in list(self.server_state.connections):
            connection.transport.abort()
