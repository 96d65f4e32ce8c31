"""One node's control socket. Talks and matches answers to questions; decides nothing.

Questions carry a nonce, so an answer that comes after its question was given up is recognised and dropped. Nothing is
queued for a node that is not connected: what it should hold may be another thing when it comes back.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable

import msgspec
import structlog
import zmq
import zmq.asyncio

from app.ingest.fleet import Address
from app.push.keys import KeyPair
from dataplane.protocol.codec import decode, encode
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control import (
    MAX_SNAPSHOT_BYTES,
    VERSION,
    Ack,
    Bodies,
    Clear,
    ClearGateway,
    ControlRefused,
    ControlReply,
    ControlRequest,
    Count,
    Demote,
    Describe,
    Description,
    DigestEngine,
    Drain,
    Fault,
    Hello,
    Invalidate,
    ListBlocks,
    ListPrefixes,
    Lookup,
    Nack,
    NeedBodies,
    PrefixKeys,
    Resize,
    Snapshot,
    Trace,
    Verification,
    Verify,
    Welcome,
)
from dataplane.protocol.usage import ReadUsage

BODIES_AT_ONCE = 64
"""Bodies in one message: at most 8 MiB with the largest pins."""
_decoder: msgspec.msgpack.Decoder[ControlReply] = msgspec.msgpack.Decoder(ControlReply)
Question = (
    Drain
    | Describe
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
    | Count
    | Lookup
    | ListBlocks
    | Verify
    | Verification
)
Fetch = Callable[[list[str]], Awaitable[dict[str, bytes]]]


class NoAnswer(Exception):
    """The node did not answer in time, or cannot be reached."""


class NotUnderstood(Exception):
    """The node answered that it did not understand; the sentence is its own."""


class Link:
    """A DEALER to one control URL."""

    def __init__(
        self,
        url: str,
        manager: str,
        context: zmq.asyncio.Context,
        server_key: str = "",
        keys: KeyPair | None = None,
    ) -> None:
        """With a `server_key`, whoever answers proves it, and we prove `keys`."""
        self.url = url
        self.address: Address = (url, server_key)
        self._context = context
        self._keys = keys
        self.malformed = 0
        self._manager = manager
        self._log = structlog.get_logger().bind(url=url)
        self._open: dict[str, asyncio.Queue[ControlReply]] = {}
        self._open_socket()

    def _open_socket(self) -> None:
        url, server_key = self.address
        self._socket = self._context.socket(zmq.DEALER)
        try:
            self._socket.setsockopt(zmq.LINGER, 0)
            self._socket.setsockopt(zmq.IMMEDIATE, 1)
            self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_SNAPSHOT_BYTES)
            self._socket.setsockopt(zmq.RECONNECT_IVL, 50)  # each time: a node that comes back is met at once
            self._socket.setsockopt(zmq.IPV6, int("[" in url))
            if server_key and self._keys is not None:
                self._keys.secure(self._socket, server_key)
            self._socket.connect(url)
        except zmq.ZMQError:
            self._socket.close()  # an open socket would make the context's end wait for ever
            raise
        self._reader = asyncio.create_task(self._read(), name=f"link {url}")

    async def renew(self) -> None:
        """Begin anew: libzmq never comes back to a peer that turned it away."""
        await self.close()
        self._open_socket()

    @property
    def secured(self) -> bool:
        return bool(self.address[1])

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.wait({self._reader})
        self._socket.close()

    async def hello(self, timeout_s: float) -> Welcome:
        """Raises NoAnswer, NotUnderstood (a node that speaks another version)."""
        async with _Talk(self, "", timeout_s) as talk:
            await talk.say(Hello(version=VERSION, manager=self._manager))
            reply = await talk.hear()
            if not isinstance(reply, Welcome):
                raise NotUnderstood(f"a hello was answered with {type(reply).__name__}")
            if reply.version != VERSION:
                raise NotUnderstood(
                    f"the node speaks version {reply.version}, this management plane {VERSION}"
                )
            return reply

    async def push(
        self, snapshot: Snapshot, fetch: Fetch, on_need: Callable[[int], None], timeout_s: float
    ) -> Ack | Nack:
        """Send a snapshot and the bodies that are asked for; the node's verdict. `timeout_s` is for each answer. What
        no node would read is not sent, and refused here."""
        if (size := len(snapshot.body)) > MAX_SNAPSHOT_BYTES:
            message = f"the snapshot has {size:,} bytes, and nodes read at most {MAX_SNAPSHOT_BYTES:,}"
            fault = Fault(snapshot.type, Code.TOO_MANY.name.lower(), message)
            return Nack(snapshot.type, snapshot.generation, snapshot.nonce, [fault], None)
        async with _Talk(self, snapshot.nonce, timeout_s) as talk:
            await talk.say(snapshot)
            while True:
                reply = await talk.hear()
                if isinstance(reply, Ack | Nack):
                    return reply
                if not isinstance(reply, NeedBodies):
                    raise NotUnderstood(f"a snapshot was answered with {type(reply).__name__}")
                on_need(len(reply.digests))
                for start in range(0, max(len(reply.digests), 1), BODIES_AT_ONCE):
                    end = start + BODIES_AT_ONCE
                    bodies = await fetch(reply.digests[start:end])
                    await talk.say(Bodies(snapshot.nonce, bodies, last=end >= len(reply.digests)))

    async def ask(self, question: Question, timeout_s: float) -> ControlReply:
        """The answer to one question. Raises NoAnswer, NotUnderstood."""
        async with _Talk(self, question.nonce, timeout_s) as talk:
            await talk.say(question)
            return await talk.hear()

    async def describe(self, timeout_s: float) -> Description:
        reply = await self.ask(Describe(nonce=new_nonce()), timeout_s)
        if not isinstance(reply, Description):
            raise NotUnderstood(f"describe was answered with {type(reply).__name__}")
        return reply

    async def _read(self) -> None:
        while True:
            frames = await self._socket.recv_multipart()
            try:
                reply: ControlReply = decode(_decoder, frames[-1])
            except ProtocolError as error:
                self.malformed += 1
                self._log.warning("control.malformed", field=error.field, reason=error.message[:200])
                continue
            nonce = "" if isinstance(reply, Welcome) else reply.nonce
            queue = self._open.get(nonce)
            if queue is None and nonce == "" and len(self._open) == 1:
                (queue,) = self._open.values()  # a refusal of something unreadable cannot say of what
            if queue is not None:
                queue.put_nowait(reply)


class _Talk:
    """One conversation: its nonce is open from the first word to the last."""

    def __init__(self, link: Link, nonce: str, timeout_s: float) -> None:
        self._link, self._nonce, self._timeout_s = link, nonce, timeout_s
        self._queue: asyncio.Queue[ControlReply] = asyncio.Queue()

    async def __aenter__(self) -> "_Talk":
        self._link._open[self._nonce] = self._queue
        return self

    async def __aexit__(self, *_: object) -> None:
        del self._link._open[self._nonce]

    async def say(self, message: ControlRequest) -> None:
        try:
            await self._link._socket.send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            raise NoAnswer(f"{self._link.url} cannot be reached") from None

    async def hear(self) -> ControlReply:
        try:
            # Not `wait_for`: before Python 3.12 it swallows a cancellation when the answer came meanwhile.
            async with asyncio.timeout(self._timeout_s):
                reply = await self._queue.get()
        except TimeoutError:
            raise NoAnswer(f"{self._link.url} did not answer within {self._timeout_s:g} s") from None
        if isinstance(reply, ControlRefused):
            raise NotUnderstood(
                f"{reply.code}: {reply.message}" + (f" ({reply.field})" if reply.field else "")
            )
        return reply


def new_nonce() -> str:
    return os.urandom(12).hex()
