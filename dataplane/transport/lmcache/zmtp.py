"""ZMTP 3, the bytes of ZeroMQ over a stream, as far as a server needs it: no I/O here.

    greeting    64 bytes: signature, version, the mechanism NULL, whether it is a server
    READY       a command with the socket's type, in both directions
    message     frames: flags, length, body; all but the last one have the flag MORE

Sockets of libzmq hand every message to a thread of theirs and back, which costs more than what most requests ask for.
Clients keep their libzmq; this end reads and writes the connection itself.
"""

from __future__ import annotations

from collections.abc import Sequence

GREETING_BYTES = 64
MAX_COMMAND_BYTES = 1 << 16
MAX_FRAMES = 4096
"""Of a message, with those that are left out: each costs time, however short it is."""
PEERS = (b"DEALER", b"REQ", b"ROUTER")
"""Types of sockets that a ROUTER speaks with."""

_MORE, _LONG, _COMMAND = 1, 2, 4
_SHORT_HEAD, _LONG_HEAD = 2, 9
_SIGNATURE = 10
_NULL = b"NULL" + bytes(16)
_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + _NULL + bytes(32)


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value


def _command(name: bytes, body: bytes) -> bytes:
    whole = bytes((len(name),)) + name + body
    if len(whole) < 256:
        return bytes((_COMMAND, len(whole))) + whole
    return bytes((_COMMAND | _LONG,)) + len(whole).to_bytes(8, "big") + whole


_READY = _command(b"READY", _property(b"Socket-Type", b"ROUTER") + _property(b"Identity", b""))


class Malformed(Exception):
    """This is no ZMTP 3 that is spoken here; the sentence says why. The connection is of no use any more."""


_HEADS_MORE = [bytes((_MORE, size)) for size in range(256)]
_HEADS_LAST = [bytes((0, size)) for size in range(256)]


def _long_head(flags: int, size: int) -> bytes:
    return bytes((flags | _LONG,)) + size.to_bytes(8, "big")


def message(frames: Sequence[bytes]) -> bytes:
    """A message as bytes."""
    parts: list[bytes] = []
    heads = _HEADS_MORE
    for left, frame in enumerate(frames, 1 - len(frames)):
        if not left:
            heads = _HEADS_LAST
        size = len(frame)
        parts.append(heads[size] if size < 256 else _long_head(heads[0][0], size))
        parts.append(frame)
    return b"".join(parts)


