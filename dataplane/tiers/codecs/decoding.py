"""Decodes stored blocks into memory, with the codec in the header of each block."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from dataplane.protocol.checksums import checksum
from dataplane.protocol.stored_blocks import BlockName, StoredBlock
from dataplane.tiers.codecs.codec import BlockCodec, DecodeError
from dataplane.tiers.codecs.fp8 import Fp8Codec
from dataplane.tiers.codecs.zstd import ZstdCodec
from dataplane.tiers.values import read_header

CODECS: Mapping[str, BlockCodec] = MappingProxyType({"zstd": ZstdCodec(), "fp8": Fp8Codec()})
"""Codecs by the value of `compress`."""
_BY_NUMBER = {codec.number: codec for codec in CODECS.values()}


def fill(header: bytes, data: memoryview, into: memoryview, cluster: bytes, name: BlockName) -> StoredBlock | None:
    """Copy or decode the data of a value into memory of the block's length. Another process may change the data at any
    time: copies of them are verified.

    Returns the block with the checksum of the bytes in memory, or None if the value is not valid for the name.
    """
    block = read_header(header, cluster, name, may_encode=True)
    if block is None or block.length != len(into) or block.stored_bytes != len(data):
        return None
    encoding = block.encoding
    if encoding is None:
        into[:] = data
        return block if checksum(into) == block.checksum else None
    codec, encoded = _BY_NUMBER.get(encoding.codec), bytes(data)
    if codec is None or (not codec.lossless and checksum(encoded) != block.checksum):
        return None
    try:
        codec.decode(encoding, encoded, into)
    except DecodeError:
        return None
    decoded = checksum(into)
    if codec.lossless and decoded != block.checksum:
        return None
    return msgspec.structs.replace(block, checksum=decoded, encoding=None)
