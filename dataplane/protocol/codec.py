"""MessagePack codec of the tagged structs; decoding is strict.

`decode` raises only `ProtocolError`, whatever the bytes, because peers are not trusted. Nothing is ever unpickled.
"""

from typing import Any

import msgspec

from dataplane.base.field_errors import described
from dataplane.protocol.codes import Code, ProtocolError

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode


def decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return a reusable strict decoder of one struct or of a tagged union."""
    return msgspec.msgpack.Decoder(kind)


def decode(decoder: msgspec.msgpack.Decoder[Any], data: bytes | bytearray | memoryview) -> Any:
    """Decode one message. Raises `ProtocolError(MALFORMED)` with the field's path if the bytes do not match the
    decoder's type."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        path, message = described(str(error))
        raise ProtocolError(Code.MALFORMED, message, path) from None
