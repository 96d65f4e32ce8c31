"""Publishes events to subscribers: ZeroMQ PUB with sequence numbers."""

from __future__ import annotations

from struct import pack

import zmq

from dataplane.base.connection_guard import HANDSHAKE_BYTES, ConnectionGuard
from dataplane.protocol.codec import encode
from dataplane.protocol.event import name_of
from dataplane.protocol.events import Event
from dataplane.sockets.curve import Gate

HIGH_WATER_MARK = 100_000
MAX_RECEIVED_BYTES = 4096
"""Maximum size of a frame that a subscriber sends: a subscription, or a part of the handshake."""


class Publisher:
    """Subscriber of the event bus. Frames: topic, sequence number (u64 little-endian), MessagePack. Never blocks."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], url: str, gate: Gate | None) -> None:
        """`gate` authorizes peers on a socket that other users can reach."""
        self._socket = context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.LINGER, 200)
        self._socket.setsockopt(zmq.IPV6, int("[" in url))
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_RECEIVED_BYTES)
        if gate is not None:
            gate.guard(self._socket, "events")
        self.guard = ConnectionGuard(self._socket, "events", known_bytes=-1 if gate is None else HANDSHAKE_BYTES)
        self._socket.bind(url)
        self.url = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.seq = 0

    def __call__(self, event: Event) -> None:
        topic, body = name_of(event).encode(), encode(event)
        self.seq += 1  # only with a message: a missing number means a lost event
        self._socket.send_multipart([topic, pack("<Q", self.seq), body], zmq.NOBLOCK)

    def close(self) -> None:
        self.guard.close()
        self._socket.close()
