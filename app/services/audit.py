"""The journal of changes and refusals: read, handed out whole, and checked for being what was written."""

import asyncio
import math
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

import msgspec
import structlog

from app.errors import LarderError, StoreUnavailable
from app.schemas.audit import AuditEntry, AuditList, AuditVerified
from app.store import audit
from app.store.audit import Filters
from app.store.chain import HASHED, link
from app.store.database import Database
from app.store.listing import Wanted

PART = 500
BEFORE_ALL = -(1 << 63)
HEAD_EVERY_S = 3600.0


class Audit:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._told = -1
        self._log = structlog.get_logger()

    async def page(self, wanted: Wanted, filters: Filters) -> AuditList:
        """Newest first. Raises Invalid."""
        async with self._database.read() as session:
            page = await audit.page(session, wanted, filters)
        return AuditList([_shown(row)[0] for row in page.rows], page.total, page.next_cursor)

    async def export(self) -> AsyncIterator[bytes]:
        """All entries as JSON lines, oldest first, as far as there are any now. A slow reader holds no connection; what
        cannot be read has a line that says so."""
        async with self._database.read() as session:
            last = await audit.last_id(session)
        at = BEFORE_ALL  # what somebody slipped in under number 1 is handed out, too: it must be seen
        while last is not None and at < last:
            async with self._database.read() as session:
                rows = await audit.after_all(session, at, PART)
            rows = [row for row in rows if row.id <= last]
            if not rows:
                return
            at = rows[-1].id
            yield b"".join(_shown(row)[1] + b"\n" for row in rows)

    async def verify(self, expect: str = "") -> AuditVerified:
        """Walk the whole chain; `expect` is the hash of an entry that somebody remembered."""
        walk = Walk(expect)
        async with self._database.read() as session:  # one moment, however long it takes
            head, fault = await audit.read_head(session)
            walk.ends_at = None if head is None else head.last_id
            at = BEFORE_ALL
            while not walk.fault:
                rows, unreadable = await audit.readable(session, at, PART)
                walk.take(_entry(row) for row in rows)
                if unreadable is not None:
                    walk.meet(*unreadable)
                if not rows:
                    break
                at = rows[-1].id
        if head is None:
            walk.fault = walk.fault or fault
        else:
            walk.end(head.last_id, head.hash)
        return walk.result()

    async def run(self) -> None:
        """Tell the newest hash now and then: in the log it is out of reach of who could rewrite the database."""
        while True:
            await self.tell()
            await asyncio.sleep(HEAD_EVERY_S)

    async def tell(self) -> None:
        try:
            async with self._database.read() as session:
                head = await audit.head(session)
        except StoreUnavailable:
            return
        except LarderError as error:
            self._log.error("audit.tampered", reason=error.message)
            return
        if head.last_id != self._told:
            self._told = head.last_id
            self._log.info("audit.head", id=head.last_id, hash=head.hash)


@dataclass
class Walk:
    """A chain that is followed from its first entry on. What is wrong first is the fault; the walk ends there."""

    expect: str = ""
    ends_at: int | None = None
    """Number of the entry that the head names, when that is known."""
    last_id: int = 0
    last_hash: str = ""
    entries: int = 0
    met: bool = False
    """The remembered hash was there."""
    fault: str = ""

    def take(self, entries: Iterable[AuditEntry]) -> None:
        """The next entries, in the order of their numbers."""
        for entry in entries:
            if entry.id <= 0 or not self._follows(entry):
                what = f"({entry.action!r} {entry.kind!r} {entry.name!r} by {entry.actor!r})"
                self.fault = self._misplaced(entry.id) or (
                    f"entry {entry.id} {what} was changed, moved or added: its hash is not that of what it says"
                )
                return
            self.last_id, self.last_hash = entry.id, entry.hash
            self.entries += 1
            self.met = self.met or entry.hash == self.expect

    def meet(self, number: int, why: str) -> None:
        """The next entry cannot even be read: nobody wrote it like that."""
        self.fault = self.fault or self._misplaced(number) or f"entry {number} was changed: {why}"

    def end(self, head_id: int, head_hash: str) -> None:
        """The chain must end where its head says."""
        if not self.fault and head_id > self.last_id:
            self.fault = (
                f"{_these(self.last_id + 1, head_id)} missing at the end: the head is entry {head_id}"
            )
        elif not self.fault and head_id < self.last_id:
            self.fault = f"{_these(head_id + 1, self.last_id)} added after the head, which is entry {head_id}"
        elif not self.fault and head_hash != self.last_hash:
            self.fault = f"the head does not have the hash of entry {head_id}: one of the two was changed"
        if not self.fault and self.expect and not self.met:
            self.fault = (
                f"no entry has the remembered hash {self.expect[:64]}: the journal was rewritten or cut since, "
                "or the hash is of another one"
            )

    def result(self) -> AuditVerified:
        return AuditVerified(not self.fault, self.entries, self.last_id, self.last_hash, self.fault)

    def _follows(self, entry: AuditEntry) -> bool:
        try:
            return link(self.last_hash, {name: getattr(entry, name) for name in HASHED}) == entry.hash
        except (
            ValueError,
            TypeError,
            RecursionError,
        ):  # bytes, NaN, no end of lists: nothing that JSON can say
            return False

    def _misplaced(self, number: int) -> str:
        """What is wrong with there being an entry of this number here; empty when nothing is."""
        if number <= 0:
            return f"entry {number} was added: the first one has the number 1"
        if self.ends_at is not None and number > self.ends_at:
            return f"entry {number} was added: the head is entry {self.ends_at}"
        if number > self.last_id + 1:
            return f"{_these(self.last_id + 1, number - 1)} missing before entry {number}"
        return ""


def _these(first: int, last: int) -> str:
    return f"entry {first} is" if first == last else f"entries {first} to {last} are"


def _entry(row: audit.AuditRow) -> AuditEntry:
    return AuditEntry(**{name: getattr(row, name) for name in AuditEntry.__struct_fields__})


def _shown(row: audit.AuditRow | audit.Unreadable) -> tuple[AuditEntry, bytes]:
    """What is handed out of an entry, and its JSON. A database may hold what no entry holds, and JSON cannot say."""
    if isinstance(row, audit.Unreadable):
        return _unreadable(row.id, row.why)
    try:
        entry = msgspec.convert(msgspec.structs.asdict(_entry(row)), AuditEntry)
        if not math.isfinite(entry.at):
            return _unreadable(row.id, "its time is no number")
        return entry, msgspec.json.encode(entry)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        return _unreadable(row.id, f"it holds what no entry holds: {error}")


def _unreadable(number: int, why: str) -> tuple[AuditEntry, bytes]:
    texts = dict.fromkeys(AuditEntry.__struct_fields__, "")
    told = {"id": number, "at": 0.0, "generation": 0, "before": None, "after": None}
    entry = AuditEntry(**{**texts, **told, "decision": "unreadable", "reason": why})  # type: ignore[arg-type]
    return entry, msgspec.json.encode(entry)
