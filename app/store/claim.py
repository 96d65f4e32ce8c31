"""The right to push to nodes, of which a database has one: who has it, and how whoever had it loses it.

**Postgres: an advisory lock of a session.** The session lives as long as its owner says something every half second:
`idle_session_timeout` ends it after `RELEASE_S` without a word, however the owner fell silent (a dead process closes
its socket and is noticed at once; a stopped or partitioned one is not). The owner, for its part, believes in its
right for `LEASE_S` from when it *asked* the last question that was answered. Its clock and the server's run equally
fast, so the owner has stopped before the server lets anybody else begin. Where the server itself forgets the session
earlier (it was restarted, or an administrator ended it) while the owner cannot hear it, the successor waits out what
is left of the lease: the owner's confirmations are in its row of `replicas`, by the server's clock.

**SQLite: a lock on a file beside the database's.** The kernel gives it up when the process ends, however it ends.
"""

import fcntl
import os
from contextlib import suppress
from typing import Any, Protocol

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from app.errors import StoreUnavailable
from app.store.database import Database
from app.store.failures import meaning

LEASE_S = 2.0
CONFIRM_S = 1.5
"""How long a confirmation may take: the next lease is asked for half a second into the one before."""
RELEASE_S = 3.5
FORGOTTEN_S = 0.6
"""What a server that crashed may have lost of the confirmations, which do not wait for the disk."""
_KEY = 0x6C61_7264_6572_02  # "larder" 2: the first is for migrations
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


class Claim(Protocol):
    """One process's hold on the right to push, or its attempts to get it."""

    async def take(self) -> float | None:
        """Seconds to wait before the right may be used; None while somebody else has it. Raises StoreUnavailable."""

    async def confirm(self) -> None:
        """It is still ours. Raises StoreUnavailable when it is lost: `take` it again."""

    async def release(self) -> None:
        """Give it up, if we have it; raises nothing."""


class NoRival:
    """For a database that no other process can open."""

    async def take(self) -> float | None:
        return 0.0

    async def confirm(self) -> None:
        return

    async def release(self) -> None:
        return


class FileClaim:
    """An flock on a file beside SQLite's."""

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
        except StoreUnavailable:  # removed by somebody between our two steps
            return None
        return 0.0

    async def confirm(self) -> None:
        """The name must still be that of the file which is locked: another process would lock another one."""
        ours = os.fstat(self._descriptor)
        try:
            named = os.stat(self.path)
        except OSError:
            named = None
        if named is None or (named.st_dev, named.st_ino) != (ours.st_dev, ours.st_ino):
            await self.release()
            raise StoreUnavailable(f"{self.path} was removed or replaced")

    async def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class PostgresClaim:
    """An advisory lock of a session of its own."""

    def __init__(self, database: Database, replica: str) -> None:
        import asyncpg

        self._engine = database.apart(command_timeout=CONFIRM_S)
        self._replica = replica
        self._connection: AsyncConnection | None = None
        self._session: Any = None
        """asyncpg's connection itself: SQLAlchemy would connect again without a word, and the lock would be gone."""
        self._refusal = asyncpg.PostgresError
        self._errors: tuple[type[Exception], ...] = (
            SQLAlchemyError,
            OSError,
            asyncpg.PostgresError,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,
        )

    async def take(self) -> float | None:
        try:
            if self._session is None:
                await self._connect()
            if not await self._session.fetchval("SELECT pg_try_advisory_lock($1)", _KEY):
                return None
            heard_s = await self._session.fetchval(
                f"SELECT min({_NOW} - seen_at) FROM replicas WHERE pushing AND id <> $1", self._replica
            )
            await self._session.execute(
                f"UPDATE replicas SET pushing = (id = $1), seen_at = CASE WHEN id = $1 THEN {_NOW} ELSE seen_at END"
                " WHERE pushing OR id = $1",
                self._replica,
            )
        except self._errors as error:
            raise await self._lost(error) from error
        return 0.0 if heard_s is None else _within(LEASE_S + FORGOTTEN_S - float(heard_s))

    async def _connect(self) -> None:
        self._connection = await self._engine.connect()
        raw = await self._connection.get_raw_connection()
        session: Any = raw.driver_connection
        for name, value in _SETTINGS.items():  # those that the server has: the oldest lack some
            await session.execute(
                "SELECT set_config(name, $2, false) FROM pg_settings WHERE name = $1", name, value
            )
        self._session = session

    async def confirm(self) -> None:
        try:
            try:
                await self._session.execute(
                    f"UPDATE replicas SET pushing = true, seen_at = {_NOW} WHERE id = $1", self._replica
                )
            except self._refusal:  # a server that takes no changes keeps locks all the same, if it answers
                await self._session.execute("SELECT 1")
        except self._errors as error:
            raise await self._lost(error) from error

    async def _lost(self, error: Exception) -> StoreUnavailable:
        await self._drop()
        told = meaning(error)
        return told if isinstance(told, StoreUnavailable) else StoreUnavailable(str(error)[:200])

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
                await self._session.execute(
                    "UPDATE replicas SET pushing = false WHERE id = $1", self._replica
                )
                await self._session.execute("SELECT pg_advisory_unlock_all()")
        await self._drop()
        await self._engine.dispose()


def _within(wait_s: float) -> float:
    """A server's clock may have been set: nobody waits longer than the longest lease."""
    return min(max(wait_s, 0.0), LEASE_S + FORGOTTEN_S)


def claim_of(database: Database, replica: str) -> Claim:
    """The claim that fits the database."""
    if database.url.get_backend_name() == "postgresql":
        return PostgresClaim(database, replica)
    return FileClaim(database.path) if database.path else NoRival()
