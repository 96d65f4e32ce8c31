"""What one management plane tells the others that share its database: that something was committed, and the facts.

Postgres delivers a notification when, and only when, its transaction commits, so nobody hears of what did not happen.
It is a wake-up with a few facts for those who watch, never the state: a listener that was away misses some, and looks
at everything once it is back. SQLite has nothing like it; its other processes look every few seconds.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from app.store.database import Database

CHANNEL = "larder"
MAX_PAYLOAD_BYTES = 7_000
"""Postgres takes less than 8,000."""
PING_S = 2.0
PING_TIMEOUT_S = 3.0
BACKOFF_FIRST_S = 0.1
BACKOFF_MOST_S = 2.0


class Told(msgspec.Struct, frozen=True, array_like=True):
    """A fact, as `FactHub.publish` takes it."""

    name: str
    at: float
    """Unix seconds."""
    fields: dict[str, Any]
    node: str = ""


class Notice(msgspec.Struct, frozen=True):
    """One notification."""

    origin: str
    """`Database.origin` of who committed."""
    facts: list[Told] = []
    more: int = 0
    """Facts that had no room; they are in the audit."""


_decoder = msgspec.json.Decoder(Notice)


def pack(origin: str, facts: Sequence[Told]) -> bytes:
    """A payload with as many of the first facts as fit."""
    kept: list[Told] = []
    size = len(msgspec.json.encode(Notice(origin, [], len(facts))))
    for fact in facts:
        size += len(msgspec.json.encode(fact)) + 1
        if size > MAX_PAYLOAD_BYTES:
            break
        kept.append(fact)
    return msgspec.json.encode(Notice(origin, kept, len(facts) - len(kept)))


async def post(session: AsyncSession, facts: Sequence[Told]) -> None:
    """Tell the others once this transaction of `Database.write` is committed."""
    if not facts or session.get_bind().dialect.name != "postgresql":
        return
    payload = pack(str(session.info.get("origin", "")), facts).decode()
    await session.execute(sa.select(sa.func.pg_notify(CHANNEL, payload)))


class Listener:
    """Hears what the others tell, on a connection of its own, until cancelled."""

    def __init__(
        self, database: Database, heard: Callable[[Sequence[Told]], None], missed: Callable[[], None]
    ) -> None:
        """`missed` is called whenever notifications may have been lost: look at everything again."""
        self._database = database
        self._heard = heard
        self._missed = missed
        self.listening = False
        self._log = structlog.get_logger()

    async def run(self) -> None:
        """Reconnects for ever. Returns at once where there is nothing to listen to."""
        if self._database.url.get_backend_name() != "postgresql":
            return
        import asyncpg

        engine = self._database.apart(command_timeout=PING_TIMEOUT_S)
        wait_s = BACKOFF_FIRST_S
        try:
            while True:
                try:
                    async with engine.connect() as connection:
                        raw = await connection.get_raw_connection()
                        await self._listen(raw.driver_connection)
                except (
                    SQLAlchemyError,
                    OSError,
                    asyncpg.PostgresError,
                    asyncpg.InterfaceError,
                    asyncpg.InternalClientError,
                ) as error:
                    self._log.debug("listener.away", reason=str(error)[:200])
                    wait_s = BACKOFF_FIRST_S if self.listening else min(wait_s * 2, BACKOFF_MOST_S)
                finally:
                    self.listening = False
                await asyncio.sleep(wait_s)
        finally:
            await engine.dispose()

    async def _listen(self, connection: Any) -> None:
        """Until the connection is gone, which raises."""
        gone = asyncio.Event()
        connection.add_termination_listener(lambda _: gone.set())
        await connection.add_listener(CHANNEL, self._take)
        self.listening = True
        self._log.info("notices.listening")
        self._missed()
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PING_S):
                        await gone.wait()
                await connection.execute("SELECT 1")  # a connection that hangs says nothing by itself
        finally:
            connection.terminate()

    def _take(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        try:
            notice = _decoder.decode(str(payload))
        except msgspec.DecodeError:  # anybody who may connect may notify
            self._log.warning("listener.malformed", payload=str(payload)[:100])
            return
        if notice.origin != self._database.origin:
            self._heard(notice.facts)
