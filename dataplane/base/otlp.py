"""Exports the spans of a process over OTLP/HTTP, as the standard `OTEL_*` variables say.

The SDK's own batch processor waits for a collector that is down, also at the end of the process. Here only one thread
waits for the collector: its queue is bounded, spans that do not fit are dropped and counted, and at the end of the
process it gets a short time for the rest.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog

from dataplane.base import tracing

if TYPE_CHECKING:
    import requests
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

ENDPOINT, TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_TIMEOUTS = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
TIMEOUT_S = 3.0
"""Seconds for one export, with its retries, unless a variable says otherwise."""
MAX_QUEUED = 2048
BATCH = 512
DELAY_S = 1.0
"""Seconds between exports of a queue that does not fill a batch."""
CLOSE_S = 0.5
HAND_OVER_S = 0.1
LOG_EVERY_S = 60.0
MAX_COUNT = 1_000_000
MAX_ANSWER_BYTES = 64 << 10
"""Largest answer of the collector that is read, so that the connection serves the next export."""


class Telemetry:
    """The queue of ended spans and the thread that exports them. A `SpanProcessor` of the SDK."""

    def __init__(self, exporter: SpanExporter, max_queued: int, batch: int, delay_s: float) -> None:
        self.dropped = 0
        """Spans that did not fit into the queue, or that the collector did not accept."""
        self._exporter = exporter
        self._max_queued, self._batch, self._delay_s = max_queued, batch, delay_s
        self._queue: deque[ReadableSpan] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._failing_since = 0.0
        self._logged_at = 0.0
        self._log = structlog.get_logger()
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    def on_start(self, span: object, parent_context: object = None) -> None:
        """Do nothing: spans are exported when they end."""

    def _on_ending(self, span: object) -> None:
        """Do nothing. The SDK calls this before a span ends."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queue an ended span, or drop and count it."""
        if not span.context.trace_flags.sampled:
            return
        with self._lock:
            full = self._closing or len(self._queue) >= self._max_queued
            if full:
                self.dropped += 1
            else:
                self._queue.append(span)
            enough = len(self._queue) >= self._batch
        if enough and not self._wake.is_set():
            self._wake.set()

    def shutdown(self) -> None:
        """Do nothing: `close` ends the export, with a bound."""

    def force_flush(self, timeout_millis: int = 0) -> bool:
        """Do nothing: no caller waits for the collector."""
        return False

    def close(self, within_s: float = CLOSE_S) -> None:
        """Export what is queued for at most `within_s` seconds, then give up."""
        tracing.use(None, lambda: self.dropped)
        self._closing = True
        self._wake.set()
        self._thread.join(within_s)
        if self._thread.is_alive():  # a daemon: it does not keep the process alive
            with self._lock:
                self.dropped += len(self._queue)
                self._queue.clear()
        if self.dropped:
            self._log.warning("otel.spans_dropped", count=self.dropped)

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(self._delay_s)
            self._wake.clear()
            while batch := self._take():
                self._export(batch)
        while batch := self._take():
            self._export(batch)

    def _take(self) -> list[ReadableSpan]:
        with self._lock:
            return [self._queue.popleft() for _ in range(min(self._batch, len(self._queue)))]

    def _export(self, batch: list[ReadableSpan]) -> None:
        reason = "the collector did not accept the spans"
        try:
            accepted = self._exporter.export(batch).name == "SUCCESS"
        except Exception as error:  # noqa: BLE001 - the exporter must not end the thread
            accepted, reason = False, type(error).__name__
        now = time.monotonic()
        if accepted:
            if self._failing_since:
                self._log.info("otel.export_recovered", after_s=round(now - self._failing_since, 1))
            self._failing_since = 0.0
            return
        with self._lock:
            self.dropped += len(batch)
        self._failing_since = self._failing_since or now
        if not self._logged_at or now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            self._log.warning("otel.export_failed", reason=reason, spans_dropped=self.dropped)


def preload(environ: Mapping[str, str]) -> None:
    """Import the modules that `start` needs, ahead of use."""
    if environ.get(TRACES_ENDPOINT) or environ.get(ENDPOINT):
        with suppress(ImportError):
            import opentelemetry.exporter.otlp.proto.http.trace_exporter  # noqa: F401

            import dataplane.base.spans  # noqa: F401


