"""The dashboard's whole state, put together at most once for each change.

What takes long (reading records, merging what nodes say of tenants) is done once for all watchers; what callers who are
limited to tenants see is cut out of it once for all who see the same ones.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from app.ingest.fleet import Fleet
from app.ingest.history import History, Series, series
from app.observe.facts import FactHub
from app.schemas.overview import Overview
from app.schemas.tenants import TenantAnswer
from app.services import narrowed
from app.services.callers import PLANE, Caller
from app.services.nodes import Nodes
from app.services.pins import Pins
from app.services.policies import Policies
from app.services.progress import Progress
from app.services.tenants import known_tenants
from app.store import pins, policies
from app.store.database import Database
from app.store.listing import Wanted
from app.store.policies import PolicyRow
from dataplane.protocol.control import POLICY_IN_FORCE
from dataplane.protocol.events import NodeStats, PoolStats, Totals

MOST_ROWS = 500
SHARED_S = 0.9
SHARED_LEAST_S = 0.1
MOST_POINTS = 900
MOST_SETS = 256
"""Sets of tenants whose overview is kept for the next watcher; more are put together anew each time."""
S = TypeVar("S", PoolStats, Totals)


@dataclass(frozen=True)
class _Seen:
    """What everybody's overview is cut out of."""

    version: int
    """Of the hub."""
    at: float
    """Monotonic."""
    stats: Sequence[NodeStats]
    tenants: Sequence[TenantAnswer]
    """The largest first."""
    policy: PolicyRow | None


@dataclass
class _Held:
    """The newest overview of one set of tenants."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    version: int = -1
    at: float = float("-inf")
    encoded: bytes = b""


class OverviewService:
    """`encoded` is shared by all streams: its cost does not grow with the number of watchers."""

    def __init__(
        self,
        database: Database,
        fleet: Fleet,
        history: History,
        hub: FactHub,
        progress: Progress,
        nodes: Nodes,
        pin_service: Pins,
        policy_service: Policies,
    ) -> None:
        self._database = database
        self._fleet = fleet
        self._history = history
        self._hub = hub
        self._progress = progress
        self._nodes = nodes
        self._pins = pin_service
        self._policies = policy_service
        self._held: OrderedDict[frozenset[str] | None, _Held] = OrderedDict()
        self._seen: _Seen | None = None
        self._seeing = asyncio.Lock()
        self.built = 0
        """Overviews that were put together for streams, since the start."""

    async def now(self, by: Caller = PLANE) -> Overview:
        """As far as the caller may see it. Raises StoreUnavailable."""
        return await self._cut(await self._look(by.salts), by)

    async def _look(self, salts: frozenset[str] | None = None) -> _Seen:
        """At everything, or of tenants at these alone. Raises StoreUnavailable."""
        version, at = self._hub.version, time.monotonic()
        async with self._database.read() as session:
            policy_row = await policies.get(session, POLICY_IN_FORCE)
        stats = self._fleet.stats()
        known = await known_tenants(self._database, stats, salts)
        tenants = await asyncio.to_thread(sorted, known, key=lambda answer: (-answer.bytes, answer.tenant))
        return _Seen(version, at, stats, tenants, policy_row)

    async def _cut(self, seen: _Seen, by: Caller) -> Overview:
        """Raises StoreUnavailable."""
        async with self._database.read() as session:
            pin_page = await pins.page(session, Wanted(MOST_ROWS), pins.Filters(), by.salts)
        stats, policy_row = seen.stats, seen.policy
        tenants = [tenant for tenant in seen.tenants if by.sees_shown(tenant.tenant)]
        living = self._fleet.living()
        refused: dict[str, int] = {}
        for node in stats:
            for code, count in node.refused.items():
                refused[code] = refused.get(code, 0) + count
        whole = Overview(
            at=time.time(),
            armed=bool(living) and all(node.stats is not None and node.stats.armed for node in living),
            ready=not self._progress.unready(),
            pool=total(PoolStats, [node.pool for node in stats]),
            totals=total(Totals, [node.totals for node in stats]),
            rates=self._history.rates(stats),
            tenants=tenants[:MOST_ROWS],
            tenants_total=len(tenants),
            pins=self._pins.answers(pin_page.rows, by),
            pins_total=pin_page.total,
            policy=None if policy_row is None else self._policies.answers([policy_row])[0],
            nodes=self._nodes.page(by).items,
            refused=refused,
            recent=[fact for fact in self._hub.recent if narrowed.is_shown(fact, by)],
        )
        if by.salts is None:
            return whole
        totals = narrowed.totals_of(tenants)
        return msgspec.structs.replace(
            whole,
            pool=narrowed.pool_of(tenants, whole.pool),
            totals=totals,
            rates=narrowed.rates_of(totals),
            policy=narrowed.rules_of(whole.policy),
            refused=narrowed.refused_of(tenants),
        )

    async def encoded(self, salts: frozenset[str] | None = None) -> tuple[int, bytes]:
        """The same as JSON for all who are limited to these tenants, and the version of the hub that it shows. Built
        again soon after a change, and when it is old: rates fall without a change. Those who ask together share one."""
        held = self._held.setdefault(salts, _Held())
        self._held.move_to_end(salts)
        if len(self._held) > MOST_SETS:
            self._held.popitem(last=False)
        async with held.lock:
            if not self._is_fresh(held.version, held.at):
                seen = await self._shared()
                self.built += 1
                held.encoded = msgspec.json.encode(await self._cut(seen, Caller(salts=salts)))
                held.version, held.at = seen.version, seen.at
            return held.version, held.encoded

    async def _shared(self) -> _Seen:
        """What was read a moment ago, for somebody else perhaps. Raises StoreUnavailable."""
        async with self._seeing:
            if self._seen is None or not self._is_fresh(self._seen.version, self._seen.at):
                self._seen = await self._look()
            return self._seen

    def _is_fresh(self, version: int, at: float) -> bool:
        age_s = time.monotonic() - at
        return age_s < SHARED_LEAST_S or (version == self._hub.version and age_s < SHARED_S)

    def series(self, seconds: float) -> Series:
        return series(self._history.thinned(seconds, MOST_POINTS))


def total(kind: type[S], parts: Iterable[S]) -> S:
    """Field by field: numbers are added up, and what is yes or no is yes when it is on every node."""
    items = list(parts)
    return kind(
        **{name: _together([getattr(item, name) for item in items]) for name in kind.__struct_fields__}
    )


def _together(values: list[Any]) -> Any:
    return all(values) if values and isinstance(values[0], bool) else sum(values)
