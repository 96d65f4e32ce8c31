"""The dashboard's whole state, put together at most once for each change."""

import asyncio
import time
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from app.ingest.fleet import Fleet
from app.ingest.history import History, Series, series
from app.observe.facts import FactHub
from app.schemas.overview import Overview
from app.services import narrowed
from app.services.callers import PLANE, Caller
from app.services.nodes import Nodes
from app.services.pins import Pins
from app.services.policies import Policies
from app.services.progress import Progress
from app.services.tenants import merged
from app.store import pins, policies, quotas
from app.store.database import Database
from app.store.listing import Wanted
from dataplane.protocol.control import POLICY_IN_FORCE
from dataplane.protocol.events import PoolStats, Totals

MOST_ROWS = 500
SHARED_S = 0.9
SHARED_LEAST_S = 0.1
MOST_POINTS = 900
S = TypeVar("S", PoolStats, Totals)


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
        self._cache: tuple[int, float, bytes] | None = None
        self._lock = asyncio.Lock()

    async def now(self, by: Caller = PLANE) -> Overview:
        """As far as the caller may see it. Raises StoreUnavailable."""
        async with self._database.read() as session:
            quota_rows = await quotas.all_quotas(session)
            policy_row = await policies.get(session, POLICY_IN_FORCE)
            pin_page = await pins.page(session, Wanted(MOST_ROWS), pins.Filters(), by.salts)
            pin_counts = await pins.counts(session)
        stats = self._fleet.stats()
        tenants = sorted(
            merged(stats, quota_rows, pin_counts), key=lambda answer: (-answer.bytes, answer.tenant)
        )
        tenants = [tenant for tenant in tenants if by.sees_shown(tenant.tenant)]
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
            pins=self._pins.answers(pin_page.rows),
            pins_total=pin_page.total,
            policy=None if policy_row is None else self._policies.answers([policy_row])[0],
            nodes=self._nodes.page().items,
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
            nodes=narrowed.without_tenants(whole.nodes),
            refused=narrowed.refused_of(tenants),
        )

    async def encoded(self) -> tuple[int, bytes]:
        """The same as JSON, and the version of the hub that it shows; built again soon after a change, and when it is
        old: rates fall without a change. Those who ask together share one."""
        async with self._lock:
            version, now = self._hub.version, time.monotonic()
            held = self._cache
            if held is not None:
                age_s = now - held[1]
                if age_s < SHARED_LEAST_S or (held[0] == version and age_s < SHARED_S):
                    return held[0], held[2]
            made = msgspec.json.encode(await self.now())
            self._cache = (version, now, made)
            return version, made

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
