"""Histograms of this process: classic buckets, with the last trace of each bucket as its exemplar.

Native histograms are not supported: Prometheus accepts them only in its protobuf format, which prometheus_client does
not write, and their text format (OpenMetrics 2.0) is a draft.
"""

import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from prometheus_client.core import Exemplar

LATENCIES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class LatencyHistogram:
    """Counts observations by bucket."""

    def __init__(self, bounds: tuple[float, ...] = LATENCIES_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Observations per bucket, not cumulative: one for each bound, and one for larger values."""
        self.total = 0.0
        self.exemplars: list[Exemplar | None] = [None] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        """Count a value. Within a sampled span, it becomes the exemplar of its bucket."""
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += 1
        self.total += value
        context = trace.get_current_span().get_span_context()
        if context.is_valid and context.trace_flags.sampled:
            labels = {"trace_id": trace.format_trace_id(context.trace_id)}
            self.exemplars[bucket] = Exemplar(labels, value, round(time.time(), 3))

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the duration of a block of code in seconds."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.observe(time.monotonic() - started)
