"""Messages between the tier and the process that makes its requests, on a stream socket.

A frame has the size of the message (u32) and the message in MessagePack. Values of objects are in the memory that both
processes share (`request_memory`).
"""

from struct import Struct
from typing import Any, NamedTuple

import msgspec

from dataplane.protocol.stored_blocks import Outcome

_SIZE = Struct("<I")
_MAX_MESSAGE_BYTES = 16 << 20
RECEIVE_BYTES = 1 << 18


class RequestFault(NamedTuple):
    """The meaning of a failure. `sentence` is set if no block can be served, `denied` if credentials are at fault."""

    outcome: Outcome
    sentence: str = ""
    denied: bool = False


class StoreRequestFailed(Exception):
    """A request failed."""

    def __init__(self, fault: RequestFault) -> None:
        super().__init__(fault.sentence)
        self.fault = fault


NO_OTHER_HOST = "127.255.255.254:1"
"""Address at which nothing listens. It is the proxy for all hosts but `only_hosts`."""


class OpenBucket(msgspec.Struct, frozen=True, tag="open"):
    """Use this bucket for the requests that follow. Has no reply: if it fails, the requests that follow fail."""

    url: str
    config: dict[str, str]
    """Parameters of obstore for the kind of store, with the secrets."""
    allow_http: bool
    connect_timeout_s: float
    retries: int
    root_certificate: bytes | None = None
    only_hosts: str = ""
    """Comma-separated hosts that requests may go to, also after a redirection; empty for no such bound."""


class GetObject(msgspec.Struct, frozen=True, tag="get"):
    """Read the first `size` bytes of an object, or fewer if it is shorter, into the shared memory, in ranges of at
    most `range_bytes`."""

    number: int
    path: str
    start: int
    """First byte of the shared memory."""
    size: int
    range_bytes: int


class PutObject(msgspec.Struct, frozen=True, tag="put"):
    """Store an object whose value is in the shared memory."""

    number: int
    path: str
    start: int
    """First byte of the shared memory."""
    size: int
    storage_class: str


class DeleteObjects(msgspec.Struct, frozen=True, tag="delete"):
    """Delete objects. It is not an error if an object does not exist."""

    number: int
    paths: list[str]


class ListObjects(msgspec.Struct, frozen=True, tag="list"):
    """List the objects below a prefix, at most `size` of them, whose paths follow `after` in the order of the store."""

    number: int
    prefix: str
    after: str
    size: int


class CancelRequest(msgspec.Struct, frozen=True, tag="cancel"):
    """Give up a request. It is answered when its range of the shared memory is no longer used."""

    number: int


class StoreRequestDone(msgspec.Struct, frozen=True, tag="done"):
    """A request succeeded."""

    number: int
    size: int = 0
    """After `GetObject`, the number of bytes that were read."""
    objects: list[tuple[str, int]] = []
    """After `ListObjects`: the path and the bytes of each object."""
    unreadable: str = ""
    """After `ListObjects`: a path that the library refuses, and with it all objects that the server listed in the same
    response."""


class StoreRequestFault(msgspec.Struct, frozen=True, tag="failed"):
    """A request failed."""

    number: int
    fault: RequestFault


StoreRequest = GetObject | PutObject | DeleteObjects | ListObjects
requests = msgspec.msgpack.Decoder(OpenBucket | CancelRequest | StoreRequest)
replies = msgspec.msgpack.Decoder(StoreRequestDone | StoreRequestFault)
_encoder = msgspec.msgpack.Encoder()


class FrameError(Exception):
    """The other process sent no valid frame."""


def frame(message: msgspec.Struct) -> bytes:
    """Return the frame of a message."""
    encoded = _encoder.encode(message)
    return _SIZE.pack(len(encoded)) + encoded


class FrameReader:
    """Splits a stream of bytes into messages."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[Any]) -> None:
        self._decoder = decoder
        self._received = bytearray()

    def feed(self, received: bytes) -> list[Any]:
        """Return the messages that are complete with these bytes. Raises FrameError."""
        self._received += received
        messages = []
        at = 0
        while len(self._received) - at >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._received, at)
            if size > _MAX_MESSAGE_BYTES:
                raise FrameError(f"expected a message of at most {_MAX_MESSAGE_BYTES} bytes, got {size}")
            end = at + _SIZE.size + size
            if len(self._received) < end:
                break
            try:
                messages.append(self._decoder.decode(memoryview(self._received)[at + _SIZE.size : end]))
            except (msgspec.DecodeError, RecursionError) as error:
                raise FrameError(str(error)) from None
            at = end
        del self._received[:at]
        return messages
