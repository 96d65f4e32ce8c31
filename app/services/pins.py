"""Pins: prefixes that must stay, and how much of them is there."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from app.errors import Conflict
from app.ingest.fleet import Fleet
from app.schemas.pins import PinAnswer, PinExtend, PinList, PinOnNode, PinOrigin, PinPatch, PinPut
from app.services import ceilings, checks, owners
from app.services.callers import PLANE, Caller
from app.services.changes import Change, Changes
from app.services.pin_intent import PinIntent, check_sources, resolve, ttl
from app.services.pin_patch import patch_row
from app.services.pin_shares import PinShares
from app.services.preconditions import ANY, Expected, etag
from app.services.prefixes import PrefixService
from app.services.progress import Progress
from app.services.tokenizers import Encoded, Tokenizers
from app.store import pins
from app.store.database import Database
from app.store.listing import Wanted
from app.store.pins import PinRow
from dataplane.protocol.control import Strength, Tier
from dataplane.protocol.events import PinStats
from dataplane.protocol.salts import shown
from dataplane.protocol.units import format_size


class Pins:
    """Get, put, patch, extend, delete; a put of what is already there changes nothing (a `ttl_s` always does: it moves
    the end)."""

    def __init__(
        self,
        database: Database,
        changes: Changes,
        progress: Progress,
        fleet: Fleet,
        prefixes: PrefixService,
        tokenizers: Tokenizers,
        shares: PinShares,
    ) -> None:
        self._database = database
        self._changes = changes
        self._progress = progress
        self._fleet = fleet
        self._prefixes = prefixes
        self._tokenizers = tokenizers
        self._shares = shares

    async def get(self, name: str, by: Caller) -> PinAnswer:
        """Raises Invalid, NotFound."""
        checks.pin_name(name)
        row = await self._database.row(pins.BY_KEY, name)
        if row is None or not by.sees(row.tenant):
            raise checks.missing("pin", name)
        return self.answers([row], by)[0]

    async def page(self, wanted: Wanted, filters: pins.Filters, by: Caller) -> PinList:
        """Of the tenants that the caller sees. Raises Invalid."""
        async with self._database.read() as session:
            page = await pins.page(session, wanted, filters, by.salts)
        return PinList(self.answers(page.rows, by), page.total, page.next_cursor)

    async def put(
        self, name: str, asked: PinPut, by: Caller, expected: Expected = ANY, wait_s: float = 0.0
    ) -> tuple[PinAnswer, bool]:
        """The record, and whether it is new. Raises Invalid, Forbidden, PreconditionFailed, PreconditionRequired;
        NodeUnreachable when a prefix is named, TooManyRequests when a text is given."""
        checks.pin_name(name)
        faults = checks.Faults()
        check_sources(asked, faults)
        faults.stop()
        prefix = None if asked.prefix is None else await self._prefixes.keys(asked.prefix, by, asked.tenant)
        encoded = await self._encoded(asked, by)
        # Off the loop: hashing a million tokens takes longer than others should wait.
        intent = await asyncio.to_thread(resolve, asked, prefix, time.time(), encoded)
        by.check_salt(intent.salt)
        async with self._changes.begin(by, "pins") as change:
            row = await pins.get(change.session, name)
            if row is not None and not by.sees(row.tenant):
                raise checks.taken("pin", name)
            expected.check(*_state(name, row))
            owners.check(by, None if row is None else row.managed_by, intent.managed_by)
            held = None if row is None else row.selector
            await _check_ceiling(change, intent, held)
            created = row is None
            share = await self._shares.before(change.session, by, intent.salt)
            row = await self.write(change, name, row, intent)
            await self._shares.check(change.session, by, intent.salt, share)
        if wait_s:
            await self._progress.wait("pins", row.generation, wait_s)
        return self.answers([row], by)[0], created

    async def _encoded(self, asked: PinPut, by: Caller) -> Encoded | None:
        """What a text or messages became; None without them, or without a model: `resolve` says so."""
        if (asked.text is None and asked.messages is None) or not asked.model:
            return None
        return await self._tokenizers.encode(
            asked.model, asked.text, asked.messages, by, add_generation_prompt=asked.add_generation_prompt
        )

    async def write(self, change: Change, name: str, row: PinRow | None, intent: PinIntent) -> PinRow:
        """Make the record what is asked, inside of a change of `pins`."""
        before = None if row is None else _audited(row)
        old_digest = None if row is None else row.keys_digest
        await pins.put_body(change.session, intent.digest, intent.body, change.now)
        if row is None:
            row = PinRow(name=name, created_at=change.now, owner=change.by.actor)
            change.session.add(row)
        _fill(row, intent)
        _changed(change, row, before)
        if old_digest not in (None, intent.digest):
            await pins.drop_unused_body(change.session, str(old_digest))
        return row

    async def patch(
        self, name: str, patch: PinPatch, by: Caller, expected: Expected = ANY, wait_s: float = 0.0
    ) -> PinAnswer:
        """Change what may change of a pin. Raises what `put` does, and NotFound."""
        checks.pin_name(name)
        async with self._changes.begin(by, "pins") as change:
            row = await self._own(change, name)
            expected.check(*_state(name, row))
            before = _audited(row)
            patch_row(row, patch, change.now)
            owners.check(by, before["managed_by"], row.managed_by)
            await _check_ceiling(change, row, before["selector"])
            _changed(change, row, before)
        if wait_s:
            await self._progress.wait("pins", row.generation, wait_s)
        return self.answers([row], by)[0]

    async def extend(self, name: str, asked: PinExtend, by: Caller, wait_s: float = 0.0) -> PinAnswer:
        """Let a pin end no sooner than so long from now. Raises Invalid, NotFound; Conflict for a pin without
        an end."""
        checks.pin_name(name)
        faults = checks.Faults()
        faults.check("ttl_s", lambda: ttl(asked.ttl_s))
        faults.stop()
        async with self._changes.begin(by, "pins") as change:
            row = await self._own(change, name)
            if row.expires_at is None:
                what = "is permanent" if row.strength == "permanent" else "has no end"
                raise Conflict(f"the pin {name!r} {what}: there is nothing to extend")
            before = _audited(row)
            row.expires_at = max(row.expires_at, change.now + asked.ttl_s)
            await _check_ceiling(change, row, row.selector)
            _changed(change, row, before)
        if wait_s:
            await self._progress.wait("pins", row.generation, wait_s)
        return self.answers([row], by)[0]

    async def delete(self, name: str, by: Caller, expected: Expected = ANY, wait_s: float = 0.0) -> None:
        """Raises Invalid, Forbidden, NotFound, PreconditionFailed, PreconditionRequired."""
        checks.pin_name(name)
        async with self._changes.begin(by, "pins") as change:
            row = await self._own(change, name)
            expected.check(*_state(name, row))
            await self.remove(change, row)
        if wait_s:
            await self._progress.wait("pins", change.generations["pins"], wait_s)

    async def remove(self, change: Change, row: PinRow) -> None:
        """Inside of a change of `pins`."""
        change.made("pins", "delete", row.name, _audited(row), None)
        await change.session.delete(row)
        await pins.drop_unused_body(change.session, row.keys_digest)

    async def _own(self, change: Change, name: str) -> PinRow:
        """A record that is the caller's to change. Raises NotFound, also for one that the caller does not see."""
        row = await pins.get(change.session, name)
        if row is None or not change.by.sees(row.tenant):
            raise checks.missing("pin", name)
        return row

    def answers(self, rows: Sequence[PinRow], by: Caller = PLANE) -> list[PinAnswer]:
        """Records with what the nodes say about their blocks."""
        seen: dict[str, dict[str, PinStats]] = {}
        for stats in self._fleet.stats():
            for pin in stats.pins:
                seen.setdefault(pin.name, {})[stats.node] = pin
        now = time.time()
        whole = by.salts is None
        return [self._answer(row, seen.get(row.name, {}), now, whole=whole) for row in rows]

    def _answer(self, row: PinRow, told: dict[str, PinStats], now: float, *, whole: bool) -> PinAnswer:
        seen = list(told.values())
        expires_at, expired = _end(row, seen, now)
        return PinAnswer(
            name=row.name,
            model=row.model,
            tenant=shown(row.tenant),
            strength=cast(Strength, row.strength),
            tier=cast(Tier, row.tier),
            refresh_on_hit=row.refresh_s is not None,
            ttl_s=row.refresh_s,
            key_count=row.key_count,
            keys_digest=row.keys_digest,
            expires_at=expires_at,
            note=row.note,
            managed_by=row.managed_by,
            selector=row.selector,
            owner=row.owner,
            origin=None if not row.origin else msgspec.convert(row.origin, PinOrigin),
            etag=etag(row.generation),
            generation=row.generation,
            created_at=row.created_at,
            updated_at=row.updated_at,
            resolved=sum(pin.resolved for pin in seen) or row.key_count,
            resident=sum(pin.resident for pin in seen),
            bytes=sum(pin.bytes for pin in seen),
            guaranteed=sum(pin.guaranteed for pin in seen),
            degraded=sum(pin.degraded for pin in seen),
            replicas=sum(pin.replicas for pin in seen),
            replica_bytes=sum(pin.replica_bytes for pin in seen),
            replicas_wanted=sum(pin.replicas_wanted for pin in seen),
            expired=expired,
            summary=_summary(row, seen),
            nodes={
                node: PinOnNode(
                    pin.resolved,
                    pin.resident,
                    pin.bytes,
                    pin.replicas,
                    pin.replica_bytes,
                    pin.replicas_wanted,
                )
                for node, pin in sorted(told.items())
            },
            status=self._progress.status(
                "pins",
                row.generation,
                name=row.name,
                selector=row.selector,
                since=row.updated_at,
                whole=whole,
            ),
        )


