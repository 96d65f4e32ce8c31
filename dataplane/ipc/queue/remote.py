"""Readers on other machines: the same messages over ZeroMQ, with their numbers in the queue, without silent loss.

The writer blocks when a reader's queue is full (XPUB_NODROP), as it does for readers in shared memory. The kernel ends
the connection of a process that dies. TCP keepalive detects a machine that vanishes, as does the deadline of the writer
while data is under way: ZeroMQ's heartbeats would also disconnect slow readers. Connections are encrypted with CURVE,
also on loopback, which any user of the machine reaches: only readers with the key in the handle can connect, and no
other process can pose as the writer. A process that takes over the queue uses the same endpoint and the same key, so
readers connect to it by themselves; it finds the secret key in the memory of the queue.

A reader subscribes to all messages, and to a topic of its own that no message has. The writer counts these topics:
however often a connection subscribes to one, ZeroMQ reports its end once.
"""

from __future__ import annotations

import ipaddress
import os
import time
from contextlib import suppress
from struct import Struct
from typing import Any, TypeVar

import zmq
from zmq.utils.monitor import recv_monitor_message

from dataplane.ipc.arguments import instance
from dataplane.ipc.queue.errors import CorruptMessage, MessageLost, QueueCancelled, QueueError, WriterGone
from dataplane.ipc.queue.layout import REMOTE_SECRET_BYTES, WORD, QueueHeader
from dataplane.ipc.queue.payload import Payload, parse
from dataplane.ipc.queue.reader import Receive
from dataplane.ipc.queue.ring import QueueHandle, ShmRingBuffer, Side, take

HIGH_WATER_MARK = 256
"""Messages that wait at each end of a connection for a slow reader."""
SLICE_S = 0.1
_HEADER = Struct("<2Q")
"""A message is one frame: a word with its number and the number of its buffers, the length of its body, its payload."""
_COPIED_BYTES = 1 << 16
"""Smaller frames are copied into ZeroMQ's memory, which takes less time than sharing them."""
_LARGE_BYTES = 1 << 17
"""After a message of at least this size, the next one is read in ZeroMQ's memory: a copy this large, and the decoded
message beside it, make the C library return memory to the kernel and take it back for each message."""
_SMALL_BYTES = 1 << 12
"""The body of a smaller frame is copied, which takes less time than a view of it."""
_NOBLOCK = int(zmq.NOBLOCK)
_MESSAGES, _REMOTE_READERS = int(QueueHeader.MESSAGES), int(QueueHeader.REMOTE_READERS)
_COUNT_BITS = 16
_COUNT_MASK = (1 << _COUNT_BITS) - 1
_TAKE_EVERY_S = 0.1
_TAKE_AT_ONCE = 256
MAX_RECEIVED_BYTES = 4096
"""Readers send nothing but their subscription."""
HANDSHAKE_MS = 2000
"""Longest handshake: a peer without the key takes a descriptor of the writer no longer than this."""
_MAX_MS = (1 << 31) - 1
_KEY_BYTES = 40
_MAX_PORT = (1 << 16) - 1
_CLOSED = b"closed"
_TOPIC = b"larder-reader:"
"""Begins the topic that a reader is counted by; 16 random bytes follow."""

Message = TypeVar("Message", covariant=True)


