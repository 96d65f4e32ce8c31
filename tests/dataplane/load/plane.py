"""A data plane for the hammer: at its end it prints what contradicts itself in its accounts."""

from __future__ import annotations

import json
import signal
import sys

from dataplane.base.log import configure
from dataplane.compose import DataPlane
from dataplane.core.blocks.leases import LeaseTable
from dataplane.settings import load


def main(leases: type[LeaseTable] = LeaseTable) -> None:
    configure()
    plane = DataPlane(load(), leases=leases)
    signal.signal(signal.SIGTERM, lambda *_: plane.stop())
    plane.run()
    totals = plane.node.pool.totals
    found = {"faults": plane.node.check(), "evicted": totals.evicted_blocks, "put_back": totals.evictions_cancelled}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
