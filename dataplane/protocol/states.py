"""A block's life: one enumeration, one table.

A block is named by a descriptor whose number never moves. Its state lives in the low byte of the descriptor's control
word, its incarnation in the rest. READY is the only state in which a reader may use the bytes. Leases are not states:
they are counts on READY blocks. Pins are not states: they are marks. EVICTING is where the data plane asks whether
anybody still reads; QUARANTINED is where a block waits whose dead or hung owner could still touch its bytes.

The incarnation grows exactly when bytes are given up (the transitions into FREE), never on a touch, on EVICTING or on
a put-back: an equal control word before and after a read means that the same bytes were there all the time.
"""

from enum import IntEnum


class State(IntEnum):
    """What may be done with a block's bytes."""

    FREE = 0
    RESERVED = 1
    READY = 2
    EVICTING = 3
    QUARANTINED = 4


class Step(IntEnum):
    """What can happen to a block."""

    RESERVE = 0
    COMMIT = 1
    ABORT = 2
    LOSE_OWNER = 3
    """The reservation's owner hung or died while it could still write."""
    EVICT = 4
    PUT_BACK = 5
    """A lease counter was up: the eviction is called off."""
    FREE = 6
    RELEASE = 7
    """The quarantined bytes were released, or every process of the engine group is proven gone."""


TRANSITIONS: dict[tuple[State, Step], State] = {
    (State.FREE, Step.RESERVE): State.RESERVED,
    (State.RESERVED, Step.COMMIT): State.READY,
    (State.RESERVED, Step.ABORT): State.FREE,
    (State.RESERVED, Step.LOSE_OWNER): State.QUARANTINED,
    (State.READY, Step.EVICT): State.EVICTING,
    (State.EVICTING, Step.PUT_BACK): State.READY,
    (State.EVICTING, Step.FREE): State.FREE,
    (State.QUARANTINED, Step.RELEASE): State.FREE,
}

STATE_BITS = 8
STATE_MASK = (1 << STATE_BITS) - 1
INCARNATION_MASK = (1 << (64 - STATE_BITS)) - 1


class IllegalTransition(Exception):
    """A step that the table does not have: a bug in the data plane, never a peer's doing."""


# The same table as plain integers, because every block of every request passes through it.
_FREE = int(State.FREE)
CONTROL_MASK = (1 << 64) - 1


def _move(step: Step) -> tuple[int, int]:
    """The only state that a step starts from, and what it adds to a control word there."""
    (before, after), *others = [
        (int(state), int(to)) for (state, each), to in TRANSITIONS.items() if each is step
    ]
    assert not others
    return before, after - before + (1 << STATE_BITS if after == _FREE else 0)


MOVES = [_move(step) for step in Step]
"""By step: the state it starts from, and what it adds to the control word (modulo CONTROL_MASK + 1)."""


def advance(control: int, step: Step) -> int:
    """The control word after `step`; IllegalTransition when the table does not allow it."""
    before, added = MOVES[step]
    if control & STATE_MASK != before:
        raise IllegalTransition(f"{step.name} on a block in state {control & STATE_MASK}")
    return (control + added) & CONTROL_MASK
