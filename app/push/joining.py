"""Join socket for the enrolment of nodes on other machines. CURVE authenticates each client by its own key.

The socket uses only CURVE: it proves the key named in join tokens, and learns the client's key. What a node may do is
decided elsewhere.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import structlog
import zmq
import zmq.asyncio
from zmq.utils import z85

from app.push.keys import ManagerKeyPair
from app.supervisor.descriptors import allow_descriptors
from dataplane.base.connection_guard import ConnectionGuard
from dataplane.base.settings import SettingsError
from dataplane.protocol.codec import decode, encode
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.join import MAX_JOIN_BYTES, Join, JoinRefused, JoinReply, url_fault

ZAP_URL = "inproc://zeromq.zap.01"
HANDSHAKE_MS = 5000
LOOK_S = 0.2
_decoder: "msgspec.msgpack.Decoder[Join]" = msgspec.msgpack.Decoder(Join)

Decide = Callable[[Join, str, str], Awaitable[JoinReply]]
"""Decides on a request, given the client's public key (Z85) and its address ("" on this machine's own sockets)."""
log = structlog.get_logger()


def check_url(url: str) -> None:
    """Check that a join socket can be bound to `url`, before anything else starts. Raise SettingsError for
    an invalid one; OSError if it cannot be bound now."""
    if fault := url_fault(url, any_port=True):
        raise SettingsError(f"app.join_url: {fault}")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    probe = context.socket(zmq.ROUTER)
    try:
        probe.setsockopt(zmq.IPV6, int("[" in url))
        probe.bind(url)
    except zmq.ZMQError as error:
        raise not_bound(url, error) from None
    finally:
        probe.close()
        context.term()  # afterwards the address is free again


def not_bound(url: str, error: zmq.ZMQError) -> OSError:
    """Return the error for a join socket that cannot be bound."""
    reason = zmq.strerror(error.errno or 0)
    return OSError(
        f"app.join_url: {url} cannot be bound: {reason}; set LARDER_APP__JOIN_URL to an address of this "
        "machine and a free port, such as tcp://0.0.0.0:8471"
    )


class EnrolmentServer:
    """Answers join requests one at a time."""

    def __init__(self, url: str, keys: ManagerKeyPair, decide: Decide) -> None:
        """Bind the socket. Raise ZMQError when that fails."""
        self._decide = decide
        allow_descriptors()
        # A separate libzmq thread, so that load from unknown peers does not affect the connections to nodes.
        self._context = zmq.asyncio.Context()
        self._zap = self._context.socket(zmq.REP)
        self._zap.linger = 0
        self._zap.bind(ZAP_URL)
        self._socket = self._context.socket(zmq.ROUTER)
        self._connection_guard: ConnectionGuard | None = None
        try:
            self._socket.linger = 200
            self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_JOIN_BYTES)
            self._socket.setsockopt(zmq.RCVHWM, 2)  # per connection: its identity, and its request
            self._socket.setsockopt(zmq.IPV6, int("[" in url))
            self._socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
            self._socket.setsockopt(zmq.CURVE_SERVER, 1)
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
            self._socket.setsockopt(zmq.ZAP_DOMAIN, b"join")
            self._socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
            self._connection_guard = ConnectionGuard(self._socket, "join")  # a node that joins sends one short message
            self._socket.bind(url)
            self.url: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        except zmq.ZMQError:
            self.close()
            raise

    async def greet(self) -> None:
        """Answer libzmq's authentication requests (ZAP). Accept every CURVE key: keys identify nodes."""
        while True:
            (version, request, _domain, _address, _identity, mechanism, *credentials) = await self._zap.recv_multipart()
            if mechanism == b"CURVE" and len(credentials) == 1:
                verdict = [b"200", b"OK", z85.encode(credentials[0]), b""]
            else:
                verdict = [b"400", b"expected CURVE", b"", b""]
            await self._zap.send_multipart([version, request, *verdict])

    async def watch(self) -> None:
        """Close connections that stay too long or send too much. Runs forever."""
        assert self._connection_guard is not None
        while True:
            self._connection_guard.step()
            await asyncio.sleep(LOOK_S)

    async def run(self) -> None:
        """Answer requests forever."""
        while True:
            frames = await self._socket.recv_multipart(copy=False)
            reply = await self._answer(frames)
            try:
                await self._socket.send_multipart([frames[0].bytes, encode(reply)], zmq.NOBLOCK)
            except zmq.ZMQError as error:  # the node repeats its request
                log.warning("join.not_answered", reason=str(error))

    async def _answer(self, frames: list[zmq.Frame]) -> JoinReply:
        if len(frames) != 2:
            return JoinRefused("malformed", "expected one frame")
        try:
            message: Join = decode(_decoder, frames[1].bytes)
        except ProtocolError as error:
            return JoinRefused("malformed", f"{error.field}: {error.message}".removeprefix(": "))
        return await self._decide(message, _metadata(frames[1], "User-Id"), _metadata(frames[1], "Peer-Address"))

    def close(self) -> None:
        if self._connection_guard is not None:
            self._connection_guard.close()
        self._socket.close()
        self._zap.close()
        self._context.term()


def _metadata(frame: zmq.Frame, name: str) -> str:
    """Return libzmq's metadata about the sender of a frame."""
    try:
        return str(frame.get(name))
    except zmq.ZMQError:
        return ""
