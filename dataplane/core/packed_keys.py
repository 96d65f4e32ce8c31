"""The packed keys of a request."""

from __future__ import annotations

from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.engine import MAX_KEYS_PER_REQUEST
from dataplane.protocol.keys import KEY_BYTES, split_keys
from dataplane.protocol.layout import U64, pack_keys


def check_keys(keys: bytes) -> U64:
    """Return the packed keys of a request as words [n, 4]. Raise ProtocolError(BAD_KEYS) if they are malformed."""
    number, remainder = divmod(len(keys), KEY_BYTES)
    if remainder or not 1 <= number <= MAX_KEYS_PER_REQUEST:
        raise ProtocolError(
            Code.BAD_KEYS,
            f"expected 1 to {MAX_KEYS_PER_REQUEST} keys of {KEY_BYTES} bytes, got {len(keys)} bytes",
            "keys",
        )
    if number > 1 and len(set(split_keys(keys))) != number:
        raise ProtocolError(Code.BAD_KEYS, "expected each key once", "keys")
    return pack_keys(keys)
