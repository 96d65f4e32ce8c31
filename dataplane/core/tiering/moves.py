"""Moves on request: copy the blocks of a scope from memory or a tier to a tier, encode those of a tier again, or load
those of tiers into memory, a bounded number at a time.

Moves take turns, so one that waits delays no other. A move that is cancelled begins no more copies and loads, and ends
when those under way have ended.

Copies take turns with those of other sources, and the tier bounds their bytes. A copy evicts no block of the tier that
was stored or used since the move began. With `release`, a block is removed from where it was once the tier holds it and
no lease does. Blocks under guaranteed and permanent pins stay.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from dataplane.core.blocks.blocks import Block
from dataplane.core.eviction.reclaimer import Reclaimer
from dataplane.core.operator import scopes
from dataplane.core.pool.pins import PinBundle
from dataplane.core.tiering.catalog import Catalog
from dataplane.core.tiering.copies import PRESENT
from dataplane.core.tiering.jobs import CopyRequest, JobReason, JobTable, LoadRequest, MemoryBlock
from dataplane.core.tiering.loads import Loads
from dataplane.core.tiering.move_chains import ChainPart, ChainSelection
from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.moves import Move, MoveState
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.events import Event, MoveEnded
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.stored_blocks import BlockName
from dataplane.protocol.tiers import MEMORY

MAX_ACTIVE = 16
MAX_SAVED = 64
"""Number of ended moves whose result is saved."""
BLOCKS_PER_STEP = 1024
"""Blocks that one step looks at, and that one step releases."""
MAX_OUTSTANDING = 4096
"""Blocks of a move that wait for their copy at the same time."""
MAX_REQUESTS = 4
"""Requests for loads of a move that wait at the same time."""
MAX_LOADED_RATIO = 0.8
"""Fraction of the pool that one move loads at most, so that it does not evict what it has just loaded."""
ADD_TIER = "'larder tiers set NAME --type disk …' adds a tier"
"""Advice in messages about a missing tier."""
CANCELLED = "cancelled"
"""Why a block was not moved, or not released: an operator cancelled the move."""
RELEASED = "moved"
"""Reason of the evictions of a move with `release`."""
T = TypeVar("T")
"""What a move remembers of a block that it has not looked at yet."""


class RunningMove(ABC):
    """One move that has begun."""

    def __init__(self, state: MoveState, tiers: Iterable[TierState], deadline: float) -> None:
        """`tiers` are those that the move needs: it ends when one of them is removed."""
        self.state = state
        self.tiers = tuple(tiers)
        self.deadline = deadline

    @abstractmethod
    def step(self, now: float) -> bool:
        """Do the next part, and return whether the move has ended."""

    @abstractmethod
    def cancel(self) -> None:
        """Begin no more copies and loads. Blocks whose copy or load is under way are still counted when it ends."""

    @abstractmethod
    def give_up(self) -> None:
        """Count what is left as refused, because the deadline has passed or a tier is gone."""


class CopyMove(RunningMove, Generic[T]):
    """A move that copies blocks to a tier, and then releases them if it is asked to."""

    def __init__(self, catalog: Catalog, table: JobTable, message: Move, state: MoveState, copies: CopyRequest) -> None:
        tiers = [tier for tier in (copies.source, copies.target) if tier is not None]
        super().__init__(state, tiers, state.started_at + message.deadline_s)
        self._catalog, self._pool, self._table = catalog, catalog.pool, table
        self._copies, self._target = copies, copies.target
        self._release = message.release and copies.source is not copies.target
        self._remaining: deque[T] = deque()
        self._releasing: deque[tuple[BlockName, MemoryBlock | None]] = deque()

    def step(self, now: float) -> bool:
        for name, block, reason in self._table.take_ended(self._copies):
            self._copy_ended(name, block, reason)
        self._begin_copies()
        self._release_some(now)
        return not (self._remaining or self._copies.copying or self._releasing)

    def _copy_ended(self, name: BlockName, block: MemoryBlock | None, reason: str) -> None:
        entry = self._target.contents.entries.get(name)
        if entry is None:
            self.state.refuse(reason or "gone")
            return
        self.state.moved_blocks += 1
        self.state.moved_bytes += entry.stored.length
        self._copied(name, block)

    def _copied(self, name: BlockName, block: MemoryBlock | None) -> None:
        if self._release and self.state.cancelled:
            self.state.refuse(CANCELLED)
        elif self._release:
            self._releasing.append((name, block))

    def _begin_copies(self) -> None:
        copies, most_bytes = self._copies, self._target.spec.max_bytes_in_flight
        for _ in range(min(BLOCKS_PER_STEP, len(self._remaining))):
            if len(copies.copying) >= MAX_OUTSTANDING or copies.waiting_bytes >= most_bytes:
                break
            found = self._find(self._remaining.popleft())
            if found is None:
                self.state.refuse("gone")
            elif self._is_present(found[0]):
                self.state.present_blocks += 1
                self._copied(*found)
            elif not all(tier.serves for tier in self.tiers):
                self.state.refuse("away")
            else:
                self._table.add(copies, *found)
        if copies.copying:
            self._catalog.wake()

    def _release_some(self, now: float) -> None:
        for _ in range(min(BLOCKS_PER_STEP, len(self._releasing))):
            name, block = self._releasing.popleft()
            bundles = self._bundles_of(name, block)
            if bundles is None:
                continue  # it was evicted meanwhile
            if self._target.entry_of(name) is None:
                self.state.refuse("evicted")
            elif any(bundle.strength != "soft" for bundle in bundles):
                self.state.refuse("pinned")
            elif nbytes := self._remove(name, block, now):
                self.state.released_blocks += 1
                self.state.released_bytes += nbytes
            else:
                self._releasing.append((name, block))  # it is leased: try again

    def cancel(self) -> None:
        left_blocks = len(self._remaining) + self._table.cancel(self._copies) + len(self._releasing)
        self._remaining.clear()
        self._releasing.clear()
        self.state.refuse(CANCELLED, left_blocks)

    def give_up(self) -> None:
        reason = "away" if any(tier.closing for tier in self.tiers) else "late"
        self.state.refuse(reason, len(self._remaining) + len(self._copies.copying))
        self.state.refuse("leased" if self._copies.source is None else "late", len(self._releasing))
        self._table.end(self._copies)

    @abstractmethod
    def _find(self, remaining: T) -> tuple[BlockName, MemoryBlock | None] | None:
        """Return a block; None if it is gone."""

    def _is_present(self, name: BlockName) -> bool:
        """Return whether a block need not be copied."""
        return self._target.entry_of(name) is not None

    @abstractmethod
    def _bundles_of(self, name: BlockName, block: MemoryBlock | None) -> tuple[PinBundle, ...] | None:
        """Return the pins of a block where it was copied from; None if it is gone."""

    @abstractmethod
    def _remove(self, name: BlockName, block: MemoryBlock | None, now: float) -> int:
        """Remove a block from where it was copied from, and return its bytes; 0 if it is leased."""


class MoveFromMemory(CopyMove[tuple[int, int]]):
    """Copies blocks of memory to a tier. The remaining ones are descriptors with control words."""

    def __init__(
        self, catalog: Catalog, table: JobTable, reclaimer: Reclaimer, message: Move, state: MoveState, tier: TierState
    ) -> None:
        copies = CopyRequest(JobReason.MOVE, None, tier, state.started_at)
        super().__init__(catalog, table, message, state, copies)
        self._reclaimer = reclaimer
        numbers = scopes.selected(self._pool, message.scope)
        state.blocks, state.bytes = len(numbers), self._pool.sweeps.stored_bytes(numbers)
        if not message.dry_run:
            controls = self._pool.table.memory.control[numbers]
            self._remaining.extend(zip(numbers.tolist(), controls.tolist(), strict=True))

    def _find(self, remaining: tuple[int, int]) -> tuple[BlockName, MemoryBlock | None] | None:
        number, control = remaining
        block = self._pool.table.blocks.get(number)
        space = None if block is None else self._catalog.identity(block.space)
        if block is None or space is None or not self._pool.readable(block, control):
            return None
        return BlockName(space, block.key), (block, control)

    def _bundles_of(self, name: BlockName, block: MemoryBlock | None) -> tuple[PinBundle, ...] | None:
        if block is None or not self._pool.readable(*block):
            return None
        return self._pool.pins.marked.get(block[0], ())

    def _remove(self, name: BlockName, block: MemoryBlock | None, now: float) -> int:
        return block[0].nbytes if block is not None and self._reclaimer.evict([block[0]], RELEASED, now) else 0


class MoveFromTier(CopyMove[BlockName]):
    """Copies blocks of one tier to another."""

    def __init__(
        self, catalog: Catalog, table: JobTable, message: Move, state: MoveState, source: TierState, tier: TierState
    ) -> None:
        reason = JobReason.ENCODE if source is tier else JobReason.MOVE
        copies = CopyRequest(reason, source, tier, state.started_at)
        super().__init__(catalog, table, message, state, copies)
        self._source = source

    def add(self, part: ChainPart) -> None:
        """Copy the blocks of a part of a chain, too."""
        self._remaining.extend(part.sizes)

    def _find(self, remaining: BlockName) -> tuple[BlockName, MemoryBlock | None] | None:
        return None if self._source.entry_of(remaining) is None else (remaining, None)

    def _bundles_of(self, name: BlockName, block: MemoryBlock | None) -> tuple[PinBundle, ...] | None:
        entry = self._source.entry_of(name)
        return None if entry is None else entry.bundles

    def _remove(self, name: BlockName, block: MemoryBlock | None, now: float) -> int:
        entry = self._source.contents.entries[name]
        self._catalog.release(self._source, entry)
        return entry.stored.length


class Reencoding(MoveFromTier):
    """Encodes blocks of a tier again, as its record says now.

    A job loads blocks of the tier, encodes them, and stores them in place of the old ones. Meanwhile, a block counts as
    being copied: if an invalidation covers it, it is deleted when the job ends.
    """

    def add(self, part: ChainPart) -> None:
        for name in part.sizes:
            if self._is_present(name):
                self.state.present_blocks += 1
            else:
                self._remaining.append(name)

    def _is_present(self, name: BlockName) -> bool:
        entry = self._target.entry_of(name)
        return entry is not None and entry.encoding == self._target.spec.compress

    def _copy_ended(self, name: BlockName, block: MemoryBlock | None, reason: str) -> None:
        if reason == PRESENT:
            self.state.present_blocks += 1
        elif reason:
            self.state.refuse(reason)
        else:
            super()._copy_ended(name, block, reason)


class MoveToMemory(RunningMove):
    """Loads blocks of tiers into memory."""

    def __init__(self, catalog: Catalog, loads: Loads, message: Move, state: MoveState) -> None:
        super().__init__(state, (), state.started_at + message.deadline_s)
        self._catalog, self._loads, self._pool = catalog, loads, catalog.pool
        self._tenant = message.scope.tenant
        self._parts: deque[ChainPart] = deque()
        self._requests: list[tuple[LoadRequest | None, ChainPart]] = []
        self._budget_bytes = int(MAX_LOADED_RATIO * self._pool.slabs.capacity_bytes)

    def add(self, part: ChainPart) -> None:
        """Load the blocks of a part of a chain, too."""
        self._parts.append(part)

    def step(self, now: float) -> bool:
        self._look_at_requests(now)
        self._request_loads()
        return not (self._requests or self._parts)

    def _request_loads(self) -> None:
        loads = self._loads
        # Requests of engines come first: ask for nothing while others wait.
        while self._parts and len(self._requests) < MAX_REQUESTS and loads.idle:
            part = self._parts.popleft()
            space = loads.attach(part.names[0].space)
            if space is None:
                self.state.refuse("detached", len(part.sizes))
                continue
            part.space = space
            missing = [name for name in part.names if self._find(part.space, name) is None]
            known = [part.sizes[name] for name in missing if name in part.sizes]
            self.state.present_blocks += len(part.sizes) - len(known)
            part.missing = missing
            nbytes = sum(known)
            if nbytes > self._budget_bytes:
                self.state.refuse("budget", len(known))
                continue
            if not missing:
                continue
            self._budget_bytes -= nbytes
            for tier in self._catalog.tiers:
                tier.watched.update(dict.fromkeys(missing, ""))
            request = loads.request(loads.client, part.space, b"".join(part.keys), self.deadline, self._tenant)
            self._requests.append((request, part))

    def cancel(self) -> None:
        self.state.refuse(CANCELLED, sum(len(part.sizes) for part in self._parts))
        self._parts.clear()
        for request, _ in self._requests:
            if request is not None:
                self._loads.cancel(request)

    def _look_at_requests(self, now: float) -> None:
        under_way: list[tuple[LoadRequest | None, ChainPart]] = []
        for request, part in self._requests:
            if request is not None and self._loads.under_way(request):
                under_way.append((request, part))
            else:
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
                if name not in part.sizes:  # a shared tier had it
                    self.state.blocks += 1
                    self.state.bytes += block.nbytes
            elif name in part.sizes:
                self.state.refuse(reason or self._why(now))

    def _why(self, now: float) -> str:
        if self.state.cancelled:
            return CANCELLED
        if now >= self.deadline:
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
            self._count(part, self.deadline)
        self.state.refuse("late", sum(len(part.sizes) for part in self._parts))


class SelectedMove(RunningMove):
    """A move of blocks of tiers. Its first steps select them."""

    def __init__(self, selection: ChainSelection, move: MoveFromTier | MoveToMemory, *, dry_run: bool) -> None:
        """`move` moves what the selection finds; with `dry_run`, the move ends with the selection."""
        super().__init__(move.state, move.tiers, move.deadline)
        self._selection: ChainSelection | None = selection
        self._move = move
        self._dry_run = dry_run

    def step(self, now: float) -> bool:
        selection = self._selection
        if selection is None:
            return self._move.step(now)
        more = selection.step()
        while selection.parts:
            self._move.add(selection.parts.popleft())
        if more:
            return False
        self._end_selection()
        return self._dry_run or self._move.step(now)

    def cancel(self) -> None:
        self._end_selection()
        self._move.cancel()

    def give_up(self) -> None:
        self._end_selection()
        self._move.give_up()

    def _end_selection(self) -> None:
        """Select no more blocks, and count those that were selected."""
        selection, self._selection = self._selection, None
        if selection is not None:
            self.state.blocks, self.state.bytes = selection.blocks, selection.bytes
            self.state.refuse("detached", 0 if self._dry_run else selection.unreachable)


class Moves:
    """All moves of a node."""

    def __init__(
        self, catalog: Catalog, table: JobTable, loads: Loads, reclaimer: Reclaimer, emit: Callable[[Event], None]
    ) -> None:
        """`reclaimer` evicts blocks that moves release; `emit` queues an event of the node."""
        self._catalog, self._table, self._loads, self._reclaimer, self._emit = catalog, table, loads, reclaimer, emit
        self._active: deque[RunningMove] = deque()
        self._states: dict[int, MoveState] = {}
        self._last = 0

    def start(self, message: Move, now: float) -> MoveState:
        """Start to move the blocks of a scope. Raise ProtocolError."""
        if not message.compress or message.scope != Scope():
            scopes.check_narrow(message.scope)
        tenant = message.scope.tenant
        # As with requests for loads, a tenant may have as many moves as there are free places, and one in any case.
        own_moves = sum(move.state.tenant == tenant for move in self._active)
        if own_moves >= max(1, MAX_ACTIVE - len(self._active)):
            raise ProtocolError(
                Code.TOO_MANY,
                f"{len(self._active)} moves are under way, {own_moves} of them of this tenant; wait until one ends",
            )
        tier = self._tier(message.tier, "tier", memory=not message.compress)
        source = self._tier(message.source, "source", tiers=tier is not None and not message.compress)
        if message.compress and tier is None:
            raise ProtocolError(Code.UNKNOWN_TIER, f"expected the name of a tier, got {MEMORY!r}", "tier")
        if source is not None and (message.compress or source is tier or tier is None):
            if message.compress:
                expected = f"{MEMORY!r}, because blocks are encoded where they are"
            elif tier is None:
                expected = f"{MEMORY!r}, because blocks are loaded into memory from all tiers"
            else:
                expected = f"another tier than {message.tier!r}, the target"
            raise ProtocolError(Code.UNKNOWN_TIER, f"expected {expected}", "source")
        state = MoveState(
            self._last + 1, message.tier, started_at=now, dry_run=message.dry_run, source=message.source, tenant=tenant
        )
        self._active.append(self._begin(message, state, source, tier))
        self._last += 1
        self._states[state.number] = state
        ended = [number for number, saved in self._states.items() if saved.ended_at is not None]
        for number in ended[: max(0, len(ended) - MAX_SAVED)]:
            del self._states[number]
        return state

    def _begin(self, message: Move, state: MoveState, source: TierState | None, tier: TierState | None) -> RunningMove:
        if tier is None:
            selected: MoveFromTier | MoveToMemory = MoveToMemory(self._catalog, self._loads, message, state)
        elif message.compress:
            source = tier
            selected = Reencoding(self._catalog, self._table, message, state, source, tier)
        elif source is not None:
            selected = MoveFromTier(self._catalog, self._table, message, state, source, tier)
        else:
            return MoveFromMemory(self._catalog, self._table, self._reclaimer, message, state, tier)
        selection = ChainSelection(self._catalog, message.scope, source)
        return SelectedMove(selection, selected, dry_run=message.dry_run)

    def _tier(self, name: str, field: str, *, memory: bool = True, tiers: bool = True) -> TierState | None:
        """Return a tier by its name; None for memory. `memory` and `tiers` say what the error offers instead. Raise
        ProtocolError."""
        tier = next((tier for tier in self._catalog.tiers if tier.spec.name == name), None)
        if tier is None and name != MEMORY:
            tier_names = ", ".join(repr(tier.spec.name) for tier in self._catalog.tiers) or "none"
            offered = " or ".join(
                [*([repr(MEMORY)] if memory else []), *([f"an open tier ({tier_names}). {ADD_TIER}"] if tiers else [])]
            )
            raise ProtocolError(Code.UNKNOWN_TIER, f"no tier {name!r} is open on this node; expected {offered}", field)
        return tier

    def state(self, number: int) -> MoveState:
        """Return the state of a move. Raise ProtocolError(UNKNOWN_MOVE) if it is not known."""
        state = self._states.get(number)
        if state is None:
            raise ProtocolError(Code.UNKNOWN_MOVE, f"no move with the number {number} is known", "number")
        return state

    def cancel(self, number: int) -> MoveState:
        """Cancel a move, and return its state. It ends when the copies and loads under way have ended. A move that has
        ended stays as it is. Raise ProtocolError(UNKNOWN_MOVE) if it is not known."""
        state = self.state(number)
        move = next((move for move in self._active if move.state is state), None)
        if move is not None and not state.cancelled:
            state.cancelled = True
            move.cancel()
        return state

    def step(self, now: float) -> None:
        """Do the next part of one move, and end the moves whose deadline has passed or whose tiers are gone."""
        for at, move in enumerate(list(self._active)):
            gone = any(tier.closing for tier in move.tiers)
            done = at == 0 and not gone and move.step(now)
            if not done and (gone or now >= move.deadline):
                move.give_up()
                done = True
            if done:
                self._end(move, now)
        self._active.rotate(-1)

    def _end(self, move: RunningMove, now: float) -> None:
        self._active.remove(move)
        state = move.state
        state.ended_at = now
        self._emit(
            MoveEnded(
                now,
                state.number,
                state.tier,
                state.moved_blocks,
                state.released_blocks,
                sum(state.refused.values()),
                state.source,
                state.cancelled,
            )
        )
