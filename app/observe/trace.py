"""Spans of the management plane, and the traces of the changes that pushes deliver."""

from collections import deque
from collections.abc import Sequence

from dataplane.base.tracing import span
from dataplane.protocol.control.snapshots import SnapshotType

__all__ = ["ChangeTraces", "span"]

MAX_CHANGES = 256
"""Number of remembered changes of each type."""


class ChangeTraces:
    """The traces of the last changes, by type and generation: a push continues the trace of the change that it
    delivers. Of other managers' changes, those are known that were the newest of their type when this one looked."""

    def __init__(self) -> None:
        self._traceparents: dict[SnapshotType, deque[tuple[int, str]]] = {}

    def note(self, kind: SnapshotType, generation: int, traceparent: str) -> None:
        """Record the span that made a generation. Does nothing if it is known, or empty."""
        changes = self._traceparents.setdefault(kind, deque(maxlen=MAX_CHANGES))
        if traceparent and all(number != generation for number, _ in changes):
            changes.append((generation, traceparent))

    def between(self, kind: SnapshotType, after: int, newest: int) -> Sequence[str]:
        """Return the traceparents of the changes that made the generations `after` + 1 to `newest`, oldest first."""
        changes = sorted(self._traceparents.get(kind, ()))
        return [traceparent for number, traceparent in changes if after < number <= newest]
