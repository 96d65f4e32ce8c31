"""The dashboard's whole state, put together at most once for each change."""

import time
from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from app.ingest.fleet import Fleet
from app.ingest.history import History, Series, series
from app.observe.facts import FactHub
from app.schemas.overview import Overview, TenantAnswer
from app.services.nodes import Nodes
from app.services.pins import Pins
from app.services.progress import Progress
from app.store import pins, quotas
from app.store.database import Database
from app.store.quotas import QuotaRow
from dataplane.protocol.events import NodeStats, PoolStats, TenantStats, Totals
from dataplane.protocol.salts import shown

MOST_ROWS = 500
SHARED_S = 0.9
MOST_POINTS = 900
S = TypeVar("S", PoolStats, Totals)
_SUMMED = (
    "bytes",
    "blocks",
    "requested_blocks",
    "hit_blocks",
    "stored_blocks",
    "evicted_blocks",
    "refused_blocks",
)


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
    ) -> None:
        self._database = database
        self._fleet = fleet
        self._history = history
        self._hub = hub
        self._progress = progress
        self._nodes = nodes
        self._pins = pin_service
        self._cache: tuple[int, float, bytes] | None = None

    async def now(self) -> Overview:
        """Raises StoreUnavailable."""
        async with self._database.read() as session:
            quota_rows = await quotas.all_quotas(session)
            pin_rows, pins_total = await pins.page(session, MOST_ROWS, 0)
        stats = self._fleet.stats()
        tenants = merge_tenants(stats, quota_rows)
        living = self._fleet.living()
        refused: dict[str, int] = {}
        for node in stats:
            for code, count in node.refused.items():
                refused[code] = refused.get(code, 0) + count
        return Overview(
            at=time.time(),
            armed=bool(living) and all(node.stats is not None and node.stats.armed for node in living),
            ready=not self._progress.unready(),
            pool=total(PoolStats, [node.pool for node in stats]),
            totals=total(Totals, [node.totals for node in stats]),
            rates=self._history.rates(stats),
            tenants=tenants[:MOST_ROWS],
            tenants_total=len(tenants),
            pins=self._pins.answers(pin_rows),
            pins_total=pins_total,
            nodes=self._nodes.page().items,
            refused=refused,
            recent=list(self._hub.recent),
        )

    async def encoded(self) -> bytes:
        """The same as JSON; built again after a change, and when it is old: rates fall without a change."""
        version, now = self._hub.version, time.monotonic()
        if self._cache is None or self._cache[0] != version or now - self._cache[1] >= SHARED_S:
            self._cache = (version, now, msgspec.json.encode(await self.now()))
        return self._cache[2]

    def series(self, seconds: float) -> Series:
        return series(self._history.thinned(seconds, MOST_POINTS))


def total(kind: type[S], parts: Iterable[S]) -> S:
    """Field by field."""
    items = list(parts)
    return kind(**{name: sum(getattr(item, name) for item in items) for name in kind.__struct_fields__})


def merge_tenants(stats: Iterable[NodeStats], rows: Sequence[QuotaRow]) -> list[TenantAnswer]:
    """Every tenant that keeps something or has a quota, largest first."""
    records = {shown(row.tenant): row for row in rows}
    sums = {name: dict.fromkeys(_SUMMED, 0) for name in records}
    over: set[str] = set()
    limits: dict[str, int | None] = {}
    for node in stats:
        for tenant in node.tenants:
            _add(sums.setdefault(tenant.tenant, dict.fromkeys(_SUMMED, 0)), tenant)
            limits[tenant.tenant] = tenant.limit_bytes
            if tenant.over_limit:
                over.add(tenant.tenant)
    answers = [
        TenantAnswer(
            tenant=name,
            limit_bytes=records[name].limit_bytes if name in records else limits.get(name),
            over_limit=name in over,
            managed=name in records,
            note=records[name].note if name in records else "",
            **numbers,
        )
        for name, numbers in sums.items()
    ]
    return sorted(answers, key=lambda answer: (-answer.bytes, answer.tenant))


def _add(sums: dict[str, int], tenant: TenantStats) -> None:
    for name in _SUMMED:
        sums[name] += getattr(tenant, name)
