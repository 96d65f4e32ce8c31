"""The interface of a tier: blocking calls for many blocks at once, each with a deadline and one outcome per block.

The data plane makes these calls on threads of its own, so a tier needs no event loop. A call returns an outcome for
each block, in the order of its arguments, and raises `TierError` only if the tier as a whole is not usable: a directory
that is gone, a server that does not answer. Every other exception is a defect of the tier; the caller counts it as
`TierError`. Calls arrive from several threads at once.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from hashlib import sha256
from math import inf
from typing import Any, NamedTuple, Protocol

import msgspec

Buffer = Any
"""An object with a contiguous buffer: bytes, memoryview, numpy array."""


class TierError(Exception):
    """The tier as a whole is not usable. The message says what was tried and what happened, without secrets."""


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


def writer_number(node: str) -> int:
    """Return the number, 1 to 2^64 - 1, that stands for a node in the blocks that it writes to shared tiers."""
    return int.from_bytes(sha256(b"larder.node.1" + node.encode()).digest()[:8], "little") or 1


class BlockStore(NamedTuple):
    """A block to store."""

    block: StoredBlock
    data: Buffer
    """`block.length` bytes that do not change during the call; fewer if they are encoded."""
    encoding: Encoding | None = None
    """Encoding of the data; None if they are not encoded. Set only for types of tiers that have codecs."""


class BlockLoad(NamedTuple):
    """A block to load."""

    name: BlockName
    into: memoryview
    """Writable memory of exactly the block's length."""


class Loaded(NamedTuple):
    """The outcome of a load. `block` is set exactly if the outcome is OK: the bytes match the block's checksum."""

    outcome: Outcome
    block: StoredBlock | None = None


class TierUsage(msgspec.Struct, frozen=True):
    """What a tier holds, as far as this node knows."""

    blocks: int
    stored_bytes: int
    """Bytes charged to the budget: data, headers and rounding."""
    budget_bytes: int
    """The most bytes that the tier may hold; 0 for no limit."""
    device_free_bytes: int | None = None
    """Free bytes of the device behind the tier, or None if it cannot be known."""
    corrupt_blocks: int = 0
    """Blocks that were found corrupt, and removed, since the tier was opened."""
    foreign_objects: int = 0
    """Things in the tier's place that are not blocks, as of the last listing. They are skipped."""
    first_foreign: str = ""
    """Name of the first of them."""


class TierHealth(msgspec.Struct, frozen=True):
    """Whether the tier answers, and why not."""

    ok: bool
    reason: str = ""
    """What is wrong, for the operator. Empty if nothing is; a tier that is ok may still have a part that is not in
    service, such as one of several directories."""


class Tier(Protocol):
    """A store behind memory. Deadlines are times of `time.monotonic`."""

    def stored_size(self, length: int) -> int:
        """Return the bytes that a block of `length` bytes takes of the budget."""
        ...

    def lookup(self, names: Sequence[BlockName], deadline: float) -> list[StoredBlock | None]:
        """Return what the tier holds under each name, without reading the data."""
        ...

    def store(self, stores: Sequence[BlockStore], deadline: float) -> list[Outcome]:
        """Store blocks. A block that is already held under its name is replaced. OK, FULL, LATE or FAILED."""
        ...

    def load(self, loads: Sequence[BlockLoad], deadline: float) -> list[Loaded]:
        """Load blocks into memory and compare them with their checksums. OK, MISSING, CORRUPT, LATE or FAILED.

        A block whose length differs from its memory's is CORRUPT.
        """
        ...

    def delete(self, names: Sequence[BlockName], deadline: float) -> list[Outcome]:
        """Delete blocks. A block that is not held is OK. OK, LATE or FAILED."""
        ...

    def blocks(self, deadline: float = inf) -> Iterator[StoredBlock]:
        """Iterate over all blocks that the tier holds, in any order. Blocks may come and go meanwhile.

        A shared tier includes the blocks of other nodes. It reads a bounded number of blocks ahead. `usage` counts the
        blocks of its own node as soon as they are read. Raises TierError if blocks cannot be listed by the deadline.
        """
        ...

    def resize(self, budget_bytes: int) -> bool:
        """Change the budget. Return False if the tier must be closed and opened again for that."""
        ...

    def usage(self) -> TierUsage:
        """Return what the tier holds. Answers from memory, without I/O to the store."""
        ...

    def health(self, deadline: float) -> TierHealth:
        """Ask the store whether it answers. Never raises."""
        ...

    def close(self) -> None:
        """Release files, connections and threads. Blocks stay. May be called twice; calls under way may fail."""
        ...
