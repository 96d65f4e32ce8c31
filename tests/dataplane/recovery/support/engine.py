"""An engine under load that checks every byte: `python -m tests.dataplane.recovery.support.engine SOCKET SEED`.

It holds a lease on chains of its own for its whole life and reads them again and again: those may never miss. Beside
that it stores and reads chains that all engines share, more than the pool has room for. Ends on SIGTERM with a line of
JSON about what it saw, and with an error at wrong bytes.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time

from dataplane.client import Client, attach
from tests.dataplane import factories as make
from tests.dataplane.recovery.support.blocks import read, store
from tests.sizes import size

BLOCK_BYTES = 16 << 10
OWN_BLOCKS = 8
CHAINS = 160
LONGEST = 32
PAUSE_S = size(0, 5) / 1000
"""After each round: without it, engines take all of the time that the data plane needs to start again."""


class Load:
    """One engine's work and what it saw."""

    def __init__(self, client: Client, seed: int) -> None:
        self._client = client
        self._random = random.Random(seed)
        self._own = make.keys(OWN_BLOCKS, ("own", seed))
        self.seen = {"own_misses": 0, "verified_blocks": 0, "stored_blocks": 0, "rounds": 0}

    def begin(self) -> None:
        """Store what is its own and hold it for good."""
        while self._store(self._own, "t0") < OWN_BLOCKS and self._client.lookup(self._own) < OWN_BLOCKS:
            pass
        self._lease = self._client.acquire(self._own)
        assert len(self._lease) == OWN_BLOCKS

    def round(self) -> None:
        self.seen["rounds"] += 1
        self.seen["own_misses"] += self._read(self._own) < OWN_BLOCKS
        number = min(int(self._random.paretovariate(0.6)), CHAINS)
        chain = make.keys(self._random.randint(1, LONGEST), ("shared", number))
        if self._read(chain) < len(chain):
            self._store(chain, f"t{number % 5}")

    def _read(self, chain: list[bytes]) -> int:
        found = read(self._client, chain, BLOCK_BYTES)
        self.seen["verified_blocks"] += found
        return found

    def _store(self, chain: list[bytes], tenant: str) -> int:
        stored = store(self._client, chain, BLOCK_BYTES, tenant)
        self.seen["stored_blocks"] += stored
        return stored


def main(path: str, seed: int) -> None:
    going = [True]
    signal.signal(signal.SIGTERM, lambda *_: going.clear())
    with attach(path, [make.space()], timeout_s=30, group=f"engine-{seed}", on_event=lambda event: None) as client:
        load = Load(client, seed)
        load.begin()
        sys.stdout.write("begun\n")
        sys.stdout.flush()
        while going:
            load.round()
            time.sleep(PAUSE_S)
        sys.stdout.write(json.dumps(load.seen) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
