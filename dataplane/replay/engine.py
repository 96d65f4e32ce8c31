"""How one engine serves a request: look up, read cached blocks, store missing blocks.

The blocks of the current request are leased until its missing blocks are committed, so that making room for a request
never evicts the request's own blocks.
"""

from contextlib import ExitStack
from time import monotonic, perf_counter_ns, sleep

import numpy as np

from dataplane.client import Client, Lease, Reservation
from dataplane.protocol.codes import ReserveOutcome
from dataplane.protocol.engine import MAX_KEYS_PER_REQUEST
from dataplane.protocol.layout import U64
from dataplane.replay.content import Content
from dataplane.replay.tally import ReplayTally

POLL_S = 0.002
MIN_IDLE_S = 0.1
"""A load is given up when no block has arrived for so long, or for four times the estimate if that is longer."""
SCRATCH_BYTES = 4 << 20
"""Size of the buffer that stands in for engine memory; one block if a block is larger."""


class ReplayEngine:
    """Drives one client, in its space 0. `tally` holds the counts so far."""

    def __init__(self, client: Client, block_bytes: int, *, verify: bool = True, tier_wait_s: float = 0.0) -> None:
        """`tier_wait_s`: the longest wait of a request for blocks in tiers behind memory; 0: do not load from tiers."""
        self._tier_wait_s = tier_wait_s
        self.tally = ReplayTally()
        self._client = client
        self._block_bytes = block_bytes
        self._verify = verify
        self._content = Content(block_bytes)
        self._rows = max(1, SCRATCH_BYTES // block_bytes)
        self._scratch = self._content.scratch(self._rows)

    def serve(self, keys: U64, tenant: str) -> int:
        """Serve one request of packed keys [n, 4], first block first. Return the number of leading hits."""
        self.tally.requests += 1
        self.tally.blocks_requested += len(keys)
        if not len(keys):
            return 0
        if self._tier_wait_s:
            self._load(keys)
        start = perf_counter_ns()
        leading = self._client.lookup(keys, tenant=tenant)
        self.tally.lookup_ns.append(perf_counter_ns() - start)
        if not leading:
            self._store(keys, 0, tenant)
            return 0
        start = perf_counter_ns()
        with self._client.acquire(keys[:leading], tenant=tenant) as lease:
            self.tally.read_ns += perf_counter_ns() - start
            hits = len(lease)
            self._read(lease, keys[:hits])
            if hits < len(keys):
                self._store(keys, hits, tenant)
        return hits

    def _load(self, keys: U64) -> None:
        """Load what tiers hold behind the blocks in memory, and wait while blocks arrive."""
        before = self._client.lookup_tiers(keys, counted=False)
        if not before.coming or not self._client.prefetch(keys, wait_s=self._tier_wait_s):
            return
        ready, target = before.ready, before.ready + before.coming
        idle_s = max(MIN_IDLE_S, 4 * before.estimate_s)
        now = progress = monotonic()
        end = now + self._tier_wait_s
        while ready < target and now < min(end, progress + idle_s):
            sleep(POLL_S)
            now, previous = monotonic(), ready
            ready = self._client.lookup(keys, counted=False)
            if ready > previous:
                progress = now
        self.tally.blocks_loaded += max(0, ready - before.ready)

    def _read(self, lease: Lease, keys: U64) -> None:
        """Copy out every leased block, in batches, and check the copies."""
        tally = self.tally
        tally.blocks_hit += len(keys)
        for first in range(0, len(keys), self._rows):
            batch = keys[first : first + self._rows]
            out = self._scratch[: len(batch)]
            start = perf_counter_ns()
            sizes_wrong = 0
            for row in range(len(batch)):
                block = lease.array(first + row)
                if block.nbytes == self._block_bytes:
                    np.copyto(out[row], block)
                else:
                    out[row] = 0
                    sizes_wrong += 1
                tally.read_bytes += block.nbytes
            tally.read_ns += perf_counter_ns() - start
            if self._verify:
                tally.verify_errors += self._content.wrong(out, batch)
                tally.blocks_verified += len(batch)
            else:
                tally.verify_errors += sizes_wrong

    def _store(self, keys: U64, hits: int, tenant: str) -> None:
        """Reserve the whole chain, so that ancestors stay newer than descendants; commit the missing blocks."""
        with ExitStack() as open_reservations:
            filled = [
                open_reservations.enter_context(self._fill(keys, first, hits, tenant))
                for first in range(0, len(keys), MAX_KEYS_PER_REQUEST)
            ]
            start = perf_counter_ns()
            for reservation in filled:
                target = len(reservation.writable)
                if not target:
                    continue
                done = reservation.commit()
                self.tally.blocks_stored += done.blocks
                self.tally.stored_bytes += done.blocks * self._block_bytes
                if done.code is not None:
                    self.tally.refuse(done.code.name.lower(), target - done.blocks)
            self.tally.store_ns += perf_counter_ns() - start

    def _fill(self, keys: U64, first: int, hits: int, tenant: str) -> Reservation:
        """Reserve blocks from `first` on, as many as fit a request. Count outcomes and write granted blocks."""
        tally = self.tally
        piece = keys[first : first + MAX_KEYS_PER_REQUEST]
        start = perf_counter_ns()
        parent = keys[first - 1].tobytes() if first else b""
        reservation = self._client.reserve(piece, self._block_bytes, tenant=tenant, parent=parent)
        tally.store_ns += perf_counter_ns() - start
        outcomes = reservation.outcomes[max(0, hits - first) :]
        tally.blocks_present += int(np.count_nonzero(outcomes == ReserveOutcome.PRESENT))
        tally.blocks_busy += int(np.count_nonzero(outcomes == ReserveOutcome.BUSY))
        for code, blocks in reservation.refused.items():
            tally.refuse(code.name.lower(), blocks)
        writable = reservation.writable
        for at in range(0, len(writable), self._rows):
            positions = writable[at : at + self._rows]
            content = self._scratch[: len(positions)]
            self._content.fill(content, piece[positions])
            start = perf_counter_ns()
            for row, position in enumerate(positions):
                reservation.view(position)[:] = content[row].data
            tally.store_ns += perf_counter_ns() - start
        return reservation
