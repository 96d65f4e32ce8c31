"""Events of the data plane in its log."""

from __future__ import annotations

import msgspec
import structlog

from dataplane.base import tracing
from dataplane.protocol.event import name_of
from dataplane.protocol.event_sums import BLOCK_TRAFFIC
from dataplane.protocol.events import (
    AdmissionChanged,
    EngineDetached,
    Event,
    NodeStopped,
    PinExpired,
    PoolResized,
    SnapshotApplied,
    SweepEnded,
)
from dataplane.protocol.stats.node import NodeStats

UNLOGGED = (*BLOCK_TRAFFIC, AdmissionChanged, NodeStats, PoolResized, SweepEnded)
"""Events that are only for metrics and the event stream."""
EXPECTED = (EngineDetached, NodeStopped, PinExpired)
"""Events that are no warning in the log of the node, whatever their severity in the event stream."""

log = structlog.stdlib.get_logger()


def log_event(event: Event) -> None:
    """Log an event that concerns operators; a subscriber of the bus."""
    if isinstance(event, UNLOGGED):
        return
    write = log.info if event.severity == "info" or isinstance(event, EXPECTED) else log.warning
    write(name_of(event), **msgspec.structs.asdict(event), **_cause(event))


def _cause(event: Event) -> dict[str, str]:
    """Return the ids of the span that caused an event, if it has one."""
    current = event.traceparent if isinstance(event, SnapshotApplied) else ""
    return tracing.ids_of(current) if tracing.on() else {}
