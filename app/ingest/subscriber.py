"""Subscription to one node's events: receive, check sequence numbers, decode strictly, pass on."""

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
from app.observe.catalogue.fleet import NodeClockCorrected, NodeClockSkewed
from app.observe.events import EventBus
from dataplane.protocol.bounded import MAX_TIME_S
from dataplane.protocol.codec import decode
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.event import name_of
from dataplane.protocol.event_sums import BLOCK_TRAFFIC, EventSums
from dataplane.protocol.events import CacheStartedCold, Event
from dataplane.protocol.stats.node import NodeStats

Resync = Callable[[], Awaitable[None]]
Secure = Callable[[zmq.Socket[Any]], None]
_SEQ = struct.Struct("<Q")
_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)
MAX_EVENT_BYTES = 16 << 20
GIVE_UP_S = 10.0
"""Seconds without a message after which a secured connection is renewed."""


@dataclass
class IngestCounts:
    """Counts since the process started."""

    events: int = 0
    malformed: int = 0
    lost: int = 0
    """Events that were sent, according to the sequence numbers, but did not arrive."""


class Rollup:
    """Sums block traffic between flushes: a busy node stores and evicts thousands of times per second. Events of one
    kind for one tenant (and reason) become one event, with sums and the number of events."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._sums = EventSums()

    def add(self, node: str, event: Event) -> bool:
        """Add block traffic. Return False for any other event, which is then published individually."""
        if not isinstance(event, BLOCK_TRAFFIC):
            return False
        self._sums.add(event, node)
        return True

    def flush(self) -> None:
        for node, event in self._sums.take():
            self._bus.publish(event, node=node, at=event.at)


class Subscriber:
    """Listens to one node's publisher until cancelled. Calls `resync` after a gap."""

    def __init__(
        self,
        node: str,
        fleet: Fleet,
        bus: EventBus,
        rollup: Rollup,
        counts: IngestCounts,
        resync: Callable[[], Awaitable[None]],
        compare: Callable[[str, NodeStats], None],
        secure: Callable[[zmq.Socket[Any]], None] | None = None,
    ) -> None:
        """Create it. `compare` is called with the node's name and each of its stats; it must not block.

        `secure` makes the socket connect only to the holder of the node's key.
        """
        self._node = node
        self._fleet = fleet
        self._bus = bus
        self._rollup = rollup
        self._counts = counts
        self._resync = resync
        self._compare = compare
        self._secure = secure
        self._last_seq: int | None = None
        self._quiet: tuple[object, ...] | None = None
        self._log = structlog.get_logger().bind(node=node)

    async def run(self, url: str, context: zmq.asyncio.Context) -> None:
        """Listen until cancelled. ZeroMQ reconnects when the node comes back, unless the node has once rejected it."""
        while True:
            await self._follow(url, context)

    async def _follow(self, url: str, context: zmq.asyncio.Context) -> None:
        """Listen until cancelled, or until a secured connection has brought no message for GIVE_UP_S seconds."""
        socket = context.socket(zmq.SUB)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_EVENT_BYTES)
            socket.setsockopt(zmq.RECONNECT_IVL, 50)  # constant: a returning node is reached at once
            socket.setsockopt(zmq.IPV6, int("[" in url))
            if self._secure is not None:
                self._secure(socket)
            socket.subscribe(b"")
            socket.connect(url)
            while True:
                try:
                    # Not `wait_for`: before Python 3.12 it swallows a cancellation if a message arrives at the same
                    # time.
                    async with asyncio.timeout(None if self._secure is None else GIVE_UP_S):
                        frames = await socket.recv_multipart()
                except TimeoutError:
                    return
                if self.take(frames, time.monotonic(), time.time()):
                    await self._resync()
        finally:
            socket.close()

    def take(self, frames: list[bytes], now: float, at: float) -> bool:
        """Process one message. Return True if messages were missed and a resync is due."""
        try:
            topic, seq_frame, payload = frames
            (seq,) = _SEQ.unpack(seq_frame)
            event: Event = decode(_decoder, payload)
            if topic.decode("utf-8", "replace") != name_of(event):
                raise ValueError("the topic is not the event's name")
            if not 0 <= event.at <= MAX_TIME_S:  # also true for NaN
                raise ValueError(f"expected a time in Unix seconds, got {event.at}")
        except (ProtocolError, ValueError, struct.error) as error:
            self._counts.malformed += 1
            self._log.debug("event.malformed", reason=str(error)[:200])
            return False
        self._counts.events += 1
        missed = self._missed(seq)
        self._apply(event, now, at)
        return missed

    def _report_clock(self) -> None:
        """Publish when the node's clock becomes wrong and when it is right again, but not how it drifts in between."""
        node = self._fleet.nodes.get(self._node)
        if node is None or node.clock_is_off == bool(node.clock_offset_s):
            return
        node.clock_is_off = not node.clock_is_off
        event = (NodeClockSkewed if node.clock_is_off else NodeClockCorrected)(node.clock_offset_s)
        self._log.warning(name_of(event), ahead_s=node.clock_offset_s, note="pins end by the node's own clock")
        self._bus.publish(event, node=self._node)

    def _missed(self, seq: int) -> bool:
        last, self._last_seq = self._last_seq, seq
        if last is None or seq == last + 1:
            return False
        if seq <= last:  # the publisher's process is a new one; its hello brings the rest
            return True
        self._counts.lost += seq - last - 1
        self._log.warning("events.gap", expected=last + 1, got=seq)
        return True

    def _apply(self, event: Event, now: float, at: float) -> None:
        if isinstance(event, NodeStats):
            self._fleet.heartbeat(self._node, event, now, at)
            self._report_clock()
            self._compare(self._node, event)
            quiet = _without_clock(event)
            if quiet != self._quiet:
                self._quiet = quiet
                self._bus.touch()
            return
        self._fleet.on_message(self._node, now, at)
        if isinstance(event, CacheStartedCold):  # `CacheWatch` takes it from the node's stats, which repeat it
            return
        if not self._rollup.add(self._node, event):
            self._bus.publish(event, node=self._node, at=event.at)


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