class RemoteWriter(Side):
    """The endpoint that sends to remote readers. Its caller has the lock of the writer."""

    def __init__(self, ring: ShmRingBuffer, remote: str) -> None:
        """`ring`: the ring whose messages are sent, which has the secret key if there was a writer before. `remote`:
        `tcp://<address>`, or `tcp://<address>:<port>`. Raises ValueError, TypeError, and ZMQError if the endpoint
        cannot be bound."""
        address, port = _parse(remote)
        super().__init__()
        self._words = ring.memory.words
        secret_at = QueueHeader.REMOTE_SECRET * WORD
        stored = ring.memory.bytes[secret_at : secret_at + REMOTE_SECRET_BYTES]
        if not any(stored):
            stored[:] = zmq.curve_keypair()[1]
        self._context = zmq.Context()
        self._socket = socket = self._context.socket(zmq.XPUB)
        plain: Any = super(zmq.Socket, socket)
        self._send = plain.send
        """ZeroMQ's `send` without the conversions of pyzmq's Python method, which take as long as sending."""
        try:
            socket.set(zmq.SNDHWM, HIGH_WATER_MARK)
            socket.set(zmq.XPUB_NODROP, 1)
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.MAXMSGSIZE, MAX_RECEIVED_BYTES)
            socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
            _keep_alive(socket)
            self.key = zmq.curve_public(bytes(stored))
            socket.set(zmq.CURVE_SERVER, 1)
            socket.set(zmq.CURVE_SECRETKEY, bytes(stored))
            if ":" in address:
                socket.set(zmq.IPV6, 1)
            socket.bind(f"tcp://{address}:{port}")
        except BaseException:
            self.close(0.0)
            raise
        self.endpoint = bytes(socket.getsockopt(zmq.LAST_ENDPOINT)).decode().rstrip("\0")
        self._topics: set[bytes] = set()
        """Topics of the readers that are connected."""
        self._words[_REMOTE_READERS] = 0
        self._take_at = 0.0

    def send(self, payload: Payload, deadline: float | None) -> None:
        """Send a message. Raises TimeoutError if readers are too slow; then no reader gets it."""
        sequence = self._words[_MESSAGES]
        if (now := time.monotonic()) >= self._take_at:
            self._take_at = now + _TAKE_EVERY_S
            self._take_subscriptions()
        body, buffers = payload
        header = _HEADER.pack(sequence << _COUNT_BITS | len(buffers), len(body))
        frame: bytes | bytearray = header + body
        if buffers:
            frame = bytearray(header).ljust(len(header) + payload.nbytes, b"\0")
            payload.write(memoryview(frame)[len(header) :])
        try:  # a large frame is sent without another copy
            self._send(frame, _NOBLOCK, len(frame) < _COPIED_BYTES)
        except zmq.Again:
            self._send_slowly(frame, deadline)

    def _send_slowly(self, frame: bytes | bytearray, deadline: float | None) -> None:
        while True:
            self._check_cancelled()
            remaining_s = SLICE_S if deadline is None else min(SLICE_S, max(deadline - time.monotonic(), 0.0))
            self._socket.set(zmq.SNDTIMEO, int(remaining_s * 1000))
            try:
                self._send(frame, 0, len(frame) < _COPIED_BYTES)
            except zmq.Again:
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError(f"remote readers of {self.endpoint} are too slow") from None
            else:
                return

    def wait_for_readers(self, count: int, deadline: float | None) -> None:
        """Wait until `count` readers are connected. Raises TimeoutError."""
        while len(self._topics) < count:
            self._check_cancelled()
            remaining_s = SLICE_S if deadline is None else min(SLICE_S, deadline - time.monotonic())
            if remaining_s <= 0:
                raise TimeoutError(f"{len(self._topics)} of {count} remote readers joined {self.endpoint}")
            self._socket.poll(int(remaining_s * 1000) + 1)
            self._take_subscriptions()

    def _take_subscriptions(self) -> None:
        with suppress(zmq.Again):
            for _ in range(_TAKE_AT_ONCE):
                change = self._socket.recv(zmq.NOBLOCK)
                kind, topic = change[:1], change[1:]
                if kind == b"\x00":
                    self._topics.discard(topic)
                elif kind == b"\x01" and topic.startswith(_TOPIC):
                    self._topics.add(topic)
        self._words[_REMOTE_READERS] = len(self._topics)

    def cancel(self) -> None:
        """End all waits, present and later ones, with QueueCancelled, within a tenth of a second."""
        self._closing = True

    def _check_cancelled(self) -> None:
        if self._closing:
            raise QueueCancelled(f"the queue of {self.endpoint} was closed or cancelled by another thread")

    def close(self, linger_s: float = 1.0) -> None:
        """Send the readers the end of the queue, and close the endpoint after at most `linger_s` seconds."""
        if not self._open:
            return
        self._open = False
        with suppress(zmq.ZMQError):
            self._socket.send(_CLOSED, zmq.NOBLOCK)
        self._socket.close(linger=min(int(linger_s * 1000), _MAX_MS))
        self._context.term()
        with suppress(ValueError):  # the memory was unmapped before
            self._words[_REMOTE_READERS] = 0


