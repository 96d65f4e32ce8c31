"""Requests to a data plane's control socket: identify and describe the node, and apply records to it."""

import time
from collections.abc import Callable
from typing import TypeVar

import msgspec
import zmq

from dataplane.protocol import codec
from dataplane.protocol.control.messages import VERSION, ControlRefused, ControlReply, ControlRequest
from dataplane.protocol.control.nodes import DescribeNode, Description, Hello, Welcome
from dataplane.protocol.control.records import PolicySpec, encode_policies
from dataplane.protocol.control.snapshots import Ack, Nack, Snapshot, SnapshotType, digest_of

Reply = TypeVar("Reply", bound=msgspec.Struct)

_POLL_MS = 20


class ControlError(Exception):
    """The data plane did not answer, or its answer does not match the request."""


class ControlLink:
    """Connection to a control socket. It may be opened before the socket exists."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(url)
        self._replies: msgspec.msgpack.Decoder[ControlReply] = codec.decoder(ControlReply)

    def __enter__(self) -> "ControlLink":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._context.term()

    def hello(self, timeout_s: float, alive: Callable[[], bool] = lambda: True) -> Welcome:
        """Identify the data plane. Wait for one that is still starting, for as long as `alive` returns True."""
        return self._request(Hello(VERSION, "larder replay"), (Welcome,), timeout_s, alive)

    def describe(self, timeout_s: float) -> Description:
        """Return the node's current counters and the findings of an audit of its accounting."""
        return self._request(DescribeNode("replay", audit=True), (Description,), timeout_s, lambda: True)

    def ask(self, request: ControlRequest, kind: type[Reply], timeout_s: float) -> Reply:
        """Return the answer to a request. Raise ControlError for another one than of this kind."""
        return self._request(request, (kind,), timeout_s, lambda: True)

    def put_in_force(self, policy: PolicySpec, timeout_s: float) -> None:
        """Make this the node's policy. Raise ControlError with the node's reasons when it refuses."""
        self.apply("policies", encode_policies([policy]), timeout_s)

    def apply(self, kind: SnapshotType, body: bytes, timeout_s: float) -> None:
        """Replace the node's records of a type. Raise ControlError with the node's reasons when it refuses."""
        snapshot = Snapshot(kind, "replay", 1, "replay", digest_of(body), body)
        answer = self._request(snapshot, (Ack, Nack), timeout_s, lambda: True)
        if isinstance(answer, Nack):
            faults = "; ".join(f"{fault.path}: {fault.message}" for fault in answer.errors)
            raise ControlError(f"the data plane refuses the {kind}: {faults}")

    def _request(
        self, request: ControlRequest, kinds: tuple[type[Reply], ...], timeout_s: float, alive: Callable[[], bool]
    ) -> Reply:
        self._socket.send(codec.encode(request))
        end = time.monotonic() + timeout_s
        while not self._socket.poll(_POLL_MS):
            if not alive():
                raise ControlError("the data plane ended")
            if time.monotonic() > end:
                raise ControlError(f"no answer from {self._url} in {timeout_s:g} s")
        reply = codec.decode(self._replies, self._socket.recv())
        if isinstance(reply, ControlRefused):
            raise ControlError(f"{self._url} refuses the request: {reply.message}")
        if not isinstance(reply, kinds):
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise ControlError(f"expected {expected} from {self._url}, got {type(reply).__name__}")
        return reply
