"""States and transitions of a block: one enumeration, one table.

A block is named by a descriptor whose number never changes. Its state is in the low byte of the descriptor's control
word, its incarnation in the other bytes. Readers may use the bytes only in state READY. Leases and pins are not states:
leases are counts on READY blocks, and pins are marks. In EVICTING the data plane checks whether a reader still has a
lease. In QUARANTINED a block waits because its dead or hung owner could still touch its bytes.

The incarnation increases exactly when bytes are given up (the transitions to FREE), never on a touch, on EVICTING or on
a put-back: if the control word is equal before and after a read, the bytes were the same throughout.
"""

from enum import IntEnum

MAX_BLOCKS = 1 << 26
"""Most descriptors of a node."""


class State(IntEnum):
    """State of a block, which determines what may be done with its bytes."""

    FREE = 0
    RESERVED = 1
    READY = 2
    EVICTING = 3
    QUARANTINED = 4


class BlockStep(IntEnum):
    """Event that changes the state of a block."""

    RESERVE = 0
    COMMIT = 1
    ABORT = 2
    LOSE_OWNER = 3
    """The reservation's owner hung or died while it could still write."""
    EVICT = 4
    PUT_BACK = 5
    """A lease counter was raised: the eviction is cancelled."""
    FREE = 6
    RELEASE = 7
    """The quarantined bytes were released, or every process of the engine group is proven gone."""


TRANSITIONS: dict[tuple[State, BlockStep], State] = {
    (State.FREE, BlockStep.RESERVE): State.RESERVED,
    (State.RESERVED, BlockStep.COMMIT): State.READY,
    (State.RESERVED, BlockStep.ABORT): State.FREE,
    (State.RESERVED, BlockStep.LOSE_OWNER): State.QUARANTINED,
    (State.READY, BlockStep.EVICT): State.EVICTING,
    (State.EVICTING, BlockStep.PUT_BACK): State.READY,
    (State.EVICTING, BlockStep.FREE): State.FREE,
    (State.QUARANTINED, BlockStep.RELEASE): State.FREE,
}

STATE_BITS = 8
STATE_MASK = (1 << STATE_BITS) - 1


class IllegalBlockTransition(Exception):
    """The table has no such step: a bug in the data plane, never caused by a peer."""


# The same table as plain integers, for speed: every block of every request passes through it.
_FREE = int(State.FREE)
CONTROL_MASK = (1 << 64) - 1


def _move(step: BlockStep) -> tuple[int, int]:
    """Return the only state in which a step may happen, and the number that it adds to a control word."""
    (before, after), *others = [
        (int(state), int(to)) for (state, transition_step), to in TRANSITIONS.items() if transition_step is step
    ]
    assert not others
    return before, after - before + (1 << STATE_BITS if after == _FREE else 0)


MOVES = [_move(step) for step in BlockStep]
"""For each step: the state it starts from, and the number that it adds to the control word (modulo CONTROL_MASK +
1)."""


def advance(control: int, step: BlockStep) -> int:
    """Return the control word after `step`. Raises IllegalBlockTransition if the table does not allow the step."""
    before, added = MOVES[step]
    if control & STATE_MASK != before:
        raise IllegalBlockTransition(f"{step.name} on a block in state {control & STATE_MASK}")
    return (control + added) & CONTROL_MASK
