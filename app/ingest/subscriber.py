"""Subscriptions to the events of nodes (receive, check sequence numbers, decode strictly), and the intake of events."""

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable
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


class EventIntake:
    """Takes the events of all nodes: keeps their reports, and publishes all else.

    Sums block traffic between flushes: a busy node stores and evicts thousands of times per second. Events of one kind
    for one tenant (and reason) become one event, with sums and the number of events.
    """

    def __init__(self, fleet: Fleet, bus: EventBus, compare: Callable[[str, NodeStats], None]) -> None:
        """`compare` is called with a node's name and each of its stats; it must not block."""
        self._fleet = fleet
        self._bus = bus
        self._compare = compare
        self._sums = EventSums()
        self.events = 0
        """Number of events since the process started."""
        self.malformed = 0
        self.lost = 0
        """Events that were sent, according to the sequence numbers, but did not arrive."""
        self._log = structlog.get_logger()

    def take(self, node: str, event: Event, now: float, at: float) -> None:
        self.events += 1
        if isinstance(event, NodeStats):
            known = self._fleet.nodes.get(node)
            before = None if known is None else known.stats
            self._fleet.heartbeat(node, event, now, at)
            self._report_clock(node)
            self._compare(node, event)
            if known is not None and (before is None or _without_clock(before) != _without_clock(event)):
                self._bus.touch()
            return
        self._fleet.on_message(node, now, at)
        if isinstance(event, BLOCK_TRAFFIC):
            self._sums.add(event, node)
        elif not isinstance(event, CacheStartedCold):  # `CacheWatch` takes it from the node's stats, which repeat it
            self._bus.publish(event, node=node, at=event.at)

    def flush(self) -> None:
        """Publish the sums of block traffic."""
        for node, event in self._sums.take():
            self._bus.publish(event, node=node, at=event.at)

    def _report_clock(self, name: str) -> None:
        """Publish when a node's clock becomes wrong and when it is right again, but not how it drifts in between."""
        node = self._fleet.nodes.get(name)
        if node is None or node.clock_is_off == bool(node.clock_offset_s):
            return
        node.clock_is_off = not node.clock_is_off
        event = (NodeClockSkewed if node.clock_is_off else NodeClockCorrected)(node.clock_offset_s)
        note = "pins end by the node's own clock"
        self._log.warning(name_of(event), node=name, ahead_s=node.clock_offset_s, note=note)
        self._bus.publish(event, node=name)


class Subscriber:
    """Listens to one node's publisher until cancelled. Calls `resync` after a gap."""

    def __init__(self, node: str, intake: EventIntake, resync: Resync, secure: Secure | None = None) -> None:
        """`secure` makes the socket connect only to the holder of the node's key."""
        self._node = node
        self._intake = intake
        self._resync = resync
        self._secure = secure
        self._last_seq: int | None = None
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
            self._intake.malformed += 1
            self._log.debug("event.malformed", reason=str(error)[:200])
            return False
        missed = self._missed(seq)
        self._intake.take(self._node, event, now, at)
        return missed

    def _missed(self, seq: int) -> bool:
        last, self._last_seq = self._last_seq, seq
        if last is None or seq == last + 1:
            return False
        if seq <= last:  # the publisher's process is a new one; its hello brings the rest
            return True
        self._intake.lost += seq - last - 1
        self._log.warning("events.gap", expected=last + 1, got=seq)
        return True


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
