"""Structured log lines on standard error: a static event name with fields."""

import logging
import sys
from typing import Any, Literal

import structlog

from app.observe.writer import LogWriter

Level = Literal["debug", "info", "warning", "error"]


def configure(level: Level, style: Literal["auto", "json", "console"]) -> LogWriter:
    """Set logging up for this process; the command that starts it calls this once and closes the answer at its end."""
    writer = LogWriter(sys.stderr.fileno())
    as_json = style == "json" or (style == "auto" and not sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if as_json:
        final: list[Any] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        # The default would write the values of all variables along with a traceback: tokens, passwords, whole bodies.
        final = [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    structlog.configure(
        processors=[*shared, *final],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(writer),  # type: ignore[arg-type]  # it only writes and flushes
        cache_logger_on_first_use=False,
    )
    # Libraries that use the standard library's logging are heard only when something is wrong.
    handler = logging.StreamHandler(writer)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    return writer