def _summary(row: PinRow, seen: Sequence[PinStats]) -> str:
    """In a line for people. A chunk is as many blocks as there are spaces and nodes that hold it."""
    resolved, resident = sum(pin.resolved for pin in seen), sum(pin.resident for pin in seen)
    there = (
        f"{resident} resident"
        if resolved in (0, row.key_count)
        else f"{resident} of {resolved} blocks resident"
    )
    chunks = "1 chunk" if row.key_count == 1 else f"{row.key_count} chunks"
    on_gpus = f", {sum(pin.replicas for pin in seen)} replicas on GPUs" if row.tier == "gpu" else ""
    return f"resolved {chunks}, {there}, {format_size(sum(pin.bytes for pin in seen))}{on_gpus}"


async def _check_ceiling(change: Change, asked: PinIntent | PinRow, selector: dict[str, str] | None) -> None:
    """How far the caller may go with a pin, whose selector was this one. Raises Forbidden."""
    salt = asked.salt if isinstance(asked, PinIntent) else asked.tenant
    ceilings.check_pin_selector(change.by, selector, asked.selector)
    ends_in_s = None if asked.expires_at is None else asked.expires_at - change.now
    await ceilings.check_pin(change.session, change.by, salt, asked.strength, ends_in_s)


def _state(name: str, row: PinRow | None) -> tuple[str, str | None]:
    """What a caller may expect something of."""
    return f"pin {name!r}", None if row is None else etag(row.generation)


