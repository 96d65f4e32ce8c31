"""Deletion of old rows, oldest first, a limited number at a time."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute


async def delete_below(session: AsyncSession, column: InstrumentedAttribute[Any], bound: Any, max_rows: int) -> int:
    """Delete at most `max_rows` rows whose value in a column is less than `bound`, and return their number."""
    row = column.class_
    key = row.__table__.primary_key
    oldest = sa.select(*key).where(column < bound).order_by(column).limit(max_rows)
    deleted = await session.execute(sa.delete(row).where(sa.tuple_(*key).in_(oldest)))
    return int(getattr(deleted, "rowcount", 0))


def newest(number: InstrumentedAttribute[int], count: int) -> sa.ColumnElement[int]:
    """Return the number of the oldest of the `count` newest rows; NULL without any."""
    return sa.select(sa.func.max(number) - count + 1).scalar_subquery()
