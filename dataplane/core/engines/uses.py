"""Credit the blocks that engines use and ask for: recency, hit totals, hot prefixes and the access trace.

A timer drains the rings in turn. An engine's own ring is also drained before the engine stores, which keeps the order
of uses exact. Ticks and drains have budgets, so that no engine starves the others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dataplane.core.blocks.blocks import Block
from dataplane.core.engines.accesses import AccessTrace
from dataplane.core.engines.engines import Engine
from dataplane.core.engines.prefixes import PrefixSketches
from dataplane.core.engines.rings import DrainBudget, drain
from dataplane.core.eviction.ancestors import MAX_ANCESTORS, chains_up_to
from dataplane.core.pool.pool import Pool
from dataplane.core.tenants.tenant import Tenant, wrapped
from dataplane.protocol.engine import Reserve
from dataplane.protocol.layout import HOT_KEY, U64

TICK_ENTRIES = 8192
"""Number of ring entries after which a tick gives no engine another turn."""
TURN_ENTRIES = 4096
"""Maximum number of ring entries that one engine's turn takes: the length of the longest chain."""
DRAIN_RUNS = 256
"""Maximum number of acquired chains per drain that count for hot prefixes and the trace. Of more chains, an evenly
spaced sample counts."""
TICK_RUNS = 512
"""Maximum number of acquired chains per tick, over all engines, that count for hot prefixes and the trace."""


@dataclass(slots=True)
class AccessReports:
    """Credit the accesses that engines report."""

    pool: Pool
    prefixes: PrefixSketches
    accesses: AccessTrace
    uncredited_runs: int = 0
    """Number of acquired chains that hot prefixes and the trace left out because too many came at once."""
    _turn: int = 0
    """Client that had the last turn when a tick's budget was used up."""

    def drain_in_turn(self, engines: Mapping[int, Engine], now: float) -> None:
        """Drain the rings of all engines within the budget of a tick. The next tick begins with those left out."""
        budget = DrainBudget(TICK_ENTRIES, TICK_RUNS)
        clients = sorted(engines)
        begin = bisect_right(clients, self._turn)
        for client in 2 * [*clients[begin:], *clients[:begin]]:
            self.drain(engines[client], now, budget)
            if budget.entries <= 0:
                self._turn = client
                return

    def drain(self, engine: Engine, now: float, budget: DrainBudget | None = None) -> None:
        """Drain an engine's ring and credit its uses: the whole ring, or one turn if a shared `budget` is given."""
        if engine.expelled:
            return
        if budget is None:
            budget, limit = DrainBudget(0, DRAIN_RUNS), engine.ring.area.ring_entries
        else:
            limit = TURN_ENTRIES
        pool = self.pool
        if engine.leading is None:
            engine.leading = pool.spaces.leading(engine.spaces)
        pool.usage.pass_to(now)
        # The schedulers of a gateway hold blocks of all its spaces, including spaces created after they attached.
        spaces = pool.spaces.of_gateway(engine.gateway) if engine.gateway else engine.spaces
        ring, totals = engine.ring, pool.totals
        dropped, invalid = ring.dropped, ring.invalid
        result = drain(ring, pool.table.memory, pool.tenants, spaces, limit, engine.leading)
        totals.ring_dropped = wrapped(totals.ring_dropped + ring.dropped - dropped)
        totals.ring_entries_rejected = wrapped(totals.ring_entries_rejected + ring.invalid - invalid)
        if result is None:
            return
        budget.entries -= result.entries
        totals.read_bytes = wrapped(totals.read_bytes + result.read_bytes)
        totals.requested_blocks = wrapped(totals.requested_blocks + result.requested)
        totals.hit_blocks = wrapped(totals.hit_blocks + result.hits)
        blocks = pool.table.blocks
        for run, nbytes in zip(result.runs, result.run_bytes, strict=True):
            first = blocks[run[-1]]
            tokens = pool.usage.served(first.tenant, first.space, len(run), nbytes)
            if pool.arrivals:
                pool.arrivals.acquired(first, (blocks[number] for number in run))
            first.tenant.hit(tokens, nbytes)
            engine.read(tokens, nbytes)
        pool.use([blocks[number] for number in result.touched], now)
        # An engine that has the first blocks of a chain itself acquires the others alone, and uses the whole chain.
        inner = [first for run in result.runs if (first := blocks[run[-1]]).parent]
        if inner:
            line, walked = self._chains_up_to(inner)
            budget.entries -= walked
            pool.use_chain(line, set(result.touched), now)
        self._credit(engine, result.runs, budget, now)

    def _credit(self, engine: Engine, runs: list[list[int]], budget: DrainBudget, now: float) -> None:
        """Credit acquired chains to hot prefixes and the trace: all, or a sample that includes the last one."""
        if not runs:
            return
        most = max(1, min(budget.runs, DRAIN_RUNS))
        chosen = runs[:: -1 - (len(runs) - 1) // most][::-1]
        budget.runs -= len(chosen)
        self.uncredited_runs += len(runs) - len(chosen)
        blocks = self.pool.table.blocks
        ancestors = MAX_ANCESTORS
        for numbers in chosen:
            ancestors -= self._served(engine, [blocks[number] for number in numbers], ancestors > 0, now)
        engine.last_run = frozenset(chosen[-1])

    def _served(self, engine: Engine, run: list[Block], whole: bool, now: float) -> int:
        """Record one acquired chain, last block first; with the blocks before it, if `whole` is true. Return the number
        of blocks walked for them."""
        first = run[-1]
        if not self.pool.spaces.leads(first.space):
            return 0
        self.prefixes.served(run, now)
        if not engine.spaces:  # a gateway's scheduler: its engine has these blocks itself, and then reads what follows
            return 0
        continued, walked = None, 0
        line = [first]
        if first.parent:
            continued = self.accesses.continued(engine.client, first.space, first.parent, now, acquired=True)
            if continued is None and whole:
                line, walked = self._chains_up_to([first])
        words = self._words([*run, *line[1:]][::-1])
        self.accesses.record(
            engine.client, first.tenant, first.space, first.nbytes, words, len(words), now, continued, acquired=True
        )
        return walked

    def _chains_up_to(self, last: Sequence[Block]) -> tuple[list[Block], int]:
        """Return the chains that end with these blocks, last block first, and how many blocks were walked at most."""
        line = chains_up_to(self.pool.table, last)
        return line, len(line) if last[0] in line else MAX_ANCESTORS  # without the one walked last: a limit was reached

    def _words(self, blocks: Sequence[Block]) -> U64:
        """Return the first words of the keys of blocks."""
        words: U64 = self.pool.table.memory.hot[[block.number for block in blocks], HOT_KEY]
        return words

    def store_requested(
        self,
        engine: Engine,
        message: Reserve,
        tenant: Tenant,
        words: U64,
        before: Sequence[Block],
        hits: int,
        now: float,
    ) -> None:
        """Record that an engine wants to store a chain whose `hits` leading blocks are present, behind the blocks
        `before` it."""
        engine.last_run = frozenset()
        if not self.pool.spaces.leads(message.space):
            return
        client, space, marks = engine.client, message.space, words[:, 0]
        continued = None
        if message.parent:
            continued = self.accesses.continued(client, space, message.parent, now, acquired=False)
            if continued is None and before:
                marks, hits = np.concatenate((self._words(before), marks)), len(before) + hits
        self.accesses.record(client, tenant, space, message.nbytes, marks, hits, now, continued)
