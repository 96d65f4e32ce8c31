"""What every node should hold: the newest generation of each type as a ready snapshot, built at most once.

Records and generation are read at one moment, so a snapshot is exactly what some commit left behind.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from app.push.plan import Wanted
from app.store import generations, identity, pins, policies, quotas
from app.store.database import Database
from dataplane.protocol.control import (
    POLICY_IN_FORCE,
    SNAPSHOT_TYPES,
    PinSpec,
    PolicySpec,
    QuotaSpec,
    SnapshotType,
    digest_of,
    encode_pins,
    encode_policies,
    encode_quotas,
)


@dataclass(frozen=True)
class Built:
    """A snapshot's body and what it is called."""

    wanted: Wanted
    body: bytes


class Desired:
    """Cache over the database; `refresh` is cheap when nothing changed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._built: dict[SnapshotType, Built] = {}
        self._store = ""
        self._lock = asyncio.Lock()

    @property
    def wanted(self) -> dict[SnapshotType, Wanted]:
        """As of the last refresh."""
        return {kind: built.wanted for kind, built in self._built.items()}

    def built(self, kind: SnapshotType) -> Built:
        return self._built[kind]

    async def refresh(self) -> None:
        """Look at the database; build what is newer than what is known. Raises StoreUnavailable."""
        async with self._lock, self._database.read() as session:
            if not self._store:
                self._store = await identity.store_id(session)
            heads = await generations.heads(session)
            for kind in SNAPSHOT_TYPES:
                known = self._built.get(kind)
                if known is not None and known.wanted.generation == heads[kind]:
                    continue
                body = await _BODIES[kind](session)
                self._built[kind] = Built(Wanted(self._store, heads[kind], digest_of(body)), body)

    async def bodies(self, digests: list[str]) -> dict[str, bytes]:
        """Pin bodies by digest; those that nobody knows (any more) are missing."""
        async with self._database.read() as session:
            return await pins.bodies(session, digests)


async def _quotas(session: AsyncSession) -> bytes:
    return encode_quotas([QuotaSpec(**row) for row in await quotas.wanted(session)])


async def _pins(session: AsyncSession) -> bytes:
    return encode_pins([PinSpec(**row) for row in await pins.wanted(session)])


async def _policies(session: AsyncSession) -> bytes:
    return encode_policies(
        [
            PolicySpec(**{name: getattr(row, name) for name in policies.SPEC_COLUMNS})
            for row in await policies.all_policies(session)
            if row.name == POLICY_IN_FORCE
        ]
    )


_BODIES: dict[SnapshotType, Callable[[AsyncSession], Awaitable[bytes]]] = {
    "quotas": _quotas,
    "pins": _pins,
    "policies": _policies,
}
