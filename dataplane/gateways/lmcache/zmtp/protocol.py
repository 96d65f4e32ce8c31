"""ZMTP 3, the protocol of ZeroMQ over a stream, as far as a server needs it. This module does no I/O.

    greeting    64 bytes: signature, version, the mechanism NULL, the as-server flag
    READY       a command with the socket's type, in both directions
    message     frames: flags, length, body; all but the last one have the flag MORE

libzmq passes every message to its own I/O thread and back, which costs more than the work of most requests. Clients
still use libzmq; this server reads and writes the connection itself.
"""

from __future__ import annotations

from collections.abc import Sequence

GREETING_BYTES = 64
MAX_COMMAND_BYTES = 1 << 16
MAX_FRAMES = 4096
"""Maximum number of frames in a message, dropped ones included, because each frame costs time however short it is."""
PEERS = (b"DEALER", b"REQ", b"ROUTER")
"""Socket types that a ROUTER may talk to."""

_MORE, _LONG, _COMMAND = 1, 2, 4
_SHORT_HEAD, _LONG_HEAD = 2, 9
_SIGNATURE = 10
_NULL = b"NULL" + bytes(16)
_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + _NULL + bytes(32)


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value


def _command(name: bytes, body: bytes) -> bytes:
    content = bytes((len(name),)) + name + body
    if len(content) < 256:
        return bytes((_COMMAND, len(content))) + content
    return bytes((_COMMAND | _LONG,)) + len(content).to_bytes(8, "big") + content


_READY = _command(b"READY", _property(b"Socket-Type", b"ROUTER") + _property(b"Identity", b""))


class ZmtpError(Exception):
    """The peer violated the supported part of ZMTP 3; the message says how. The connection is no longer usable."""


_HEADS_MORE = [bytes((_MORE, size)) for size in range(256)]
_HEADS_LAST = [bytes((0, size)) for size in range(256)]


def _long_head(flags: int, size: int) -> bytes:
    return bytes((flags | _LONG,)) + size.to_bytes(8, "big")


def message(frames: Sequence[bytes]) -> bytes:
    """Encode a message."""
    parts: list[bytes] = []
    heads = _HEADS_MORE
    for remaining, frame in enumerate(frames, 1 - len(frames)):
        if not remaining:
            heads = _HEADS_LAST
        size = len(frame)
        parts.append(heads[size] if size < 256 else _long_head(heads[0][0], size))
        parts.append(frame)
    return b"".join(parts)


