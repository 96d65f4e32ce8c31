"""Deletes old events, alerts and usage. The audit is kept forever; `app.push.node_journal` deletes old pushes."""

import asyncio
import time
from typing import Any

import structlog
from sqlalchemy.orm import InstrumentedAttribute

from app.errors import StoreUnavailable
from app.ingest.usage import HOUR_S
from app.store.base.database import Database
from app.store.retention import delete_below, newest
from app.store.usage.ledger import TierUsageRow, UsageRow
from app.store.views.alerts import AlertRow
from app.store.views.events import EventRow

BATCH = 1000
"""Rows per transaction; small, so that a PUT does not wait long for it."""
PAUSE_S = 0.05
MAX_KEPT_EVENTS = 500_000
"""Newest events that are kept, however many come: any alert that starts or ends is one."""
DAY_S = 86_400


class Retention:
    """Call `step` now and then on the leader."""

    def __init__(self, database: Database, events_retention_days: float, usage_retention_days: float) -> None:
        self._database = database
        self._keep_events_s = events_retention_days * DAY_S
        self._keep_usage_s = usage_retention_days * DAY_S
        self._log = structlog.get_logger()

    async def step(self) -> None:
        """Delete what is old. If the database is unavailable, the next step tries again."""
        try:
            await self.tidy()
        except StoreUnavailable as error:
            self._log.warning("retention.postponed", reason=error.message)

    async def tidy(self) -> None:
        """Delete all rows past their retention, in batches. Raises StoreUnavailable; batches deleted until then stay
        deleted."""
        now = time.time()
        since = now - self._keep_events_s
        hour = int((now - self._keep_usage_s) // HOUR_S) * HOUR_S
        deleted = {
            "events": await self._delete(EventRow.at, since)
            + await self._delete(EventRow.id, newest(EventRow.id, MAX_KEPT_EVENTS)),
            "alerts": await self._delete(AlertRow.ended_at, since),
            "usage": await self._delete(UsageRow.hour, hour),
            "tier_usage": await self._delete(TierUsageRow.hour, hour),
        }
        if any(deleted.values()):
            self._log.info("retention.deleted", **deleted)

    async def _delete(self, column: InstrumentedAttribute[Any], bound: Any) -> int:
        """Delete the rows whose value in a column is less than `bound`, and return their number."""
        total = 0
        while True:
            async with self._database.write() as session:
                count = await delete_below(session, column, bound, BATCH)
            total += count
            if count < BATCH:
                return total
            await asyncio.sleep(PAUSE_S)
