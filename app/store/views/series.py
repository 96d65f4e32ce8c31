"""Series in the database: packed points of one scope over an hour or a day, and the newest points of all scopes.

Points of 10 s arrive each minute, for all scopes in one row of `series_recent`. When an hour is complete, it becomes a
row for each scope in `series`, and when a day is complete, so do its points of 5 minutes.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base.declarative import Base, LongName, Whole, upsert


class SeriesRow(Base):
    """Points of one scope: of 10 s over an hour, or of 5 minutes over a day."""

    __tablename__ = "series"

    scope: Mapped[LongName] = mapped_column(primary_key=True)
    step_s: Mapped[Whole] = mapped_column(primary_key=True)
    start: Mapped[Whole] = mapped_column(primary_key=True)
    """Unix seconds at which the first step starts; points are for the ends of steps."""
    size_bytes: Mapped[Whole]
    """Size of `points`."""
    points: Mapped[bytes] = mapped_column(sa.LargeBinary())


class RecentSeriesRow(Base):
    """Points of all scopes that are not part of a complete hour yet."""

    __tablename__ = "series_recent"

    at: Mapped[Whole] = mapped_column(primary_key=True, autoincrement=False)
    """Unix seconds of the newest point."""
    points: Mapped[bytes] = mapped_column(sa.LargeBinary())


class PackedSeries(NamedTuple):
    """The key of a row, and its packed points."""

    scope: str
    step_s: int
    start: int
    points: bytes


async def newest(session: AsyncSession, spans: Mapping[int, int]) -> int:
    """Return the time up to which points are stored; 0 without any. `spans` are the seconds of rows by their step."""
    recent = await session.scalar(sa.select(sa.func.max(RecentSeriesRow.at)))
    query = sa.select(SeriesRow.step_s, sa.func.max(SeriesRow.start)).group_by(SeriesRow.step_s)
    ends = [start + spans[step_s] for step_s, start in (await session.execute(query)).all()]
    return max(recent or 0, *ends, 0)


async def add_recent(session: AsyncSession, at: int, points: bytes) -> None:
    await upsert(session, RecentSeriesRow, [{"at": at, "points": points}])


async def recent(session: AsyncSession, after: int, until: int) -> Sequence[tuple[int, bytes]]:
    """Return the time of the newest point and the packed points of rows with points in (after, until], oldest first.
    A row before the first one in time may reach into it, so callers check the times of points."""
    query = sa.select(RecentSeriesRow.at, RecentSeriesRow.points).where(
        RecentSeriesRow.at > after, RecentSeriesRow.at <= until
    )
    return [(row[0], row[1]) for row in (await session.execute(query.order_by(RecentSeriesRow.at))).all()]


async def oldest_recent(session: AsyncSession) -> int | None:
    """Return the time of the oldest row of recent points."""
    return await session.scalar(sa.select(sa.func.min(RecentSeriesRow.at)))


async def delete_recent(session: AsyncSession, until: int) -> None:
    await session.execute(sa.delete(RecentSeriesRow).where(RecentSeriesRow.at <= until))


async def put(session: AsyncSession, blocks: Iterable[PackedSeries]) -> None:
    """Insert rows, or replace them."""
    await upsert(session, SeriesRow, [{**each._asdict(), "size_bytes": len(each.points)} for each in blocks])


async def blocks(
    session: AsyncSession, scopes: Collection[str], step_s: int, first: int, last: int
) -> Sequence[PackedSeries]:
    """Return the rows of these scopes that start from `first` to `last`."""
    query = sa.select(SeriesRow.scope, SeriesRow.step_s, SeriesRow.start, SeriesRow.points).where(
        SeriesRow.scope.in_(list(scopes)), SeriesRow.step_s == step_s, SeriesRow.start >= first, SeriesRow.start <= last
    )
    return [PackedSeries(*row) for row in (await session.execute(query)).all()]


async def keys(session: AsyncSession, step_s: int, before: int) -> set[tuple[str, int]]:
    """Return the scopes and starts of rows that start before a time."""
    query = sa.select(SeriesRow.scope, SeriesRow.start).where(SeriesRow.step_s == step_s, SeriesRow.start < before)
    return {(row[0], row[1]) for row in (await session.execute(query)).all()}


async def sizes(session: AsyncSession, step_s: int) -> list[tuple[int, int]]:
    """Return the starts of rows with the bytes of their points, oldest first."""
    query = sa.select(SeriesRow.start, sa.func.sum(SeriesRow.size_bytes)).where(SeriesRow.step_s == step_s)
    found = await session.execute(query.group_by(SeriesRow.start).order_by(SeriesRow.start))
    return [(row[0], int(row[1])) for row in found.all()]


async def delete_before(session: AsyncSession, step_s: int, start: int, most: int) -> int:
    """Delete rows that start before a time, at most `most`. Return their number."""
    key = SeriesRow.__table__.primary_key
    some = sa.select(*key).where(SeriesRow.step_s == step_s, SeriesRow.start < start).limit(most)
    done = await session.execute(sa.delete(SeriesRow).where(sa.tuple_(*key).in_(some)))
    return int(getattr(done, "rowcount", 0))
