"""Declarations of metrics, and the text of one scrape.

prometheus_client writes content types, numbers and each family's HELP, TYPE and UNIT, and its types check declarations.
This module writes the lines of samples itself: with prometheus_client's writer, a scrape of 6,000 lines (`python -m
benchmarks scrape`) takes 70 to 90 ms of CPU time instead of 37 ms, and no other task runs meanwhile.
"""

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

import msgspec
from prometheus_client.core import Exemplar, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString
from prometheus_client.validation import METRIC_LABEL_NAME_RE, METRIC_NAME_RE, RESERVED_METRIC_LABEL_NAME_RE

from app.descriptions import descriptions
from app.observe.histogram import LatencyHistogram
from dataplane.protocol.stats.figures import figures

Kind = Literal["counter", "gauge", "histogram"]
C: Kind = "counter"
G: Kind = "gauge"
H: Kind = "histogram"
NODE = ("node",)
"""Labels of a metric of a whole node."""
OTHER = "other"
"""Label of all that has no label of its own, because the number of label values is bounded."""
TEXT = "text/plain"
OPENMETRICS = "application/openmetrics-text"
UNITS = ("seconds", "bytes", "blocks", "tokens", "chunks", "ratio")
_END = "# EOF\n"
_number: Callable[[float], str] = floatToGoString
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


@dataclass(frozen=True, eq=False)
class MetricDeclaration:
    """A metric's name (for counters without `_total`), kind, help text and labels. If it has a unit, the name ends with
    it."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError if a scraper would reject the name or a label."""
        self.family()
        if not METRIC_NAME_RE.fullmatch(self.name) or self.name.endswith("_total"):
            raise ValueError(f"{self.name!r}: expected letters, digits and `_` without `_total` at the end")
        for label in self.labels:
            reserved = RESERVED_METRIC_LABEL_NAME_RE.match(label) or (label == "le" and self.kind == H)
            if reserved or not METRIC_LABEL_NAME_RE.fullmatch(label):
                raise ValueError(f"{self.name}: {label!r} is not a valid label name")

    def family(self) -> Metric:
        """Return the family without samples."""
        return Metric(self.name, self.help, self.kind, self.unit)

    @property
    def unit(self) -> str:
        """The unit; empty for a number without a unit."""
        last = self.name.rpartition("_")[2]
        return last if last in UNITS else ""

    @cached_property
    def sample(self) -> str:
        """Name of the sample lines of a counter or gauge."""
        return self.name + ("_total" if self.kind == C else "")


def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> MetricDeclaration:
    """Declare a counter. Its name gets `_total` in a scrape."""
    return MetricDeclaration(name, C, text, labels)


def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> MetricDeclaration:
    """Declare a gauge."""
    return MetricDeclaration(name, G, text, labels)


def histogram(name: str, text: str, labels: tuple[str, ...] = ()) -> MetricDeclaration:
    """Declare a histogram."""
    return MetricDeclaration(name, H, text, labels)


def metrics_of(struct: type[msgspec.Struct], labels: tuple[str, ...]) -> dict[str, MetricDeclaration]:
    """Return the metrics of the figures of a struct, by field."""
    about = descriptions(struct)
    return {
        field: MetricDeclaration(
            figure.metric, figure.kind, about[field], (*labels, figure.label) if figure.label else labels
        )
        for field, figure in figures(struct)
    }


