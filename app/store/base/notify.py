"""Notifications between managers that share a database: that a change was committed, and its events.

Postgres delivers a notification if and only if its transaction commits, so no listener learns of a change that did not
happen. A notification is a wake-up with a few events for watchers, never the state. A listener that was disconnected
misses some, and reloads everything when it is back. SQLite has no equivalent; its other processes poll every few
seconds.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from app.store.base.database import Database

CHANNEL = "larder"
MAX_PAYLOAD_BYTES = 7_000
"""Maximum size of a payload. Postgres accepts less than 8,000 bytes."""
PING_S = 2.0
PING_TIMEOUT_S = 3.0
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 2.0


class Notification(msgspec.Struct, frozen=True, array_like=True):
    """An event, as `EventBus.publish` takes it."""

    name: str
    at: float
    """Time in Unix seconds."""
    fields: dict[str, Any]
    node: str = ""
    actor: str = ""


class Notice(msgspec.Struct, frozen=True):
    """Payload of one notification."""

    origin: str
    """`Database.origin` of the process that committed."""
    events: list[Notification] = []
    more: int = 0
    """Number of further events that did not fit; they are in the audit log."""


_decoder = msgspec.json.Decoder(Notice)


def pack(origin: str, events: Sequence[Notification]) -> bytes:
    """Encode a payload with as many of the first events as fit."""
    included: list[Notification] = []
    size = len(msgspec.json.encode(Notice(origin, [], len(events))))
    for event in events:
        size += len(msgspec.json.encode(event)) + 1
        if size > MAX_PAYLOAD_BYTES:
            break
        included.append(event)
    return msgspec.json.encode(Notice(origin, included, len(events) - len(included)))


async def post(session: AsyncSession, events: Sequence[Notification]) -> None:
    """Notify the other managers when this transaction of `Database.write` commits."""
    if not events or session.get_bind().dialect.name != "postgresql":
        return
    payload = pack(str(session.info.get("origin", "")), events).decode()
    await session.execute(sa.select(sa.func.pg_notify(CHANNEL, payload)))


class Listener:
    """Receives the other managers' notifications on a dedicated connection, until cancelled."""

    def __init__(
        self, database: Database, on_notices: Callable[[Sequence[Notification]], None], missed: Callable[[], None]
    ) -> None:
        """Create it. `missed` is called whenever notifications may have been lost: everything must then be reloaded."""
        self._database = database
        self._on_notices = on_notices
        self._missed = missed
        self.listening = False
        self._log = structlog.get_logger()

    async def run(self) -> None:
        """Listen, and reconnect forever. The database is Postgres."""
        engine = self._database.apart(command_timeout=PING_TIMEOUT_S)
        wait_s = BACKOFF_FIRST_S
        try:
            while True:
                try:
                    async with engine.connect() as connection:
                        raw = await connection.get_raw_connection()
                        await self._listen(raw.driver_connection)
                except self._database.errors as error:
                    self._log.debug("listener.disconnected", reason=str(error)[:200])
                    wait_s = BACKOFF_FIRST_S if self.listening else min(wait_s * 2, BACKOFF_MAX_S)
                finally:
                    self.listening = False
                await asyncio.sleep(wait_s)
        finally:
            await engine.dispose()

    async def _listen(self, connection: Any) -> None:
        """Listen until the connection is lost, which raises."""
        disconnected = asyncio.Event()
        connection.add_termination_listener(lambda _: disconnected.set())
        await connection.add_listener(CHANNEL, self._take)
        self.listening = True
        self._log.info("notices.listening")
        self._missed()
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PING_S):
                        await disconnected.wait()
                await connection.execute("SELECT 1")  # detects a connection that hangs
        finally:
            connection.terminate()

    def _take(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        try:
            notice = _decoder.decode(str(payload))
        except (msgspec.DecodeError, RecursionError):  # any client of the database may notify
            self._log.warning("listener.malformed", payload=str(payload)[:100])
            return
        if notice.origin != self._database.origin:
            self._on_notices(notice.events)
