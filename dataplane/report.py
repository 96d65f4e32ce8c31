"""The state that a node reports: the statistics of its core, and those of the parts around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import structlog

from dataplane import __version__
from dataplane.base import tracing
from dataplane.base.process_figures import ProcessFigures
from dataplane.core.node import Node
from dataplane.gateways.lmcache.server import LMCacheServer
from dataplane.io.loop import Loop
from dataplane.kv_events.publisher import KvEventPublisher
from dataplane.membership import Membership
from dataplane.memory.named import NamedFile
from dataplane.observe.bus import EventFanout
from dataplane.observe.ipc import IpcWatcher
from dataplane.observe.trace import RequestSpans
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.processes import CacheStart, ProcessStats
from dataplane.tiering.service import TierService

log = structlog.stdlib.get_logger()


@dataclass(frozen=True, slots=True)
class NodeReport:
    """Reads the statistics of a data plane from their sources. A part that this node lacks is None."""

    node: Node
    start: CacheStart
    bus: EventFanout
    loop: Loop
    figures: ProcessFigures
    ipc: IpcWatcher
    tiers: TierService
    kv_events: KvEventPublisher | None
    gateway: LMCacheServer | None
    membership: Membership | None

    def stats(self, now: float) -> NodeStats:
        """Return the state of the node."""
        stats = self.node.stats(now)
        stats.start, stats.adopted_blocks = self.start, self.start.blocks
        stats.events_dropped, stats.totals.events_dropped = dict(self.bus.dropped), self.bus.dropped.total()
        used = asdict(self.figures.read(now))
        stats.process = ProcessStats(**used, loop_lag=self.loop.lag, version=__version__)
        stats.ipc = self.ipc.latest
        stats.otel_spans_dropped = tracing.spans_dropped()
        stats.tiers, stats.tier_load_seconds = self.tiers.stats(), self.tiers.load_seconds()
        if self.kv_events is not None:
            stats.kv_events = self.kv_events.stats()
        if self.gateway is not None:
            stats.gateway = self.gateway.stats(now)
        if self.membership is not None:
            stats.admitted_managers = self.membership.managers
        return stats


@dataclass(slots=True)
class StatePublisher:
    """Publishes the events of a node, and its state."""

    node: Node
    report: NodeReport
    bus: EventFanout
    spans: RequestSpans
    named: NamedFile | None
    clock: Callable[[], float]
    _overflowed: bool = False
    _short: bool = False

    def deliver(self) -> None:
        """Publish the events since the last call."""
        with tracing.outside():  # the events of everything since the last call
            self.bus.deliver(self.clock())
        if tracing.on():
            self.spans.flush()

    def publish(self) -> None:
        """Publish the state of the node, after the events so far."""
        self._log_shortages()
        self.bus.publish(self.report.stats(self.clock()))
        self.deliver()

    def _log_shortages(self) -> None:
        """Write one log line when the id journal overflows, and when the named segment runs out of memory."""
        overflowed = self.node.next_start_is_cold
        if overflowed and not self._overflowed:
            log.error("names.overflowed", effect="until names go, the next start is cold")
        short = self.named is not None and self.named.short
        if short and not self._short:
            log.error(
                "lmcache.memory_short",
                effect="/dev/shm or the machine is full: what LMCache clients store evicts their own or is refused",
            )
        self._overflowed, self._short = overflowed, short
