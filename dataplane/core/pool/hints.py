"""Hints of requests: how long an engine wants the blocks of a request dropped after, or kept for.

A hint comes from a tenant, so the operator bounds it: `max_s` bounds every duration, and hinted pins hold at most
`MAX_PINNED_SHARE` of the bytes that the tenant's account may hold. A hinted pin changes the order of eviction only
within its account, and never adds to what the account may hold. Pins of operators take precedence over both kinds of
hints. Hints are not in the recovery table: a data plane that adopts the memory of another one forgets them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil

from dataplane.core.blocks.blocks import Block
from dataplane.core.pool.order import EvictionOrder
from dataplane.core.tenants.eviction_queues import Rank

MAX_PINNED_SHARE = 0.5
"""Share of an account's limit, or of the pool for an account without a limit, that hinted pins may hold."""
MAX_AT_ONCE = 4096
"""Maximum number of blocks whose hints one step ends."""


@dataclass(frozen=True, slots=True)
class Hint:
    """Durations that a request asks for, in seconds; 0 for none."""

    ttl_s: float = 0.0
    """The blocks that the request stores are dropped after this time without use."""
    pin_s: float = 0.0
    """The blocks of the request are evicted after the other blocks of its account, for this time."""

    def bounded(self, most_s: float) -> Hint | None:
        """Return the hint with durations of at most `most_s`; None if nothing is left of it. A duration that is not a
        positive number counts as none."""
        ttl_s, pin_s = (min(seconds, most_s) if seconds > 0 else 0.0 for seconds in (self.ttl_s, self.pin_s))
        return Hint(ttl_s, pin_s) if ttl_s or pin_s else None


@dataclass(slots=True)
class _HintedBlock:
    due: int
    """Unix second at which the hints of the block are looked at next."""
    ttl_s: float = 0.0
    pinned_until: float = 0.0
    """Unix seconds; 0 without a hinted pin."""


@dataclass(slots=True)
class HintTable:
    """Hints of READY blocks."""

    order: EvictionOrder
    operator_pins: Container[Block]
    """Blocks that an operator's pin holds."""
    max_s: float = 0.0
    """Longest duration of a hint, in seconds; 0: hints have no effect."""
    hinted: dict[Block, _HintedBlock] = field(default_factory=dict)
    pinned_bytes: int = 0
    """Charged bytes of the blocks under hinted pins."""
    _due: dict[int, dict[Block, None]] = field(default_factory=dict)
    """Hinted blocks by the second at which they are due."""
    _next: float = 0.0
    """Unix seconds before which no block is due."""

    def apply(
        self, hint: Hint, blocks: Iterable[Block], chain: Sequence[Block], capacity_bytes: int, now: float
    ) -> int:
        """Apply a bounded hint to some READY blocks of a chain. Both are in the order of the chain, ancestors first,
        and belong to one tenant. Return the number of blocks that were not pinned because the share was full."""
        refused = 0
        for block in blocks:
            if hint.ttl_s:
                self._of(block, now).ttl_s = hint.ttl_s
                self._look_again(block, now)
            if hint.pin_s and not self._pin(block, now + hint.pin_s, capacity_bytes, now):
                refused += 1
        self._line_up(reversed(chain), now)
        return refused

    def _pin(self, block: Block, until: float, capacity_bytes: int, now: float) -> bool:
        hint = self.hinted.get(block)
        if hint is None or not hint.pinned_until:
            account = block.tenant.account
            most = capacity_bytes if account.limit_bytes is None else account.limit_bytes
            if account.hinted_bytes + block.charge > most * MAX_PINNED_SHARE:
                return False
            hint = self._of(block, now)
            self._charge(block, block.charge)
        hint.pinned_until = max(hint.pinned_until, until)
        self._look_again(block, now)
        return True

    def _line_up(self, tail_first: Iterable[Block], now: float) -> None:
        """Order the pinned blocks of a chain so that the tail is evicted first."""
        for block in tail_first:
            if block.queue is None:
                continue
            if block.rank is Rank.HINTED:
                block.queue.refresh(block, now)
            elif block.rank is Rank.NORMAL:
                self.order.move(block, self.rank(block), now)

    def rank(self, block: Block) -> Rank:
        """Return the rank of a block that no operator's pin holds."""
        hint = self.hinted.get(block)
        return Rank.HINTED if hint is not None and hint.pinned_until else Rank.NORMAL

    # ---- the end of hints

    def forget(self, block: Block) -> None:
        """Remove the hints of a block that is removed."""
        hint = self.hinted.pop(block, None)
        if hint is None:
            return
        if hint.pinned_until:
            self._charge(block, -block.charge)
        self._leave(block, hint.due)

    def end_pin(self, block: Block) -> None:
        """End the hinted pin of a block; the caller gives the block its new rank."""
        hint = self.hinted.get(block)
        if hint is not None and hint.pinned_until:
            hint.pinned_until = 0.0
            self._charge(block, -block.charge)

    def step(self, now: float) -> list[Block]:
        """End the hinted pins that are due, and return the blocks to drop: those not used for their `ttl_s`. Each call
        handles a bounded number of blocks."""
        if now < self._next:
            return []
        due: list[Block] = []
        for second in sorted(second for second in self._due if second <= now):
            due += list(self._due[second])[: MAX_AT_ONCE - len(due)]
        dropped = []
        for block in due:
            hint = self.hinted[block]
            if hint.pinned_until and hint.pinned_until <= now:
                self.end_pin(block)
                if block.queue is not None and block.rank is Rank.HINTED:
                    self.order.move(block, Rank.NORMAL, now)
            if hint.ttl_s and block.used_at + hint.ttl_s <= now and block not in self.operator_pins:
                dropped.append(block)
            self._look_again(block, now)
        if len(due) < MAX_AT_ONCE:
            self._next = ceil(now)
        return dropped

    # ---- when a block is due

    def _of(self, block: Block, now: float) -> _HintedBlock:
        hint = self.hinted.get(block)
        if hint is None:
            hint = self.hinted[block] = _HintedBlock(ceil(now))
            self._due.setdefault(hint.due, {})[block] = None
        return hint

    def _look_again(self, block: Block, now: float) -> None:
        """Note when the hints of a block are due next; forget a block without hints."""
        hint = self.hinted[block]
        due_times = [hint.pinned_until] if hint.pinned_until else []
        if hint.ttl_s:
            dropped_at = block.used_at + hint.ttl_s
            due_times.append(dropped_at if dropped_at > now else now + hint.ttl_s)
        if not due_times:
            self.forget(block)
            return
        self._leave(block, hint.due)
        hint.due = ceil(min(due_times))
        self._due.setdefault(hint.due, {})[block] = None
        self._next = min(self._next, hint.due)

    def _leave(self, block: Block, due: int) -> None:
        waiting = self._due[due]
        del waiting[block]
        if not waiting:
            del self._due[due]

    def _charge(self, block: Block, nbytes: int) -> None:
        block.tenant.hinted_bytes += nbytes
        block.tenant.account.hinted_bytes += nbytes
        self.pinned_bytes += nbytes
