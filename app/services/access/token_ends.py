"""The tokens that expire next, for metrics, so that an alert can fire before callers lose access."""

import asyncio
import time

from app.store.access import tokens
from app.store.base.database import Database

READ_EVERY_S = 15.0
SHOWN = 50
PAST_S = 86_400.0
"""Seconds for which an expired token is still included."""


class TokenEnds:
    def __init__(self, database: Database) -> None:
        self._database = database
        self.next: list[tuple[str, float]] = []
        """Names of tokens and the Unix seconds at which they expire, soonest first."""

    async def run(self) -> None:
        """Run forever. Raises StoreUnavailable; the caller then starts it again."""
        while True:
            await self.read()
            await asyncio.sleep(READ_EVERY_S)

    async def read(self) -> None:
        """Read the tokens. Raises StoreUnavailable."""
        async with self._database.read() as session:
            self.next = await tokens.ending(session, time.time() - PAST_S, SHOWN)
