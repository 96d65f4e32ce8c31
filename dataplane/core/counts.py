"""Counters of a node that no other module keeps."""

from __future__ import annotations

from dataclasses import dataclass, field

from dataplane.core.engines.rings import RingReader
from dataplane.core.tenants.tenant import wrapped
from dataplane.protocol.codes import Code


@dataclass(slots=True)
class Counts:
    """Counts since the process started."""

    events_dropped: int = 0
    """Events dropped because the queue was full."""
    refused_blocks: dict[str, int] = field(default_factory=dict)
    """Refused blocks by the name of the reason."""
    ring_dropped: int = 0
    """Dropped entries in the rings of engines that are gone."""
    ring_entries_rejected: int = 0
    """Invalid entries in the rings of engines that are gone."""

    def refused(self, code: Code, blocks: int) -> None:
        """Count blocks that an engine was refused."""
        name = code.name.lower()
        self.refused_blocks[name] = self.refused_blocks.get(name, 0) + blocks

    def ring_gone(self, ring: RingReader) -> None:
        """Keep the counts of a ring whose engine is removed."""
        self.ring_dropped = wrapped(self.ring_dropped + ring.dropped)
        self.ring_entries_rejected = wrapped(self.ring_entries_rejected + ring.invalid)
