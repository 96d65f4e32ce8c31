"""Lists findings: what `diagnosis` finds in the overview, in events and changes, in alerts and in the hit ratio."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from app.errors import Forbidden, NotFound
from app.schemas.base.listing import PageRequest
from app.schemas.views.alerts import AlertFilters
from app.schemas.views.findings import FindingList
from app.schemas.views.overview import Overview
from app.services.base.principals import Principal
from app.services.records.tenants import Tenants
from app.services.views.alerts import Alerts
from app.services.views.diagnosis import RATIO_STEP_S, bounded, concerning, findings, likely_cause, visible
from app.services.views.evidence import EvidenceReader, FurtherPins
from app.services.views.overview import OverviewService
from app.services.views.series import SeriesQuery, SeriesService
from dataplane.protocol.salts import DEFAULT_TENANT

MAX_ALERTS = 200
RATIO_RANGE_S = 3600


class Findings:
    """Lists findings, also those that only alerts and the hit ratio show."""

    def __init__(
        self,
        evidence: EvidenceReader,
        overview: OverviewService,
        tenants: Tenants,
        alerts: Alerts,
        series: SeriesService,
    ) -> None:
        self._evidence = evidence
        self._overview = overview
        self._tenants = tenants
        self._alerts = alerts
        self._series = series

    async def page(self, tenant: str | None, node: str | None, since: float, by: Principal) -> FindingList:
        """Return the findings about a tenant (as shown), a node or the fleet (None: about any), with what ended after
        `since` in Unix seconds. Raises Invalid, StoreUnavailable."""
        overview = await self._overview.now(by)
        if tenant is not None:
            overview = await self._with_tenant(overview, tenant, by)
        further = await self._further_pins(overview, tenant, node, by)
        state = self._evidence.state(overview, await self._evidence.after(since), further, by)
        firing = await self._alerts.page(PageRequest(MAX_ALERTS), AlertFilters("firing"), by)
        ratio: Sequence[tuple[float, float | None]] = ()
        if any(change.kind == "policy" for change in state.changes):
            answer = await self._series.answer(
                SeriesQuery(["hit_ratio"], [], [], RATIO_RANGE_S, RATIO_STEP_S, None), by
            )
            ratio = list(zip(answer.at, answer.series[0].values, strict=True))
        state = replace(state, alerts=firing.items, hit_ratio=ratio)
        shown_findings = visible(await asyncio.to_thread(findings, state), by)
        shown_findings = bounded(concerning(shown_findings, tenant, node), further.more)
        return FindingList(shown_findings, len(shown_findings), likely_cause(shown_findings))

    async def _further_pins(
        self, overview: Overview, tenant: str | None, node: str | None, by: Principal
    ) -> FurtherPins:
        """Return the pins of the tenant with a problem that the overview does not list. Raises StoreUnavailable."""
        if node is not None:
            return FurtherPins()  # no finding about a pin is about a node
        if tenant is None:
            return await self._evidence.further_pins(overview, by.salts)
        salt = "" if tenant == DEFAULT_TENANT else tenant
        return await self._evidence.further_pins(overview, [salt] if by.sees(salt) else [])

    async def _with_tenant(self, overview: Overview, tenant: str, by: Principal) -> Overview:
        """Return the overview with a tenant of which it lists only the larger ones, if the tenant is known and the
        caller may see it. Raises Invalid, StoreUnavailable."""
        if any(tenant_answer.tenant == tenant for tenant_answer in overview.tenants):
            return overview
        try:
            answer = await self._tenants.get(tenant, by)
        except (Forbidden, NotFound):
            return overview
        return msgspec.structs.replace(overview, tenants=[*overview.tenants, answer])
