"""The header in front of each stored block: 4 KiB that identify the block and have its checksum, the same in each tier.

    0   magic           8 bytes  b"LARDERB1"
    8   version         u32      1, or 2 for a block that is encoded
    12  tenant length   u32      bytes of UTF-8, at most 2048
    16  cluster         16 bytes
    32  space           16 bytes
    48  key             32 bytes
    80  sequence        u64
    88  length          u64      bytes of data
    96  checksum        16 bytes xxh3-128 of the data; of the encoded bytes if the codec is lossy
    112 header checksum u64      xxh3-64 of the 4096 bytes with this field as zeros
    120 writer          u64      number of the node that wrote a block of a shared tier; else 0
    128 parent          32 bytes key of the block before it in its chain; zeros for none
    160 tenant          UTF-8, then zeros

Version 2 has more fields before the tenant (`dataplane.tiers.codecs`):

    160 encoded length  u64      bytes that follow the header, fewer than `length`
    168 codec           u8       number of the codec
    169 element         u8       meaning by codec
    170 group           u16      meaning by codec
    172 reserved        4 bytes  zeros
    176 tenant

Integers are little-endian. A torn header, and one of another cluster or another version, is not valid.
"""

from struct import Struct

import xxhash

from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.spaces import MAX_BLOCK_BYTES
from dataplane.protocol.stored_blocks import BlockName, Encoding, StoredBlock

HEADER_BYTES = 4096
CLUSTER_BYTES = 16
VERSION, ENCODED_VERSION = 1, 2
_MAGIC = b"LARDERB1"
_FIELDS = Struct("<8sII16s16s32sQQ16sQQ32s")
_ENCODING = Struct("<QBBH4x")
_CHECKSUM_AT = 112
MAX_TENANT_BYTES = 2048
MAX_SEQUENCE = (1 << 63) - 1
"""In nanoseconds since 1970, this is the year 2262. A higher sequence would leave no room for later ones."""
NO_PARENT = bytes(KEY_BYTES)


class HeaderError(ValueError):
    """The bytes are not a header of this cluster and version. The message says what is wrong."""


def pack_header(block: StoredBlock, cluster: bytes, encoding: Encoding | None = None) -> bytes:
    """Return the 4096 bytes of the block's header. Raises HeaderError if the tenant's name is too long."""
    tenant = block.tenant.encode()
    if len(tenant) > MAX_TENANT_BYTES:
        raise HeaderError(f"tenant: expected at most {MAX_TENANT_BYTES} bytes, got {len(tenant)}")
    fields = (
        _MAGIC,
        VERSION if encoding is None else ENCODED_VERSION,
        len(tenant),
        cluster,
        *block.name,
        block.sequence,
        block.length,
        block.checksum,
    )
    header = bytearray(HEADER_BYTES)
    _FIELDS.pack_into(header, 0, *fields, 0, block.writer, block.parent)
    at = _FIELDS.size
    if encoding is not None:
        _ENCODING.pack_into(header, at, encoding.nbytes, encoding.codec, encoding.element, encoding.group)
        at += _ENCODING.size
    header[at : at + len(tenant)] = tenant
    header[_CHECKSUM_AT : _CHECKSUM_AT + 8] = xxhash.xxh3_64_intdigest(header).to_bytes(8, "little")
    return bytes(header)


def unpack_header(data: bytes | bytearray | memoryview, cluster: bytes, *, may_encode: bool = False) -> StoredBlock:
    """Return the block of a header of 4096 bytes. Raises HeaderError, also for an encoded block unless the tier
    `may_encode` blocks."""
    if len(data) != HEADER_BYTES:
        raise HeaderError(f"expected {HEADER_BYTES} bytes, got {len(data)}")
    (
        magic,
        version,
        tenant_bytes,
        of_cluster,
        space,
        key,
        sequence,
        length,
        checksum,
        header_checksum,
        writer,
        parent,
    ) = _FIELDS.unpack_from(data)
    if magic != _MAGIC:
        raise HeaderError("the magic number is missing")
    zeroed = bytearray(data)
    zeroed[_CHECKSUM_AT : _CHECKSUM_AT + 8] = bytes(8)
    if xxhash.xxh3_64_intdigest(zeroed) != header_checksum:
        raise HeaderError("the header does not match its checksum")
    if version not in (VERSION, ENCODED_VERSION):
        raise HeaderError(f"version: expected {VERSION} or {ENCODED_VERSION}, got {version}")
    if version == ENCODED_VERSION and not may_encode:
        raise HeaderError(f"version: expected {VERSION}, got {ENCODED_VERSION}")
    if of_cluster != cluster:
        raise HeaderError(f"cluster: expected {cluster.hex()}, got {of_cluster.hex()}")
    if sequence > MAX_SEQUENCE:
        raise HeaderError(f"sequence: expected at most {MAX_SEQUENCE}, got {sequence}")
    if length > MAX_BLOCK_BYTES:
        raise HeaderError(f"length: expected at most {MAX_BLOCK_BYTES}, got {length}")
    if tenant_bytes > MAX_TENANT_BYTES:
        raise HeaderError(f"tenant: expected at most {MAX_TENANT_BYTES} bytes, got {tenant_bytes}")
    at = _FIELDS.size
    encoding = None
    if version == ENCODED_VERSION:
        nbytes, codec, element, group = _ENCODING.unpack_from(data, at)
        at += _ENCODING.size
        encoding = Encoding(codec, element, group, nbytes)
        if not codec or nbytes >= length:
            raise HeaderError(f"expected a codec and fewer than {length} encoded bytes, got {codec} and {nbytes}")
    try:
        tenant = bytes(data[at : at + tenant_bytes]).decode()
    except UnicodeDecodeError:
        raise HeaderError("tenant: expected UTF-8") from None
    before = b"" if parent == NO_PARENT else parent
    return StoredBlock(BlockName(space, key), tenant, sequence, length, checksum, before, writer, encoding)
