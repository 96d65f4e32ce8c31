"""Exports records as a document; applied to an empty database, it creates the same records."""

import asyncio
import time
from collections.abc import Collection, Mapping
from typing import Any

from app.schemas.documents.apply import ExportAnswer
from app.schemas.fleet.pushes import TypeName
from app.schemas.records.pins import STORED, PinPut
from app.schemas.records.policies import PolicyPut
from app.schemas.records.tiers import TierPut
from app.services.base import checks
from app.services.base.principals import Principal
from app.services.documents.declared import API_VERSION
from app.services.documents.resource_types import KINDS
from app.services.records.quotas import DEFAULTS
from app.services.records.record_types import PushedType, Values, defaults, fields
from app.store.base.database import Database
from app.store.records import bulk, generations, pins
from dataplane.protocol.control.snapshots import SNAPSHOT_TYPES, SnapshotType
from dataplane.protocol.keys import KEY_BYTES

_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20))
_DEFAULTS: dict[SnapshotType, Values] = {
    "quotas": {name: value for name, value in DEFAULTS.items() if name != "limit_bytes"},
    "pins": defaults(PinPut),
    "policies": defaults(PolicyPut),
    "tiers": defaults(TierPut),
}
"""Values that an exported document omits. A quota always has its limit, and a policy all of its rules, because a record
needs one of them."""


class Export:
    """Exports records from one snapshot of the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def export(self, types: Collection[TypeName], owner: str | None, by: Principal) -> ExportAnswer:
        """Return the records of these types (empty: all) and this owner that the caller may see. Raises Invalid."""
        if owner is not None:
            checks.valid("managed_by", lambda: checks.managed_by(owner))
        rows: dict[SnapshotType, list[Mapping[str, Any]]] = {}
        bodies: dict[str, bytes] = {}
        async with self._database.read() as session:
            heads = await generations.heads(session)
            for kind in KINDS.values():
                if types and kind.name not in types:
                    continue
                stored = await bulk.rows(session, kind.row, kind.key, dict.fromkeys((kind.key, *kind.written)))
                rows[kind.name] = [
                    row for row in stored.values() if kind.is_own(row, by) and owner in (None, row["managed_by"])
                ]
            digests = list(dict.fromkeys(row["keys_digest"] for row in rows.get("pins", [])))
            for batch in bulk.batches(digests):
                bodies |= await pins.bodies(session, batch)
        document, ended = await asyncio.to_thread(_document, rows, bodies, owner, time.time())
        numbers = {kind: heads[kind] for kind in SNAPSHOT_TYPES} if by.salts is None else {}
        return ExportAnswer(document, ended, numbers)


def _document(
    rows: Mapping[SnapshotType, list[Mapping[str, Any]]], bodies: Mapping[str, bytes], owner: str | None, now: float
) -> tuple[dict[str, Any], int]:
    """Return the document, and the number of pins that it omits because they have ended."""
    document: dict[str, Any] = {"apiVersion": API_VERSION}
    if owner:
        document["managed_by"] = owner
    ended = 0
    for name, type_rows in rows.items():
        kind = KINDS[name]
        records = []
        for row in sorted(type_rows, key=lambda row: kind.shown(row[kind.key])):
            if (
                name == "pins"
                and row["expires_at"] is not None
                and row["refresh_s"] is None
                and row["expires_at"] <= now
            ):
                ended += 1
                continue
            records.append(_record(kind, row, bodies, owner))
        document[name] = records
    return document, ended


def _record(
    kind: PushedType[Any], row: Mapping[str, Any], bodies: Mapping[str, bytes], owner: str | None
) -> dict[str, Any]:
    """Return the record as the body of a PUT, with its name."""
    defaults = _DEFAULTS[kind.name] | ({"managed_by": owner} if owner else {})
    values = _pin(row, bodies) if kind.name == "pins" else {name: row[name] for name in kind.written}
    shown = {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}
    return {kind.key: kind.shown(row[kind.key]), **_with_units(shown)}


def _pin(row: Mapping[str, Any], bodies: Mapping[str, bytes]) -> dict[str, Any]:
    values = fields(row, ("model", "tenant", *STORED))
    if row["refresh_s"] is not None:
        values |= {"refresh_on_hit": True, "ttl_s": row["refresh_s"]}
    elif row["expires_at"] is not None:
        values["expires_at"] = row["expires_at"]
    body = bodies[row["keys_digest"]]
    values["keys"] = [body[at : at + KEY_BYTES].hex() for at in range(0, len(body), KEY_BYTES)]
    return values


def _with_units(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with sizes as `_size` writes them, also those of tiers."""
    return {
        name: _size(value)
        if name.endswith("_bytes")
        else {tier: _with_units(share) for tier, share in value.items()}
        if name == "tiers"
        else value
        for name, value in values.items()
    }


def _size(value: int | None) -> int | str | None:
    """Return the exact size in the largest unit of which it is a multiple."""
    for unit, factor in _UNITS:
        if value and value % factor == 0:
            return f"{value // factor}{unit}"
    return value
