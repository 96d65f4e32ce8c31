"""Metrics of the processes of both planes: resource usage, event loop lag, and the running release.

`plane` is `management` or `data`; `node` is empty for a management plane.
"""

import time
from itertools import pairwise

from app import __version__
from app.observe.histogram import LatencyHistogram
from app.observe.page import MetricDeclaration, MetricsPage, counter, gauge, histogram, metrics_of
from dataplane.base.process_figures import ProcessFigures
from dataplane.protocol.stats.histogram import Histogram
from dataplane.protocol.stats.processes import ProcessStats

MANAGEMENT = "management"

_OF = ("plane", "node")
PROCESSES = metrics_of(ProcessStats, _OF)
COLLECTIONS = counter("larder_gc_collections", "Collections of Python's garbage collector.", (*_OF, "generation"))
LAG = histogram("larder_event_loop_lag_seconds", "Delay of timers of the event loop.", _OF)
EVENTS_DROPPED = counter("larder_events_dropped", "Events that were dropped because a queue was full.", (*_OF, "event"))
SPANS_DROPPED = counter(
    "larder_otel_spans_dropped", "Spans of traces that did not reach the collector, by plane (management or data).", _OF
)
BUILD = gauge(
    "larder_build_info",
    "1 for the running release; the commit is empty if it is unknown.",
    ("version", "commit", "python", *_OF),
)


def add(page: MetricsPage, stats: ProcessStats, plane: str, node: str = "") -> None:
    """Add the samples of one process."""
    page.add_fields(PROCESSES, stats, plane, node)
    for generation, count in enumerate(stats.gc_collections):
        page.add(COLLECTIONS, count, plane, node, str(generation))
    add_reported(page, LAG, stats.loop_lag, plane, node)
    page.add(BUILD, 1, stats.version, stats.commit, stats.python, plane, node)


def add_reported(page: MetricsPage, declared: MetricDeclaration, reported: Histogram | None, *labels: str) -> None:
    """Add a histogram that a node reported. Does nothing if it is missing or malformed."""
    if reported is None or len(reported.counts) != len(reported.bounds) + 1:
        return
    bounds = reported.bounds
    if all(low < high for low, high in pairwise(bounds)) and min(reported.counts) >= 0:
        page.add_histogram(declared, bounds, reported.counts, reported.total, *labels)


class ProcessMeter:
    """Resource usage of this process. Garbage collection is measured from `start` to `stop`."""

    def __init__(self) -> None:
        self.loop_lag = LatencyHistogram()
        self._figures: ProcessFigures | None = None

    def start(self) -> None:
        self._figures = ProcessFigures()

    def stop(self) -> None:
        if self._figures is not None:
            self._figures.close()

    def read(self) -> ProcessStats | None:
        """Return the current usage; None before `start`."""
        if self._figures is None:
            return None
        use = self._figures.read(time.monotonic())
        return ProcessStats(
            use.cpu_s,
            use.resident_bytes,
            use.open_fds,
            use.gc_collections,
            use.gc_pause_s,
            Histogram(list(self.loop_lag.bounds), self.loop_lag.counts, self.loop_lag.total),
            __version__,
            use.commit,
            use.python,
        )
