"""Conditions of nodes that no single report shows: a crash loop, thrashing, and a tenant at its limit.

Between two crashes, a node is in sync; and the figures of a pool that evicts blocks unread are those of a busy one.
Conditions are found from events and from reports of the last minutes. A condition stays visible for a while after it
ended.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from app.observe.catalogue.fleet import NodeConditionEnded, NodeConditionStarted
from app.observe.events import LarderEvent
from app.schemas.base.listing import PageRequest
from app.schemas.fleet.nodes import ConditionType, NodeCondition
from app.schemas.views.events import EventFilters
from app.schemas.views.findings import (
    CRASHES,
    CRASHES_S,
    MIN_EVICTED,
    MIN_REFUSED,
    THRASHING_EVICTED,
    THRASHING_FULL,
    THRASHING_HITS,
    WINDOW_S,
)
from app.store.base.database import Database
from app.store.views import events
from app.store.views.events import EventRow
from dataplane.protocol.codes import Code
from dataplane.protocol.salts import shown
from dataplane.protocol.stats.node import NodeStats

SAMPLE_S = 5.0
"""Seconds between two samples of a node's counters."""
QUIET_S = 60.0
"""Seconds without a condition after which it has ended."""
STOPS = ("node.stopped", "dataplane.stopped")
EVENTS = frozenset((*STOPS, "node.joined", "node.lost", "node.forgotten", "dataplane.exited"))
"""Names of the events that `on_event` reads."""
MAX_EPOCHS = 8
_OVER_LIMIT = Code.OVER_LIMIT.name.lower()
MAX_EVENTS = 1000


class _Sample(NamedTuple):
    at: float
    epoch: str
    stored: int
    evicted: int
    requested: int
    hit: int
    refused: dict[str, int]
    """Blocks refused for the limit of their tenant, by listed tenant."""


@dataclass
class _Condition:
    since: float
    last: float
    """Time at which it was last found."""
    message: str
    ended_at: float | None = None


@dataclass
class _Watched:
    """Recent history of one node, and its conditions."""

    epochs: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_EPOCHS))
    """Epochs of its last processes."""
    is_explained: bool = False
    """Whether the current process announced its end, or its end is already in `exit_times`."""
    lost_at: float | None = None
    exit_times: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    """Times of unexpected exits, oldest first."""
    samples: deque[_Sample] = field(default_factory=deque)
    conditions: dict[ConditionType, _Condition] = field(default_factory=dict)


