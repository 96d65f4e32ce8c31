"""Wanted state of every node: the newest generation of each type, as a ready snapshot for the node's labels.

Records and generation are read in one transaction, so a snapshot is exactly the state that some commit produced. Nodes
whose labels match the same selectors share a snapshot, which is built at most once.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.observe.trace import ChangeTraces
from app.push.plan import DesiredSnapshot
from app.store.base import identity
from app.store.base.database import Database
from app.store.records import bulk, generations, pins
from dataplane.base.labels import matches
from dataplane.protocol.control.records import (
    POLICY_IN_FORCE,
    PinSpec,
    PolicySpec,
    QuotaSpec,
    Tier,
    TierQuota,
    encode_pins,
    encode_policies,
    encode_quotas,
    encode_tiers,
)
from dataplane.protocol.control.snapshots import SNAPSHOT_TYPES, SnapshotType, digest_of
from dataplane.protocol.tiers import Compress, TierSpec

FEW = 1000
"""Largest number of records that are built without a thread."""
Labels = Mapping[str, str]
Group = tuple[bool, ...]
"""For each selector of a type, whether it matches."""


@dataclass(frozen=True, slots=True)
class DesiredRecord:
    """A record for the nodes that match the selector; None matches all nodes."""

    selector: dict[str, str] | None
    spec: Any
    priority: int = 0

    @staticmethod
    def of(kind: SnapshotType, values: Mapping[str, Any]) -> "DesiredRecord":
        """Return the part of a record that nodes receive, given its columns."""
        spec = _MAKE[kind](**{name: values[name] for name in _SPECS[kind].__struct_fields__})
        return DesiredRecord(values["selector"], spec, values.get("priority", 0))


@dataclass
class _Generation:
    """Records of a type at one generation, and the snapshots built from them."""

    number: int
    records: Mapping[str, DesiredRecord]
    """Records by key."""
    selectors: list[dict[str, str]]
    built: dict[Group, DesiredSnapshot] = field(default_factory=dict)


class DesiredState:
    """Cache over the database. `refresh` is cheap when nothing has changed."""

    def __init__(self, database: Database, change_traces: ChangeTraces | None = None) -> None:
        """`change_traces` gets the traces of other managers' changes."""
        self._database = database
        self._change_traces = change_traces or ChangeTraces()
        self._newest: dict[SnapshotType, _Generation] = {}
        self._lock = asyncio.Lock()
        self.store = ""
        """Identity of the database."""

    @property
    def generations(self) -> dict[SnapshotType, int]:
        """Newest generation of each type, as of the last refresh."""
        return {kind: newest.number for kind, newest in self._newest.items()}

    def desired(self, labels: Labels) -> dict[SnapshotType, DesiredSnapshot]:
        """Return the wanted snapshots of a node with these labels, as of the last refresh."""
        return {kind: self.built(kind, labels) for kind in self._newest}

    def desired_of(self, kind: SnapshotType, labels: Labels) -> DesiredSnapshot | None:
        """Return one of them; None before the first refresh."""
        return self.built(kind, labels) if kind in self._newest else None

    def built(self, kind: SnapshotType, labels: Labels) -> DesiredSnapshot:
        newest = self._newest[kind]
        group = tuple(matches(labels, selector) for selector in newest.selectors)
        snapshot = newest.built.get(group)
        if snapshot is None:
            records = [record for record in newest.records.values() if matches(labels, record.selector)]
            body = _ENCODE[kind](records)
            is_optional = kind == "tiers" and not records
            snapshot = DesiredSnapshot(self.store, newest.number, digest_of(body), is_optional, body)
            newest.built[group] = snapshot
        return snapshot

    def body_with(self, kind: SnapshotType, labels: Labels, candidates: Sequence[DesiredRecord]) -> bytes:
        """Return the body of a node's snapshot with these records in it, in place of those of the same keys. They match
        the node. A node has one policy: the last one."""
        if kind == "policies":
            return _encode_policies(candidates[-1:]) if candidates else self.built(kind, labels).body
        key, stored = bulk.KEYED[kind][1], self._newest[kind].records
        records = {name: record for name, record in stored.items() if matches(labels, record.selector)}
        return _ENCODE[kind](list({**records, **{getattr(each.spec, key): each for each in candidates}}.values()))

    def names(self, kind: SnapshotType, labels: Labels) -> list[str]:
        """Return the names of the records that a node with these labels receives, in the order of its snapshot."""
        records = self._newest[kind].records.values()
        return sorted(record.spec.name for record in records if matches(labels, record.selector))

    def policy_for(self, labels: Labels) -> str | None:
        """Return the name of the policy that applies to a node with these labels; None for the node's defaults."""
        records = self._newest["policies"].records.values()
        return in_force([(record.spec.name, record.priority) for record in records if matches(labels, record.selector)])

    async def refresh(self) -> None:
        """Load everything that is newer in the database. Raise StoreUnavailable."""
        async with self._lock, self._database.read() as session:
            if not self.store:
                self.store = await identity.store_id(session)
            heads = await generations.traced_heads(session)
            for kind in SNAPSHOT_TYPES:
                head = heads[kind]
                previous = self._newest.get(kind)
                if previous is not None and previous.number == head.generation:
                    continue
                self._change_traces.note(kind, *head)
                records = await _read(session, kind, previous)
                selectors: list[dict[str, str]] = []
                for record in records.values():
                    if record.selector and record.selector not in selectors:
                        selectors.append(record.selector)
                self._newest[kind] = _Generation(head.generation, records, selectors)

    async def bodies(self, digests: list[str]) -> dict[str, bytes]:
        """Return pin bodies by digest. Unknown digests are missing."""
        async with self._database.read() as session:
            return await pins.bodies(session, digests)


