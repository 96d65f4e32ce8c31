"""Moves on request: copy the blocks of a scope from memory or another tier to a tier, or load them back into memory, a
bounded number at a time.

Moves take turns, so one that waits delays no other. A move that is cancelled begins no more copies and loads, and ends
when those under way have ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from dataplane.core.eviction.reclaimer import Reclaimer
from dataplane.core.operator import scopes
from dataplane.core.tiering.catalog import Catalog
from dataplane.core.tiering.jobs import JobTable
from dataplane.core.tiering.loads import Loads
from dataplane.core.tiering.memory_moves import MoveToMemory, MoveToTier
from dataplane.core.tiering.reencodings import Reencoding
from dataplane.core.tiering.tier_moves import MoveBetweenTiers
from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.moves import Move, MoveState
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.events import Event, MoveEnded
from dataplane.protocol.tiers import MEMORY

MAX_ACTIVE = 16
MAX_SAVED = 64
"""Number of ended moves whose result is saved."""
ADD_TIER = "'larder tiers set NAME --type disk …' adds a tier"
"""Advice in messages about a missing tier."""


class RunningMove(Protocol):
    """One move that has begun."""

    state: MoveState

    @property
    def tier(self) -> TierState | None:
        """The tier that blocks are copied to; None for memory."""
        ...

    def step(self, now: float) -> bool:
        """Do the next part, and return whether the move has ended."""
        ...

    def cancel(self) -> None:
        """Begin no more copies and loads. Blocks whose copy or load is under way are still counted when it ends."""
        ...

    def give_up(self) -> None:
        """Count what is left as refused, because the deadline has passed or the tier is gone."""
        ...


class Moves:
    """All moves of a node."""

    def __init__(
        self, catalog: Catalog, table: JobTable, loads: Loads, reclaimer: Reclaimer, emit: Callable[[Event], None]
    ) -> None:
        """`reclaimer` evicts blocks that moves release; `emit` queues an event of the node."""
        self._catalog, self._table, self._loads, self._reclaimer, self._emit = catalog, table, loads, reclaimer, emit
        self._active: deque[RunningMove] = deque()
        self._tenants: dict[int, str | None] = {}
        """Tenant of each active move, by number; None for a scope of all tenants."""
        self._deadlines: dict[int, float] = {}
        self._states: dict[int, MoveState] = {}
        self._last = 0

    def start(self, message: Move, now: float) -> MoveState:
        """Start to move the blocks of a scope. Raise ProtocolError."""
        if not message.compress or message.scope != Scope():
            scopes.check_narrow(message.scope)
        tenant = message.scope.tenant
        # As with requests for loads, a tenant may have as many moves as there are free places, and one in any case.
        own_moves = sum(active_tenant == tenant for active_tenant in self._tenants.values())
        if own_moves >= max(1, MAX_ACTIVE - len(self._active)):
            raise ProtocolError(
                Code.TOO_MANY,
                f"{len(self._active)} moves are under way, {own_moves} of them of this tenant; wait until one ends",
            )
        tier = self._tier(message.tier, "tier", memory=not message.compress)
        source = self._tier(message.source, "source", tiers=tier is not None and not message.compress)
        if message.compress and tier is None:
            raise ProtocolError(Code.UNKNOWN_TIER, f"expected the name of a tier, got {MEMORY!r}", "tier")
        if message.compress and source is not None:
            raise ProtocolError(
                Code.UNKNOWN_TIER, f"expected {MEMORY!r}, because blocks are encoded where they are", "source"
            )
        if source is not None and source is tier:
            raise ProtocolError(Code.UNKNOWN_TIER, f"expected another tier than {message.tier!r}, the target", "source")
        if source is not None and tier is None:
            raise ProtocolError(
                Code.UNKNOWN_TIER,
                f"expected {MEMORY!r}, because blocks are loaded into memory from all tiers",
                "source",
            )
        state = MoveState(
            self._last + 1, message.tier, started_at=now, dry_run=message.dry_run, source=message.source, tenant=tenant
        )
        move: RunningMove
        if tier is not None and message.compress:
            move = Reencoding(self._catalog, self._table, message, state, tier)
        elif tier is not None and source is not None:
            move = MoveBetweenTiers(self._catalog, self._table, message, state, source, tier)
        elif tier is None:
            move = MoveToMemory(self._catalog, self._loads, message, state, now + message.deadline_s)
        else:
            move = MoveToTier(self._catalog, self._table, self._reclaimer, message, state, tier)
        self._last += 1
        self._active.append(move)
        self._deadlines[state.number] = now + message.deadline_s
        self._tenants[state.number] = tenant
        self._states[state.number] = state
        ended = [number for number, saved in self._states.items() if saved.ended_at is not None]
        for number in ended[: max(0, len(ended) - MAX_SAVED)]:
            del self._states[number]
        return state

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
        """Do the next part of one move, and end the moves whose deadline has passed or whose tier is gone."""
        for at, move in enumerate(list(self._active)):
            state = move.state
            gone = move.tier is not None and move.tier.closing
            done = move.step(now) if at == 0 and not gone else False
            if not done and (gone or now >= self._deadlines[state.number]):
                move.give_up()
                done = True
            if done:
                self._end(move, now)
        self._active.rotate(-1)

    def _end(self, move: RunningMove, now: float) -> None:
        self._active.remove(move)
        state = move.state
        del self._deadlines[state.number]
        del self._tenants[state.number]
        state.ended_at = now
        refused = sum(state.refused.values())
        self._emit(
            MoveEnded(
                now,
                state.number,
                state.tier,
                state.moved_blocks,
                state.released_blocks,
                refused,
                state.source,
                state.cancelled,
            )
        )
