"""Moves between memory and tiers: copies of blocks to a tier, and loads of blocks into memory.

Copies take turns with those of spills, and the tier bounds the bytes of both. With `release`, a
block is removed from memory once the tier holds it and no lease does. Blocks under guaranteed and permanent pins stay
in memory. A copy evicts no block of the tier that was stored or used since the move began.
"""

from __future__ import annotations

from collections import deque

from dataplane.core.blocks.blocks import Block
from dataplane.core.eviction.reclaimer import Reclaimer
from dataplane.core.operator import scopes
from dataplane.core.tiering.catalog import Catalog
from dataplane.core.tiering.jobs import CopyRequest, JobReason, JobTable
from dataplane.core.tiering.load_queue import LoadRequest
from dataplane.core.tiering.loads import Loads
from dataplane.core.tiering.move_chains import CANCELLED, ChainPart, ChainSelection, SelectedMove
from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.control.moves import Move, MoveState
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.stored_blocks import BlockName

BLOCKS_PER_STEP = 1024
"""Blocks that one step looks at, and that one step releases."""
MAX_OUTSTANDING = 4096
"""Blocks of a move that wait for their copy at the same time."""
MAX_REQUESTS = 4
"""Requests for loads of a move that wait at the same time."""
MAX_LOADED_RATIO = 0.8
"""Fraction of the pool that one move loads at most, so that it does not evict what it has just loaded."""
RELEASED = "moved"
"""JobReason of the evictions of a move with `release`."""


class MoveToTier:
    """Copies blocks to a tier, and releases them from memory if asked to."""

    def __init__(
        self, catalog: Catalog, table: JobTable, reclaimer: Reclaimer, message: Move, state: MoveState, tier: TierState
    ) -> None:
        self.state, self.tier = state, tier
        self._catalog, self._table, self._reclaimer, self._pool = catalog, table, reclaimer, catalog.pool
        self._release = message.release
        numbers = scopes.selected(self._pool, message.scope)
        state.blocks, state.bytes = len(numbers), self._pool.sweeps.stored_bytes(numbers)
        self._remaining: deque[tuple[int, int]] = deque()
        """Descriptors and control words."""
        if not message.dry_run:
            controls = self._pool.table.memory.control[numbers]
            self._remaining.extend(zip(numbers.tolist(), controls.tolist(), strict=True))
        self._copies = CopyRequest(JobReason.MOVE, None, tier, state.started_at)
        self._copying: dict[BlockName, tuple[Block, int]] = {}
        """Blocks whose copy has not ended, with their control words."""
        self._releasing: deque[tuple[BlockName, Block, int]] = deque()

    def step(self, now: float) -> bool:
        self._look_at_copies()
        self._begin_copies()
        self._release_some(now)
        return not (self._remaining or self._copying or self._releasing)

    def _look_at_copies(self) -> None:
        for name, reason in self._table.take_ended(self._copies):
            block, control = self._copying.pop(name)
            if name in self.tier.contents.entries:
                self.state.moved_blocks += 1
                self.state.moved_bytes += block.nbytes
                self._copied(name, block, control)
            else:
                self.state.refuse(reason or "gone")

    def _copied(self, name: BlockName, block: Block, control: int) -> None:
        if not self._release:
            return
        if self.state.cancelled:
            self.state.refuse(CANCELLED)
        elif self._is_pinned(block):
            self.state.refuse("pinned")
        else:
            self._releasing.append((name, block, control))

    def _begin_copies(self) -> None:
        tier, pool = self.tier, self._pool
        copying_bytes = sum(block.nbytes for block, _ in self._copying.values())
        for _ in range(min(BLOCKS_PER_STEP, len(self._remaining))):
            if len(self._copying) >= MAX_OUTSTANDING or copying_bytes >= 2 * tier.spec.max_bytes_in_flight:
                break
            number, control = self._remaining.popleft()
            block = pool.table.blocks.get(number)
            name = None if block is None else self._name(block)
            if block is None or name is None or not self._pool.readable(block, control):
                self.state.refuse("gone")
            elif name in tier.contents.entries:
                self.state.present_blocks += 1
                self._copied(name, block, control)
            elif not tier.serves:
                self.state.refuse("away")
            else:
                self._copying[name] = block, control
                copying_bytes += block.nbytes
                self._table.add(self._copies, name, block)
        if self._copying:
            self._catalog.wake()

    def _release_some(self, now: float) -> None:
        for _ in range(min(BLOCKS_PER_STEP, len(self._releasing))):
            name, block, control = self._releasing.popleft()
            if not self._pool.readable(block, control):
                continue  # it was evicted meanwhile
            if name not in self.tier.contents.entries:
                self.state.refuse("evicted")
            elif self._is_pinned(block):
                self.state.refuse("pinned")
            elif self._reclaimer.evict([block], RELEASED, now):
                self.state.released_blocks += 1
                self.state.released_bytes += block.nbytes
            else:
                self._releasing.append((name, block, control))  # it is leased: try again

    def cancel(self) -> None:
        waiting = self._table.cancel(self._copies)
        self._copying = {name: block for name, block in self._copying.items() if name in self._copies.copying}
        self.state.refuse(CANCELLED, len(self._remaining) + waiting + len(self._releasing))
        self._remaining.clear()
        self._releasing.clear()

    def give_up(self) -> None:
        self.state.refuse("away" if self.tier.closing else "late", len(self._remaining) + len(self._copying))
        self.state.refuse("leased", len(self._releasing))
        self._remaining.clear()
        self._table.end(self._copies)

    def _name(self, block: Block) -> BlockName | None:
        space = self._catalog.identity(block.space)
        return None if space is None else BlockName(space, block.key)

    def _is_pinned(self, block: Block) -> bool:
        """Return whether a guaranteed or a permanent pin holds a block."""
        return any(bundle.strength != "soft" for bundle in self._pool.pins.marked.get(block, ()))


