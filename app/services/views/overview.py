"""The dashboard's complete state, computed at most once per change.

The slow part (reading records, merging reports of tenants) is done once for all watchers. The view of callers who are
limited to tenants is derived from it, once per set of tenants.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from cachetools import LRUCache

from app.ingest.fleet import Fleet
from app.ingest.rates import RateMeter
from app.observe.events import EventBus
from app.schemas.base.listing import PageRequest
from app.schemas.records.tenants import TenantAnswer
from app.schemas.views.overview import Overview
from app.services.base import redaction
from app.services.base.principals import PLANE, Principal
from app.services.fleet.nodes import Nodes
from app.services.records.pins import PINS, Pins
from app.services.records.policies import Policies
from app.services.records.progress import RecordProgress
from app.services.records.tenants import known_tenants
from app.services.views.evidence import Evidence, EvidenceReader
from app.store.base.database import Database
from app.store.records.policies import PolicyRow
from dataplane.protocol.control.records import POLICY_IN_FORCE
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.pool import PoolStats, Totals

MAX_ROWS = 500
SHARED_S = 0.9
SHARED_MIN_S = 0.1
MAX_SETS = 256
"""Number of tenant sets whose overview is cached; those of further sets are computed each time."""
S = TypeVar("S", PoolStats, Totals)


@dataclass(frozen=True)
class _State:
    """The state that all overviews are derived from."""

    version: int
    """Version of the event bus."""
    at: float
    """Monotonic seconds."""
    stats: Sequence[NodeStats]
    tenants: Sequence[TenantAnswer]
    """Tenants, the largest first."""
    policy: PolicyRow | None
    evidence: Evidence


@dataclass
class _SharedOverview:
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
        rate_meter: RateMeter,
        bus: EventBus,
        progress: RecordProgress,
        nodes: Nodes,
        pin_service: Pins,
        policy_service: Policies,
        evidence: EvidenceReader,
    ) -> None:
        self._database = database
        self._fleet = fleet
        self._rate_meter = rate_meter
        self._bus = bus
        self._progress = progress
        self._nodes = nodes
        self._pins = pin_service
        self._policies = policy_service
        self._evidence = evidence
        self._overviews: LRUCache[frozenset[str] | None, _SharedOverview] = LRUCache(MAX_SETS)
        self._state: _State | None = None
        self._reading = asyncio.Lock()
        self.built = 0
        """Number of overviews computed for streams since the start."""

    async def now(self, by: Principal = PLANE) -> Overview:
        """Return the overview, as far as the caller may see it. Raises StoreUnavailable."""
        return await self._cut(await self._look(by.salts), by)

    async def _look(self, salts: frozenset[str] | None = None) -> _State:
        """Read the state, with only these tenants if `salts` is given. Raises StoreUnavailable."""
        version, at = self._bus.version, time.monotonic()
        async with self._database.read() as session:
            policy_row = await session.get(PolicyRow, POLICY_IN_FORCE)
        stats = self._fleet.stats()
        tenant_answers = await known_tenants(self._database, stats, salts)
        tenants = await asyncio.to_thread(sorted, tenant_answers, key=lambda answer: (-answer.bytes, answer.tenant))
        return _State(version, at, stats, tenants, policy_row, await self._evidence.recent())

    async def _cut(self, state: _State, by: Principal) -> Overview:
        """Return the overview of a caller, derived from the state. Raises StoreUnavailable."""
        pin_page = await PINS.page(self._database, PageRequest(MAX_ROWS), salts=by.salts)
        stats, policy_row = state.stats, state.policy
        tenants = [tenant for tenant in state.tenants if by.sees_shown(tenant.tenant)]
        living = self._fleet.living()
        refused: Counter[str] = Counter()
        for node in stats:
            refused.update(node.refused)
        whole = Overview(
            at=time.time(),
            armed=bool(living) and all(node.stats is not None and node.stats.armed for node in living),
            ready=not self._progress.unready(),
            pool=total(PoolStats, [node.pool for node in stats]),
            totals=total(Totals, [node.totals for node in stats]),
            rates=self._rate_meter.rates(stats),
            tenants=tenants[:MAX_ROWS],
            tenants_total=len(tenants),
            pins=self._pins.answers(pin_page.rows, by),
            pins_total=pin_page.total,
            policy=None if policy_row is None else self._policies.answers([policy_row])[0],
            nodes=self._nodes.page(by).items,
            refused=refused,
            findings=[],
            recent=redaction.visible_events(self._bus.recent, by),
        )
        overview = whole if by.salts is None else _limited(whole, tenants)
        findings = await self._evidence.of_overview(overview, state.evidence, by)
        return msgspec.structs.replace(overview, findings=findings)

    async def encoded(self, salts: frozenset[str] | None = None) -> tuple[int, bytes]:
        """Return the version of the event bus, and the overview as JSON for all callers who are limited to these
        tenants. It is rebuilt soon after a change, and when it is old, because rates fall without a change. Concurrent
        callers share one build."""
        shared = self._overviews.setdefault(salts, _SharedOverview())
        async with shared.lock:
            if not self._is_fresh(shared.version, shared.at):
                state = await self._shared()
                self.built += 1
                shared.encoded = msgspec.json.encode(await self._cut(state, Principal(salts=salts)))
                shared.version, shared.at = state.version, state.at
            return shared.version, shared.encoded

    async def _shared(self) -> _State:
        """Return the state, read a moment ago if it is fresh enough. Raises StoreUnavailable."""
        async with self._reading:
            if self._state is None or not self._is_fresh(self._state.version, self._state.at):
                self._state = await self._look()
            return self._state

    def _is_fresh(self, version: int, at: float) -> bool:
        age_s = time.monotonic() - at
        return age_s < SHARED_MIN_S or (version == self._bus.version and age_s < SHARED_S)


def _limited(whole: Overview, tenants: Sequence[TenantAnswer]) -> Overview:
    """Return an overview with the sums of these tenants only."""
    totals = redaction.totals_of(tenants)
    return msgspec.structs.replace(
        whole,
        pool=redaction.pool_of(tenants, whole.pool),
        totals=totals,
        rates=redaction.rates_of(totals),
        policy=redaction.rules_of(whole.policy),
        refused=redaction.refused_of(tenants),
    )


def total(kind: type[S], parts: Iterable[S]) -> S:
    """Return the sum of structs, field by field; a boolean is true if it is true on every node."""
    items = list(parts)
    return kind(**{name: _together([getattr(item, name) for item in items]) for name in kind.__struct_fields__})


def _together(values: list[Any]) -> Any:
    return all(values) if values and isinstance(values[0], bool) else sum(values)
