"""Events of the data plane in its log."""

from __future__ import annotations

import msgspec
import structlog

from dataplane.base import tracing
from dataplane.base.log import configure
from dataplane.protocol.event import name_of
from dataplane.protocol.events import (
    BlockCorrupted,
    CacheStartedCold,
    EngineAttached,
    EngineDetached,
    EngineExpelled,
    EngineKilled,
    EngineReadmitted,
    EngineRefused,
    EngineReleased,
    Event,
    GatewayNameLost,
    GatewayNameRestored,
    GpuCopyPoolCreated,
    GpuCopyPoolFailed,
    IdJournalNearlyFilled,
    LeaseBroken,
    MemoryAdopted,
    MoveEnded,
    NodeStarted,
    NodeStopped,
    PinDegraded,
    PinExpired,
    ReservationExpired,
    SegmentCreated,
    SegmentRetired,
    SnapshotApplied,
    SnapshotRefused,
    TierLost,
    TierRecovered,
    VerificationEnded,
)

__all__ = ["configure", "log_event"]

WARNINGS = (
    BlockCorrupted,
    CacheStartedCold,
    EngineRefused,
    EngineExpelled,
    EngineKilled,
    LeaseBroken,
    SnapshotRefused,
    ReservationExpired,
    PinDegraded,
    GpuCopyPoolFailed,
    IdJournalNearlyFilled,
    GatewayNameLost,
    TierLost,
)
NOTICES = (
    NodeStarted,
    MemoryAdopted,
    NodeStopped,
    EngineAttached,
    EngineDetached,
    EngineReleased,
    EngineReadmitted,
    SnapshotApplied,
    SegmentCreated,
    SegmentRetired,
    PinExpired,
    GpuCopyPoolCreated,
    GatewayNameRestored,
    VerificationEnded,
    MoveEnded,
    TierRecovered,
)

log = structlog.stdlib.get_logger()


def log_event(event: Event) -> None:
    """Log events that concern operators; a subscriber of the bus. Events of block traffic are only for metrics."""
    if isinstance(event, WARNINGS):
        log.warning(name_of(event), **msgspec.structs.asdict(event))
    elif isinstance(event, NOTICES):
        log.info(name_of(event), **msgspec.structs.asdict(event), **_cause(event))


def _cause(event: Event) -> dict[str, str]:
    """Return the ids of the span that caused an event, if it has one."""
    current = event.traceparent if isinstance(event, SnapshotApplied) else ""
    return tracing.ids_of(current) if tracing.on() else {}
