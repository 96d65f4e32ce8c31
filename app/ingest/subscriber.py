"""One node's events: receive, check the numbers, decode strictly, hand on. What cannot be read is counted."""

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog
import zmq
import zmq.asyncio

from app.ingest.fleet import Fleet
from app.ingest.rollup import Rollup
from app.observe.facts import FactHub
from dataplane.protocol.codec import decode
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.events import Event, NodeStats, name_of

Resync = Callable[[], Awaitable[None]]
Secure = Callable[[zmq.Socket[Any]], None]
_SEQ = struct.Struct("<Q")
_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)
MAX_EVENT_BYTES = 16 << 20
GIVE_UP_S = 10.0
"""A secured connection that brings nothing for so long is made anew."""


@dataclass
class IngestCounts:
    """Since the process started."""

    events: int = 0
    malformed: int = 0
    gaps: int = 0
    lost: int = 0
    """Events that the numbers say were sent and that did not come."""


class Subscriber:
    """Listens to one node's publisher until cancelled; `resync` is asked for after a gap."""

    def __init__(
        self,
        node: str,
        fleet: Fleet,
        hub: FactHub,
        rollup: Rollup,
        counts: IngestCounts,
        resync: Callable[[], Awaitable[None]],
        secure: Callable[[zmq.Socket[Any]], None] | None = None,
    ) -> None:
        """`secure` makes the socket one that connects to the node's key alone."""
        self._node = node
        self._fleet = fleet
        self._hub = hub
        self._rollup = rollup
        self._counts = counts
        self._resync = resync
        self._secure = secure
        self._last_seq: int | None = None
        self._quiet: tuple[object, ...] | None = None
        self._log = structlog.get_logger().bind(node=node)

    async def run(self, url: str, context: zmq.asyncio.Context) -> None:
        """Never returns by itself; ZeroMQ reconnects when the node comes back, unless the node turned it away once."""
        while True:
            await self._follow(url, context)

    async def _follow(self, url: str, context: zmq.asyncio.Context) -> None:
        """Until cancelled; a secured connection on which nothing comes is given up."""
        socket = context.socket(zmq.SUB)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_EVENT_BYTES)
            socket.setsockopt(zmq.RECONNECT_IVL, 50)  # each time: a node that comes back is met at once
            socket.setsockopt(zmq.IPV6, int("[" in url))
            if self._secure is not None:
                self._secure(socket)
            socket.subscribe(b"")
            socket.connect(url)
            while True:
                try:
                    # Not `wait_for`: before Python 3.12 it swallows a cancellation when a message came meanwhile.
                    async with asyncio.timeout(None if self._secure is None else GIVE_UP_S):
                        frames = await socket.recv_multipart()
                except TimeoutError:
                    return
                if self.take(frames, time.monotonic(), time.time()):
                    await self._resync()
        finally:
            socket.close()

    def take(self, frames: list[bytes], now: float, at: float) -> bool:
        """Digest one message; True when something was missed and a resync is due."""
        try:
            topic, seq_frame, payload = frames
            (seq,) = _SEQ.unpack(seq_frame)
            event: Event = decode(_decoder, payload)
            if topic.decode("utf-8", "replace") != name_of(event):
                raise ValueError("the topic is not the event's name")
        except (ProtocolError, ValueError, struct.error) as error:
            self._counts.malformed += 1
            self._log.debug("event.malformed", reason=str(error)[:200])
            return False
        self._counts.events += 1
        missed = self._missed(seq)
        self._apply(event, now, at)
        return missed

    def _tell_clock(self) -> None:
        """When it is wrong and when it is right again, not how far it drifts meanwhile."""
        node = self._fleet.nodes.get(self._node)
        if node is None or node.clock_told_off == bool(node.clock_offset_s):
            return
        node.clock_told_off = not node.clock_told_off
        name = "node.clock_off" if node.clock_told_off else "node.clock_right"
        self._log.warning(name, ahead_s=node.clock_offset_s, note="pins end by the node's own clock")
        self._hub.publish(name, self._node, ahead_s=node.clock_offset_s)

    def _missed(self, seq: int) -> bool:
        last, self._last_seq = self._last_seq, seq
        if last is None or seq == last + 1:
            return False
        if seq <= last:  # the process behind the publisher is a new one; its hello tells the rest
            return True
        self._counts.gaps += 1
        self._counts.lost += seq - last - 1
        self._log.warning("events.gap", expected=last + 1, got=seq)
        return True

    def _apply(self, event: Event, now: float, at: float) -> None:
        if isinstance(event, NodeStats):
            self._fleet.heartbeat(self._node, event, now, at)
            self._tell_clock()
            quiet = _without_clock(event)
            if quiet != self._quiet:
                self._quiet = quiet
                self._hub.touch()
            return
        self._fleet.heard(self._node, now, at)
        if not self._rollup.add(self._node, event):
            fields = msgspec.structs.asdict(event)
            fields.pop("at")
            fields.pop("node", None)
            self._hub.publish(name_of(event), self._node, at=event.at, **fields)


def _without_clock(stats: NodeStats) -> tuple[object, ...]:
    return (
        stats.pool,
        stats.totals,
        stats.refused,
        stats.tenants,
        stats.pins,
        stats.engines,
        stats.observed,
        stats.armed,
        stats.policy,
        stats.spaces,
        stats.sweeps,
    )
