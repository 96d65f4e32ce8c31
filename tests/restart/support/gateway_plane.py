"""A data plane whose process stands in for one gateway engine: `python -m tests.restart.support.gateway_plane`.

The first one stores a chain; one that goes on with it looks at what there is. Each writes one line of JSON to the file
`said` in its state directory before it serves.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from dataplane.base.settings import SettingsError
from dataplane.compose import DataPlane
from dataplane.core.inprocess import InProcess
from dataplane.holding.connection import HolderConnection
from dataplane.memory.named import NamedFile
from dataplane.observe.log import configure
from dataplane.protocol.engine import VERSION, Attach, Commit, Reserve, SpaceRequest
from dataplane.protocol.layout import H_MEMORY
from dataplane.protocol.spaces import LMCACHE
from dataplane.settings import load
from tests.core.gateway import space
from tests.dataplane import factories as make
from tests.dataplane.plane import contents

GROUP = "lmcache:test"
NBYTES = 4096
CHAIN = make.keys(40)
LEASED = 8
"""Of the chain, from its start."""
OPEN = make.keys(3, "open")


class Peer:
    """The engine, as the gateway has it."""

    def __init__(self, plane: DataPlane, named: NamedFile) -> None:
        self.plane = plane
        self.named = named
        self.core = InProcess(plane.node)
        self.lost = [engine for engine in self.core.lost(LMCACHE) if engine.group == GROUP]
        before = self.lost[0].client if self.lost else 0
        message = Attach(
            0,
            VERSION,
            GROUP,
            [SpaceRequest(space())],
            resume=before,
            resume_memory=plane.node.pool.table.memory.cells[H_MEMORY],
        )
        self.engine, (self.number,) = self.core.node.attach(message, 0, plane.clock(), gateway=LMCACHE)

    def store(self, chain: list[bytes], *, commit: bool = True) -> int:
        client, view = self.engine.client, self.named.view()
        message = Reserve(0, self.number, "a", make.packed(chain), NBYTES)
        granted = self.core.node.reserve(client, message, self.plane.clock())
        for at, outcome in enumerate(granted.outcomes.tolist()):
            if outcome == 0:
                start = self.named.base(int(granted.segments[at])) + int(granted.offsets[at])
                view[start : start + NBYTES] = contents(chain, NBYTES)[at]
        if not commit or not granted.reservation:
            return 0
        return self.core.node.commit(client, Commit(0, granted.reservation), self.plane.clock())

    def whole(self, chain: list[bytes]) -> int:
        """Leading blocks of a chain that are here with the bytes that were written."""
        now = self.plane.clock()
        leased = self.core.hold(
            self.engine.client, self.number, make.packed(chain), "a", now, is_lookup=True, used=True
        )
        expected, view = contents(chain, NBYTES), self.named.view()
        count = 0
        for at, (segment, offset) in enumerate(zip(leased.segments, leased.offsets, strict=True)):
            start = self.named.base(segment) + offset
            if bytes(view[start : start + NBYTES]) != expected[at]:
                break
            count += 1
        self.core.release(self.engine.client, leased.descriptors)
        return count


def work(plane: DataPlane) -> dict[str, Any]:
    """What the engine does, and finds."""
    named = plane._memory.named
    gateways = [engine.client for engine in plane.node.engines.values() if engine.gateway]
    if named is None:
        return {"named": None, "engines": gateways, "faults": plane.node.check()}
    peer = Peer(plane, named)
    before = peer.core.held(peer.engine.client)
    found = peer.whole(CHAIN)
    stored = peer.store(CHAIN) if not found else peer.store(make.keys(5, ("more", os.getpid())))
    if not found:
        peer.core.hold(
            peer.engine.client, peer.number, make.packed(CHAIN[:LEASED]), "a", plane.clock(), is_lookup=False
        )
        peer.store(OPEN, commit=False)
    return {
        "named": named.name,
        "inode": os.fstat(named.file.fd).st_ino,
        "nbytes": named.nbytes,
        "adopted": named.adopted,
        "resumed": peer.engine.resumed,
        "held": len(before),
        "found": found,
        "open": peer.whole(OPEN),
        "stored": stored,
        "again": peer.whole(CHAIN),
        "faults": plane.node.check(),
    }


def main() -> int:
    log = configure()
    try:
        settings = load()
        plane = DataPlane(settings, holder=HolderConnection(Path(settings.common.state_dir)))
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: plane.stop())
    with (Path(settings.common.state_dir) / "said").open("a", encoding="utf-8") as file:
        file.write(json.dumps(work(plane)) + "\n")
    plane.run()
    log.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