def _changed(change: Change, row: PinRow, before: dict[str, Any] | None) -> None:
    """Note what became of a record, if anything did."""
    after = _audited(row)
    if before != after:
        row.generation, row.updated_at = change.generations["pins"], change.now
        change.made("pins", "create" if before is None else "update", row.name, before, after)


def _end(row: PinRow, seen: list[PinStats], now: float) -> tuple[float | None, bool]:
    """When the pin ends, and whether it has. Of a pin that refreshes, nodes know better than the record."""
    if row.expires_at is None or row.refresh_s is None:
        return row.expires_at, row.expires_at is not None and row.expires_at <= now
    end = max([row.expires_at, *(pin.expires_at for pin in seen if pin.expires_at is not None)])
    return end, end <= now and all(pin.expired for pin in seen)


def _fill(row: PinRow, intent: PinIntent) -> None:
    row.model, row.tenant, row.strength, row.tier = intent.model, intent.salt, intent.strength, intent.tier
    row.key_count, row.keys_digest = intent.key_count, intent.digest
    row.expires_at, row.refresh_s, row.note = intent.expires_at, intent.refresh_s, intent.note
    row.managed_by, row.selector, row.origin = intent.managed_by, intent.selector, intent.origin


def _audited(row: PinRow) -> dict[str, Any]:
    """What an audit entry keeps: the digest stands for the keys."""
    return {
        "model": row.model,
        "tenant": shown(row.tenant),
        "strength": row.strength,
        "tier": row.tier,
        "key_count": row.key_count,
        "keys_digest": row.keys_digest,
        "expires_at": row.expires_at,
        "refresh_s": row.refresh_s,
        "note": row.note,
        "managed_by": row.managed_by,
        "selector": row.selector,
    }
