"""The log of a process of either plane: lines on standard error, each a static event name with fields.

Our own lines and those of libraries that use the standard library's logging pass the same processors. These add the ids
of the current span, collapse repeats, and remove what does not belong in a log: bodies, lists of token ids, and
secrets.
"""

import io
import logging
import re
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TextIO

import structlog

from dataplane.base import tracing
from dataplane.base.log_writer import LogWriter
from dataplane.base.redaction import redacted
from dataplane.base.visible import plain

Level = Literal["debug", "info", "warning", "error"]
Style = Literal["auto", "json", "console"]
Line = MutableMapping[str, Any]

MAX_REPEATS = 50
REPEAT_WINDOW_S = 10.0
"""Lines with the same event from the same place in the code, about the same node, that are written in a window. Further
ones are counted, and one line at the end of the window has their number as `repeated`."""
MAX_SOURCES = 1024
MAX_ITEMS = 16
MAX_CHARACTERS = 4096
MAX_TRACEBACK_CHARACTERS = 32_768
MAX_DEPTH = 4
_SECRET = re.compile(
    r"(^|_)(password|passwd|passphrase|secret|token|authorization|cookie|credentials?|(api|access|private|secret)_?key)$",
    re.IGNORECASE,
)
REDACTED = "<redacted>"


def configure(level: Level = "info", style: Style = "auto") -> LogWriter:
    """Configure logging for this process. The command that starts the process calls this once and closes the returned
    writer at the end."""
    repeats = Repeats()
    as_json = style == "json" or (style == "auto" and not sys.stderr.isatty())
    if as_json:
        final: list[Any] = [structlog.processors.format_exc_info, _bounded, structlog.processors.JSONRenderer()]
    else:
        # The default formatter would write the values of all variables along with a traceback: tokens, passwords, whole
        # bodies.
        final = [_bounded, _seen, structlog.dev.ConsoleRenderer(exception_formatter=_traceback)]

    def rendered(line: Line) -> str:
        for processor in final:
            line = processor(None, "", line)
        return f"{line}\n"

    writer = LogWriter(sys.stderr.fileno(), lambda closing: [rendered(line) for line in repeats.due(closing=closing)])
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _in_span,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, repeats, *final],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(writer),  # type: ignore[arg-type]  # it only writes and flushes
        cache_logger_on_first_use=False,
    )
    # Log only warnings and errors of libraries that use the standard library's logging.
    handler = logging.StreamHandler(writer)
    handler.addFilter(repeats.admits_record)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    return writer


@dataclass
class _Source:
    """One event of one place in the code, in the current window."""

    since: float
    written: int = 0
    repeated: int = 0
    last: dict[str, Any] = field(default_factory=dict)


class Repeats:
    """Collapses repeats. A structlog processor, and a filter of the standard library's records."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._by_source: OrderedDict[Hashable, _Source] = OrderedDict()
        self._due_lines: list[dict[str, Any]] = []
        """Lines about repeats that are due."""

    def __call__(self, _logger: object, _method: str, line: Line) -> Line:
        where = (line.get("event"), line.get("level"), line.get("node") or line.get("url"))
        if not self._admits((*where, *_caller()), line):
            raise structlog.DropEvent
        return line

    def admits_record(self, record: logging.LogRecord) -> bool:
        """Return whether a record of the standard library is written."""
        line = {
            "event": str(record.msg),
            "logger": record.name,
            "level": record.levelname.lower(),
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
        }
        return self._admits((record.msg, record.levelno, record.pathname, record.lineno), line)

    def _admits(self, where: Hashable, line: Line) -> bool:
        now = self._clock()
        with self._lock:
            source = self._by_source.get(where)
            if source is not None and now - source.since >= REPEAT_WINDOW_S:
                self._end(where)
                source = None
            if source is None:
                if len(self._by_source) >= MAX_SOURCES:
                    self._end(next(iter(self._by_source)))
                source = self._by_source[where] = _Source(now)
            if source.written < MAX_REPEATS:
                source.written += 1
                return True
            source.repeated += 1
            source.last = {**line, "repeated": source.repeated}
            return False

    def _end(self, where: Hashable) -> None:
        ended = self._by_source.pop(where)
        if ended.repeated:
            self._due_lines.append(ended.last)

    def due(self, *, closing: bool = False) -> list[dict[str, Any]]:
        """Return one line for each repeated event whose window has ended; with `closing`, for every repeated event."""
        now = self._clock()
        with self._lock:
            for where, source in list(self._by_source.items()):
                if not closing and now - source.since < REPEAT_WINDOW_S:
                    break  # the other windows began later
                self._end(where)
            due_lines, self._due_lines = self._due_lines, []
            return due_lines


def _caller() -> tuple[str, int]:
    """Return file and line of the code that logs."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "structlog":
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _in_span(_logger: Any, _method: str, line: Line) -> Line:
    """Add the ids of the current span."""
    if tracing.on():
        line.update(tracing.ids_of(tracing.traceparent()))
    return line


def _bounded(_logger: Any, _method: str, line: Line) -> Line:
    return {name: _value(name, value, MAX_DEPTH) for name, value in line.items()}


def _value(name: str, value: Any, depth: int) -> Any:
    """Return a value for the log: long lists and bytes are replaced by their length, and secrets are removed."""
    if value is None or isinstance(value, (bool, int, float)) or name == "exc_info":
        return value
    if _SECRET.search(name) is not None and value not in ("", b""):
        return REDACTED
    if isinstance(value, str):
        value = redacted(value)
        most = MAX_TRACEBACK_CHARACTERS if name == "exception" else MAX_CHARACTERS
        return value if len(value) <= most else f"{value[:most]}… <{len(value)} characters>"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"<{len(value)} bytes>"
    if isinstance(value, Mapping):
        if len(value) > MAX_ITEMS or depth == 0:
            return f"<{len(value)} items>"
        return {str(key): _value(str(key), item, depth - 1) for key, item in value.items()}
    if isinstance(value, (Sequence, set, frozenset)):
        if len(value) > MAX_ITEMS or depth == 0 or name == "token_ids":
            return f"<{len(value)} items>"
        return [_value("", item, depth - 1) for item in value]
    return _value("", repr(value), depth)


def _seen(_logger: Any, _method: str, line: Line) -> Line:
    """Escape control characters in the values of a log line: a terminal interprets them, and clients choose paths,
    names and reasons."""
    return {name: plain(value) if isinstance(value, str) and value else value for name, value in line.items()}


def _traceback(out: TextIO, exc_info: Any) -> None:
    text = io.StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    out.write(redacted(plain(text.getvalue(), lines=True)))
