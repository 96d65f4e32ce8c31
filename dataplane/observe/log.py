"""Structured log: static event names with fields, as columns on a terminal and as JSON otherwise."""

from __future__ import annotations

import sys

import msgspec
import structlog

from dataplane.base.log_writer import LogWriter
from dataplane.protocol.events import (
    BlockCorrupt,
    CacheCold,
    EngineAttached,
    EngineDetached,
    EngineExpelled,
    EngineGone,
    EngineKilled,
    EngineReadmitted,
    EngineRefused,
    Event,
    GatewayNameLost,
    GatewayNameRestored,
    GpuCopyPoolFailed,
    GpuCopyPoolMade,
    IdJournalFilling,
    MemoryAdopted,
    NodeStarted,
    NodeStopping,
    PinDegraded,
    PinExpired,
    ReservationExpired,
    SegmentCreated,
    SegmentRetired,
    SnapshotApplied,
    SnapshotRefused,
    VerifyDone,
    name_of,
)

WARNINGS = (
    BlockCorrupt,
    CacheCold,
    EngineRefused,
    EngineExpelled,
    EngineKilled,
    SnapshotRefused,
    ReservationExpired,
    PinDegraded,
    GpuCopyPoolFailed,
    IdJournalFilling,
    GatewayNameLost,
)
NOTICES = (
    NodeStarted,
    MemoryAdopted,
    NodeStopping,
    EngineAttached,
    EngineDetached,
    EngineGone,
    EngineReadmitted,
    SnapshotApplied,
    SegmentCreated,
    SegmentRetired,
    PinExpired,
    GpuCopyPoolMade,
    GatewayNameRestored,
    VerifyDone,
)

log = structlog.stdlib.get_logger()


def configure() -> LogWriter:
    """Configure structlog for this process to write to standard error. The caller closes the returned writer at the
    end."""
    writer = LogWriter(sys.stderr.fileno())
    renderer: structlog.typing.Processor
    renderer = structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        logger_factory=structlog.WriteLoggerFactory(writer),  # type: ignore[arg-type]  # it only writes and flushes
        cache_logger_on_first_use=True,
    )
    return writer


def log_event(event: Event) -> None:
    """Log events that concern operators; a subscriber of the bus. Events of block traffic are only for metrics."""
    if isinstance(event, WARNINGS):
        log.warning(name_of(event), **msgspec.structs.asdict(event))
    elif isinstance(event, NOTICES):
        log.info(name_of(event), **msgspec.structs.asdict(event))
