"""The sockets of one rank: PUB for new batches, and ROUTER for batches that a subscriber missed.

Frames of a batch: topic, sequence number (u64 big-endian), MessagePack. The number counts the batches of the socket,
regardless of topic. A subscriber that sees a gap asks the replay socket: it sends a number of eight bytes, and gets
each batch from there on that is still in the buffer, then one with the number -1. This is vLLM's protocol. A request
may come with the empty frame of a REQ socket before it, or, as AIBrix sends it, without; the answer has that frame if
the request had it.

Nothing here blocks. A subscriber whose queue is full misses batches, and a client that does not read its answers loses
its replay. Replays take turns, so that such a client delays no other; at most `REPLAY_QUEUE` batches wait for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from struct import pack
from typing import NamedTuple

import zmq

from dataplane.base.connection_guard import ConnectionGuard
from dataplane.kv_events.messages import rank

MAX_BUFFER_BYTES = 64 << 20
"""Maximum bytes of the batches that are kept for replays, regardless of their number."""
MAX_REPLAYS = 256
"""Maximum number of replays at once. When there are as many, a new request ends the replay that has waited longest."""
REPLAY_QUEUE = 4
"""Batches that wait for one client of the replay socket at a time. A client that does not read takes no more memory
than they do: at most 1.3 MB, with token ids."""
REPLAY_STEP = 50
"""Maximum number of batches that one step sends for all replays together."""
REPLAY_STALLS_S = 10.0
"""Seconds after which a replay is abandoned if its client reads nothing."""
MAX_REQUEST_BYTES = 1024
"""Maximum size of a frame that a peer sends; larger ones end its connection."""
MAX_REQUESTS_AT_ONCE = 64
MAX_RECEIVED_BYTES = 1 << 20
"""Maximum bytes that a client sends on one connection: subscriptions and messages without an end take memory."""
END = pack(">q", -1)


class _Buffered(NamedTuple):
    number: int
    topic: bytes
    payload: bytes
    events: int


@dataclass(slots=True)
class _Replay:
    envelope: list[bytes]
    next: int
    moved_at: float
    """When a batch was last sent."""
    retry_at: float = 0.0


class Stream:
    """Batches of one rank, in order."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        url: str,
        replay_url: str,
        number: int,
        hwm: int,
        buffer_steps: int,
        clock: Callable[[], float],
    ) -> None:
        """`number` is the rank that the batches carry. Raise zmq.ZMQError if a socket cannot be bound."""
        self._clock = clock
        self._tail = rank(number)
        self._steps = buffer_steps if replay_url else 0
        self._buffer: deque[_Buffered] = deque()
        self._buffer_bytes = 0
        self._replays: dict[bytes, _Replay] = {}
        self.seq = 0
        """Number of the next batch."""
        self.published = 0
        self.dropped = 0
        self.replayed = 0
        self.abandoned = 0
        """Number of replays that were abandoned because their client did not read."""
        self.malformed = 0
        """Number of malformed replay requests."""
        self.url = self.replay_url = ""
        self.replay: zmq.Socket[bytes] | None = None
        self._guards: list[ConnectionGuard] = []
        self._pub = context.socket(zmq.PUB)
        try:
            self._pub.setsockopt(zmq.SNDHWM, hwm)
            self._pub.setsockopt(zmq.XPUB_NODROP, 1)
            self.url = self._bound(self._pub, url)
            if replay_url:
                self.replay = context.socket(zmq.ROUTER)
                self.replay.setsockopt(zmq.SNDHWM, REPLAY_QUEUE)
                self.replay.setsockopt(zmq.RCVHWM, MAX_REQUESTS_AT_ONCE)
                self.replay.setsockopt(zmq.ROUTER_MANDATORY, 1)  # so that a full queue is an error, not a loss
                self.replay_url = self._bound(self.replay, replay_url)
        except zmq.ZMQError:
            self.close()
            raise

    def _bound(self, socket: zmq.Socket[bytes], url: str) -> str:
        """Bind a socket and return its URL with the actual port."""
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_REQUEST_BYTES)
        socket.setsockopt(zmq.IPV6, int("[" in url))
        self._guards.append(ConnectionGuard(socket, "kv_events", max_s=inf, max_bytes=MAX_RECEIVED_BYTES))
        socket.bind(url)
        return socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def guard(self) -> None:
        """End connections of clients that send too much. Called periodically."""
        for guard in self._guards:
            guard.step()

    # ---- publishing

    def send(self, topic: bytes, head: bytes, events: int) -> None:
        """Publish a batch: `head` is its encoding without the rank, `events` the number of its events."""
        number, payload = self.seq, head + self._tail
        self.seq += 1
        frames = [topic, pack(">Q", number), payload]
        try:
            self._pub.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            # The queue of a subscriber is full: send to the others; this one will notice the gap.
            self.dropped += events
            self._pub.setsockopt(zmq.XPUB_NODROP, 0)
            self._pub.send_multipart(frames, zmq.NOBLOCK)
            self._pub.setsockopt(zmq.XPUB_NODROP, 1)
        self.published += events
        if not self._steps:
            return
        self._buffer.append(_Buffered(number, topic, payload, events))
        self._buffer_bytes += len(payload)
        while len(self._buffer) > self._steps or self._buffer_bytes > MAX_BUFFER_BYTES:
            self._buffer_bytes -= len(self._buffer.popleft().payload)

    def skip(self, events: int) -> None:
        """Skip a sequence number, so that subscribers notice that `events` events were lost."""
        self.seq += 1
        self.dropped += events

    # ---- replays

    def receive(self) -> bool:
        """Take requests for replays. Return whether `step` must be called."""
        assert self.replay is not None
        for _ in range(MAX_REQUESTS_AT_ONCE):
            try:
                frames = self.replay.recv_multipart(zmq.NOBLOCK)
            except zmq.ZMQError:
                break
            delimited = len(frames) == 3 and not frames[1]
            if not (delimited or len(frames) == 2) or len(frames[-1]) != 8:
                self.malformed += 1
                continue
            if frames[0] not in self._replays and len(self._replays) >= MAX_REPLAYS:
                self._abandon(min(self._replays, key=lambda client: self._replays[client].moved_at))
            start = int.from_bytes(frames[-1], "big")
            self._replays[frames[0]] = _Replay(frames[:-1], start, self._clock())
        return bool(self._replays)

    def step(self) -> bool:
        """Send the next batches of the open replays, in turns. Return whether any replay is still open."""
        waiting = list(self._replays)
        remaining = REPLAY_STEP
        while waiting and remaining > 0:
            moved: list[bytes] = []
            for client in waiting:
                if remaining > 0 and self._advance(client):
                    moved.append(client)
                    remaining -= 1
            waiting = moved
        for client in waiting:  # they come last in the next step
            if client in self._replays:
                self._replays[client] = self._replays.pop(client)
        return self.receive()

    def _advance(self, client: bytes) -> bool:
        """Send one batch of a replay, or its end. Return whether it was a batch; a replay that is over is removed."""
        replay, now = self._replays[client], self._clock()
        if now < replay.retry_at:
            return False
        first = self._buffer[0].number if self._buffer else self.seq
        at = self._position(replay.next, first)
        buffered = self._buffer[at] if at < len(self._buffer) else None
        frames = (
            [b"", END, b""] if buffered is None else [buffered.topic, pack(">Q", buffered.number), buffered.payload]
        )
        assert self.replay is not None
        try:
            self.replay.send_multipart([*replay.envelope, *frames], zmq.NOBLOCK)
        except zmq.Again:
            stalled_s = now - replay.moved_at
            if stalled_s > REPLAY_STALLS_S:
                self._abandon(client)
            replay.retry_at = now + stalled_s / 4
            return False
        except zmq.ZMQError:  # the client is gone
            del self._replays[client]
            return False
        if buffered is None:
            del self._replays[client]
            return False
        replay.moved_at = now
        replay.next = buffered.number + 1
        self.replayed += buffered.events
        return True

    def _abandon(self, client: bytes) -> None:
        del self._replays[client]
        self.abandoned += 1

    def _position(self, number: int, first: int) -> int:
        """Return the position in the buffer of the first batch with at least this number."""
        if number <= first:
            return 0
        if number >= self.seq:
            return len(self._buffer)
        low, high = 0, min(len(self._buffer), number - first)  # skipped numbers only make positions smaller
        while low < high:
            middle = (low + high) // 2
            if self._buffer[middle].number < number:
                low = middle + 1
            else:
                high = middle
        return low

    def close(self) -> None:
        for guard in self._guards:
            guard.close()
        self._pub.close(linger=200)
        if self.replay is not None:
            self.replay.close(linger=0)
