"""Bytes of a connection to a Redis server: short replies for the parser of redis-py, values straight into memory.

Whatever a server sends, a read ends by the deadline with a result or with one of three exceptions: TimeoutError,
ConnectionError or ValueError, which means that the bytes are not of the protocol.
"""

import socket
import ssl
import struct
import time
from collections.abc import Sequence
from typing import Any

from redis._parsers.resp2 import _RESP2Parser
from redis.exceptions import RedisError, ResponseError

from dataplane.protocol.stored_blocks import Buffer

_TIMEVAL = struct.Struct("ll")
_MIN_TIMEOUT_S = 0.001
_TOLERANCE = 1.05
"""A timeout that is longer than the time to the deadline by so much is not set again."""
_BUFFER_BYTES = 16_384
_MAX_SHORT_BYTES = 1024 * 1024
_MAX_REPLY_BYTES = 16 * 1024 * 1024
_MAX_VALUE_BYTES = 512 * 1024 * 1024
_SKIP_BYTES = 65_536
_END = b"\r\n"
_MISSING = -1


class TimedSocket:
    """A socket whose reads and writes have a deadline, with one system call for a large block where there is no TLS.

    Raises TimeoutError after the deadline, and ConnectionError if the connection is lost.

    Python polls before each call on a socket with a timeout, and reads what is there. A plain socket blocks here
    instead, with the timeout set in the kernel, which also collects a block as a whole.
    """

    def __init__(self, sock: socket.socket, timeout_s: float) -> None:
        self._sock = sock
        self._timeouts: dict[int, float] = {}
        self._is_plain = not isinstance(sock, ssl.SSLSocket)
        if self._is_plain:
            sock.settimeout(None)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                self._set_timeout(option, timeout_s)

    def receive(self, memory: memoryview, deadline: float, *, whole: bool) -> int:
        """Read into memory and return how many bytes: at least one; all of them, mostly, if it is to be the whole."""
        self._set_timeout(socket.SO_RCVTIMEO, deadline - time.monotonic())
        flags = socket.MSG_WAITALL if whole and self._is_plain else 0
        try:
            received = self._sock.recv_into(memory, 0, flags)
        except (TimeoutError, BlockingIOError):
            raise TimeoutError("the deadline has passed") from None
        except OSError as error:
            raise ConnectionError(error.strerror or "the connection is lost") from None
        if not received:
            raise ConnectionError("the server closed the connection")
        return received

    def send(self, pieces: Sequence[Buffer], deadline: float) -> None:
        """Send all bytes of the pieces."""
        remaining = [memoryview(piece).cast("B") for piece in pieces]
        while remaining:
            self._set_timeout(socket.SO_SNDTIMEO, deadline - time.monotonic())
            try:
                sent = self._sock.sendmsg(remaining) if self._is_plain else self._sock.send(remaining[0])
            except (TimeoutError, BlockingIOError):
                raise TimeoutError("the deadline has passed") from None
            except OSError as error:
                raise ConnectionError(error.strerror or "the connection is lost") from None
            while remaining and sent >= len(remaining[0]):
                sent -= len(remaining.pop(0))
            if sent:
                remaining[0] = remaining[0][sent:]

    def _set_timeout(self, option: int, seconds: float) -> None:
        if seconds <= 0:
            raise TimeoutError("the deadline has passed")
        if not self._is_plain:
            self._sock.settimeout(seconds)
            return
        if seconds <= self._timeouts.get(option, 0.0) <= seconds * _TOLERANCE:
            return
        whole_seconds, part = divmod(max(seconds, _MIN_TIMEOUT_S), 1)
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(int(whole_seconds), int(part * 1e6)))
        except OSError as error:
            raise ConnectionError(error.strerror or "the connection is lost") from None
        self._timeouts[option] = seconds


