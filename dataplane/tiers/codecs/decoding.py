"""Decodes stored blocks into memory, with the codec in the header of each block."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from dataplane.protocol.checksums import checksum
from dataplane.protocol.stored_blocks import BlockName, StoredBlock
from dataplane.tiers.codecs.codec import BlockCodec, DecodeError
from dataplane.tiers.codecs.fp8 import Fp8Codec
from dataplane.tiers.codecs.zstd import ZstdCodec
from dataplane.tiers.header import HEADER_BYTES
from dataplane.tiers.values import read_encoded_header

CODECS: Mapping[str, BlockCodec] = MappingProxyType({"zstd": ZstdCodec(), "fp8": Fp8Codec()})
"""Codecs by the value of `compress`."""
_BY_NUMBER = {codec.number: codec for codec in CODECS.values()}


def fill(parts: list[Any], into: memoryview, cluster: bytes, name: BlockName) -> StoredBlock | None:
    """Copy or decode a value into memory of the block's length. `parts` are the value's parts; the first has the whole
    header.

    Returns the block with the checksum of the bytes in memory, or None if the value is not valid for the name.
    """
    parts = [memoryview(part).cast("B") for part in parts]
    header = read_encoded_header(parts[0][:HEADER_BYTES], cluster, name)
    data = [parts[0][HEADER_BYTES:], *parts[1:]]
    nbytes = sum(map(len, data))
    if header is None or header[0].length != len(into):
        return None
    block, encoding = header
    if encoding is None:
        if nbytes != block.length:
            return None
        at = 0
        for part in data:
            into[at : at + len(part)] = part
            at += len(part)
        return block if checksum(into) == block.checksum else None
    codec = _BY_NUMBER.get(encoding.codec)
    if codec is None or nbytes != encoding.nbytes:
        return None
    encoded = data[0] if nbytes == len(data[0]) else b"".join(data)
    if not codec.lossless and checksum(encoded) != block.checksum:
        return None
    try:
        codec.decode(encoding, encoded, into)
    except DecodeError:
        return None
    decoded = checksum(into)
    if codec.lossless:
        return block if decoded == block.checksum else None
    return msgspec.structs.replace(block, checksum=decoded)
