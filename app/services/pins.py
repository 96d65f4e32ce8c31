"""Pins: prefixes that must stay, and how much of them is there."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, cast

from app.errors import Forbidden
from app.ingest.fleet import Fleet
from app.schemas.pins import PinAnswer, PinList, PinPut
from app.services import ceilings, checks
from app.services.callers import Caller
from app.services.changes import Changes
from app.services.pin_intent import PinIntent, check_sources, resolve
from app.services.prefixes import PrefixService
from app.services.progress import Progress
from app.store import pins
from app.store.database import Database
from app.store.listing import Wanted
from app.store.pins import PinRow
from dataplane.protocol.control import Strength
from dataplane.protocol.events import PinStats
from dataplane.protocol.salts import shown


class Pins:
    """Get, put, delete; a put of what is already there changes nothing (a `ttl_s` always does: it moves the end)."""

    def __init__(
        self,
        database: Database,
        changes: Changes,
        progress: Progress,
        fleet: Fleet,
        prefixes: PrefixService,
    ) -> None:
        self._database = database
        self._changes = changes
        self._progress = progress
        self._fleet = fleet
        self._prefixes = prefixes

    async def get(self, name: str, by: Caller) -> PinAnswer:
        """Raises Invalid, NotFound."""
        checks.pin_name(name)
        async with self._database.read() as session:
            row = await pins.get(session, name)
        if row is None or not by.sees(row.tenant):
            raise checks.missing("pin", name)
        return self.answers([row])[0]

    async def page(self, wanted: Wanted, filters: pins.Filters, by: Caller) -> PinList:
        """Of the tenants that the caller sees. Raises Invalid."""
        async with self._database.read() as session:
            page = await pins.page(session, wanted, filters, by.salts)
        return PinList(self.answers(page.rows), page.total, page.next_cursor)

    async def put(self, name: str, asked: PinPut, by: Caller, wait_s: float = 0.0) -> tuple[PinAnswer, bool]:
        """The record, and whether it is new. Raises Invalid; NodeUnreachable when a prefix is named."""
        checks.pin_name(name)
        check_sources(asked, checks.Faults())
        prefix = None if asked.prefix is None else await self._prefixes.keys(asked.prefix)
        # Off the loop: hashing a million tokens takes longer than others should wait.
        intent = await asyncio.to_thread(resolve, asked, prefix, time.time())
        by.check_salt(intent.salt)
        async with self._changes.begin(by, "pins") as change:
            row = await pins.get(change.session, name)
            created = row is None
            if row is not None and not by.sees(row.tenant):
                raise Forbidden(f"there is a pin {name!r} already, and it is of another tenant than this token's")
            ends_in_s = None if intent.expires_at is None else intent.expires_at - change.now
            await ceilings.check_pin(change.session, by, intent.salt, intent.strength, ends_in_s)
            before = None if row is None else _audited(row)
            old_digest = None if row is None else row.keys_digest
            await pins.put_body(change.session, intent.digest, intent.body, change.now)
            if row is None:
                row = PinRow(name=name, created_at=change.now)
                change.session.add(row)
            _fill(row, intent)
            after = _audited(row)
            if before != after:
                row.generation, row.updated_at = change.generations["pins"], change.now
                change.made("pins", "create" if created else "update", name, before, after)
            if old_digest not in (None, intent.digest):
                await pins.drop_unused_body(change.session, str(old_digest))
        if wait_s:
            await self._progress.wait("pins", row.generation, wait_s)
        return self.answers([row])[0], created

    async def delete(self, name: str, by: Caller, wait_s: float = 0.0) -> None:
        """Raises Invalid, NotFound."""
        checks.pin_name(name)
        async with self._changes.begin(by, "pins") as change:
            row = await pins.get(change.session, name)
            if row is None or not by.sees(row.tenant):
                raise checks.missing("pin", name)
            change.made("pins", "delete", name, _audited(row), None)
            await change.session.delete(row)
            await pins.drop_unused_body(change.session, row.keys_digest)
        if wait_s:
            await self._progress.wait("pins", change.generations["pins"], wait_s)

    def answers(self, rows: Sequence[PinRow]) -> list[PinAnswer]:
        """Records with what the nodes say about their blocks."""
        seen: dict[str, list[PinStats]] = {}
        for stats in self._fleet.stats():
            for pin in stats.pins:
                seen.setdefault(pin.name, []).append(pin)
        now = time.time()
        return [self._answer(row, seen.get(row.name, []), now) for row in rows]

    def _answer(self, row: PinRow, seen: list[PinStats], now: float) -> PinAnswer:
        expires_at, expired = _end(row, seen, now)
        return PinAnswer(
            name=row.name,
            model=row.model,
            tenant=shown(row.tenant),
            strength=cast(Strength, row.strength),
            refresh_on_hit=row.refresh_s is not None,
            ttl_s=row.refresh_s,
            key_count=row.key_count,
            keys_digest=row.keys_digest,
            expires_at=expires_at,
            note=row.note,
            managed_by=row.managed_by,
            selector=row.selector,
            generation=row.generation,
            created_at=row.created_at,
            updated_at=row.updated_at,
            resolved=sum(pin.resolved for pin in seen) or row.key_count,
            resident=sum(pin.resident for pin in seen),
            bytes=sum(pin.bytes for pin in seen),
            guaranteed=sum(pin.guaranteed for pin in seen),
            degraded=sum(pin.degraded for pin in seen),
            expired=expired,
            status=self._progress.status(
                "pins", row.generation, name=row.name, selector=row.selector, since=row.updated_at
            ),
        )


def _end(row: PinRow, seen: list[PinStats], now: float) -> tuple[float | None, bool]:
    """When the pin ends, and whether it has. Of a pin that refreshes, nodes know better than the record."""
    if row.expires_at is None or row.refresh_s is None:
        return row.expires_at, row.expires_at is not None and row.expires_at <= now
    end = max([row.expires_at, *(pin.expires_at for pin in seen if pin.expires_at is not None)])
    return end, end <= now and all(pin.expired for pin in seen)


def _fill(row: PinRow, intent: PinIntent) -> None:
    row.model, row.tenant, row.strength = intent.model, intent.salt, intent.strength
    row.key_count, row.keys_digest = intent.key_count, intent.digest
    row.expires_at, row.refresh_s, row.note = intent.expires_at, intent.refresh_s, intent.note
    row.managed_by, row.selector = intent.managed_by, intent.selector


def _audited(row: PinRow) -> dict[str, Any]:
    """What an audit entry keeps: the digest stands for the keys."""
    return {
        "model": row.model,
        "tenant": shown(row.tenant),
        "strength": row.strength,
        "key_count": row.key_count,
        "keys_digest": row.keys_digest,
        "expires_at": row.expires_at,
        "refresh_s": row.refresh_s,
        "note": row.note,
        "managed_by": row.managed_by,
        "selector": row.selector,
    }
