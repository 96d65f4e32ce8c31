"""The interface of a tier: blocking calls for many blocks at once, each with a deadline and one outcome per block.

The data plane makes these calls on threads of its own, so a tier needs no event loop. A call returns an outcome for
each block, in the order of its arguments, and raises `TierError` only if the tier as a whole is not usable: a directory
that is gone, a server that does not answer. Every other exception is a defect of the tier; the caller counts it as
`TierError`. Calls arrive from several threads at once.
"""

from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple, Protocol

import msgspec

from dataplane.protocol.stored_blocks import BlockName, Buffer, Encoding, Loaded, Outcome, StoredBlock


class TierError(Exception):
    """The tier as a whole is not usable. The message says what was tried and what happened, without secrets."""


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
        """Delete blocks. A block that is not held is OK; one that may come back is not. OK, LATE or FAILED."""
        ...

    def sync(self, deadline: float) -> Outcome:
        """Make all deletions so far survive a loss of power. OK, LATE or FAILED. Not called for shared tiers."""
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