def _pin(tier: str, **spec: Any) -> PinSpec:
    """Make a PinSpec that omits the default tier.

    The encoder omits only the default object itself, not an equal string from the database, and nodes of releases
    without tiers refuse a snapshot that names one.
    """
    return PinSpec(**spec) if tier == "host" else PinSpec(**spec, tier=cast(Tier, tier))


def _quota(tiers: dict[str, Any], **spec: Any) -> QuotaSpec:
    return QuotaSpec(**spec, tiers=msgspec.convert(tiers, dict[str, TierQuota]))


def _tier(compress: Compress, **spec: Any) -> TierSpec:
    """Make a TierSpec that omits the default `compress`, which nodes of older releases refuse."""
    return TierSpec(**spec) if compress == "none" else TierSpec(**spec, compress=compress)


_SPECS: dict[SnapshotType, type[Any]] = {
    "quotas": QuotaSpec,
    "pins": PinSpec,
    "policies": PolicySpec,
    "tiers": TierSpec,
}
"""What nodes receive of a record; each field is a column."""
_MAKE: dict[SnapshotType, Callable[..., Any]] = {**_SPECS, "quotas": _quota, "pins": _pin, "tiers": _tier}


async def _read(session: AsyncSession, kind: SnapshotType, previous: _Generation | None) -> dict[str, DesiredRecord]:
    """Return all records of a type by key. Reads those that changed since `previous`, and the keys if some were
    deleted.

    Records are made in a thread if there are many, so that the event loop is not blocked.
    """
    key = bulk.KEYED[kind][1]
    column_names = (*_SPECS[kind].__struct_fields__, "selector", *(["priority"] if kind == "policies" else []))
    rows = await bulk.columns(session, kind, column_names, -1 if previous is None else previous.number)
    records = {} if previous is None else dict(previous.records)

    def build() -> None:
        for row in rows:
            records[getattr(row, key)] = DesiredRecord.of(kind, dict(zip(column_names, row, strict=True)))

    await asyncio.to_thread(build) if len(rows) > FEW else build()
    if len(records) == await bulk.count(session, kind):
        return records
    remaining_keys = [getattr(row, key) for row in await bulk.columns(session, kind, [key])]
    return {name: records[name] for name in remaining_keys}


def in_force(candidates: Sequence[tuple[str, int]]) -> str | None:
    """Return the policy that applies among those that match a node, given as (name, priority).

    The highest priority wins, then the first name. The policy for every node has the lowest precedence.
    """
    ordered = sorted(candidates, key=lambda candidate: (candidate[0] == POLICY_IN_FORCE, -candidate[1], candidate[0]))
    return ordered[0][0] if ordered else None


def _encode_policies(records: Sequence[DesiredRecord]) -> bytes:
    """Encode the one policy that a node has, under the name that means `in force`."""
    chosen = in_force([(record.spec.name, record.priority) for record in records])
    return encode_policies(
        [msgspec.structs.replace(record.spec, name=POLICY_IN_FORCE) for record in records if record.spec.name == chosen]
    )


_ENCODE: dict[SnapshotType, Callable[[Sequence[DesiredRecord]], bytes]] = {
    "quotas": lambda records: encode_quotas([record.spec for record in records]),
    "pins": lambda records: encode_pins([record.spec for record in records]),
    "policies": _encode_policies,
    "tiers": lambda records: encode_tiers([record.spec for record in records]),
}