class ReplyBuffer:
    """Reader of a socket, with the methods that redis-py's parsers call. Reads no more ahead than 16 KiB."""

    def __init__(self, sock: TimedSocket, deadline: float) -> None:
        self._sock = sock
        self._memory = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._memory)
        self._start = self._end = 0
        self.left_bytes = _MAX_REPLY_BYTES
        """Bytes that the current reply may still have, apart from a value that is read into memory."""
        self.deadline = deadline
        """The time of `time.monotonic` after which reads raise TimeoutError."""

    def readline(self, timeout: object = None) -> bytes:
        """Return the next line without its end. Raises TimeoutError, ConnectionError, ValueError."""
        searched = self._start
        while (at := self._memory.find(_END, searched, self._end)) < 0:
            searched = max(self._start, self._end - 1)
            if self._start:
                self._view[: self._end - self._start] = bytes(self._view[self._start : self._end])
                searched -= self._start
                self._start, self._end = 0, self._end - self._start
            if self._end == _BUFFER_BYTES:
                raise ValueError(f"a line of a reply is longer than {_BUFFER_BYTES} bytes")
            self._end += self._sock.receive(self._view[self._end :], self.deadline, whole=False)
        line = bytes(self._view[self._start : at])
        self._start = at + len(_END)
        self._count(len(line) + len(_END))
        return line

    def _count(self, length: int) -> None:
        self.left_bytes -= length
        if self.left_bytes < 0:
            raise ValueError(f"a reply is longer than {_MAX_REPLY_BYTES} bytes")

    def read(self, length: int, timeout: object = None) -> bytes:
        """Return a short string whose end follows it."""
        if not 0 <= length <= _MAX_SHORT_BYTES:
            raise ValueError(f"expected a string of at most {_MAX_SHORT_BYTES} bytes, got {length}")
        self._count(length)
        data = bytearray(length)
        self.read_into(memoryview(data))
        self.read_end()
        return bytes(data)

    def read_into(self, memory: memoryview) -> None:
        """Fill memory with what follows."""
        ready = min(len(memory), self._end - self._start)
        memory[:ready] = self._view[self._start : self._start + ready]
        self._start += ready
        while ready < len(memory):
            ready += self._sock.receive(memory[ready:], self.deadline, whole=True)

    def read_end(self) -> None:
        """Read the end of a string."""
        end = bytearray(len(_END))
        self.read_into(memoryview(end))
        if end != _END:
            raise ValueError("a string of a reply does not end where its length says")

    def skip(self, length: int) -> None:
        """Read bytes and drop them."""
        scratch = memoryview(bytearray(min(length, _SKIP_BYTES)))
        while length:
            part = scratch[: min(length, _SKIP_BYTES)]
            self.read_into(part)
            length -= len(part)

    # What the parsers of redis-py call besides `read` and `readline`. After an error the connection is closed, so
    # there is no position to go back to.
    def get_pos(self) -> int:
        return 0

    def rewind(self, position: int) -> None:
        pass

    def purge(self) -> None:
        pass

    def close(self) -> None:
        pass

    def can_read(self, timeout: float = 0) -> bool:
        return self._end > self._start


class BlockParser(_RESP2Parser):
    """Parser of redis-py over a `ReplyBuffer`, which can also read a value into memory."""

    _buffer: ReplyBuffer | None

    def on_connect(self, connection: Any) -> None:
        """Begin to read a new connection, whose handshake may last as long as its timeout."""
        super().on_connect(connection)  # type: ignore[no-untyped-call]
        self.sock = TimedSocket(connection._sock, connection.socket_timeout)
        self._buffer = ReplyBuffer(self.sock, time.monotonic() + connection.socket_timeout)

    @classmethod
    def parse_error(cls, response: str) -> ResponseError:
        """Return an error reply: its first word is the `status_code`, the rest the message."""
        code, _, message = response.partition(" ")
        return ResponseError(message, status_code=code)

    def read_value(self, header: memoryview, data: memoryview, deadline: float) -> int | ResponseError | None:
        """Read a string: its first bytes into `header`, the rest into `data`.

        Returns the length of the string, None if there is none, or the error that the server answered. A string of
        any other length than that of both memories is skipped.
        """
        buffer = self.buffer(deadline)
        line = buffer.readline()
        if line[:1] == b"-":
            return self.parse_error(line[1:].decode("utf-8", errors="replace"))
        if line[:1] != b"$":
            raise ValueError("expected a string")
        length = int(line[1:])
        if length == _MISSING:
            return None
        if not 0 <= length <= _MAX_VALUE_BYTES:
            raise ValueError(f"expected a string of at most {_MAX_VALUE_BYTES} bytes, got {length}")
        if length == len(header) + len(data):
            buffer.read_into(header)
            buffer.read_into(data)
        else:
            buffer.skip(length)
        buffer.read_end()
        return length

    def read_short(self, deadline: float) -> Any:
        """Return a reply of any kind with short strings, as bytes; an error that the server answered is returned."""
        self.buffer(deadline)
        try:
            return self.read_response(disable_decoding=True)
        except RedisError as error:
            raise ValueError(f"no reply of the protocol: {error}") from None

    def buffer(self, deadline: float) -> ReplyBuffer:
        """Return the reader of the connection, for a reply that is to arrive by the deadline."""
        if self._buffer is None:
            raise ConnectionError("the connection is closed")
        self._buffer.deadline = deadline
        self._buffer.left_bytes = _MAX_REPLY_BYTES
        return self._buffer
