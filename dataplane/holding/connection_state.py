"""States of a data plane's connection to the holder, and when another holder is sought: one table, and one schedule."""

from enum import IntEnum

FIRST_PAUSE_S, MAX_PAUSE_S = 2.0, 60.0
"""Pauses between attempts to replace a holder that ends soon after it was replaced."""


class HolderState(IntEnum):
    """State of the connection. Only a connection that is up carries messages; others wait until it is."""

    ABSENT = 0
    """Before the start has found or started a holder."""
    UP = 1
    LOST = 2
    """The holder ended, refused or does not answer; another one is sought."""
    ENDED = 3
    """Ended by this process for good."""


class HolderStep(IntEnum):
    """Event that changes the state of the connection."""

    CONNECT = 0
    LOSE = 1
    """The connection was lost, or an attempt failed."""
    END = 2


TRANSITIONS: dict[tuple[HolderState, HolderStep], HolderState] = {
    (HolderState.ABSENT, HolderStep.CONNECT): HolderState.UP,
    (HolderState.ABSENT, HolderStep.LOSE): HolderState.LOST,
    (HolderState.ABSENT, HolderStep.END): HolderState.ENDED,
    (HolderState.UP, HolderStep.LOSE): HolderState.LOST,
    (HolderState.UP, HolderStep.END): HolderState.ENDED,
    (HolderState.LOST, HolderStep.CONNECT): HolderState.UP,
    (HolderState.LOST, HolderStep.LOSE): HolderState.LOST,
    (HolderState.LOST, HolderStep.END): HolderState.ENDED,
    (HolderState.ENDED, HolderStep.END): HolderState.ENDED,
}


class IllegalHolderTransition(Exception):
    """The table has no such step: a bug in the data plane, never caused by the holder."""


def advance(state: HolderState, step: HolderStep) -> HolderState:
    """Return the state after `step`. Raises IllegalHolderTransition if the table does not allow the step."""
    after = TRANSITIONS.get((state, step))
    if after is None:
        raise IllegalHolderTransition(f"{step.name} of a connection in state {state.name}")
    return after


class ReplaceSchedule:
    """When a lost holder is replaced. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._pause_s = self._at = self._connected_at = 0.0

    def due(self, now: float) -> bool:
        return now >= self._at

    def connected(self, now: float) -> None:
        self._connected_at = now

    def lost(self, now: float) -> None:
        """Replace a holder that served for long at once, and pause between other attempts, twice as long each time."""
        if now - self._connected_at > MAX_PAUSE_S:
            self._pause_s = 0.0
        self.failed(now)

    def failed(self, now: float) -> None:
        """Pause after an attempt."""
        self._at = now + self._pause_s
        self._pause_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), MAX_PAUSE_S)
