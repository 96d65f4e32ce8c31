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
_AFTER = [[int(TRANSITIONS.get((state, step), -1)) for step in Step] for state in State]
_FREE = int(State.FREE)


def advance(control: int, step: Step) -> int:
    """The control word after `step`; IllegalTransition when the table does not allow it."""
    state = control & STATE_MASK
    after = _AFTER[state][step] if state < len(_AFTER) else -1
    if after < 0:
        raise IllegalTransition(f"{step.name} on a block in state {state}")
    incarnation = control >> STATE_BITS
    if after == _FREE:
        incarnation = (incarnation + 1) & INCARNATION_MASK
    return incarnation << STATE_BITS | after
