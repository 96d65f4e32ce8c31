"""Next step for one type on one node. Pure: time and all other inputs are arguments.

- A node that has the wanted state is left alone: a restarted manager adopts it.
- Only the newest generation is sent, so changes that arrived together or were missed are pushed together.
- A refused generation is retried slowly: the answer will be the same unless the node has been upgraded.
- Missing answers cause increasing pauses between attempts.
- A node that never had a tier record and is to have none is sent nothing.
- A database without any records yet (generation 0) must not wipe the state that a node got from another database.
- A node ahead of this manager has generations that the database lost (restored from a backup): its generation must
  first be advanced beyond the node's. A generation that no database of Larder has had is not overtaken,
  because it could exhaust the generations of all nodes: the node is pushed to, and refuses.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from dataplane.protocol.observed import Observed

Reason = Literal["joined", "change", "drift", "retry"]

BACKOFF_FIRST_S = 0.25
BACKOFF_MAX_S = 15.0
NACK_RETRY_S = 60.0
MAX_OBSERVED = 1 << 49
"""Largest generation of a node that is overtaken: far above any that Larder counts to, and far below the largest of a
backup and of the database."""


@dataclass(frozen=True)
class DesiredSnapshot:
    """Newest state of a type."""

    store: str
    generation: int
    digest: str
    is_optional: bool = False
    """Whether a node without a snapshot of the type has nothing to apply."""
    body: bytes = field(default=b"", repr=False, compare=False)
    """Encoded records, which the digest is of."""


@dataclass
class PushMemory:
    """State of the pushes of one type since the node joined."""

    acked: Observed | None = None
    pushed: bool = False
    failures: int = 0
    not_before: float = 0.0
    nacked: DesiredSnapshot | None = None

    def failed(self, now: float) -> None:
        """Record a missing answer: the next attempt waits longer each time."""
        self.failures += 1
        self.not_before = now + min(BACKOFF_FIRST_S * 2 ** (self.failures - 1), BACKOFF_MAX_S)

    def refused(self, desired: DesiredSnapshot, now: float) -> None:
        self.pushed = True
        self.nacked = replace(desired, body=b"")  # which may be large
        self.not_before = now + NACK_RETRY_S

    def succeeded(self, observed: Observed) -> None:
        self.acked = observed
        self.pushed = True
        self.failures = 0
        self.not_before = 0.0
        self.nacked = None


@dataclass(frozen=True)
class Push:
    reason: Reason


@dataclass(frozen=True)
class Supersede:
    """Advance the manager's own generation beyond this one before the next push."""

    generation: int


@dataclass(frozen=True)
class Wait:
    """Do nothing until `until` (monotonic seconds; None: until something changes)."""

    until: float | None = None


def holds(desired: DesiredSnapshot, observed: Observed | None) -> bool:
    """Return whether the node has applied the wanted state.

    Also true if the node has nothing to apply, or if nothing was ever wanted (generation 0) and it has state from
    another database.
    """
    if observed is None:
        return desired.is_optional
    if desired.generation == 0 and observed.store != desired.store:
        return True
    return (observed.store, observed.generation, observed.digest) == (desired.store, desired.generation, desired.digest)


def plan(
    desired: DesiredSnapshot, observed: Observed | None, memory: PushMemory, now: float
) -> Push | Supersede | Wait:
    """Return the next step for one type on one node."""
    if holds(desired, observed):
        return Wait()
    if (
        observed is not None
        and observed.store == desired.store
        and desired.generation < observed.generation <= MAX_OBSERVED
    ):
        return Supersede(observed.generation)
    refused = memory.nacked == desired
    if (refused or memory.failures) and now < memory.not_before:
        return Wait(memory.not_before)
    if refused or memory.failures:
        return Push("retry")
    if not memory.pushed and memory.acked is None:
        return Push("joined")
    if memory.acked is not None and holds(desired, memory.acked):
        return Push("drift")
    return Push("change")
