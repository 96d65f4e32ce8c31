"""Where the numbers of a scrape come from."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from app.observe.histogram import LatencyHistogram
from app.observe.page import MetricDeclaration
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.processes import ProcessStats


@dataclass(frozen=True)
class MetricSources:
    """Sources of a scrape; every callable returns current numbers."""

    leads: Callable[[], bool]
    """Whether this manager is the leader, or the last leader that it knows of. It then serves the metrics of nodes and
    of the fleet."""
    stats: Callable[[], Iterable[NodeStats]]
    nodes_up: Callable[[], Mapping[str, bool]]
    node_states: Callable[[], Mapping[str, int]]
    """Number of nodes by state."""
    desired: Callable[[], Mapping[str, int]]
    requests: Mapping[tuple[str, str, int], int]
    request_seconds: Mapping[tuple[str, str], LatencyHistogram]
    pushes: Callable[[], Mapping[str, "PushCounts"]]
    """Pushes of this manager, by known node."""
    database_seconds: Mapping[str, LatencyHistogram]
    lags: Callable[[], Iterable["GenerationLag"]]
    token_ends: Callable[[], Iterable[tuple[str, float]]]
    """Names of the tokens that expire next, with their expiry in Unix seconds."""
    process: Callable[[], ProcessStats | None]
    auth_failures: Mapping[str, int]
    connections_ended: Mapping[str, int]
    cold: Callable[[], Mapping[str, bool]]
    """Whether the cache is cold, by node."""
    conditions: Callable[[], Iterable[tuple[str, str]]]
    """Nodes and the types of their conditions that last."""
    empty_pins: Callable[[], Sequence[str]]
    """Sorted names of pins that should keep their blocks and hold none."""
    events_dropped: Mapping[str, int]
    """Events that this management plane dropped, by name."""
    alerts: Callable[[], Mapping[tuple[str, str], int]]
    """Number of firing alerts by name and severity."""
    numbers: Callable[[], Iterable[tuple[MetricDeclaration, float]]]
    """Values of metrics without labels."""
    lmcache_names: bool = False
    """Whether to add metrics under LMCache's names."""


@dataclass(frozen=True)
class GenerationLag:
    """Number of generations of a record type that a node has not applied yet."""

    node: str
    type: str
    generations: int
    drifted: bool
    nacked: bool
    """Whether the node refused the newest generation."""


@dataclass
class PushCounts:
    """Pushes to one node since this process has known it."""

    ended: Counter[str] = field(default_factory=Counter)
    """Number by final state."""
    seconds: dict[str, LatencyHistogram] = field(default_factory=lambda: defaultdict(LatencyHistogram))
    """Seconds from the push to the ack, by type."""