class ZmtpConnection:
    """The protocol state of one connection.

    Call `receive_data` with received bytes, then `next_message` until it returns None, then `give_back` for the bytes
    that were not consumed and must be received again. Send `data_to_send`, and what `message` returns.
    """

    def __init__(self, max_message_bytes: int, max_frames: int) -> None:
        """Begin a connection. Frames of a message beyond `max_frames` are dropped."""
        self._max_bytes = max_message_bytes
        self._max_frames = max_frames
        self.greeted = False
        self.ready = False
        """Whether the peer has sent READY, so that messages may follow."""
        self.data_to_send = bytearray(_GREETING)
        """Bytes that this end must send besides answers. The sender removes them."""
        self._data = b""
        self._at = 0
        self._waiting = bytearray()
        """Start of an incomplete frame or greeting."""
        self._needed = 0
        """Number of bytes that `_waiting` needs before decoding can continue."""
        self._frames: list[bytes] = []
        self._count = self._nbytes = 0
        """Number of frames of the incomplete message, and their bytes."""
        self._interrupted = False
        """Whether a command came between these frames. Commands must not be decoded twice."""
        self._fed = self._done = 0
        """Number of bytes that `next_message` decodes, and how many of them belong to complete messages."""
        self._fresh = True
        """Whether the first of these bytes begins a message."""

    @classmethod
    def continued(cls, max_message_bytes: int, max_frames: int) -> ZmtpConnection:
        """Continue a connection whose handshake is complete."""
        connection = cls(max_message_bytes, max_frames)
        connection.greeted = connection.ready = True
        connection.data_to_send.clear()
        return connection

    @property
    def whole(self) -> bool:
        """Return whether no part of an incomplete message is buffered."""
        return not self._waiting and not self._frames

    @property
    def taken_bytes(self) -> int:
        """Return the buffered bytes of an incomplete message."""
        return len(self._waiting) + self._nbytes

    def receive_data(self, data: bytes) -> None:
        """Add received bytes. Call only after `next_message` has returned None."""
        self._fed = self._done = 0
        self._fresh = self.whole
        if self._waiting:
            self._waiting += data
            if len(self._waiting) < self._needed:
                return
            data, self._waiting = bytes(self._waiting), bytearray()
        self._data, self._at, self._fed = data, 0, len(data)

    def give_back(self, most: int) -> int:
        """Drop the bytes received last that belong to messages not yet returned, and return their number.

        Drop nothing and return 0 if they continue a buffered message, or if they are one message with more than `most`
        bytes.
        """
        if self._interrupted or (not self._done and (not self._fresh or self._fed > most)):
            return 0
        dropped_bytes = self._fed - self._done
        self._data, self._at, self._fed, self._done = b"", 0, 0, 0
        self._waiting, self._needed = bytearray(), 0
        self._frames, self._count, self._nbytes = [], 0, 0
        return dropped_bytes

    def next_message(self) -> list[bytes] | None:
        """Return the frames of the next message, or None if more bytes are needed. Raise ZmtpError on failure."""
        if not self.greeted and not self._greet():
            return None
        data, at = self._data, self._at
        end, needed = len(data), _SHORT_HEAD
        while at + _SHORT_HEAD <= end:
            flags = data[at]
            if flags & _LONG:
                begin = at + _LONG_HEAD
                if begin > end:
                    needed = _LONG_HEAD
                    break
                size = int.from_bytes(data[at + 1 : begin], "big")
            else:
                begin, size = at + _SHORT_HEAD, data[at + 1]
            if flags > 1:
                self._check(flags, size)
            stop = begin + size
            if self._nbytes + size > self._max_bytes:
                raise ZmtpError(f"a message has at most {self._max_bytes} bytes")
            if stop > end:
                needed = stop - at
                break
            at = stop
            if flags & _COMMAND:
                self._commanded(data[begin:stop])
                if self._count:
                    self._interrupted = True
                else:
                    self._done = at
                continue
            if not self.ready:
                raise ZmtpError("expected the command READY before messages")
            if len(self._frames) < self._max_frames:
                self._frames.append(data[begin:stop])
            if flags & _MORE:
                self._nbytes += size
                self._count += 1
                if self._count >= MAX_FRAMES:
                    raise ZmtpError(f"a message has at most {MAX_FRAMES} frames")
                continue
            frames, self._frames = self._frames, []
            self._at, self._count, self._nbytes, self._interrupted = at, 0, 0, False
            self._done = at
            return frames
        self._wait(at, needed)
        return None

    def _wait(self, at: int, needed: int) -> None:
        """Buffer the bytes from `at` on until `needed` bytes are available."""
        if at < len(self._data):
            self._waiting = bytearray(self._data[at:])
            self._needed = needed
        self._data, self._at = b"", 0

    def _greet(self) -> bool:
        data = self._data[self._at :]
        for at, (name, expected) in enumerate(zip(("first", "tenth"), (0xFF, 0x01), strict=True)):
            where = at * (_SIGNATURE - 1)
            if len(data) > where and data[where] & expected != expected:
                raise ZmtpError(f"the {name} byte is not that of a ZeroMQ connection")
        if len(data) > _SIGNATURE and data[_SIGNATURE] < 3:
            raise ZmtpError(f"expected ZMTP 3 or later, got {data[_SIGNATURE]}")
        if len(data) < GREETING_BYTES:
            self._wait(self._at, 0)  # the first bytes already show an invalid greeting
            return False
        if data[_SIGNATURE + 2 : _SIGNATURE + 22] != _NULL:
            raise ZmtpError("expected the mechanism NULL")
        self._at += GREETING_BYTES
        self._done = self._at
        self.greeted = True
        self.data_to_send += _READY
        return True

    def _check(self, flags: int, size: int) -> None:
        if flags & ~(_MORE | _LONG | _COMMAND):
            raise ZmtpError(f"a frame has the flags {flags:#x}")
        if flags & _COMMAND:
            if flags & _MORE:
                raise ZmtpError("a command is no frame of a message")
            if size > MAX_COMMAND_BYTES:
                raise ZmtpError(f"a command has at most {MAX_COMMAND_BYTES} bytes")

    def _commanded(self, body: bytes) -> None:
        name = body[1 : 1 + body[0]] if body else b""
        data = body[1 + len(name) :]
        if not self.ready:
            if name != b"READY":
                raise ZmtpError("expected the command READY")
            kind = _properties(data).get(b"socket-type", b"")
            if kind not in PEERS:
                raise ZmtpError(f"a {kind[:16]!r} socket has no business with a ROUTER")
            self.ready = True
        elif name == b"PING":
            self.data_to_send += _command(b"PONG", data[2:18])  # without the PING's time to live


def _properties(body: bytes) -> dict[bytes, bytes]:
    properties: dict[bytes, bytes] = {}
    at = 0
    while at < len(body):
        name = body[at + 1 : at + 1 + body[at]].lower()
        at += 1 + body[at]
        size = int.from_bytes(body[at : at + 4], "big")
        properties[name] = body[at + 4 : at + 4 + size]
        at += 4 + size
        if at > len(body):
            raise ZmtpError("the command READY ends within a property")
    return properties
