"""Words that decisions about tiers share with the tiers: names of blocks, what a tier knows of a block, outcomes."""

from collections.abc import Mapping
from enum import Enum
from hashlib import sha256
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from dataplane.protocol.tiers import Compress

ZSTD, FP8 = 1, 2
CODEC_NAMES: Mapping[int, Compress] = MappingProxyType({ZSTD: "zstd", FP8: "fp8"})
"""Values of `compress` by the number of the codec in headers."""


Buffer = Any
"""An object with a contiguous buffer: bytes, memoryview, numpy array."""


class Outcome(Enum):
    """What happened to one block of a call."""

    OK = "ok"
    MISSING = "missing"
    """The tier does not hold the block."""
    CORRUPT = "corrupt"
    """The bytes did not match their header. The tier has removed the block."""
    FULL = "full"
    """The tier's budget, or the device behind it, has no room. Nothing was written."""
    LATE = "late"
    """The deadline passed first. Memory that was to be loaded into may hold any bytes."""
    FAILED = "failed"
    """The tier could not read or write this block."""


class BlockName(NamedTuple):
    """Name of a block in every tier of one cluster."""

    space: bytes
    """Identity of the space, 16 bytes (`Space.identity`)."""
    key: bytes
    """Key of the block, 32 bytes."""


class Encoding(NamedTuple):
    """How the stored bytes of a block are encoded, as the header of the block states it."""

    codec: int
    """`BlockCodec.number`."""
    element: int
    """Meaning by codec; 0 to 255."""
    group: int
    """Meaning by codec; 0 to 65,535."""
    nbytes: int
    """Size of the encoded bytes."""


class StoredBlock(msgspec.Struct, frozen=True):
    """What a tier knows of a block besides its bytes."""

    name: BlockName
    tenant: str
    """`cache_salt` of the tenant that pays for the block."""
    sequence: int
    """Number that rises with every store of this node. A tombstone with a higher one makes the block dead."""
    length: int
    """Size of the data in bytes."""
    checksum: bytes
    """`dataplane.protocol.checksums.checksum` of the data, 16 bytes."""
    parent: bytes = b""
    """Key of the block before it in its chain, 32 bytes; empty for the first block, or if it is not known."""
    writer: int = 0
    """`writer_number` of the node that wrote the block to a shared tier; 0 in other tiers, or if it is not known."""
    encoding: Encoding | None = None
    """Encoding of a listed block in the tier; None if it is not encoded. Only `Tier.blocks` sets it."""

    @property
    def stored_bytes(self) -> int:
        """Size of the data in the tier, which are encoded if it lists them so."""
        return self.length if self.encoding is None else self.encoding.nbytes


def writer_number(node: str) -> int:
    """Return the number, 1 to 2^64 - 1, that stands for a node in the blocks that it writes to shared tiers."""
    return int.from_bytes(sha256(b"larder.node.1" + node.encode()).digest()[:8], "little") or 1


class Loaded(NamedTuple):
    """The outcome of a load. `block` is set exactly if the outcome is OK: the bytes match the block's checksum."""

    outcome: Outcome
    block: StoredBlock | None = None


class BlockForm(NamedTuple):
    """How the elements of a block are arranged in memory, as its space declares it."""

    dtype: str = ""
    """torch's name of the data type, such as `"bfloat16"`; empty if it is not known."""
    head_size: int = 0
    """Number of consecutive elements that belong to one head of one token; 0 if it is not known."""


class CopyEnd(NamedTuple):
    """The end of a copy to a tier."""

    outcome: Outcome
    charge: int | None = None
    """Bytes of the budget that it takes; None: the planned bytes."""
    encoding: Compress = "none"
    """Encoding of the block in the tier."""
    not_compressed: str = ""
    """Why the block is not compressed although the record says so; otherwise empty."""
