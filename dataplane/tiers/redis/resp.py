"""The protocol of Redis (RESP2) on a socket: commands as bytes, short replies as Python values, and values of blocks
straight into memory.

Whatever a server sends, a read ends by the deadline with a result or with one of three exceptions: TimeoutError,
ConnectionError or ValueError, which means that the bytes are not of the protocol.
"""

import socket
import ssl
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dataplane.protocol.stored_blocks import Buffer

END = b"\r\n"
_TIMEVAL = struct.Struct("ll")
_MIN_TIMEOUT_S = 0.001
_TOLERANCE = 1.05
"""A timeout that is longer than the time to the deadline by so much is not set again."""
_BUFFER_BYTES = 16_384
_MAX_SHORT_BYTES = 1024 * 1024
_MAX_REPLY_BYTES = 16 * 1024 * 1024
_MAX_REPLY_ELEMENTS = 1024 * 1024
"""Elements of all arrays of a reply. The reply to CLUSTER SLOTS has a few for each of 16,384 slots at most."""
_MAX_VALUE_BYTES = 512 * 1024 * 1024
_MAX_DEPTH = 8
"""Arrays within each other. The reply to CLUSTER SLOTS has four levels."""
_SKIP_BYTES = 65_536
_MISSING = b"-1"


def packed(*words: bytes, following: int = 0) -> bytes:
    """Return a command, or the beginning of one that `following` words follow."""
    return b"*%d\r\n" % (len(words) + following) + b"".join(map(packed_word, words))


def packed_word(word: bytes) -> bytes:
    """Return one word of a command."""
    return b"$%d\r\n%b\r\n" % (len(word), word)


class TimedSocket:
    """A socket whose reads and writes have a deadline, with one system call for a large block where there is no TLS.

    Raises TimeoutError after the deadline, and ConnectionError if the connection is lost.

    Python polls before each call on a socket with a timeout, and reads what is there. A plain socket blocks here
    instead, with the timeout set in the kernel, which also collects a block as a whole.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._timeouts: dict[int, float] = {}
        self._is_plain = not isinstance(sock, ssl.SSLSocket)
        if self._is_plain:
            sock.settimeout(None)

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

    def close(self) -> None:
        """Close the connection, also under a thread that reads. May be called twice."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it was closed, or the server closed it
        finally:
            self._sock.close()

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


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error that the server answered."""

    code: str
    """The first word, such as `OOM`."""
    message: str
    """The other words."""

    @classmethod
    def of(cls, line: bytes) -> "ErrorReply":
        """Return the error of a line without its first byte."""
        code, _, message = line.decode("utf-8", errors="replace").partition(" ")
        return cls(code, message)


Reply = bytes | int | list[Any] | ErrorReply | None
"""A short reply; None for a string or an array that does not exist."""


class ReplyReader:
    """Reads the replies on a connection. Reads no more ahead than 16 KiB.

    After an error the connection must be closed: there is no position to go back to.
    """

    def __init__(self, sock: TimedSocket) -> None:
        self._sock = sock
        self._memory = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._memory)
        self._start = self._end = 0
        self._left_bytes = 0
        """Bytes that the current reply may still have, apart from a value that is read into memory."""
        self._left_elements = 0
        self._deadline = 0.0

    def read_short(self, deadline: float) -> Reply:
        """Return a reply of any kind with short strings."""
        self._begin(deadline)
        return self._read(_MAX_DEPTH)

    def read_value(self, header: memoryview, data: memoryview, deadline: float) -> int | ErrorReply | None:
        """Read a string: its first bytes into `header`, the rest into `data`.

        Returns the length of the string, None if there is none, or the error that the server answered. A string of
        any other length than that of both memories is skipped.
        """
        self._begin(deadline)
        line = self._read_line()
        kind, text = line[:1], line[1:]
        if kind == b"-":
            return ErrorReply.of(text)
        if kind != b"$":
            raise ValueError("expected a string")
        if text == _MISSING:
            return None
        length = _length(text, _MAX_VALUE_BYTES)
        if length == len(header) + len(data):
            self._read_into(header)
            self._read_into(data)
        else:
            self._skip(length)
        self._read_end()
        return length

    def _begin(self, deadline: float) -> None:
        self._deadline = deadline
        self._left_bytes = _MAX_REPLY_BYTES
        self._left_elements = _MAX_REPLY_ELEMENTS

    def _read(self, depth: int) -> Reply:
        line = self._read_line()
        kind, text = line[:1], line[1:]
        if kind == b"+":
            return text
        if kind == b"-":
            return ErrorReply.of(text)
        if kind == b":":
            return int(text)
        if kind not in (b"$", b"*"):
            raise ValueError("no reply of the protocol")
        if text == _MISSING:
            return None
        if kind == b"$":
            return self._read_string(_length(text, _MAX_SHORT_BYTES))
        if not depth:
            raise ValueError(f"a reply has more than {_MAX_DEPTH} arrays within each other")
        count = int(text)
        if not 0 <= count <= self._left_elements:
            raise ValueError(f"expected a reply of at most {_MAX_REPLY_ELEMENTS} elements")
        self._left_elements -= count
        return [self._read(depth - 1) for _ in range(count)]

    def _read_line(self) -> bytes:
        """Return the next line without its end."""
        searched = self._start
        while (at := self._memory.find(END, searched, self._end)) < 0:
            searched = max(self._start, self._end - 1)
            if self._start:
                self._view[: self._end - self._start] = bytes(self._view[self._start : self._end])
                searched -= self._start
                self._start, self._end = 0, self._end - self._start
            if self._end == _BUFFER_BYTES:
                raise ValueError(f"a line of a reply is longer than {_BUFFER_BYTES} bytes")
            self._end += self._sock.receive(self._view[self._end :], self._deadline, whole=False)
        line = bytes(self._view[self._start : at])
        self._start = at + len(END)
        self._count(len(line) + len(END))
        return line

    def _read_string(self, length: int) -> bytes:
        self._count(length)
        data = bytearray(length)
        self._read_into(memoryview(data))
        self._read_end()
        return bytes(data)

    def _read_end(self) -> None:
        end = bytearray(len(END))
        self._read_into(memoryview(end))
        if end != END:
            raise ValueError("a string of a reply does not end where its length says")

    def _skip(self, length: int) -> None:
        scratch = memoryview(bytearray(min(length, _SKIP_BYTES)))
        while length:
            part = scratch[: min(length, _SKIP_BYTES)]
            self._read_into(part)
            length -= len(part)

    def _read_into(self, memory: memoryview) -> None:
        """Fill memory with what follows."""
        ready = min(len(memory), self._end - self._start)
        memory[:ready] = self._view[self._start : self._start + ready]
        self._start += ready
        while ready < len(memory):
            ready += self._sock.receive(memory[ready:], self._deadline, whole=True)

    def _count(self, length: int) -> None:
        self._left_bytes -= length
        if self._left_bytes < 0:
            raise ValueError(f"a reply is longer than {_MAX_REPLY_BYTES} bytes")


def _length(text: bytes, most: int) -> int:
    """Return the length of a string. Raises ValueError."""
    length = int(text)
    if not 0 <= length <= most:
        raise ValueError(f"expected a string of at most {most} bytes, got {length}")
    return length
