"""Connection to one node's control socket. Matches answers to requests; makes no decisions.

Requests carry a nonce, so that an answer that arrives after its request has timed out is recognised and dropped.
Nothing is queued for a node that is not connected: its wanted state may have changed when it comes back.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable

import msgspec
import structlog
import zmq
import zmq.asyncio

from app.ingest.fleet import Address
from app.push.keys import ManagerKeyPair
from dataplane.protocol.codec import decode, encode
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.lookups import ListBlocks, LookupChain
from dataplane.protocol.control.messages import VERSION, ControlRefused, ControlReply, ControlRequest
from dataplane.protocol.control.moves import CancelMove, Move, ReadMove
from dataplane.protocol.control.nodes import DescribeNode, Description, Drain, Expel, Hello, Resize, Welcome
from dataplane.protocol.control.prefixes import ListPrefixes, PrefixKeys, Trace
from dataplane.protocol.control.requests import FindRequests
from dataplane.protocol.control.scopes import Clear, ClearGateway, CountBlocks, Demote, Invalidate
from dataplane.protocol.control.sessions import ActOnSession, ListSessions
from dataplane.protocol.control.snapshots import MAX_SNAPSHOT_BYTES, Ack, Bodies, Fault, Nack, NeedBodies, Snapshot
from dataplane.protocol.control.verification import DigestEngine, Verification, Verify
from dataplane.protocol.usage import ReadUsage

BODIES_AT_ONCE = 64
"""Number of bodies in one message: at most 8 MiB with the largest pins."""
MAX_UNREAD = 4
"""Replies of a conversation that wait to be read. A node answers each message once; others are dropped and counted."""
_decoder: msgspec.msgpack.Decoder[ControlReply] = msgspec.msgpack.Decoder(ControlReply)
Question = (
    Drain
    | Expel
    | DescribeNode
    | Invalidate
    | Demote
    | ListPrefixes
    | PrefixKeys
    | Trace
    | ReadUsage
    | Resize
    | Clear
    | ClearGateway
    | DigestEngine
    | CountBlocks
    | LookupChain
    | ListBlocks
    | Verify
    | Verification
    | Move
    | ReadMove
    | CancelMove
    | FindRequests
    | ListSessions
    | ActOnSession
)
Fetch = Callable[[list[str]], Awaitable[dict[str, bytes]]]


class NoAnswer(Exception):
    """The node did not answer in time, or is unreachable."""


class NotUnderstood(Exception):
    """The node rejected a request (the message is the node's), or answered with an unexpected type."""


class NodeLink:
    """A DEALER socket connected to one control URL."""

    def __init__(
        self,
        url: str,
        manager: str,
        context: zmq.asyncio.Context,
        server_key: str = "",
        keys: ManagerKeyPair | None = None,
    ) -> None:
        """Open the socket. With a `server_key`, CURVE authenticates the node by it, and this process by `keys`."""
        self.url = url
        self.address: Address = (url, server_key)
        self._context = context
        self._keys = keys
        self.malformed = 0
        self._manager = manager
        self._log = structlog.get_logger().bind(url=url)
        self._open: dict[str, asyncio.Queue[ControlReply]] = {}
        self._start(self._new_socket())

    def _new_socket(self) -> zmq.asyncio.Socket:
        """Return a connected socket. Raises ZMQError."""
        url, server_key = self.address
        opened = self._context.socket(zmq.DEALER)
        try:
            opened.setsockopt(zmq.LINGER, 0)
            opened.setsockopt(zmq.IMMEDIATE, 1)
            opened.setsockopt(zmq.MAXMSGSIZE, MAX_SNAPSHOT_BYTES)
            opened.setsockopt(zmq.RECONNECT_IVL, 50)  # constant: a returning node is reached at once
            opened.setsockopt(zmq.IPV6, int("[" in url))
            if server_key and self._keys is not None:
                self._keys.secure(opened, server_key)
            opened.connect(url)
        except zmq.ZMQError:
            opened.close()
            raise
        return opened

    def _start(self, opened: zmq.asyncio.Socket) -> None:
        self._socket = opened
        self._reader = asyncio.create_task(self._read(opened), name=f"link {self.url}")

    async def renew(self) -> None:
        """Reconnect with a new socket: libzmq never reconnects to a peer that rejected it. Raises ZMQError, with which
        the old socket stays."""
        renewed, old, reader = self._new_socket(), self._socket, self._reader
        self._start(renewed)
        await _close(old, reader)

    @property
    def secured(self) -> bool:
        return bool(self.address[1])

    async def close(self) -> None:
        await _close(self._socket, self._reader)

    async def hello(self, timeout_s: float) -> Welcome:
        """Greet the node and return its answer. Raise NoAnswer, or NotUnderstood for another protocol version."""
        async with _Exchange(self, "", timeout_s) as exchange:
            await exchange.send(Hello(version=VERSION, manager=self._manager))
            reply = await exchange.receive()
            if not isinstance(reply, Welcome):
                raise NotUnderstood(f"a hello was answered with {type(reply).__name__}")
            if reply.version != VERSION:
                raise NotUnderstood(f"the node speaks version {reply.version}, this management plane {VERSION}")
            return reply

    async def push(
        self, snapshot: Snapshot, fetch: Fetch, on_need: Callable[[int], None], timeout_s: float
    ) -> Ack | Nack:
        """Send a snapshot and the bodies that the node requests. Return the node's verdict.

        `timeout_s` applies to each answer. A snapshot that exceeds the size limit of nodes is not sent; the returned
        Nack says so. Raises NoAnswer, NotUnderstood.
        """
        if (size := len(snapshot.body)) > MAX_SNAPSHOT_BYTES:
            message = f"the snapshot has {size:,} bytes, and nodes read at most {MAX_SNAPSHOT_BYTES:,}"
            fault = Fault(snapshot.type, Code.TOO_MANY.name.lower(), message)
            return Nack(snapshot.type, snapshot.generation, snapshot.nonce, [fault], None)
        async with _Exchange(self, snapshot.nonce, timeout_s) as exchange:
            await exchange.send(snapshot)
            reply, sent = await exchange.receive(), "a snapshot"
            if isinstance(reply, NeedBodies):
                on_need(len(reply.digests))
                for start in range(0, max(len(reply.digests), 1), BODIES_AT_ONCE):
                    end = start + BODIES_AT_ONCE
                    bodies = await fetch(reply.digests[start:end])
                    await exchange.send(Bodies(snapshot.nonce, bodies, last=end >= len(reply.digests)))
                reply, sent = await exchange.receive(), "the last body of a snapshot"
            if not isinstance(reply, Ack | Nack):
                raise NotUnderstood(f"{sent} was answered with {type(reply).__name__}")
            return reply

    async def ask(self, question: Question, timeout_s: float) -> ControlReply:
        """Return the answer to one request. Raise NoAnswer, NotUnderstood."""
        async with _Exchange(self, question.nonce, timeout_s) as exchange:
            await exchange.send(question)
            return await exchange.receive()

    async def describe(self, timeout_s: float) -> Description:
        reply = await self.ask(DescribeNode(nonce=new_nonce()), timeout_s)
        if not isinstance(reply, Description):
            raise NotUnderstood(f"describe was answered with {type(reply).__name__}")
        return reply

    async def _read(self, opened: zmq.asyncio.Socket) -> None:
        while True:
            frames = await opened.recv_multipart()
            try:
                reply: ControlReply = decode(_decoder, frames[-1])
            except ProtocolError as error:
                self.malformed += 1
                self._log.warning("control.malformed", field=error.field, reason=error.message[:200])
                continue
            nonce = "" if isinstance(reply, Welcome) else reply.nonce
            queue = self._open.get(nonce)
            if queue is None and isinstance(reply, ControlRefused) and nonce == "" and len(self._open) == 1:
                (queue,) = self._open.values()  # the refusal of an unreadable request carries no nonce
            if queue is None:
                continue
            try:
                queue.put_nowait(reply)
            except asyncio.QueueFull:
                self.malformed += 1


class _Exchange:
    """One exchange of messages. Its nonce is registered from the first message to the last."""

    def __init__(self, link: NodeLink, nonce: str, timeout_s: float) -> None:
        self._link, self._nonce, self._timeout_s = link, nonce, timeout_s
        self._queue: asyncio.Queue[ControlReply] = asyncio.Queue(MAX_UNREAD)

    async def __aenter__(self) -> "_Exchange":
        self._link._open[self._nonce] = self._queue
        return self

    async def __aexit__(self, *_: object) -> None:
        del self._link._open[self._nonce]

    async def send(self, message: ControlRequest) -> None:
        try:
            await self._link._socket.send(encode(message), zmq.NOBLOCK)
        except zmq.ZMQError:  # also the end of the link
            raise NoAnswer(f"{self._link.url} cannot be reached") from None

    async def receive(self) -> ControlReply:
        try:
            # Not `wait_for`: before Python 3.12 it swallows a cancellation if the answer arrives at the same time.
            async with asyncio.timeout(self._timeout_s):
                reply = await self._queue.get()
        except TimeoutError:
            raise NoAnswer(f"{self._link.url} did not answer within {self._timeout_s:g} s") from None
        if isinstance(reply, ControlRefused):
            raise NotUnderstood(f"{reply.code}: {reply.message}" + (f" ({reply.field})" if reply.field else ""))
        return reply


async def _close(opened: zmq.asyncio.Socket, reader: asyncio.Task[None]) -> None:
    reader.cancel()
    try:
        await asyncio.wait({reader})
    finally:
        opened.close()  # also after a cancellation: an open socket would block the context's termination forever


def new_nonce() -> str:
    return os.urandom(12).hex()
