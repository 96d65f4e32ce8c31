"""The state that a node reports: the statistics of its core, and those of the parts around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

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


class NodeReport:
    """Reads the statistics of a data plane from their sources. A part that this node lacks is None."""

    def __init__(
        self,
        node: Node,
        start: CacheStart,
        bus: EventFanout,
        loop: Loop,
        figures: ProcessFigures,
        ipc: IpcWatcher,
        tiers: TierService,
        kv_events: KvEventPublisher | None,
        gateway: LMCacheServer | None,
        membership: Membership | None,
    ) -> None:
        self._node = node
        self._start = start
        self._bus = bus
        self._loop = loop
        self._figures = figures
        self._ipc = ipc
        self._tiers = tiers
        self._kv_events = kv_events
        self._gateway = gateway
        self._membership = membership

    def stats(self, now: float) -> NodeStats:
        """Return the state of the node."""
        stats = self._node.stats(now)
        stats.start, stats.adopted_blocks = self._start, self._start.blocks
        stats.events_dropped, stats.totals.events_dropped = dict(self._bus.dropped), self._bus.dropped.total()
        used = asdict(self._figures.read(now))
        stats.process = ProcessStats(**used, loop_lag=self._loop.lag, version=__version__)
        stats.ipc = self._ipc.latest
        stats.otel_spans_dropped = tracing.spans_dropped()
        stats.tiers, stats.tier_load_seconds = self._tiers.stats(), self._tiers.load_seconds()
        if self._kv_events is not None:
            stats.kv_events = self._kv_events.stats()
        if self._gateway is not None:
            stats.gateway = self._gateway.stats(now)
        if self._membership is not None:
            stats.admitted_managers = self._membership.managers
        return stats


class StatePublisher:
    """Publishes the events of a node, and its state."""

    def __init__(
        self,
        node: Node,
        report: NodeReport,
        bus: EventFanout,
        spans: RequestSpans,
        named: NamedFile | None,
        clock: Callable[[], float],
    ) -> None:
        self._node = node
        self._report = report
        self._bus = bus
        self._spans = spans
        self._named = named
        self._clock = clock
        self._overflowed = self._short = False

    def deliver(self) -> None:
        """Publish the events since the last call."""
        with tracing.outside():  # the events of everything since the last call
            self._bus.deliver(self._clock())
        if tracing.on():
            self._spans.flush()

    def publish(self) -> None:
        """Publish the state of the node, after the events so far."""
        self._log_shortages()
        self._bus.publish(self._report.stats(self._clock()))
        self.deliver()

    def _log_shortages(self) -> None:
        """Write one log line when the id journal overflows, and when the named segment runs out of memory."""
        overflowed = self._node.next_start_is_cold
        if overflowed and not self._overflowed:
            log.error("names.overflowed", effect="until names go, the next start is cold")
        short = self._named is not None and self._named.short
        if short and not self._short:
            log.error(
                "lmcache.memory_short",
                effect="/dev/shm or the machine is full: what LMCache clients store evicts their own or is refused",
            )
        self._overflowed, self._short = overflowed, short
