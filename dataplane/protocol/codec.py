"""MessagePack of the tagged structs, strict on the way in.

`decode` raises `ProtocolError` and nothing else, whatever the bytes: peers are not trusted. Nothing is ever unpickled.
"""

import re
from typing import Any

import msgspec

from dataplane.protocol.codes import Code, ProtocolError

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode

_PATH = re.compile(r" - at `(?P<path>[^`]*)`$")


def decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """A reusable strict decoder of one struct or of a tagged union."""
    return msgspec.msgpack.Decoder(kind)


def decode(decoder: msgspec.msgpack.Decoder[Any], data: bytes | bytearray | memoryview) -> Any:
    """One message; `ProtocolError(MALFORMED)` with the field's path when it is not one of the decoder's kind."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        path, message = split_path(str(error))
        raise ProtocolError(Code.MALFORMED, message, path) from None


def split_path(message: str) -> tuple[str, str]:
    """msgspec's message as (path without the leading `$`, message without the path)."""
    match = _PATH.search(message)
    if match is None:
        return "", message
    return match["path"].removeprefix("$").removeprefix("."), message[: match.start()]