class MoveToMemory(SelectedMove):
    """Loads blocks of tiers into memory."""

    tier: TierState | None = None

    def __init__(self, catalog: Catalog, loads: Loads, message: Move, state: MoveState, deadline: float) -> None:
        selection = ChainSelection(catalog, message.scope, attach=None if message.dry_run else loads.attach)
        super().__init__(state, selection, dry_run=message.dry_run)
        self._catalog, self._loads, self._pool = catalog, loads, catalog.pool
        self._tenant = message.scope.tenant
        self._deadline = deadline
        self._requests: list[tuple[LoadRequest | None, ChainPart]] = []
        self._budget_bytes = int(MAX_LOADED_RATIO * self._pool.slabs.capacity_bytes)

    def _advance(self, now: float) -> bool:
        self._look_at_requests(now)
        self._request_loads()
        return not (self._requests or self._selection.parts)

    def _request_loads(self) -> None:
        loads, parts = self._loads, self._selection.parts
        # Requests of engines come first: ask for nothing while others wait.
        while parts and len(self._requests) < MAX_REQUESTS and loads.idle:
            part = parts.popleft()
            # The space may have been forgotten since the block was selected; it then gets another number.
            space = loads.attach(part.names[0].space)
            if space is None:
                self.state.refuse("detached", len(part.sizes))
                continue
            part.space = space
            missing = [name for name in part.names if self._find(part.space, name) is None]
            self.state.present_blocks += len(part.names) - len(missing)
            part.missing = missing
            nbytes = sum(part.sizes.get(name, 0) for name in missing)
            if nbytes > self._budget_bytes:
                self.state.refuse("budget", len(missing))
                continue
            if not missing:
                continue
            self._budget_bytes -= nbytes
            for tier in self._catalog.tiers:
                tier.watched.update(dict.fromkeys(missing, ""))
            request = loads.request(loads.client, part.space, b"".join(part.keys), self._deadline, self._tenant)
            self._requests.append((request, part))

    def cancel(self) -> None:
        self._cancel(self._unasked())
        for request, _ in self._requests:
            if request is not None:
                self._loads.cancel(request)

    def _look_at_requests(self, now: float) -> None:
        under_way: list[tuple[LoadRequest | None, ChainPart]] = []
        for request, part in self._requests:
            if request is not None and self._loads.under_way(request):
                under_way.append((request, part))
                continue
            self._count(part, now)
        self._requests = under_way

    def _count(self, part: ChainPart, now: float) -> None:
        """Count the blocks of a part that arrived, and those that did not. A load that fails ends the load of the rest
        of its chain."""
        reason = ""
        for name in part.missing:
            failed = [tier.watched.pop(name, "") for tier in self._catalog.tiers]
            reason = next((failure for failure in failed if failure), reason)
            block = self._find(part.space, name)
            if block is not None:
                self.state.moved_blocks += 1
                self.state.moved_bytes += block.nbytes
            elif name in part.sizes:
                self.state.refuse(reason or self._why(now))

    def _why(self, now: float) -> str:
        if self.state.cancelled:
            return CANCELLED
        if now >= self._deadline:
            return "late"
        return "away" if any(not tier.serves for tier in self._catalog.tiers) else "missing"

    def _find(self, space: int, name: BlockName) -> Block | None:
        """Return a block of the scope's tenant in memory. A move of one tenant does not reveal blocks of others."""
        block = self._pool.table.find(pack_keys([name.key]), space)[0]
        if block is None or self._tenant is None:
            return block
        return block if block.tenant.salt == self._tenant else None

    def give_up(self) -> None:
        for _, part in self._requests:
            self._count(part, self._deadline)
        self.state.refuse("late", sum(len(part.names) for part in self._selection.parts))
