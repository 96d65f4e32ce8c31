"""Keeps series in the database: the leader writes the points that it sampled each minute.

While the database is unavailable, points wait in memory (`Sampler`), for half an hour. A process that is killed loses
those of the last minute.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import structlog

from app.errors import LarderError
from app.ingest.sampler import MAX_POINTS, STEP_S, Point, Sampler
from app.store.base.database import Database
from app.store.views import series

TIDY_S = 3600
POINTS = 6
"""Points per transaction."""
PAUSE_S = 0.05
"""Time between two transactions that delete."""


class SeriesWriter:
    """Call `step` each minute; `flush` writes once."""

    def __init__(
        self,
        database: Database,
        sampler: Sampler,
        is_writing: Callable[[], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`is_writing` returns whether this manager writes series."""
        self._database = database
        self._sampler = sampler
        self._is_writing = is_writing
        self._clock = clock
        self._written: int | None = None
        """Time of the newest stored point; None if another manager may have stored newer ones."""
        self._tidied_at = -float(TIDY_S)
        self._log = structlog.get_logger()
        self.lost = 0
        """Points (of all scopes) that were discarded because the database did not take them in time."""
        self.problem = ""
        """Why the newest points are not stored; empty if they are, or if another manager stores them."""

    async def step(self) -> None:
        """Write the new points and delete old rows, if this manager writes. Raises nothing that the database causes: a
        failure is logged once, and shown in answers."""
        if not self._is_writing():
            self._written, self.problem = None, ""
            return
        try:
            await self.flush()
            if self._clock() - self._tidied_at >= TIDY_S:
                await self.tidy()
                self._tidied_at = self._clock()
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
                self._written = await series.newest(session)
        points = [point for point in list(self._sampler.points) if point.at > self._written]
        if len(points) == MAX_POINTS and self._written and self._written < points[0].at - STEP_S:
            self.lost += (points[0].at - self._written) // STEP_S - 1
            self._written = points[0].at - STEP_S
        for first in range(0, len(points), POINTS):
            part = points[first : first + POINTS]
            async with self._database.write(light=True) as session:
                await series.add(session, _rows(part))
            self._written = part[-1].at

    async def flush_last(self) -> None:
        """Write once more, if this manager writes. Raises StoreUnavailable."""
        if self._is_writing():
            await self.flush()

    async def tidy(self) -> None:
        """Delete old rows, in transactions between which others may write. Raises StoreUnavailable."""
        for step_s in series.RETENTION_S:
            scope = None
            while True:
                async with self._database.write(light=True) as session:
                    scope = await series.delete_old(session, step_s, self._clock(), scope)
                if scope is None:
                    break
                await asyncio.sleep(PAUSE_S)


def _rows(points: Iterable[Point]) -> list[dict[str, Any]]:
    return [
        {
            "step_s": STEP_S,
            "scope": scope,
            "at": point.at,
            "measured_s": point.measured_s(scope),
            **point.by_column(scope),
        }
        for point in points
        for scope in point.packed
    ]
