"""What every node should hold: the newest generation of each type as a ready snapshot for its labels.

Records and generation are read at one moment, so a snapshot is exactly what some commit left behind. Nodes whose labels
match the same selectors share a snapshot, which is built at most once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
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
    Tier,
    digest_of,
    encode_pins,
    encode_policies,
    encode_quotas,
)
from dataplane.protocol.labels import matches

FEW = 1000
"""Records that are made at once."""
Labels = Mapping[str, str]
Group = tuple[bool, ...]
"""Which of the selectors of a type match."""


@dataclass(frozen=True, slots=True)
class _Record:
    """What nodes that match the selector are told; None matches all."""

    selector: dict[str, str] | None
    spec: Any
    priority: int = 0


@dataclass(frozen=True)
class Built:
    """A snapshot's body and what it is called."""

    wanted: Wanted
    body: bytes


@dataclass
class _Generation:
    """The records of a type at one generation, and the snapshots that were made of them."""

    number: int
    records: Sequence[_Record]
    selectors: list[dict[str, str]]
    built: dict[Group, Built] = field(default_factory=dict)


class Desired:
    """Cache over the database; `refresh` is cheap when nothing changed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._newest: dict[SnapshotType, _Generation] = {}
        self._lock = asyncio.Lock()
        self.store = ""
        """Identity of the database."""

    @property
    def generations(self) -> dict[SnapshotType, int]:
        """The newest of each type, as of the last refresh."""
        return {kind: newest.number for kind, newest in self._newest.items()}

    def wanted(self, labels: Labels) -> dict[SnapshotType, Wanted]:
        """What a node with these labels should hold, as of the last refresh."""
        return {kind: self.built(kind, labels).wanted for kind in self._newest}

    def built(self, kind: SnapshotType, labels: Labels) -> Built:
        newest = self._newest[kind]
        group = tuple(matches(labels, selector) for selector in newest.selectors)
        known = newest.built.get(group)
        if known is None:
            body = _ENCODE[kind]([record for record in newest.records if matches(labels, record.selector)])
            known = newest.built[group] = Built(Wanted(self.store, newest.number, digest_of(body)), body)
        return known

    def policy_for(self, labels: Labels) -> str | None:
        """Name of the policy record that is in force on a node with these labels; None: the node's defaults."""
        records = self._newest["policies"].records
        return in_force(
            [(each.spec.name, each.priority) for each in records if matches(labels, each.selector)]
        )

    async def refresh(self) -> None:
        """Look at the database; read what is newer than what is known. Raises StoreUnavailable."""
        async with self._lock, self._database.read() as session:
            if not self.store:
                self.store = await identity.store_id(session)
            heads = await generations.heads(session)
            for kind in SNAPSHOT_TYPES:
                known = self._newest.get(kind)
                if known is not None and known.number == heads[kind]:
                    continue
                records = await _READ[kind](session)
                selectors: list[dict[str, str]] = []
                for record in records:
                    if record.selector and record.selector not in selectors:
                        selectors.append(record.selector)
                self._newest[kind] = _Generation(heads[kind], records, selectors)

    async def bodies(self, digests: list[str]) -> dict[str, bytes]:
        """Pin bodies by digest; those that nobody knows (any more) are missing."""
        async with self._database.read() as session:
            return await pins.bodies(session, digests)


async def _quotas(session: AsyncSession) -> list[_Record]:
    return await _made(QuotaSpec, await quotas.wanted(session))


async def _pins(session: AsyncSession) -> list[_Record]:
    return await _made(_pin, await pins.wanted(session))


def _pin(tier: str, **spec: Any) -> PinSpec:
    """The encoder leaves out the default itself alone, not an equal text out of the database; and a node of a release
    without tiers refuses a snapshot that names one."""
    return PinSpec(**spec) if tier == "host" else PinSpec(**spec, tier=cast(Tier, tier))


async def _made(
    make: Callable[..., Any], rows: Sequence[tuple[dict[str, str] | None, dict[str, Any]]]
) -> list[_Record]:
    """Very many are made in a thread: others get their turn."""

    def made() -> list[_Record]:
        return [_Record(selector, make(**spec)) for selector, spec in rows]

    return await asyncio.to_thread(made) if len(rows) > FEW else made()


async def _policies(session: AsyncSession) -> list[_Record]:
    return [
        _Record(
            row.selector,
            PolicySpec(**{name: getattr(row, name) for name in policies.SPEC_COLUMNS}),
            row.priority,
        )
        for row in await policies.all_policies(session)
    ]


def in_force(candidates: Sequence[tuple[str, int]]) -> str | None:
    """Which of the policies that match a node, by (name, priority): the highest priority, then the first name; the one
    for every node comes last."""
    ordered = sorted(candidates, key=lambda each: (each[0] == POLICY_IN_FORCE, -each[1], each[0]))
    return ordered[0][0] if ordered else None


def _encode_policies(records: Sequence[_Record]) -> bytes:
    """A node knows one policy, by the name that means `in force`."""
    chosen = in_force([(record.spec.name, record.priority) for record in records])
    return encode_policies(
        [
            msgspec.structs.replace(record.spec, name=POLICY_IN_FORCE)
            for record in records
            if record.spec.name == chosen
        ]
    )


_READ: dict[SnapshotType, Callable[[AsyncSession], Awaitable[list[_Record]]]] = {
    "quotas": _quotas,
    "pins": _pins,
    "policies": _policies,
}
_ENCODE: dict[SnapshotType, Callable[[Sequence[_Record]], bytes]] = {
    "quotas": lambda records: encode_quotas([record.spec for record in records]),
    "pins": lambda records: encode_pins([record.spec for record in records]),
    "policies": _encode_policies,
}