class Stream:
    """The bytes of one connection, and what they say. `feed` what came, then ask `next` until there is nothing, then
    `give_back` what was not handed on, to be fed again."""

    def __init__(self, max_message_bytes: int, max_frames: int) -> None:
        """Frames of a message beyond `max_frames` are left out."""
        self._max_bytes = max_message_bytes
        self._max_frames = max_frames
        self.greeted = False
        self.ready = False
        """The peer said what it is: messages may come."""
        self.reply = bytearray(_GREETING)
        """What this end has to say, in order, besides answers. Whoever sends it takes it out."""
        self._data = b""
        self._at = 0
        self._waiting = bytearray()
        """The begin of something that has not come whole."""
        self._wanted = 0
        """So many bytes must have come before it is worth looking."""
        self._frames: list[bytes] = []
        self._count = self._nbytes = 0
        """Frames of the message that is coming, and their bytes."""
        self._interrupted = False
        """A command came between them, which is heard once."""
        self._fed = self._done = 0
        """Bytes that `next` looks at, and those of them that are of messages that came whole."""
        self._fresh = True
        """The first of them begins a message."""

    @classmethod
    def under_way(cls, max_message_bytes: int, max_frames: int) -> Stream:
        """Of a connection both of whose ends said what they are."""
        stream = cls(max_message_bytes, max_frames)
        stream.greeted = stream.ready = True
        stream.reply.clear()
        return stream

    @property
    def whole(self) -> bool:
        """Nothing of a message was taken that has not come whole."""
        return not self._waiting and not self._frames

    @property
    def taken_bytes(self) -> int:
        """Of a message that has not come whole."""
        return len(self._waiting) + self._nbytes

    def feed(self, data: bytes) -> None:
        """Bytes that came. Not before `next` found nothing."""
        self._fed = self._done = 0
        self._fresh = self.whole
        if self._waiting:
            self._waiting += data
            if len(self._waiting) < self._wanted:
                return
            data, self._waiting = bytes(self._waiting), bytearray()
        self._data, self._at, self._fed = data, 0, len(data)

    def give_back(self, most: int) -> int:
        """Forget the end of what was fed last, as far as it is of messages that were not handed on: so many bytes. 0
        when one message begins there that has more than `most` already: of that one everything is kept."""
        if self._interrupted or (not self._done and (not self._fresh or self._fed > most)):
            return 0
        left = self._fed - self._done
        self._data, self._at, self._fed, self._done = b"", 0, 0, 0
        self._waiting, self._wanted = bytearray(), 0
        self._frames, self._count, self._nbytes = [], 0, 0
        return left

    def next(self) -> list[bytes] | None:
        """The frames of the next message; None when more must come first. Raises Malformed."""
        if not self.greeted and not self._greet():
            return None
        data, at = self._data, self._at
        end, wanted = len(data), _SHORT_HEAD
        while at + _SHORT_HEAD <= end:
            flags = data[at]
            if flags & _LONG:
                begin = at + _LONG_HEAD
                if begin > end:
                    wanted = _LONG_HEAD
                    break
                size = int.from_bytes(data[at + 1 : begin], "big")
            else:
                begin, size = at + _SHORT_HEAD, data[at + 1]
            if flags > 1:
                self._check(flags, size)
            stop = begin + size
            if self._nbytes + size > self._max_bytes:
                raise Malformed(f"a message has at most {self._max_bytes} bytes")
            if stop > end:
                wanted = stop - at
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
                raise Malformed("expected the command READY before messages")
            if len(self._frames) < self._max_frames:
                self._frames.append(data[begin:stop])
            if flags & _MORE:
                self._nbytes += size
                self._count += 1
                if self._count >= MAX_FRAMES:
                    raise Malformed(f"a message has at most {MAX_FRAMES} frames")
                continue
            frames, self._frames = self._frames, []
            self._at, self._count, self._nbytes, self._interrupted = at, 0, 0, False
            self._done = at
            return frames
        self._wait(at, wanted)
        return None

    def _wait(self, at: int, wanted: int) -> None:
        """There is not more to read from `at` on before so many bytes came."""
        if at < len(self._data):
            self._waiting = bytearray(self._data[at:])
            self._wanted = wanted
        self._data, self._at = b"", 0

    def _greet(self) -> bool:
        data = self._data[self._at :]
        for at, (name, expected) in enumerate(zip(("first", "tenth"), (0xFF, 0x01), strict=True)):
            where = at * (_SIGNATURE - 1)
            if len(data) > where and data[where] & expected != expected:
                raise Malformed(f"the {name} byte is not that of a ZeroMQ connection")
        if len(data) > _SIGNATURE and data[_SIGNATURE] < 3:
            raise Malformed(f"expected ZMTP 3 or later, got {data[_SIGNATURE]}")
        if len(data) < GREETING_BYTES:
            self._wait(self._at, 0)  # what is wrong is told by the first bytes
            return False
        if data[_SIGNATURE + 2 : _SIGNATURE + 22] != _NULL:
            raise Malformed("expected the mechanism NULL")
        self._at += GREETING_BYTES
        self._done = self._at
        self.greeted = True
        self.reply += _READY
        return True

    def _check(self, flags: int, size: int) -> None:
        if flags & ~(_MORE | _LONG | _COMMAND):
            raise Malformed(f"a frame has the flags {flags:#x}")
        if flags & _COMMAND:
            if flags & _MORE:
                raise Malformed("a command is no frame of a message")
            if size > MAX_COMMAND_BYTES:
                raise Malformed(f"a command has at most {MAX_COMMAND_BYTES} bytes")

    def _commanded(self, body: bytes) -> None:
        name = body[1 : 1 + body[0]] if body else b""
        rest = body[1 + len(name) :]
        if not self.ready:
            if name != b"READY":
                raise Malformed("expected the command READY")
            kind = _properties(rest).get(b"socket-type", b"")
            if kind not in PEERS:
                raise Malformed(f"a {kind[:16]!r} socket has no business with a ROUTER")
            self.ready = True
        elif name == b"PING":
            self.reply += _command(b"PONG", rest[2:18])  # without its time to live


def _properties(body: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(body):
        name = body[at + 1 : at + 1 + body[at]].lower()
        at += 1 + body[at]
        size = int.from_bytes(body[at : at + 4], "big")
        found[name] = body[at + 4 : at + 4 + size]
        at += 4 + size
        if at > len(body):
            raise Malformed("the command READY ends within a property")
    return found
