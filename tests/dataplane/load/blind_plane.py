"""The negative control of the hammer: eviction does not ask who reads."""

from __future__ import annotations

from collections.abc import Sequence

from dataplane.core.blocks.blocks import Block
from dataplane.core.blocks.leases import LeaseTable
from tests.dataplane.load.plane import main


class BlindLeaseTable(LeaseTable):
    """Sees no reader."""

    def raised(self, blocks: Sequence[Block]) -> list[bool]:
        return [False] * len(blocks)


if __name__ == "__main__":
    main(BlindLeaseTable)
