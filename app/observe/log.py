"""Structured log lines on standard error: a static event name with fields."""

import io
import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal, TextIO

import structlog

from app.observe.visible import plain
from dataplane.base.log_writer import LogWriter

Level = Literal["debug", "info", "warning", "error"]


def configure(level: Level, style: Literal["auto", "json", "console"]) -> LogWriter:
    """Configure logging for this process. The command that starts the process calls this once and closes the returned
    writer at the end."""
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
        # The default formatter would write the values of all variables along with a traceback: tokens, passwords, whole
        # bodies.
        final = [_seen, structlog.dev.ConsoleRenderer(exception_formatter=_traceback)]
    structlog.configure(
        processors=[*shared, *final],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(writer),  # type: ignore[arg-type]  # it only writes and flushes
        cache_logger_on_first_use=False,
    )
    # Log only warnings and errors of libraries that use the standard library's logging.
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


def _seen(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape control characters in the values of a log line: a terminal interprets them, and clients choose paths,
    names and reasons."""
    return {name: plain(value) if isinstance(value, str) and value else value for name, value in line.items()}


def _traceback(out: TextIO, exc_info: Any) -> None:
    text = io.StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    out.write(plain(text.getvalue(), lines=True))
