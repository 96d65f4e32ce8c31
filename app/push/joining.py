"""The join socket: nodes of other machines ask here to be let in. Who connects has proved a key of their own.

CURVE alone: this socket proves the key that stands in join tokens, and tells us the key of who asks. What a node may do
is decided elsewhere.
"""

from collections.abc import Awaitable, Callable

import msgspec
import structlog
import zmq
import zmq.asyncio
from zmq.utils import z85

from app.push.descriptors import allow_descriptors
from app.push.keys import KeyPair
from app.push.visitors import Visitors
from dataplane.protocol.codec import decode, encode
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.join import MAX_JOIN_BYTES, Join, JoinRefused, JoinReply, url_fault
from dataplane.protocol.settings import SettingsError

ZAP_URL = "inproc://zeromq.zap.01"
HANDSHAKE_MS = 5000
_decoder: "msgspec.msgpack.Decoder[Join]" = msgspec.msgpack.Decoder(Join)

Decide = Callable[[Join, str, str], Awaitable[JoinReply]]
"""The answer to a question of the holder of a public key (Z85), from an address ("" on this machine's own sockets)."""
log = structlog.get_logger()


def check_url(url: str) -> None:
    """Whether a join socket can be bound there, before anything else is begun. Raises SettingsError."""
    any_port = url.startswith("tcp://") and url.endswith((":*", ":0"))
    if fault := url_fault(f"{url[:-1]}1" if any_port else url):
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
        context.term()  # the address is free again when this returns


def not_bound(url: str, error: zmq.ZMQError) -> SettingsError:
    """What to tell of a join socket that cannot be bound."""
    why = zmq.strerror(error.errno or 0)
    return SettingsError(
        f"app.join_url: {url} cannot be bound: {why}; set LARDER_APP__JOIN_URL to an address of this "
        "machine and a free port, such as tcp://0.0.0.0:8471"
    )


class Joining:
    """Answers one question after the other."""

    def __init__(self, url: str, keys: KeyPair, decide: Decide) -> None:
        """Raises ZMQError when the socket cannot be bound."""
        self._decide = decide
        allow_descriptors()
        # Its own thread of libzmq: whatever strangers keep it busy with, talk with nodes goes on in another one.
        self._context = zmq.asyncio.Context()
        self._zap = self._context.socket(zmq.REP)
        self._zap.linger = 0
        self._zap.bind(ZAP_URL)
        self._socket = self._context.socket(zmq.ROUTER)
        self._visitors: Visitors | None = None
        try:
            self._socket.linger = 200
            self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_JOIN_BYTES)
            self._socket.setsockopt(zmq.RCVHWM, 2)  # of each connection: its identity, and what it asks
            self._socket.setsockopt(zmq.IPV6, int("[" in url))
            self._socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
            self._socket.setsockopt(zmq.CURVE_SERVER, 1)
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
            self._socket.setsockopt(zmq.ZAP_DOMAIN, b"join")
            self._socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
            self._socket.bind(url)
            self.url: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
            self._visitors = Visitors(self._socket, self.url)
        except zmq.ZMQError:
            self.close()
            raise

    async def greet(self) -> None:
        """Answer libzmq's questions who may connect: anybody who has a key, for the key is what nodes are known by."""
        while True:
            (
                version,
                request,
                _domain,
                _address,
                _identity,
                mechanism,
                *credentials,
            ) = await self._zap.recv_multipart()
            if mechanism == b"CURVE" and len(credentials) == 1:
                verdict = [b"200", b"OK", z85.encode(credentials[0]), b""]
            else:
                verdict = [b"400", b"expected CURVE", b"", b""]
            await self._zap.send_multipart([version, request, *verdict])

    async def watch(self) -> None:
        """Send away who stays or says too much, for ever."""
        assert self._visitors is not None
        await self._visitors.run()

    async def run(self) -> None:
        """For ever."""
        while True:
            frames = await self._socket.recv_multipart(copy=False)
            reply = await self._answer(frames)
            try:
                await self._socket.send_multipart([frames[0].bytes, encode(reply)], zmq.NOBLOCK)
            except zmq.ZMQError as error:  # the node asks again
                log.warning("join.not_answered", reason=str(error))

    async def _answer(self, frames: list[zmq.Frame]) -> JoinReply:
        if len(frames) != 2:
            return JoinRefused("malformed", "expected one frame")
        try:
            message: Join = decode(_decoder, frames[1].bytes)
        except ProtocolError as error:
            return JoinRefused("malformed", f"{error.field}: {error.message}".removeprefix(": "))
        return await self._decide(message, _told(frames[1], "User-Id"), _told(frames[1], "Peer-Address"))

    def close(self) -> None:
        if self._visitors is not None:
            self._visitors.close()
        self._socket.close()
        self._zap.close()
        self._context.term()


def _told(frame: zmq.Frame, name: str) -> str:
    """What libzmq knows of who sent a frame."""
    try:
        return str(frame.get(name))
    except zmq.ZMQError:
        return ""
