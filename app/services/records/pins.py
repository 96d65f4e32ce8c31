"""Pins: prefixes that must stay cached, and how much of them is cached."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from app.errors import Conflict
from app.ingest.fleet import Fleet, is_empty, unlisted_tiers
from app.schemas.base.listing import PageRequest
from app.schemas.records.pins import (
    PinAnswer,
    PinExtend,
    PinFilters,
    PinKeys,
    PinList,
    PinOnNode,
    PinOrigin,
    PinPut,
    PinShared,
)
from app.services.base import checks
from app.services.base.changes import Change, Changes
from app.services.base.expiry import ttl
from app.services.base.fields import answer
from app.services.base.preconditions import ANY, Precondition
from app.services.base.principals import PLANE, Principal
from app.services.records import ceilings, owners
from app.services.records.pin_intent import PINS, PinIntent, check_sources, patched_values, resolve
from app.services.records.pin_quota import PinQuota
from app.services.records.prefixes import PrefixService
from app.services.records.progress import RecordProgress
from app.services.records.record_types import Values, columns
from app.services.records.tokenizers import Tokenizers
from app.store.base.database import Database
from app.store.records import bulk, pins
from app.store.records.pins import PinRow
from dataplane.base.units import format_size
from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.stats.pins import PinInTier, PinStats

_SUMMED = ("resident", "bytes", "guaranteed", "degraded", "gpu_copies", "gpu_copy_bytes", "gpu_copies_wanted")
"""Fields of an answer that are sums over all nodes."""


class Pins:
    """Get, put, patch, extend, delete. A put of an identical record changes nothing, except that a `ttl_s` moves the
    end."""

    def __init__(
        self,
        database: Database,
        changes: Changes,
        progress: RecordProgress,
        fleet: Fleet,
        prefixes: PrefixService,
        tokenizers: Tokenizers,
        shares: PinQuota,
    ) -> None:
        self._database = database
        self._changes = changes
        self._progress = progress
        self._fleet = fleet
        self._prefixes = prefixes
        self._tokenizers = tokenizers
        self._shares = shares

    async def get(self, name: str, by: Principal) -> PinAnswer:
        """Return the pin. Raises Invalid, NotFound."""
        checks.pin_name(name)
        row = await self._database.row(PinRow, name)
        if row is None or not by.sees(row.tenant):
            raise PINS.missing(name)
        return self.answers([row], by)[0]

    async def keys(self, name: str, by: Principal) -> PinKeys:
        """Return the keys of the pin, with which it can be created again. Raises Invalid, NotFound."""
        checks.pin_name(name)
        async with self._database.read() as session:
            row = await session.get(PinRow, name)
            if row is None or not by.sees(row.tenant):
                raise PINS.missing(name)
            body = (await pins.bodies(session, [row.keys_digest]))[row.keys_digest]
        return PinKeys([body[at : at + KEY_BYTES].hex() for at in range(0, len(body), KEY_BYTES)])

    async def page(self, page_request: PageRequest, filters: PinFilters, by: Principal) -> PinList:
        """Return a page of pins of the tenants that the caller may see. Raises Invalid."""
        page = await PINS.page(self._database, page_request, vars(filters), by.salts)
        return PinList(self.answers(page.rows, by), page.total, page.next_cursor)

    async def put(
        self, name: str, request: PinPut, by: Principal, expected: Precondition = ANY, wait_s: float = 0.0
    ) -> tuple[PinAnswer, bool]:
        """Store the record, and return it and whether it is new. Raises Invalid, Forbidden, PreconditionFailed,
        PreconditionRequired; NodeUnreachable if a prefix is named, TooManyRequests if a text is given."""
        checks.pin_name(name)
        faults = checks.Faults()
        check_sources(request, faults)
        faults.stop()
        prefix = None if request.prefix is None else await self._prefixes.keys(request.prefix, by, request.tenant)
        encoded = await self._tokenizers.encoded(request, by)
        # In a thread: hashing the most tokens takes about 10 ms.
        intent = await asyncio.to_thread(resolve, request, prefix, time.time(), encoded)
        salt = intent.values["tenant"]
        by.check_salt(salt)
        async with self._changes.begin(by, "pins") as change:
            row = await change.session.get(PinRow, name)
            if row is not None and not by.sees(row.tenant):
                raise checks.taken("pin", name)
            PINS.check_state(expected, name, row)
            await _check(change, salt, row, intent.values)
            created = row is None
            share = await self._shares.before(change.session, by, salt)
            row = await self._write(change, name, row, intent)
            await self._shares.check(change.session, by, salt, share)
        await self._progress.wait("pins", row.generation, wait_s)
        return self.answers([row], by)[0], created

    async def _write(self, change: Change, name: str, row: PinRow | None, intent: PinIntent) -> PinRow:
        """Write the intent to the record, and the keys."""
        old_digest = None if row is None else row.keys_digest
        digest = intent.values["keys_digest"]
        await bulk.put_bodies(change.session, {digest: intent.body}, change.now)
        row = PINS.write(change, name, row, intent.values, owner=change.by.actor)
        if old_digest not in (None, digest):
            await bulk.drop_unused_bodies(change.session, [str(old_digest)])
        return row

    async def patch(
        self,
        name: str,
        patch: dict[str, Any],
        by: Principal,
        expected: Precondition = ANY,
        wait_s: float = 0.0,
        *,
        dry_run: bool = False,
    ) -> PinAnswer:
        """Change the mutable fields of a pin unless it is a dry run, and return it. Raises what `put` raises, and
        NotFound."""
        checks.pin_name(name)
        async with self._changes.begin(by, "pins", dry_run=dry_run) as change:
            row = await self._own(change, name)
            PINS.check_state(expected, name, row)
            values = patched_values(row, patch, change.now)
            await _check(change, row.tenant, row, values)
            PINS.write(change, name, row, values)
        if not dry_run:
            await self._progress.wait("pins", row.generation, wait_s)
        return self.answers([row], by)[0]

    async def extend(self, name: str, request: PinExtend, by: Principal, wait_s: float = 0.0) -> PinAnswer:
        """Move the end of a pin to at least `ttl_s` seconds from now. Raises Invalid, NotFound; Conflict if the pin has
        no end."""
        checks.pin_name(name)
        checks.valid("ttl_s", lambda: ttl(request.ttl_s))
        async with self._changes.begin(by, "pins") as change:
            row = await self._own(change, name)
            if row.expires_at is None:
                reason = "is permanent" if row.strength == "permanent" else "has no end"
                raise Conflict(f"the pin {name!r} {reason}: there is nothing to extend")
            values = columns(row, PINS.written)
            values["expires_at"] = max(row.expires_at, change.now + request.ttl_s)
            await _check(change, row.tenant, row, values)
            PINS.write(change, name, row, values)
        await self._progress.wait("pins", row.generation, wait_s)
        return self.answers([row], by)[0]

    async def delete(self, name: str, by: Principal, expected: Precondition = ANY, wait_s: float = 0.0) -> None:
        """Delete the record. Raises Invalid, Forbidden, NotFound, PreconditionFailed, PreconditionRequired."""
        checks.pin_name(name)
        async with self._changes.begin(by, "pins") as change:
            row = await self._own(change, name)
            PINS.check_state(expected, name, row)
            await PINS.remove(change, row)
            await bulk.drop_unused_bodies(change.session, [row.keys_digest])
        await self._progress.wait("pins", change.generations["pins"], wait_s)

    async def _own(self, change: Change, name: str) -> PinRow:
        """Return a record that the caller may change. Raises NotFound, also if the caller may not see the record."""
        row = await change.session.get(PinRow, name)
        if row is None or not change.by.sees(row.tenant):
            raise PINS.missing(name)
        return row

    def answers(self, rows: Sequence[PinRow], by: Principal = PLANE) -> list[PinAnswer]:
        """Return records with what the nodes report about their blocks."""
        seen: dict[str, dict[str, PinStats]] = {}
        unlisted: dict[str, set[str]] = {}
        for stats in self._fleet.stats():
            tiers = unlisted_tiers(stats)
            for pin in stats.pins:
                seen.setdefault(pin.name, {})[stats.node] = pin
                if tiers:
                    unlisted.setdefault(pin.name, set()).update(tiers)
        now = time.time()
        return [self._answer(row, seen.get(row.name, {}), unlisted.get(row.name, set()), now, by) for row in rows]

    def _answer(
        self, row: PinRow, by_node: dict[str, PinStats], unlisted: set[str], now: float, by: Principal
    ) -> PinAnswer:
        whole = by.salts is None
        seen = list(by_node.values())
        expires_at, expired = _end(row, seen, now)
        nothing_seen = not expired and bool(seen) and all(map(is_empty, seen))
        return PinAnswer(
            **{**PINS.described(row, PinShared.__struct_fields__), "expires_at": expires_at},
            refresh_on_hit=row.refresh_s is not None,
            ttl_s=row.refresh_s,
            owner=row.owner if whole or row.owner == by.actor else "",
            origin=None if not row.origin else msgspec.convert(row.origin, PinOrigin),
            **{name: sum(getattr(pin, name) for pin in seen) for name in _SUMMED},
            resolved=sum(pin.resolved for pin in seen) or row.key_count,
            tiers=_in_tiers(seen),
            only_in_tiers=0 if expired else sum(pin.only_in_tiers for pin in seen),
            not_loaded="" if expired else max((pin.not_loaded for pin in seen), default=""),
            expired=expired,
            holds_nothing=nothing_seen and not unlisted,
            unlisted_tiers=sorted(unlisted) if nothing_seen else [],
            summary=_summary(row, seen),
            nodes={node: answer(PinOnNode, pin) for node, pin in sorted(by_node.items())},
            status=self._progress.status(
                "pins", row.generation, name=row.name, selector=row.selector, since=row.updated_at, whole=whole
            ),
        )


def _summary(row: PinRow, seen: Sequence[PinStats]) -> str:
    """Summarize a pin in one line. A chunk has one block for each space and node that holds it."""
    resolved, resident = sum(pin.resolved for pin in seen), sum(pin.resident for pin in seen)
    cached = f"{resident} resident" if resolved in (0, row.key_count) else f"{resident} of {resolved} blocks resident"
    chunks = "1 chunk" if row.key_count == 1 else f"{row.key_count} chunks"
    on_gpus = f", {sum(pin.gpu_copies for pin in seen)} GPU copies" if row.tier == "gpu" else ""
    in_tiers = "".join(f", {stats.blocks} in {name}" for name, stats in _in_tiers(seen).items())
    return f"resolved {chunks}, {cached}, {format_size(sum(pin.bytes for pin in seen))}{on_gpus}{in_tiers}"


def _in_tiers(seen: Iterable[PinStats]) -> dict[str, PinInTier]:
    """Return what tiers of the same name hold of a pin on all nodes together."""
    total: dict[str, PinInTier] = {}
    for pin in seen:
        for name, stats in pin.tiers.items():
            of_tier = total.setdefault(name, PinInTier())
            of_tier.blocks += stats.blocks
            of_tier.bytes += stats.bytes
            of_tier.guaranteed += stats.guaranteed
    return dict(sorted(total.items()))


async def _check(change: Change, salt: str, row: PinRow | None, values: Values) -> None:
    """Check that the caller may give the record these values: its owner, and the tenant's ceiling. Raises Forbidden."""
    owners.check(change.by, None if row is None else row.managed_by, values["managed_by"])
    await ceilings.check_pin(change, salt, None if row is None else row.selector, values)


def _end(row: PinRow, seen: list[PinStats], now: float) -> tuple[float | None, bool]:
    """Return the end of the pin, and whether it has ended. If hits extend the pin, nodes know a later end than the
    record."""
    if row.expires_at is None or row.refresh_s is None:
        return row.expires_at, row.expires_at is not None and row.expires_at <= now
    end = max([row.expires_at, *(pin.expires_at for pin in seen if pin.expires_at is not None)])
    return end, end <= now and all(pin.expired for pin in seen)
