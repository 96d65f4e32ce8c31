"""What engines used and asked for, credited: recency, hit totals, hot prefixes and the trace of accesses.

Rings are drained in turn on a timer, and an engine's own one before it stores: then the order is exact. A tick and a
drain have budgets, so that no engine keeps the others from their turn.
"""

from __future__ import annotations

from bisect import bisect_right

from dataplane.core.accesses import Accesses
from dataplane.core.blocks import Block
from dataplane.core.engines import Engine
from dataplane.core.pool import Pool
from dataplane.core.prefixes import Prefixes
from dataplane.core.quotas import Tenant, wrapped
from dataplane.core.rings import Budget, drain
from dataplane.protocol.engine import Reserve
from dataplane.protocol.layout import HOT_KEY, U64

TICK_ENTRIES = 8192
"""Ring entries after which a tick gives no engine another turn."""
TURN_ENTRIES = 4096
"""Of one engine, before others have their turn: the longest chain."""
DRAIN_RUNS = 256
"""Acquired chains of one drain that count for hot prefixes and the trace; of more, some all over them."""
TICK_RUNS = 512
"""As much, of all engines together."""


class Uses:
    """Takes note of what engines did."""

    def __init__(
        self, pool: Pool, engines: dict[int, Engine], prefixes: Prefixes, accesses: Accesses
    ) -> None:
        self._pool = pool
        self._engines = engines
        self._prefixes = prefixes
        self._accesses = accesses
        self._turn = 0
        """The client that had the last turn when a tick's budget was used up."""
        self.uncredited_runs = 0
        """Acquired chains that hot prefixes and the trace leave out, for there were very many at once."""

    def drain_in_turn(self, now: float) -> None:
        """Every engine's ring, as far as the budget of a tick goes; who had no turn is first at the next tick."""
        budget = Budget(TICK_ENTRIES, TICK_RUNS)
        clients = sorted(self._engines)
        begin = bisect_right(clients, self._turn)
        for client in 2 * [*clients[begin:], *clients[:begin]]:
            self.drain(self._engines[client], now, budget)
            if budget.entries <= 0:
                self._turn = client
                return

    def drain(self, engine: Engine, now: float, budget: Budget | None = None) -> None:
        """Take note of what an engine used: of all of it, or of one turn when others share the budget."""
        if budget is None:
            budget, limit = Budget(0, DRAIN_RUNS), engine.ring.area.ring_entries
        else:
            limit = TURN_ENTRIES
        pool = self._pool
        if engine.leading is None:
            engine.leading = pool.spaces.leading(engine.spaces)
        pool.usage.pass_to(now)
        # A gateway's schedulers hold blocks of all of its spaces, also of those that came after them.
        spaces = pool.spaces.of_gateway(engine.gateway) if engine.gateway else engine.spaces
        found = drain(engine.ring, pool.table.memory, pool.tenants, spaces, limit, engine.leading)
        if found is None:
            return
        budget.entries -= found.entries
        totals = pool.totals
        totals.bytes_out = wrapped(totals.bytes_out + found.bytes_out)
        totals.requested_blocks = wrapped(totals.requested_blocks + found.requested)
        totals.hit_blocks = wrapped(totals.hit_blocks + found.hits)
        blocks = pool.table.blocks
        for run in found.runs:
            first = blocks[run[-1]]
            pool.usage.served(first.tenant, first.space, len(run))
        pool.use([blocks[number] for number in found.touched], now)
        self._credit(engine, found.runs, budget, now)

    def read(self, engine: Engine, numbers: list[int], now: float) -> None:
        """READY blocks of a chain, first one first, that the data plane itself copies for an engine."""
        pool = self._pool
        pool.usage.pass_to(now)
        blocks = [pool.table.blocks[number] for number in reversed(numbers)]
        first = blocks[-1]
        pool.totals.bytes_out = wrapped(pool.totals.bytes_out + sum(block.nbytes for block in blocks))
        pool.usage.served(first.tenant, first.space, len(blocks))
        pool.use(blocks, now)
        self._served(engine, blocks, now)
        engine.last_run = frozenset(numbers)

    def _credit(self, engine: Engine, runs: list[list[int]], budget: Budget, now: float) -> None:
        """Acquired chains count for hot prefixes and the trace: all of them, or some and the last one."""
        if not runs:
            return
        most = max(1, min(budget.runs, DRAIN_RUNS))
        chosen = runs[:: -1 - (len(runs) - 1) // most][::-1]
        budget.runs -= len(chosen)
        self.uncredited_runs += len(runs) - len(chosen)
        blocks = self._pool.table.blocks
        for numbers in chosen:
            self._served(engine, [blocks[number] for number in numbers], now)
        engine.last_run = frozenset(chosen[-1])

    def _served(self, engine: Engine, run: list[Block], now: float) -> None:
        """A chain was acquired, last block first."""
        first = run[-1]
        if self._pool.spaces.leads(first.space):
            self._prefixes.served(run, now)
            words = self._pool.table.memory.hot[[block.number for block in reversed(run)], HOT_KEY]
            self._accesses.served(engine.client, first.tenant, first.space, first.nbytes, words, now)

    def asked(
        self, engine: Engine, message: Reserve, tenant: Tenant, words: U64, hits: int, now: float
    ) -> None:
        """An engine wants to store a chain."""
        engine.last_run = frozenset()
        if self._pool.spaces.leads(message.space):
            self._accesses.stored(
                engine.client, tenant, message.space, message.nbytes, words[:, 0], hits, now
            )
