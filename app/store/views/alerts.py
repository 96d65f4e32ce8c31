"""Alerts that were sent to the webhook, one row per fingerprint."""

from collections.abc import Collection, Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.schemas.base.listing import PageRequest
from app.schemas.views.alerts import AlertFilters
from app.store.base import listing
from app.store.base.declarative import EMPTY, Base, Digest, Name, Seconds, insert
from app.store.base.listing import ListPage

MAX_ROWS = 10_000
"""Maximum number of stored alerts. Ended alerts are deleted first, then those that were last sent longest ago."""


class AlertRow(Base):
    __tablename__ = "alerts"

    fingerprint: Mapped[Digest] = mapped_column(primary_key=True)
    alertname: Mapped[Name] = mapped_column(server_default=EMPTY)
    severity: Mapped[Name] = mapped_column(server_default=EMPTY)
    state: Mapped[Name] = mapped_column(server_default=EMPTY, index=True)
    """`firing`, `resolved` or `expired`; empty while its first transaction is open."""
    tenant: Mapped[Name] = mapped_column(server_default=EMPTY)
    """Shown name."""
    node: Mapped[Name] = mapped_column(server_default=EMPTY)
    labels: Mapped[dict[str, str]] = mapped_column(sa.JSON())
    annotations: Mapped[dict[str, str]] = mapped_column(sa.JSON())
    generator_url: Mapped[str] = mapped_column(sa.Text(), server_default=EMPTY)
    starts_at: Mapped[Seconds] = mapped_column(server_default="0")
    ended_at: Mapped[float | None] = mapped_column(sa.Double())
    received_at: Mapped[Seconds] = mapped_column(server_default="0")
    expires_at: Mapped[Seconds] = mapped_column(server_default="0")


SORTABLE = listing.sortable(AlertRow, "starts_at received_at alertname severity tenant node")


async def locked(session: AsyncSession, fingerprints: Collection[str]) -> dict[str, AlertRow]:
    """Return the rows of these fingerprints, new ones with an empty state, locked until the transaction ends. Managers
    that receive the same alerts concurrently wait for each other."""
    ordered = sorted(fingerprints)
    if not ordered:
        return {}
    values = [{"fingerprint": fingerprint, "labels": {}, "annotations": {}} for fingerprint in ordered]
    await session.execute(insert(session, AlertRow).on_conflict_do_nothing(), values)
    query = sa.select(AlertRow).where(AlertRow.fingerprint.in_(ordered)).order_by(AlertRow.fingerprint)
    rows = (await session.scalars(query.with_for_update())).all()
    return {row.fingerprint: row for row in rows}


async def expire(session: AsyncSession, now: float, max_rows: int) -> Sequence[AlertRow]:
    """End firing alerts that were not sent again in time, and return them. If several managers call this, each alert is
    returned to one of them."""
    due_alerts = (
        sa.select(AlertRow)
        .where(AlertRow.state == "firing", AlertRow.expires_at <= now)
        .order_by(AlertRow.fingerprint)
        .limit(max_rows)
        .with_for_update(skip_locked=True)
    )
    rows = (await session.scalars(due_alerts)).all()
    for row in rows:
        row.state, row.ended_at = "expired", row.expires_at
    return rows


async def any_due(session: AsyncSession, now: float) -> bool:
    query = sa.select(sa.exists().where(AlertRow.state == "firing", AlertRow.expires_at <= now))
    return bool(await session.scalar(query))


async def firing(session: AsyncSession) -> dict[tuple[str, str], int]:
    """Return the number of firing alerts by name and severity."""
    query = (
        sa.select(AlertRow.alertname, AlertRow.severity, sa.func.count())
        .where(AlertRow.state == "firing")
        .group_by(AlertRow.alertname, AlertRow.severity)
    )
    return {(name, severity): count for name, severity, count in (await session.execute(query)).all()}


async def trim(session: AsyncSession, max_rows: int = MAX_ROWS) -> None:
    """Delete alerts until at most `max_rows` are left."""
    total = await session.scalar(sa.select(sa.func.count()).select_from(AlertRow)) or 0
    if total <= max_rows:
        return
    ended_first = sa.case((AlertRow.state == "firing", 1), else_=0)
    surplus = sa.select(AlertRow.fingerprint).order_by(ended_first, AlertRow.received_at).limit(total - max_rows)
    await session.execute(sa.delete(AlertRow).where(AlertRow.fingerprint.in_(surplus)))


async def page(
    session: AsyncSession, page_request: PageRequest, filters: AlertFilters, tenants: Collection[str] | None
) -> ListPage[AlertRow]:
    """Return one page, only of these tenants (shown names) if given. Raise Invalid."""
    where = listing.matching(AlertRow, vars(filters))
    if tenants is not None:
        where.append(AlertRow.tenant.in_(sorted(tenants)))
    return await listing.page(session, AlertRow, SORTABLE, page_request, *where)
