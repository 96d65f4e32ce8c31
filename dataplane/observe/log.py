"""Structured log lines: static event names with fields; JSON when nobody watches, columns on a terminal."""

from __future__ import annotations

import sys

import msgspec
import structlog

from dataplane.protocol.events import (
    EngineAttached,
    EngineDetached,
    EngineGone,
    EngineRefused,
    Event,
    NodeStarted,
    NodeStopping,
    PinDegraded,
    PinExpired,
    ReservationExpired,
    SegmentCreated,
    SegmentRetired,
    SnapshotApplied,
    SnapshotRefused,
    name_of,
)

WARNINGS = (EngineRefused, SnapshotRefused, ReservationExpired, PinDegraded)
NOTICES = (
    NodeStarted,
    NodeStopping,
    EngineAttached,
    EngineDetached,
    EngineGone,
    SnapshotApplied,
    SegmentCreated,
    SegmentRetired,
    PinExpired,
)

log = structlog.stdlib.get_logger()


def configure() -> None:
    """Set structlog up for this process; lines go to standard error."""
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
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def log_event(event: Event) -> None:
    """Bus subscriber: events that an operator reads in a log. Block traffic is for metrics."""
    if isinstance(event, WARNINGS):
        log.warning(name_of(event), **msgspec.structs.asdict(event))
    elif isinstance(event, NOTICES):
        log.info(name_of(event), **msgspec.structs.asdict(event))
