"""Deletion of old rows, oldest first, a limited number at a time. Each function returns the number of deleted rows."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from app.store.fleet.pushes import PushRow
from app.store.usage.ledger import TierUsageRow, UsageRow
from app.store.views.alerts import AlertRow
from app.store.views.events import EventRow


async def events_before(session: AsyncSession, at: float, max_rows: int) -> int:
    """Delete events that happened before `at` (Unix seconds)."""
    oldest = sa.select(EventRow.id).where(EventRow.at < at).order_by(EventRow.at).limit(max_rows)
    return await _delete(session, sa.delete(EventRow).where(EventRow.id.in_(oldest)))


async def alerts_before(session: AsyncSession, at: float, max_rows: int) -> int:
    """Delete alerts that ended before `at` (Unix seconds)."""
    oldest = sa.select(AlertRow.fingerprint).where(AlertRow.ended_at < at).limit(max_rows)
    return await _delete(session, sa.delete(AlertRow).where(AlertRow.fingerprint.in_(oldest)))


async def beyond(session: AsyncSession, row: type[PushRow | EventRow], newest_kept: int, max_rows: int) -> int:
    """Delete pushes or events that are older than the newest `newest_kept`."""
    newest = await session.scalar(sa.select(sa.func.max(row.id)))
    if newest is None:
        return 0
    oldest = sa.select(row.id).where(row.id <= newest - newest_kept).order_by(row.id).limit(max_rows)
    return await _delete(session, sa.delete(row).where(row.id.in_(oldest)))


async def usage_before(session: AsyncSession, hour: int, max_rows: int) -> int:
    """Delete usage of hours before `hour`. The usage marks are kept."""
    return await _hours_before(session, UsageRow, hour, max_rows)


async def tier_usage_before(session: AsyncSession, hour: int, max_rows: int) -> int:
    """Delete usage of tiers of hours before `hour`."""
    return await _hours_before(session, TierUsageRow, hour, max_rows)


async def _hours_before(session: AsyncSession, row: type[UsageRow | TierUsageRow], hour: int, max_rows: int) -> int:
    key = row.__table__.primary_key
    oldest = sa.select(*key).where(row.hour < hour).order_by(row.hour).limit(max_rows)
    return await _delete(session, sa.delete(row).where(sa.tuple_(*key).in_(oldest)))


async def _delete(session: AsyncSession, statement: Any) -> int:
    return int(getattr(await session.execute(statement), "rowcount", 0))