class NodeConditions:
    """Call `on_event` for each event, and `look` about once a second."""

    def __init__(self, retention_s: float, clock: Callable[[], float] = time.time) -> None:
        """`retention_s`: seconds for which a condition stays visible after it ended."""
        self._retention_s = retention_s
        self._clock = clock
        self._nodes: dict[str, _Watched] = {}
        self._changed: list[tuple[str, NodeConditionStarted | NodeConditionEnded]] = []

    async def load(self, database: Database) -> None:
        """Read the events of the last minutes that an earlier manager stored. Raises StoreUnavailable."""
        since = self._clock() - CRASHES_S
        rows: list[EventRow] = []
        async with database.read() as session:
            for pattern in ("node.*", "dataplane.*"):
                page = await events.page(
                    session, PageRequest(MAX_EVENTS, sort="-id"), EventFilters(pattern, since=since)
                )
                rows += page.rows
        for row in sorted(rows, key=lambda row: row.id):
            self.on_event(LarderEvent(row.name, row.at, row.id, row.node, row.fields))
        for watched in self._nodes.values():  # the earlier manager published it
            if len(watched.exit_times) >= CRASHES:
                watched.conditions["crash_loop"] = _Condition(watched.exit_times[0], self._clock(), _crashes(watched))

    def on_event(self, event: LarderEvent) -> None:
        """Read an event of a node's process; events must come in order."""
        name, node, at = event.name, event.node, event.at
        if name not in EVENTS or not node:
            return
        if name == "node.forgotten":
            self._nodes.pop(node, None)
            return
        watched = self._nodes.setdefault(node, _Watched())
        if name == "dataplane.exited":
            code = event.fields.get("code")  # None: unknown, because the process was adopted
            if code != 0 and not (code is None and watched.is_explained):
                watched.exit_times.append(at)
            watched.is_explained = True
        elif name in STOPS:
            watched.is_explained = True
        elif name == "node.lost":
            watched.lost_at = at
        else:
            epoch = str(event.fields.get("epoch"))
            if epoch not in watched.epochs:
                if watched.epochs and not watched.is_explained:
                    watched.exit_times.append(watched.lost_at or at)
                watched.epochs.append(epoch)
                watched.is_explained = False
            watched.lost_at = None

    def look(self, stats: Iterable[NodeStats]) -> list[tuple[str, NodeConditionStarted | NodeConditionEnded]]:
        """Compare the latest reports with earlier ones. Return the events of conditions that started or ended since,
        with their nodes."""
        now = self._clock()
        for node in stats:
            watched = self._nodes.setdefault(node.node, _Watched())
            while watched.samples and now - watched.samples[0].at > WINDOW_S + SAMPLE_S:
                watched.samples.popleft()
            if not watched.samples or now - watched.samples[-1].at >= SAMPLE_S:
                totals = node.totals
                watched.samples.append(
                    _Sample(
                        now,
                        node.epoch,
                        totals.stored_blocks,
                        totals.evicted_blocks,
                        totals.requested_blocks,
                        totals.hit_blocks,
                        {tenant.tenant: tenant.refused.get(_OVER_LIMIT, 0) for tenant in node.tenants},
                    )
                )
                if message := _thrashes(watched.samples, node):
                    self._note_condition(node.node, watched, "thrashing", now - WINDOW_S, message, now)
                if message := _refuses(watched.samples):
                    self._note_condition(node.node, watched, "tenant_at_limit", now - WINDOW_S, message, now)
        for name, watched in self._nodes.items():
            while watched.exit_times and watched.exit_times[0] < now - CRASHES_S:
                watched.exit_times.popleft()
            if len(watched.exit_times) >= CRASHES:
                self._note_condition(name, watched, "crash_loop", watched.exit_times[0], _crashes(watched), now)
            self._end(name, watched, now)
        changed, self._changed = self._changed, []
        return changed

    def _note_condition(
        self, node: str, watched: _Watched, kind: ConditionType, since: float, message: str, now: float
    ) -> None:
        condition = watched.conditions.get(kind)
        if condition is None or condition.ended_at is not None:
            condition = watched.conditions[kind] = _Condition(since, now, message)
            self._changed.append((node, NodeConditionStarted(kind, message)))
        condition.last, condition.message = now, message

    def _end(self, node: str, watched: _Watched, now: float) -> None:
        for kind, condition in list(watched.conditions.items()):
            if condition.ended_at is not None:
                if now - condition.ended_at > self._retention_s:
                    del watched.conditions[kind]
            elif now - condition.last > QUIET_S:
                condition.ended_at = now
                self._changed.append((node, NodeConditionEnded(kind, now - condition.since)))

    def of(self, node: str) -> list[NodeCondition]:
        """Return the conditions of a node, also those that ended not long ago."""
        watched = self._nodes.get(node)
        return (
            []
            if watched is None
            else [
                NodeCondition(kind, condition.message, condition.since, condition.ended_at)
                for kind, condition in watched.conditions.items()
            ]
        )

    def lasting(self) -> Iterator[tuple[str, ConditionType]]:
        """Yield the node and the type of each condition that has not ended."""
        for name, watched in self._nodes.items():
            for kind, condition in watched.conditions.items():
                if condition.ended_at is None:
                    yield name, kind


def _crashes(watched: _Watched) -> str:
    return f"its data plane ended unexpectedly {len(watched.exit_times)} times in {CRASHES_S / 60:.0f} min"


def _is_short(samples: deque[_Sample]) -> bool:
    """Return whether the current process was not watched for the whole window."""
    first, last = samples[0], samples[-1]
    return last.at - first.at < WINDOW_S - SAMPLE_S or any(sample.epoch != last.epoch for sample in samples)


def _refuses(samples: deque[_Sample]) -> str:
    """Return which tenants a node refuses for their limits; empty if none."""
    if _is_short(samples):
        return ""
    before, now = samples[0].refused, samples[-1].refused
    # Nodes list their largest tenants only: of a tenant that was not listed before, the count is of its whole life.
    refused = {tenant: count - before[tenant] for tenant, count in now.items() if tenant in before}
    tenants = sorted(
        (tenant for tenant in refused if refused[tenant] >= MIN_REFUSED), key=lambda tenant: -refused[tenant]
    )
    if not tenants:
        return ""
    other_count = len(tenants) - 1
    others_text = f", and blocks of {other_count} other tenant{'s' * (other_count > 1)}" if other_count else ""
    return (
        f"{refused[tenants[0]]:,} blocks of tenant {shown(tenants[0])} were refused in {WINDOW_S / 60:.0f} min because "
        f"the tenant is at its limit{others_text}"
    )


def _thrashes(samples: deque[_Sample], stats: NodeStats) -> str:
    """Return how a node thrashes; empty if it does not, or was not watched for long enough."""
    if _is_short(samples):
        return ""
    first, last = samples[0], samples[-1]
    stored, evicted = last.stored - first.stored, last.evicted - first.evicted
    requested, hit = last.requested - first.requested, last.hit - first.hit
    target = stats.policy.low_watermark  # to which evictions bring the pool
    is_full = stats.pool.used_bytes >= THRASHING_FULL * target * stats.pool.capacity_bytes
    if (
        not is_full
        or evicted < max(MIN_EVICTED, THRASHING_EVICTED * stored)
        or not requested
        or hit >= THRASHING_HITS * requested
    ):
        return ""
    return (
        f"its pool is full, and in {WINDOW_S / 60:.0f} min {stored:,} blocks were stored, {evicted:,} evicted, and "
        f"{hit:,} of {requested:,} requested blocks hit"
    )
