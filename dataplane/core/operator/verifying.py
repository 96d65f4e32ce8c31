"""Verification on request: compare blocks with their checksums, a bounded number of bytes at a time.

The blocks are selected when a verification starts. A block that has since been released is skipped, even if its
descriptor has been reused, which the control word shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dataplane.core.blocks.blocks import Block
from dataplane.core.operator import scopes
from dataplane.core.operator.integrity import MAX_BYTES_PER_BLOCK, CorruptionReports
from dataplane.core.pool.pool import Pool
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.control.verification import VerificationState
from dataplane.protocol.events import Event, VerificationEnded
from dataplane.protocol.layout import I64, U64
from dataplane.protocol.states import State

BYTES_PER_STEP = 8 << 20
"""Bytes after which a step reads no further block, about two milliseconds. The last block may exceed the limit."""
BLOCKS_PER_STEP = 2048
MAX_ACTIVE = 16
MAX_ENDED = 64
"""Number of ended verifications whose result is kept."""


@dataclass(slots=True)
class _Queue:
    """The remaining blocks of a verification."""

    state: VerificationState
    numbers: I64
    controls: U64
    at: int = 0


class Verifications:
    """Run verifications one after the other."""

    def __init__(self, pool: Pool, integrity: CorruptionReports, emit: Callable[[Event], None]) -> None:
        self._pool = pool
        self._integrity = integrity
        self._emit = emit
        self._active: list[_Queue] = []
        self._states: dict[int, VerificationState] = {}
        self._last = 0

    def start(self, scope: Scope, now: float) -> VerificationState:
        """Start to verify the blocks of a scope, all blocks if it has no fields. Raise ProtocolError on failure."""
        if len(self._active) >= MAX_ACTIVE:
            raise ProtocolError(Code.TOO_MANY, f"{MAX_ACTIVE} verifications are under way; wait for one to end")
        numbers = scopes.meant(self._pool, scope)
        self._last += 1
        state = VerificationState(self._last, len(numbers), 0, 0, 0, 0, 0, now, None, scope.tenant)
        self._active.append(_Queue(state, numbers, self._pool.table.memory.control[numbers]))
        self._states[self._last] = state
        if len(self._states) > MAX_ACTIVE + MAX_ENDED:
            del self._states[next(iter(self._states))]
        return state

    def state(self, number: int) -> VerificationState:
        """Return the state of a verification. Raise ProtocolError(UNKNOWN_VERIFICATION) if it is not known."""
        state = self._states.get(number)
        if state is None:
            raise ProtocolError(
                Code.UNKNOWN_VERIFICATION, f"no verification with the number {number} is kept", "number"
            )
        return state

    def step(self, now: float) -> None:
        """Verify the next blocks of the oldest verification."""
        if not self._active:
            return
        queue, pool = self._active[0], self._pool
        state, last = queue.state, queue.at + BLOCKS_PER_STEP
        numbers, controls = queue.numbers[queue.at : last].tolist(), queue.controls[queue.at : last].tolist()
        read = 0
        corrupt: list[Block] = []
        for number, control in zip(numbers, controls, strict=True):
            if read >= BYTES_PER_STEP:
                break
            queue.at += 1
            block = pool.table.blocks.get(number)
            if block is None or block.control != control or block.state is not State.READY or block in pool.dead:
                state.gone += 1
            elif not self._integrity.has_checksum(block):
                state.without_checksum += 1
            else:
                read += block.nbytes
                if self._check(block, state):
                    corrupt.append(block)
        self._integrity.drop(0, corrupt, now)
        if queue.at >= len(queue.numbers):
            self._active.pop(0)
            state.ended_at = now
            self._emit(VerificationEnded(now, state.number, state.checked, state.corrupt, state.without_checksum))

    def _check(self, block: Block, state: VerificationState) -> bool:
        """Read a block and return whether it is corrupt."""
        try:
            if block.nbytes > MAX_BYTES_PER_BLOCK:
                raise MemoryError
            is_intact = self._integrity.is_intact(block)
        except MemoryError:
            state.unread += 1
            return False
        state.checked += 1
        state.corrupt += not is_intact
        return not is_intact
