"""Structured log lines: static event names with fields; JSON when nobody watches, columns on a terminal."""

from __future__ import annotations

import os
import queue
import sys
import threading

import msgspec
import structlog

from dataplane.protocol.events import (
    BlockCorrupt,
    EngineAttached,
    EngineDetached,
    EngineGone,
    EngineRefused,
    Event,
    MemoryAdopted,
    NodeStarted,
    NodeStopping,
    PinDegraded,
    PinExpired,
    ReplicaPoolFailed,
    ReplicaPoolMade,
    ReservationExpired,
    SegmentCreated,
    SegmentRetired,
    SnapshotApplied,
    SnapshotRefused,
    VerifyDone,
    name_of,
)

WARNINGS = (BlockCorrupt, EngineRefused, SnapshotRefused, ReservationExpired, PinDegraded, ReplicaPoolFailed)
NOTICES = (
    NodeStarted,
    MemoryAdopted,
    NodeStopping,
    EngineAttached,
    EngineDetached,
    EngineGone,
    SnapshotApplied,
    SegmentCreated,
    SegmentRetired,
    PinExpired,
    ReplicaPoolMade,
    VerifyDone,
)

log = structlog.stdlib.get_logger()


class LogWriter:
    """A file that never makes its writer wait: a thread writes the lines, and a full queue drops and counts them.

    Whoever reads the log of a data plane (a pipe, a terminal that was stopped) must not be able to stop the cache.
    """

    def __init__(self, fd: int) -> None:
        self.dropped = 0
        self._fd = fd
        self._lines: queue.Queue[str | None] = queue.Queue(maxsize=10_000)
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        try:
            self._lines.put_nowait(text)
        except queue.Full:
            self.dropped += 1
        return len(text)

    def flush(self) -> None:
        """Nothing to do: lines are on their way."""

    def close(self) -> None:
        """Give the last lines a moment to get out."""
        try:
            self._lines.put(None, timeout=0.5)
        except queue.Full:
            return
        self._thread.join(timeout=0.5)

    def _run(self) -> None:
        while (text := self._lines.get()) is not None:
            data = text.encode(errors="replace")
            try:
                while data:
                    data = data[os.write(self._fd, data) :]
            except OSError:  # nobody reads the log any more
                self.dropped += 1


def configure() -> LogWriter:
    """Set structlog up for this process; lines go to standard error. Close the answer at the end."""
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
    """Bus subscriber: events that an operator reads in a log. Block traffic is for metrics."""
    if isinstance(event, WARNINGS):
        log.warning(name_of(event), **msgspec.structs.asdict(event))
    elif isinstance(event, NOTICES):
        log.info(name_of(event), **msgspec.structs.asdict(event))
