"""Keeps series in the database: the leader writes the points that it sampled, and makes them smaller with age.

- Each minute, the new points of all scopes become one row.
- After each hour, the rows of the hour become one row for each scope; after each day (UTC), their points of 5 minutes
  do, too. Points of 10 s are deleted after 25 h, those of 5 minutes after 30 days, and the oldest ones earlier if the
  rows of one of the two steps exceed MAX_BYTES.

While the database is unavailable, points wait in memory (`Sampler`), for half an hour. A process that is killed loses
those of the last minute. Every transaction is short and light, and packing runs in a thread.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

import structlog

from app.errors import LarderError
from app.ingest.sampler import MAX_POINTS, STEP_S, Point, Sampler, columns_of
from app.services.views import packed_points
from app.services.views.packed_points import Column, PackedScopes
from app.store.base.database import Database
from app.store.views import series
from app.store.views.series import PackedSeries

FLUSH_S = 60.0
HOUR_S, DAY_S = 3600, 86_400
ROLLED_STEP_S = 300
SPANS = {STEP_S: HOUR_S, ROLLED_STEP_S: DAY_S}
"""Seconds of one row, by the step of its points."""
RETENTION_S = {STEP_S: 25 * HOUR_S, ROLLED_STEP_S: 30 * DAY_S}
"""Age up to which points are kept, by their step."""
MAX_BYTES = 72 << 20
"""Maximum size of the packed points of one step."""
ROWS = 25
"""Rows per transaction."""
PAUSE_S = 0.02


class SeriesWriter:
    """`run` writes forever; `flush` writes once."""

    def __init__(
        self,
        database: Database,
        sampler: Sampler,
        is_writing: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """`is_writing` returns whether this manager writes series."""
        self._database = database
        self._sampler = sampler
        self._is_writing = is_writing
        self._clock = clock
        self._max_bytes = max_bytes
        self._written: int | None = None
        """Time of the newest stored point; None if another manager may have stored newer ones."""
        self._tidied = -1
        """Hour of the last upkeep."""
        self._log = structlog.get_logger()
        self.lost = 0
        """Points (of all scopes) that were discarded because the database did not take them in time."""
        self.problem = ""
        """Why the newest points are not stored; empty if they are, or if another manager stores them."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            await self.step()

    async def step(self) -> None:
        """Write the new points and keep the rows in shape, if this manager writes. Raises nothing that the database
        causes: a failure is logged once, and shown in answers."""
        if not self._is_writing():
            self._written, self._tidied, self.problem = None, -1, ""
            return
        try:
            await self.flush()
            hour = int(self._clock() // HOUR_S)
            if hour != self._tidied:
                await self.tidy()
                self._tidied = hour
        except LarderError as error:
            if not self.problem:
                self._log.warning("series.postponed", reason=error.message)
            since = "" if not self._written else f" after {datetime.fromtimestamp(self._written, UTC):%H:%M:%S} UTC"
            self.problem = f"points{since} are not stored: {error.message}"
        else:
            self.problem = ""

    async def flush(self) -> None:
        """Write the points that are not stored yet. Raises StoreUnavailable."""
        if self._written is None:
            async with self._database.read() as session:
                self._written = await series.newest(session, SPANS)
        points = [point for point in list(self._sampler.points) if point.at > self._written]
        if not points:
            return
        if len(points) == MAX_POINTS and self._written and self._written < points[0].at - STEP_S:
            self.lost += (points[0].at - self._written) // STEP_S - 1
            self._written = points[0].at - STEP_S
        hours: dict[int, list[Point]] = {}
        for point in points:
            hours.setdefault((point.at - 1) // HOUR_S, []).append(point)
        for part in hours.values():
            packed = await asyncio.to_thread(_packed, part)
            async with self._database.write(light=True) as session:
                await series.add_recent(session, part[-1].at, packed)
            self._written = part[-1].at

    async def flush_last(self) -> None:
        """Write once more, if this manager writes. Raises StoreUnavailable."""
        if self._is_writing():
            await self.flush()

    async def tidy(self) -> None:
        """Complete hours and days that ended, and delete old points. Raises StoreUnavailable."""
        await self._complete_hours()
        await self._complete_days()
        for step_s, span_s in SPANS.items():
            await self._delete(step_s, int(self._clock() - RETENTION_S[step_s] - span_s))
            await self._bound(step_s)

    async def _complete_hours(self) -> None:
        until = int(self._clock() // HOUR_S) * HOUR_S
        while True:
            async with self._database.read() as session:
                oldest = await series.oldest_recent(session)
                if oldest is None or oldest > until:
                    return
                start = (oldest - 1) // HOUR_S * HOUR_S
                rows = await series.recent(session, start, start + HOUR_S)
            blocks = await asyncio.to_thread(_hour, start, [points for _, points in rows])
            await self._put(blocks)
            async with self._database.write(light=True) as session:
                await series.delete_recent(session, start + HOUR_S)

    async def _complete_days(self) -> None:
        """Add the points of 5 minutes of the days that ended. Points of 10 s stay until they are old."""
        today = int(self._clock() // DAY_S) * DAY_S
        async with self._database.read() as session:
            hours = await series.keys(session, STEP_S, today)
            days = await series.keys(session, ROLLED_STEP_S, today)
        due = sorted({(scope, start // DAY_S * DAY_S) for scope, start in hours} - days)
        for first in range(0, len(due), ROWS):
            blocks = []
            for scope, day in due[first : first + ROWS]:
                async with self._database.read() as session:
                    rows = await series.blocks(session, [scope], STEP_S, day, day + DAY_S - HOUR_S)
                blocks.append(await asyncio.to_thread(_day, scope, day, rows))
                await asyncio.sleep(0)
            await self._put(blocks)

    async def _put(self, blocks: Sequence[PackedSeries]) -> None:
        for first in range(0, len(blocks), ROWS):
            async with self._database.write(light=True) as session:
                await series.put(session, blocks[first : first + ROWS])
            await asyncio.sleep(PAUSE_S)

    async def _bound(self, step_s: int) -> None:
        """Delete the oldest rows of a step until they fit."""
        async with self._database.read() as session:
            sizes = await series.sizes(session, step_s)
        excess = sum(size for _, size in sizes) - self._max_bytes
        for start, size in sizes:
            if excess <= 0:
                return
            excess -= size
            await self._delete(step_s, start + 1)

    async def _delete(self, step_s: int, start: int) -> None:
        deleted = ROWS
        while deleted == ROWS:
            async with self._database.write(light=True) as session:
                deleted = await series.delete_before(session, step_s, start, ROWS)
            await asyncio.sleep(PAUSE_S)


def _packed(points: Sequence[Point]) -> bytes:
    """Return the points of one hour, packed."""
    start = points[0].at - STEP_S
    count = (points[-1].at - start) // STEP_S
    scopes: dict[str, dict[str, Column]] = {}
    for point in points:
        index = (point.at - start) // STEP_S - 1
        for scope in point.packed:
            values = point.values(scope)
            if values is None:
                continue
            names = columns_of(scope)
            columns = scopes.setdefault(scope, {name: [None] * count for name in names})
            for name, value in zip(names, values, strict=True):
                columns[name][index] = value
    return packed_points.pack_scopes(start, STEP_S, scopes)


def _hour(start: int, rows: Iterable[bytes]) -> list[PackedSeries]:
    """Return the rows of an hour, one for each scope, from the points that were written during it."""
    count = HOUR_S // STEP_S
    scopes: dict[str, dict[str, Column]] = {}
    for row in map(PackedScopes, rows):
        first = (row.start - start) // STEP_S
        for scope in row.scopes:
            found = scopes.setdefault(scope, {})
            for name, values in row.columns(scope).items():
                column = found.setdefault(name, [None] * count)
                _place(column, values, first)
    return [PackedSeries(scope, STEP_S, start, packed_points.pack(columns)) for scope, columns in scopes.items()]


def _day(scope: str, day: int, hours: Iterable[PackedSeries]) -> PackedSeries:
    """Return the points of 5 minutes of a day."""
    factor = ROLLED_STEP_S // STEP_S
    columns: dict[str, Column] = {}
    for hour in hours:
        rolled = packed_points.roll_up(packed_points.unpack(hour.points), STEP_S, factor)
        for name, values in rolled.items():
            column = columns.setdefault(name, [None] * (DAY_S // ROLLED_STEP_S))
            _place(column, values, (hour.start - day) // ROLLED_STEP_S)
    return PackedSeries(scope, ROLLED_STEP_S, day, packed_points.pack(columns))


def _place(column: Column, values: Sequence[int | None], first: int) -> None:
    """Write values into a column, from a place on. A value that is there stays if the new one is null."""
    for index, value in enumerate(values, first):
        if value is not None and 0 <= index < len(column):
            column[index] = value
