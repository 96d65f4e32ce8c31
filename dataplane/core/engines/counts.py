"""Counters of a node that no other module keeps."""

from __future__ import annotations

from dataclasses import dataclass, field

from dataplane.core.engines.engines import Engine
from dataplane.core.engines.operations import OperationTotals
from dataplane.core.tenants.tenant import wrapped
from dataplane.protocol.codes import Code


@dataclass(slots=True)
class Counts:
    """Counts since the process started."""

    operations: OperationTotals = field(default_factory=OperationTotals)
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

    def read_operations(self, engine: Engine, now: float) -> None:
        """Count the operations that an engine has completed. Counts that it cannot have reached are rejected."""
        if not engine.expelled and not engine.operations.drain(self.operations, now):
            engine.ring.invalid += 1

    def engine_gone(self, engine: Engine, now: float) -> None:
        """Keep the counts of an engine that is removed."""
        self.read_operations(engine, now)
        self.ring_dropped = wrapped(self.ring_dropped + engine.ring.dropped)
        self.ring_entries_rejected = wrapped(self.ring_entries_rejected + engine.ring.invalid)
