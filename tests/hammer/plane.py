"""A data plane for the hammer: `python -m tests.hammer.plane [--no-scan]`.

`--no-scan` is the negative control: eviction does not ask who reads. At its end the process prints what contradicts
itself in its accounts.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence

from dataplane.compose import DataPlane
from dataplane.core.blocks.blocks import Block
from dataplane.core.blocks.leases import LeaseTable
from dataplane.observe.log import configure
from dataplane.settings import load


class BlindLeaseTable(LeaseTable):
    """Sees no reader."""

    def held(self, blocks: Sequence[Block]) -> list[bool]:
        return [False] * len(blocks)


def main(arguments: list[str]) -> None:
    configure()
    plane = DataPlane(load(), leases=BlindLeaseTable if "--no-scan" in arguments else LeaseTable)
    signal.signal(signal.SIGTERM, lambda *_: plane.stop())
    plane.run()
    totals = plane.node.pool.totals
    found = {"faults": plane.node.check(), "evicted": totals.evicted_blocks, "put_back": totals.evictions_cancelled}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