def start(plane: str, version: str, environ: Mapping[str, str], instance: str = "") -> Telemetry | None:
    """Turn tracing on for this process if the variables ask for it and the packages are installed. Return the
    telemetry, which the process must close at its end, or None. `plane` is `management-plane` or `data-plane`. Logs why
    tracing stays off."""
    name = next((variable for variable in (TRACES_ENDPOINT, ENDPOINT) if environ.get(variable, "").strip()), "")
    disabled = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if not name or disabled or environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() == "none":
        return None
    log = structlog.get_logger()
    fault = _fault(name, environ)
    if fault:
        log.warning("otel.off", reason=fault)
        return None
    # It logs headers that it cannot read, with their values.
    logging.getLogger("opentelemetry.util.re").setLevel(logging.CRITICAL)
    for variable in _HEADERS:
        if any("=" not in pair for pair in environ.get(variable, "").split(",") if pair.strip()):
            log.warning("otel.variable_ignored", variable=variable, expected="name=value,name=value")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        from dataplane.base.spans import SpanMaker
    except ImportError as error:
        log.warning(
            "otel.off",
            reason=f"{name} is set, but the extra `otel` is not installed: pip install 'larder[otel]'",
            missing=error.name or "",
        )
        return None
    timeout_s = None if any(environ.get(variable) for variable in _TIMEOUTS) else TIMEOUT_S
    try:
        provider = TracerProvider(
            resource=Resource.create(_resource(plane, version, environ, instance)), shutdown_on_exit=False
        )
        exporter = OTLPSpanExporter(timeout=timeout_s, session=_session())
    except (ValueError, OSError) as error:
        log.warning("otel.off", reason=f"a variable OTEL_* is not valid: {error}")
        return None
    # It logs each failed attempt.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    telemetry = Telemetry(
        exporter,
        _count(environ, "OTEL_BSP_MAX_QUEUE_SIZE", MAX_QUEUED),
        _count(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BATCH),
        _count(environ, "OTEL_BSP_SCHEDULE_DELAY", round(DELAY_S * 1000)) / 1000,
    )
    provider.add_span_processor(telemetry)  # type: ignore[arg-type]  # the base class would be an import without the SDK
    tracing.use(SpanMaker(provider.get_tracer("larder", version)), lambda: telemetry.dropped)
    log.info("otel.started", endpoint=environ[name].strip(), plane=plane)
    return telemetry


def _session() -> requests.Session:
    """Return a session that reads no long answer, and takes a redirection for a failure: the exporter would keep all of
    an answer in memory, and take spans for accepted that went nowhere."""
    import requests

    def check(response: requests.Response, **_: object) -> None:
        length = response.headers.get("content-length", "")
        if length.isdecimal() and int(length) <= MAX_ANSWER_BYTES:
            response.raw.drain_conn()
        response.close()
        if 300 <= response.status_code < 400:
            raise requests.RequestException("the collector redirects")

    session = requests.Session()
    session.stream = True
    session.hooks["response"].append(check)
    return session


def _count(environ: Mapping[str, str], name: str, default: int) -> int:
    """Return the positive number in a variable, or the default."""
    text = environ.get(name, "").strip()
    if not text:
        return default
    if text.isascii() and text.isdecimal() and 0 < int(text) <= MAX_COUNT:
        return int(text)
    structlog.get_logger().warning("otel.variable_ignored", variable=name, expected=f"1 to {MAX_COUNT}")
    return default


def _fault(name: str, environ: Mapping[str, str]) -> str:
    """Return why spans cannot be exported to the endpoint; empty if they can."""
    expected = f"{name}: expected a URL such as http://collector:4318"
    try:
        url = urlsplit(environ[name].strip())
        valid = url.scheme in ("http", "https") and bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:
        valid = False
    if not valid:  # do not repeat it: it may contain a password
        return expected
    if url.username is not None or url.password is not None:
        return f"{expected}, without a login: put credentials into OTEL_EXPORTER_OTLP_HEADERS"
    protocol = next(
        (environ[variable].strip() for variable in _PROTOCOLS if environ.get(variable, "").strip()), "http/protobuf"
    )
    if protocol != "http/protobuf":
        return f"the protocol is {protocol[:40]!r}; Larder exports http/protobuf only (port 4318 of most collectors)"
    return ""


def _resource(plane: str, version: str, environ: Mapping[str, str], instance: str) -> dict[str, str]:
    """Return the resource attributes that the variables do not set."""
    attributes = environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    keys = {attribute.partition("=")[0].strip() for attribute in attributes.split(",")}
    if environ.get("OTEL_SERVICE_NAME", "").strip():
        keys.add("service.name")
    defaults = {
        "service.name": f"larder-{plane}",
        "service.namespace": "larder",
        "service.version": version,
        "service.instance.id": instance,
    }
    return {"larder.plane": plane} | {key: text for key, text in defaults.items() if text and key not in keys}
