"""States of an engine's connection, and when to try again: one table, and one schedule."""

from enum import IntEnum

FIRST_RETRY_S = 0.02
LAST_RETRY_S = 0.25
EAGER_S = 3.0
"""Seconds of retries at the first interval after a loss: most data planes are back within a second."""


class LinkState(IntEnum):
    """State of the connection. Only an attached connection carries requests."""

    DETACHED = 0
    ATTACHING = 1
    """Connected; the answer to the attach request has not arrived."""
    ATTACHED = 2
    CLOSED = 3
    """Closed by this process for good."""


class LinkStep(IntEnum):
    """Event that changes the state of the connection."""

    CONNECT = 0
    ATTACH = 1
    DROP = 2
    """The connection was lost, refused or given up."""
    CLOSE = 3


TRANSITIONS: dict[tuple[LinkState, LinkStep], LinkState] = {
    (LinkState.DETACHED, LinkStep.CONNECT): LinkState.ATTACHING,
    (LinkState.DETACHED, LinkStep.DROP): LinkState.DETACHED,
    (LinkState.DETACHED, LinkStep.CLOSE): LinkState.CLOSED,
    (LinkState.ATTACHING, LinkStep.ATTACH): LinkState.ATTACHED,
    (LinkState.ATTACHING, LinkStep.DROP): LinkState.DETACHED,
    (LinkState.ATTACHING, LinkStep.CLOSE): LinkState.CLOSED,
    (LinkState.ATTACHED, LinkStep.DROP): LinkState.DETACHED,
    (LinkState.ATTACHED, LinkStep.CLOSE): LinkState.CLOSED,
    (LinkState.CLOSED, LinkStep.DROP): LinkState.CLOSED,
    (LinkState.CLOSED, LinkStep.CLOSE): LinkState.CLOSED,
}


class IllegalLinkTransition(Exception):
    """The table has no such step: a bug in the client, never caused by the data plane."""


def advance(state: LinkState, step: LinkStep) -> LinkState:
    """Return the state after `step`. Raises IllegalLinkTransition if the table does not allow the step."""
    after = TRANSITIONS.get((state, step))
    if after is None:
        raise IllegalLinkTransition(f"{step.name} of a connection in state {state.name}")
    return after


class RetrySchedule:
    """When a detached client connects again. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._at = 0.0
        self._interval_s = FIRST_RETRY_S
        self._eager_until = 0.0
        self._faulty = False
        """Whether the last connection ended with a protocol fault and no valid answer has arrived since."""

    def due(self, now: float) -> bool:
        return now >= self._at

    def failed(self, now: float) -> None:
        """Wait after an attempt or a connection ended: twice as long each time, except soon after a loss."""
        if now < self._eager_until and not self._faulty:
            self._at = now + FIRST_RETRY_S
            return
        self._at = now + self._interval_s
        self._interval_s = min(LAST_RETRY_S, self._interval_s * 2)

    def lost(self, now: float) -> None:
        """Try again at once after the loss of an attached connection, because the data plane may be back already."""
        self.failed(now)
        if not self._faulty:
            self._eager_until = now + EAGER_S
            self._at = 0.0

    def violated(self) -> None:
        """Note a protocol violation: without a valid answer, further attempts are not eager."""
        self._faulty = True

    def attached(self) -> None:
        if not self._faulty:
            self._interval_s = FIRST_RETRY_S

    def answered(self) -> None:
        """Note a valid answer to a request."""
        self._faulty = False
        self._interval_s = FIRST_RETRY_S
