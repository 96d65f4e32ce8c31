"""Rates: the speed of a model's prefill without the cache, to estimate the savings."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base import listing
from app.store.base.declarative import EMPTY, Base, LongName, Name, RevisedRecord


class PrefillRateRow(RevisedRecord, Base):
    __tablename__ = "rates"

    name: Mapped[Name] = mapped_column(primary_key=True)
    model: Mapped[LongName]
    space: Mapped[Name] = mapped_column(server_default=EMPTY)
    """One space of the model, 32 hex digits; empty: all spaces."""
    prefill_tokens_per_s: Mapped[float] = mapped_column(sa.Double())


MAX = 10_000
"""Maximum number of rates."""
SORTABLE = listing.sortable(PrefillRateRow, "name model prefill_tokens_per_s created_at updated_at")


async def same(session: AsyncSession, model: str, space: str, excluded: str) -> PrefillRateRow | None:
    """Return another rate of the same model and space, if there is one, ignoring the name `excluded`."""
    rate: PrefillRateRow | None = await session.scalar(
        sa.select(PrefillRateRow).where(
            PrefillRateRow.model == model, PrefillRateRow.space == space, PrefillRateRow.name != excluded
        )
    )
    return rate


async def count(session: AsyncSession) -> int:
    return await session.scalar(sa.select(sa.func.count()).select_from(PrefillRateRow)) or 0


async def all_rates(session: AsyncSession) -> Sequence[PrefillRateRow]:
    return (await session.scalars(sa.select(PrefillRateRow).order_by(PrefillRateRow.name))).all()
