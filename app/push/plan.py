"""What to do next about one type on one node. Pure: time and everything else is an argument.

- A node that holds what is wanted is left alone: a restarted management plane adopts it.
- Only the newest generation is ever sent, so what came together or was missed is pushed together.
- A generation that was refused is sent again slowly: the node will say the same, unless it was upgraded meanwhile.
- Silence is answered with growing pauses.
- A database in which nobody ever said anything (generation 0) must not wipe what a node got from another one.
- A node ahead of us holds generations that our database forgot (restored from a backup): ours must overtake first.
"""

from dataclasses import dataclass
from typing import Literal

from dataplane.protocol.control import Observed

Reason = Literal["joined", "change", "drift", "retry"]

BACKOFF_FIRST_S = 0.25
BACKOFF_MOST_S = 15.0
NACK_RETRY_S = 60.0


@dataclass(frozen=True)
class Wanted:
    """The newest state of a type."""

    store: str
    generation: int
    digest: str


@dataclass
class Memory:
    """What the worker remembers about a type since the node joined."""

    acked: Observed | None = None
    pushed: bool = False
    failures: int = 0
    not_before: float = 0.0
    nacked: Wanted | None = None

    def failed(self, now: float) -> None:
        """No answer came: wait, longer each time."""
        self.failures += 1
        self.not_before = now + min(BACKOFF_FIRST_S * 2 ** (self.failures - 1), BACKOFF_MOST_S)

    def refused(self, wanted: Wanted, now: float) -> None:
        self.pushed = True
        self.nacked = wanted
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
class Overtake:
    """Make our generation larger than this before pushing."""

    generation: int


@dataclass(frozen=True)
class Wait:
    """Nothing to do; look again at `until` (None: when something changes)."""

    until: float | None = None


def holds(wanted: Wanted, observed: Observed | None) -> bool:
    """Whether the node has applied what is wanted (or nobody ever wanted anything and it has something)."""
    if observed is None:
        return False
    if wanted.generation == 0 and observed.store != wanted.store:
        return True
    return (observed.store, observed.generation, observed.digest) == (
        wanted.store,
        wanted.generation,
        wanted.digest,
    )


def plan(wanted: Wanted, observed: Observed | None, memory: Memory, now: float) -> Push | Overtake | Wait:
    """The next step for one type on one node."""
    if holds(wanted, observed):
        return Wait()
    if observed is not None and observed.store == wanted.store and observed.generation > wanted.generation:
        return Overtake(observed.generation)
    refused = memory.nacked == wanted
    if (refused or memory.failures) and now < memory.not_before:
        return Wait(memory.not_before)
    if refused or memory.failures:
        return Push("retry")
    if not memory.pushed and memory.acked is None:
        return Push("joined")
    if memory.acked is not None and holds(wanted, memory.acked):
        return Push("drift")
    return Push("change")
