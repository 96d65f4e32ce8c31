"""Asking a data plane over its control socket: who it is, and what it has."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

import msgspec
import zmq

from dataplane.protocol import codec
from dataplane.protocol.control import (
    VERSION,
    ControlReply,
    ControlRequest,
    Describe,
    Description,
    Hello,
    Welcome,
)

Reply = TypeVar("Reply", bound=msgspec.Struct)

_POLL_MS = 20


class ControlError(Exception):
    """The data plane could not be asked, or did not answer what was asked."""


class ControlLink:
    """A connection to a control socket; it may be opened before the socket is there."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(url)
        self._replies: msgspec.msgpack.Decoder[ControlReply] = codec.decoder(ControlReply)

    def __enter__(self) -> "ControlLink":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._context.term()

    def hello(self, timeout_s: float, alive: Callable[[], bool] = lambda: True) -> Welcome:
        """Who is there. Waits for a data plane that is still starting, for as long as `alive` says so."""
        return self._ask(Hello(VERSION, "larder replay"), Welcome, timeout_s, alive)

    def describe(self, timeout_s: float) -> Description:
        """Everything that the node counts, now, and what an audit of its books finds."""
        return self._ask(Describe("replay", audit=True), Description, timeout_s, lambda: True)

    def _ask(
        self, request: ControlRequest, kind: type[Reply], timeout_s: float, alive: Callable[[], bool]
    ) -> Reply:
        self._socket.send(codec.encode(request))
        end = time.monotonic() + timeout_s
        while not self._socket.poll(_POLL_MS):
            if not alive():
                raise ControlError("the data plane ended")
            if time.monotonic() > end:
                raise ControlError(f"no answer from {self._url} in {timeout_s:g} s")
        reply = codec.decode(self._replies, self._socket.recv())
        if not isinstance(reply, kind):
            raise ControlError(f"expected {kind.__name__} from {self._url}, got {type(reply).__name__}")
        return reply
