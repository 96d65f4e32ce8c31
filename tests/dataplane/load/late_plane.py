"""A data plane for the hammer that looks for readers only behind the barrier, so that each eviction depends on it."""

from __future__ import annotations

from collections.abc import Sequence

from dataplane.core.blocks.blocks import Block
from dataplane.core.blocks.leases import LeaseTable
from tests.dataplane.load.plane import main


class LateLeaseTable(LeaseTable):
    """Sees no reader before blocks are hidden."""

    def raised(self, blocks: Sequence[Block]) -> list[bool]:
        return [False] * len(blocks)

    def held(self, blocks: Sequence[Block]) -> list[bool]:
        self._fence()
        return super().raised(blocks)


if __name__ == "__main__":
    main(LateLeaseTable)
