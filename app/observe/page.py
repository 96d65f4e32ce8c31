"""Declarations of metrics, and the metric families of one scrape."""

from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

G, C, H = GaugeMetricFamily, CounterMetricFamily, HistogramMetricFamily
Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


@dataclass(frozen=True)
class MetricDeclaration:
    """A metric's name (counters without `_total`), kind, labels and help text."""

    name: str
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily] | type[HistogramMetricFamily]
    help: str
    labels: tuple[str, ...] = ()


class MetricsPage:
    """Families of one scrape, in the order of their first sample."""

    def __init__(self) -> None:
        self.families: dict[str, Family] = {}

    def add(self, declared: MetricDeclaration, value: float, *labels: str) -> None:
        """Add a sample of a counter or gauge."""
        family = self._family(declared)
        assert not isinstance(family, HistogramMetricFamily)
        family.add_metric(labels, float(value))

    def add_histogram(
        self,
        declared: MetricDeclaration,
        bounds: Sequence[float],
        counts: Sequence[int],
        total: float,
        *labels: str,
    ) -> None:
        """Add a histogram. `counts` has one item more than `bounds`: each counts the observations up to its bound and
        above the previous one; the last counts those above all bounds. `total` is the sum of the observed values."""
        family = self._family(declared)
        assert isinstance(family, HistogramMetricFamily)
        buckets, below = [], 0
        for bound, count in zip([*map(str, bounds), "+Inf"], counts, strict=True):
            below += count
            buckets.append((bound, float(below)))
        family.add_metric(labels, buckets, total)

    def _family(self, declared: MetricDeclaration) -> Family:
        family = self.families.get(declared.name)
        if family is None:
            family = declared.kind(declared.name, declared.help, labels=declared.labels)
            self.families[declared.name] = family
        return family
