"""Leader lock: the exclusive right to push to nodes. There is one per database.

**Postgres: an advisory lock of a session.** The owner sends a statement every half second to keep its session alive.
`idle_session_timeout` ends the session after `RELEASE_S` of silence, whatever the reason. (A dead process closes its
socket and is noticed at once; a stopped or partitioned process is not.) The owner, in turn, considers the lock valid
for `LEASE_S` from the time at which it *sent* the last statement that was answered. Both clocks run at the same rate,
so the owner has stopped before the server grants the lock to another process. The server may lose the session earlier
(after a restart, or because an administrator ended it) while the owner cannot learn of it. For this case the successor
waits for the rest of the lease: the owner's confirmations are in its row of `managers`, by the server's clock.

**SQLite: a lock on a file beside the database file.** The kernel releases it when the process ends, for whatever
reason.
"""

import fcntl
import os
from contextlib import suppress
from typing import Any, Protocol

from sqlalchemy.ext.asyncio import AsyncConnection

from app.errors import StoreUnavailable
from app.store.base.database import Database
from app.store.base.failures import meaning

LEASE_S = 2.0
CONFIRM_S = 1.5
"""Longest duration of a confirmation in seconds: each is sent half a second into the previous lease."""
RELEASE_S = 3.5
LOST_CONFIRMATIONS_S = 0.6
"""Seconds of confirmations that a crashed server may have lost, because they do not wait for the disk."""
_KEY = 0x6C61_7264_6572_02  # "larder" 2: the first key is for migrations
_SETTINGS = {
    "idle_session_timeout": f"{RELEASE_S * 1000:.0f}",
    "idle_in_transaction_session_timeout": f"{RELEASE_S * 1000:.0f}",
    "statement_timeout": f"{LEASE_S * 1000:.0f}",
    "lock_timeout": f"{LEASE_S * 1000:.0f}",
    "tcp_keepalives_idle": "2",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "2",
    "tcp_user_timeout": f"{RELEASE_S * 1000:.0f}",
    "client_connection_check_interval": "500",
    "synchronous_commit": "off",
}
_NOW = "extract(epoch FROM clock_timestamp())"


class LeaderLock(Protocol):
    """One process's leader lock, held or not."""

    async def take(self) -> float | None:
        """Try to take the lock. Return the seconds to wait before using it, or None if another process holds it.

        Raises StoreUnavailable.
        """

    async def confirm(self) -> None:
        """Confirm that this process still holds the lock. Raise StoreUnavailable when it is lost: `take` it again."""

    async def release(self) -> None:
        """Release the lock if it is held. Raises nothing."""


class FileLeaderLock:
    """An flock on a file beside the SQLite file."""

    def __init__(self, path: str) -> None:
        self.path = f"{path}-pushing"
        self._descriptor = -1

    async def take(self) -> float | None:
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnavailable(f"{self.path} cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return None
            raise StoreUnavailable(f"{self.path} cannot be locked: {error.strerror}") from error
        self._descriptor = descriptor
        try:
            await self.confirm()
        except StoreUnavailable:  # removed between open and flock
            return None
        return 0.0

    async def confirm(self) -> None:
        """Check that the path still refers to the locked file: otherwise others could lock a new file."""
        locked = os.fstat(self._descriptor)
        try:
            named = os.stat(self.path)
        except OSError:
            named = None
        if named is None or (named.st_dev, named.st_ino) != (locked.st_dev, locked.st_ino):
            await self.release()
            raise StoreUnavailable(f"{self.path} was removed or replaced")

    async def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class PostgresLeaderLock:
    """An advisory lock of a dedicated session."""

    def __init__(self, database: Database, manager: str) -> None:
        import asyncpg

        self._engine = database.apart(command_timeout=CONFIRM_S)
        self._manager = manager
        self._connection: AsyncConnection | None = None
        self._session: Any = None
        """asyncpg's own connection: SQLAlchemy would reconnect silently, and thus lose the lock."""
        self._refusal = asyncpg.PostgresError
        self._errors = database.errors

    async def take(self) -> float | None:
        try:
            if self._session is None:
                await self._connect()
            if not await self._session.fetchval("SELECT pg_try_advisory_lock($1)", _KEY):
                return None
            unconfirmed_s = await self._session.fetchval(
                f"SELECT min({_NOW} - seen_at) FROM managers WHERE pushing AND id <> $1", self._manager
            )
            await self._session.execute(
                f"UPDATE managers SET pushing = (id = $1), seen_at = CASE WHEN id = $1 THEN {_NOW} ELSE seen_at END"
                " WHERE pushing OR id = $1",
                self._manager,
            )
        except self._errors as error:
            raise await self._lost(error) from error
        return 0.0 if unconfirmed_s is None else _clamp_wait(LEASE_S + LOST_CONFIRMATIONS_S - float(unconfirmed_s))

    async def _connect(self) -> None:
        self._connection = await self._engine.connect()
        raw = await self._connection.get_raw_connection()
        session: Any = raw.driver_connection
        for name, value in _SETTINGS.items():  # old servers lack some of them
            await session.execute("SELECT set_config(name, $2, false) FROM pg_settings WHERE name = $1", name, value)
        self._session = session

    async def confirm(self) -> None:
        try:
            try:
                await self._session.execute(
                    f"UPDATE managers SET pushing = true, seen_at = {_NOW} WHERE id = $1", self._manager
                )
            except self._refusal:  # a read-only server keeps its locks if it answers
                await self._session.execute("SELECT 1")
        except self._errors as error:
            raise await self._lost(error) from error

    async def _lost(self, error: Exception) -> StoreUnavailable:
        await self._drop()
        translated = meaning(error)
        return translated if isinstance(translated, StoreUnavailable) else StoreUnavailable(str(error)[:200])

    async def _drop(self) -> None:
        session, self._session = self._session, None
        connection, self._connection = self._connection, None
        if session is not None:
            session.terminate()
        if connection is not None:
            with suppress(*self._errors):
                await connection.invalidate()
                await connection.close()

    async def release(self) -> None:
        if self._session is not None:
            with suppress(*self._errors):
                await self._session.execute("UPDATE managers SET pushing = false WHERE id = $1", self._manager)
                await self._session.execute("SELECT pg_advisory_unlock_all()")
        await self._drop()
        await self._engine.dispose()


def _clamp_wait(wait_s: float) -> float:
    """Limit a wait to the longest lease: the server's clock may have been adjusted."""
    return min(max(wait_s, 0.0), LEASE_S + LOST_CONFIRMATIONS_S)


def leader_lock_of(database: Database, manager: str) -> LeaderLock:
    """Return the leader lock for a database."""
    if database.url.get_backend_name() == "postgresql":
        return PostgresLeaderLock(database, manager)
    return FileLeaderLock(database.path)
