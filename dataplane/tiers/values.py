"""Values of shared tiers: one per block, the header and then the data, under a name that begins with the cluster's.

    larder/1/<cluster>/<space>/<key>

The three parts are lower-case hexadecimal. Two clusters share no name, so they can share a server.
"""

from dataplane.protocol.checksums import checksum
from dataplane.protocol.stored_blocks import BlockName, StoredBlock
from dataplane.tiers.header import HEADER_BYTES, HeaderError, pack_header, unpack_header
from dataplane.tiers.tier import BlockStore

_FORMAT = "larder/1"
_SPACE_BYTES = 16
_KEY_BYTES = 32


def value_prefix(cluster: bytes) -> str:
    """Return the text with which the names of all values of a cluster begin."""
    return f"{_FORMAT}/{cluster.hex()}/"


def value_name(cluster: bytes, block: BlockName) -> str:
    """Return the name of a block's value."""
    return f"{value_prefix(cluster)}{block.space.hex()}/{block.key.hex()}"


def parse_value_name(cluster: bytes, text: str) -> BlockName | None:
    """Return the block that a value's name identifies, or None if it does not identify a block of this cluster."""
    prefix = value_prefix(cluster)
    space, separator, key = text.removeprefix(prefix).partition("/")
    try:
        block = BlockName(bytes.fromhex(space), bytes.fromhex(key))
    except ValueError:
        return None
    if len(block.space) != _SPACE_BYTES or len(block.key) != _KEY_BYTES:
        return None
    return block if separator and value_name(cluster, block) == text else None


def value_size(length: int) -> int:
    """Return the size of the value of a block with `length` bytes of data."""
    return HEADER_BYTES + length


def packed_header(store: BlockStore, cluster: bytes) -> bytes | None:
    """Return the header of a block to store. Return None if the name of its tenant is not valid, or if its data have
    another length than the block or its encoding states."""
    encoding = store.encoding
    expected = store.block.length if encoding is None else encoding.nbytes
    if memoryview(store.data).nbytes != expected or expected > store.block.length:
        return None
    try:
        return pack_header(store.block, cluster, encoding)
    except (HeaderError, UnicodeEncodeError):
        return None


def read_header(
    header: bytes | bytearray | memoryview, cluster: bytes, name: BlockName, *, may_encode: bool = False
) -> StoredBlock | None:
    """Return the block of a header. Return None if the header is not a valid one of this cluster for the name, or if
    the block is encoded, unless the tier `may_encode` blocks."""
    try:
        block = unpack_header(header, cluster, may_encode=may_encode)
    except HeaderError:
        return None
    return block if block.name == name else None


def verify(
    header: bytes | bytearray | memoryview, data: memoryview, cluster: bytes, name: BlockName
) -> StoredBlock | None:
    """Return the block if the header is valid for the name and the data match the header, else None."""
    block = read_header(header, cluster, name)
    if block is None or block.length != len(data) or checksum(data) != block.checksum:
        return None
    return block