class RemoteReader(Side):
    """A reader over ZeroMQ, which reads messages from the time of its connection. Threads may share it."""

    def __init__(self, handle: QueueHandle) -> None:
        """Connect to the endpoint of the handle. Raises ValueError if it has none, or no key of the right form."""
        if handle.remote is None:
            raise ValueError(f"remote: the queue {handle.name!r} has no endpoint for remote readers")
        if len(handle.remote_key) != _KEY_BYTES:
            raise ValueError(f"handle: expected a key of {_KEY_BYTES} bytes, got {len(handle.remote_key)}")
        super().__init__()
        self.name = handle.name
        self._cancelled = False
        self._context = zmq.Context()
        self._socket = socket = self._context.socket(zmq.SUB)
        self._receive: Any = socket.recv
        self._monitor = socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED
        )
        try:
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.RECONNECT_IVL, 50)
            socket.set(zmq.RCVHWM, HIGH_WATER_MARK)
            socket.set(zmq.RCVTIMEO, int(SLICE_S * 1000))
            _keep_alive(socket)
            public, secret = zmq.curve_keypair()
            socket.set(zmq.CURVE_SERVERKEY, handle.remote_key)
            socket.set(zmq.CURVE_PUBLICKEY, public)
            socket.set(zmq.CURVE_SECRETKEY, secret)
            if "[" in handle.remote:
                socket.set(zmq.IPV6, 1)
            socket.set(zmq.SUBSCRIBE, b"")
            socket.set(zmq.SUBSCRIBE, _TOPIC + os.urandom(16))
            socket.connect(handle.remote)
        except zmq.ZMQError as error:
            self.close()
            raise ValueError(f"handle: {handle.remote!r} or its key cannot be used: {error}") from None
        self._large = False
        """Whether the last message was large."""
        self._next: int | None = None
        self._unread: tuple[Any] | None = None
        """The message that arrived after lost ones, for the next call."""
        self._gone = False

    def read(self, receive: Receive[Message], deadline: float | None = None) -> Message:
        """Wait for the next message, as `ShmRingReader.read` does."""
        lock = self._lock
        if not lock.acquire(False):
            take(lock, deadline)
        try:
            if not self._open:
                raise QueueError(f"{self.name!r} was closed by this reader, or belongs to the parent process")
            if self._unread is not None:
                unread, self._unread = self._unread, None
                return unread[0]  # type: ignore[no-any-return]
            try:
                frame = self._frame(_NOBLOCK)
            except zmq.Again:
                frame = self._wait(deadline)
            return self._received(frame, receive)
        finally:
            lock.release()

    def _frame(self, flags: int) -> bytes | memoryview:
        return self._receive(flags, False).buffer if self._large else self._receive(flags)  # type: ignore[no-any-return]

    def _wait(self, deadline: float | None) -> bytes | memoryview:
        while True:
            remaining_s = SLICE_S if deadline is None else min(SLICE_S, deadline - time.monotonic())
            try:
                if remaining_s == SLICE_S or self._socket.poll(max(int(remaining_s * 1000), 0)):
                    return self._frame(0)
            except zmq.Again:
                pass
            if self._cancelled or self._closing:
                self._cancelled = False
                raise QueueCancelled(f"the wait for {self.name!r} was cancelled")
            if self._writer_gone():
                raise WriterGone(
                    f"the writer of {self.name!r} is not connected: it exited, or the handle is of another queue"
                )
            if remaining_s <= 0:
                raise TimeoutError(f"no message in {self.name!r}")

    def _received(self, frame: bytes | memoryview, receive: Receive[Message]) -> Message:
        if len(frame) < _HEADER.size:
            if frame == _CLOSED:
                raise WriterGone(f"the writer of {self.name!r} closed it")
            raise CorruptMessage(f"a message of {len(frame)} bytes in {self.name!r}")
        self._large = len(frame) >= _LARGE_BYTES
        header, size = _HEADER.unpack_from(frame)
        sequence, count = header >> _COUNT_BITS, header & _COUNT_MASK
        expected = self._next
        # Lower by one: a writer was killed after it sent the message, and before it counted it.
        lost = expected is not None and sequence > expected
        if not lost:
            self._next = sequence + 1  # also if it cannot be decoded
        if not count and size == len(frame) - _HEADER.size < _SMALL_BYTES:
            message = receive(frame[_HEADER.size :], (), False)
        else:
            owned = isinstance(frame, memoryview)
            message = receive(*parse(memoryview(frame)[_HEADER.size :], count, size), owned)
        self._next = sequence + 1
        if lost:
            self._unread = (message,)
            raise MessageLost(f"{self.name!r}: message {sequence} arrived, and {expected} was expected")
        return message

    def _writer_gone(self) -> bool:
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)
            self._gone = event["event"] != zmq.EVENT_HANDSHAKE_SUCCEEDED
        return self._gone

    def wait_for_messages(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` seconds, and at most a tenth of a second. Return whether `read` has a message."""
        wait_s = min(timeout_s, SLICE_S)
        if not self._lock.acquire(timeout=wait_s):
            return False
        try:
            return not self._open or self._unread is not None or bool(self._socket.poll(int(wait_s * 1000)))
        finally:
            self._lock.release()

    def cancel(self) -> None:
        """End a wait of another thread, or else the next wait, with QueueCancelled, within a tenth of a second."""
        self._cancelled = True

    def close(self) -> None:
        """Disconnect, and end the waits of other threads."""
        self._closing = True
        with self._lock:
            if not self._open:
                return
            self._open = False
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._socket.close(linger=0)
            self._context.term()


def _keep_alive(socket: zmq.Socket[bytes]) -> None:
    socket.set(zmq.TCP_KEEPALIVE, 1)
    socket.set(zmq.TCP_KEEPALIVE_IDLE, 1)
    socket.set(zmq.TCP_KEEPALIVE_INTVL, 1)
    socket.set(zmq.TCP_KEEPALIVE_CNT, 3)


def _parse(remote: str) -> tuple[str, str]:
    """Return the address and the port (`*`: any) of `tcp://<address>[:<port>]`. Raises ValueError, and TypeError."""
    instance("remote", remote, str)
    address, _, port = remote.removeprefix("tcp://").rpartition(":")
    if not port.isdecimal():
        address, port = remote.removeprefix("tcp://"), "*"
    try:
        parsed = ipaddress.ip_address(address.strip("[]"))
        if port != "*" and int(port) > _MAX_PORT:
            raise ValueError
    except ValueError:
        raise ValueError(f"remote: expected tcp://<IP address>[:<port>], not {remote!r}") from None
    if parsed.is_unspecified:
        raise ValueError(f"remote: readers cannot connect to {address}: give the address of this machine that they use")
    return address, port