class MetricsPage:
    """Lines of one scrape, grouped by metric in the order of the first samples."""

    def __init__(self, *, openmetrics: bool = False) -> None:
        self._openmetrics = openmetrics
        self._lines: dict[MetricDeclaration, list[str]] = {}
        self._rendered: dict[tuple[tuple[str, ...], tuple[str, ...]], str] = {}

    def add(self, declared: MetricDeclaration, value: float, *labels: str) -> None:
        """Add a sample of a counter or gauge."""
        inner = self._labels(declared.labels, labels)
        shown = f"{declared.sample}{{{inner}}}" if inner else declared.sample
        self._lines_of(declared).append(f"{shown} {_number(value)}\n")

    def add_fields(
        self,
        declared: Mapping[str, MetricDeclaration],
        source: object,
        *labels: str,
        named: Container[str] | None = None,
    ) -> None:
        """Add the attributes of `source` that `declared` names: a number as a sample, a dict as those of its keys
        (`add_by`), and None not at all."""
        for name, metric in declared.items():
            value = getattr(source, name)
            if isinstance(value, dict):
                self.add_by(metric, value.items(), *labels, named=named)
            elif value is not None:
                self.add(metric, value, *labels)

    def add_by(
        self,
        declared: MetricDeclaration,
        counts: Iterable[tuple[str, float]],
        *labels: str,
        named: Container[str] | None = None,
    ) -> None:
        """Add a sample for each count, with its key as the last label. If `named` is given, counts of other keys are
        added up as `other`."""
        sums: defaultdict[str, float] = defaultdict(int)
        for key, count in counts:
            sums[key if named is None or key in named else OTHER] += count
        for key, count in sums.items():
            self.add(declared, count, *labels, key)

    def add_histogram(
        self,
        declared: MetricDeclaration,
        bounds: Sequence[float],
        counts: Sequence[int],
        total: float,
        *labels: str,
        exemplars: Sequence[Exemplar | None] = (),
    ) -> None:
        """Add a histogram. `counts` has one item more than `bounds`: each counts the observations up to its bound and
        above the previous one; the last counts those above all bounds. `total` is the sum of the observed values.
        `exemplars` has one item per bucket, or is empty."""
        lines, below, name = self._lines_of(declared), 0, declared.name
        inner = self._labels(declared.labels, labels)
        first = inner + "," if inner else ""
        for position, (bound, count) in enumerate(
            zip([*(_number(bound) for bound in bounds), "+Inf"], counts, strict=True)
        ):
            below += count
            exemplar = exemplars[position] if exemplars and self._openmetrics else None
            lines.append(f'{name}_bucket{{{first}le="{bound}"}} {_number(below)}{_shown(exemplar)}\n')
        braces = f"{{{inner}}}" if inner else ""
        lines.append(f"{name}_count{braces} {_number(below)}\n")
        lines.append(f"{name}_sum{braces} {_number(total)}\n")

    def add_observed(self, declared: MetricDeclaration, observed: LatencyHistogram, *labels: str) -> None:
        """Add a histogram of this process."""
        self.add_histogram(
            declared, observed.bounds, observed.counts, observed.total, *labels, exemplars=observed.exemplars
        )

    def add_page(self, other: "MetricsPage") -> None:
        """Add the samples of another page."""
        for declared, lines in other._lines.items():
            self._lines_of(declared).extend(lines)

    def text(self) -> bytes:
        """Return the page as bytes in its format."""
        chunks = []
        for declared, lines in self._lines.items():
            chunks.append(_head(declared, OPENMETRICS if self._openmetrics else TEXT))
            chunks += lines
        if self._openmetrics:
            chunks.append(_END)
        return "".join(chunks).encode()

    def _lines_of(self, declared: MetricDeclaration) -> list[str]:
        lines = self._lines.get(declared)
        if lines is None:
            lines = self._lines[declared] = []
        return lines

    def _labels(self, label_names: tuple[str, ...], values: tuple[str, ...]) -> str:
        rendered = self._rendered.get((label_names, values))
        if rendered is None:
            pairs = sorted(zip(label_names, values, strict=True))
            rendered = ",".join([f'{name}="{value.translate(_ESCAPED)}"' for name, value in pairs])
            self._rendered[label_names, values] = rendered
        return rendered


def largest(sizes: Mapping[str, float], limit: int) -> list[str]:
    """Return the keys of the largest sizes, the largest first, without a key `other`, which counts as one of the
    rest."""
    return sorted(sizes.keys() - {OTHER}, key=lambda key: (-sizes[key], key))[:limit]


@dataclass(frozen=True, eq=False)
class OneFamily(Collector):
    """A registry of one family, for the writers of prometheus_client."""

    family: Metric

    def collect(self) -> Iterator[Metric]:
        yield self.family


@cache
def _head(declared: MetricDeclaration, media_type: str) -> str:
    """Return the HELP, TYPE and UNIT lines of a metric."""
    encoder, _ = choose_encoder(media_type)
    return encoder(OneFamily(declared.family())).decode().removesuffix(_END)


def _shown(exemplar: Exemplar | None) -> str:
    if exemplar is None:
        return ""
    labels = ",".join([f'{name}="{value.translate(_ESCAPED)}"' for name, value in exemplar.labels.items()])
    return f" # {{{labels}}} {_number(exemplar.value)} {exemplar.timestamp}"
