"""The audit log of changes and refusals: list, export, and verify its hash chain."""

import math
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec
import structlog

from app.errors import LarderError, StoreUnavailable
from app.schemas.access.audit import AuditEntry, AuditFilters, AuditList, AuditVerified
from app.schemas.base.listing import PageRequest
from app.services.base.fields import answer
from app.store.access import audit
from app.store.access.audit_chain import HASHED, link
from app.store.base.database import Database

PART = 500
BEFORE_ALL = -(1 << 63)


class Audit:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._logged_id = -1
        self._log = structlog.get_logger()

    async def page(self, page_request: PageRequest, filters: AuditFilters) -> AuditList:
        """Return a page of entries, newest first. Raises Invalid."""
        async with self._database.read() as session:
            page = await audit.page(session, page_request, filters)
        return AuditList([_shown(row)[0] for row in page.rows], total=page.total, next_cursor=page.next_cursor)

    async def export(self) -> AsyncIterator[bytes]:
        """Yield all current entries as JSON lines, oldest first. A slow reader holds no database connection; an
        unreadable entry yields a line that says so."""
        async with self._database.read() as session:
            last = await audit.last_id(session)
        at = BEFORE_ALL  # export entries that were inserted under a number below 1, too
        while last is not None and at < last:
            async with self._database.read() as session:
                rows = await audit.after(session, at, PART)
            rows = [row for row in rows if row.id <= last]
            if not rows:
                return
            at = rows[-1].id
            yield b"".join(_shown(row)[1] + b"\n" for row in rows)

    async def verify(self, expect: str = "") -> AuditVerified:
        """Verify the whole chain. `expect` is the remembered hash of an entry; the result says whether the chain
        contains it."""
        walk = ChainVerification(expect)
        async with self._database.read() as session:  # one snapshot, however long it takes
            head, fault = await audit.read_head(session)
            walk.ends_at = None if head is None else head.last_id
            at = BEFORE_ALL
            while not walk.fault:
                rows = await audit.after(session, at, PART)
                for row in rows:
                    if isinstance(row, audit.UnreadableEntry):
                        walk.visit(row.id, row.why)
                        break
                    if not walk.take(_entry(row)):
                        break
                if not rows:
                    break
                at = rows[-1].id
        if head is None:
            walk.fault = walk.fault or fault
        else:
            walk.end(head.last_id, head.hash)
        return walk.result()

    async def log_head(self) -> None:
        """Log the newest hash, now and then: an attacker who can rewrite the database cannot rewrite the log."""
        try:
            async with self._database.read() as session:
                head = await audit.head(session)
        except StoreUnavailable:
            return
        except LarderError as error:
            self._log.error("audit.tampered", reason=error.message)
            return
        if head.last_id != self._logged_id:
            self._logged_id = head.last_id
            self._log.info("audit.head", id=head.last_id, hash=head.hash)


@dataclass
class ChainVerification:
    """Verification of a chain from its first entry on. It stops at the first fault."""

    expect: str = ""
    ends_at: int | None = None
    """Number of the entry that the head names, if known."""
    last_id: int = 0
    last_hash: str = ""
    entries: int = 0
    found_expected: bool = False
    """Whether the chain contains the remembered hash."""
    fault: str = ""

    def take(self, entry: AuditEntry) -> bool:
        """Verify the next entry, in the order of their numbers. Return whether it continues the chain."""
        if entry.id <= 0 or not self._follows(entry):
            described = f"({entry.action!r} {entry.kind!r} {entry.name!r} by {entry.actor!r})"
            self.fault = self._misplaced(entry.id) or (
                f"entry {entry.id} {described} was changed, moved or added: its hash does not match its contents"
            )
            return False
        self.last_id, self.last_hash = entry.id, entry.hash
        self.entries += 1
        self.found_expected = self.found_expected or entry.hash == self.expect
        return True

    def visit(self, number: int, reason: str) -> None:
        """Report an unreadable entry: Larder never writes one."""
        self.fault = self.fault or self._misplaced(number) or f"entry {number} was changed: {reason}"

    def end(self, head_id: int, head_hash: str) -> None:
        """Check that the chain ends at its head."""
        if not self.fault and head_id > self.last_id:
            self.fault = f"{_entries_are(self.last_id + 1, head_id)} missing at the end: the head is entry {head_id}"
        elif not self.fault and head_id < self.last_id:
            self.fault = f"{_entries_are(head_id + 1, self.last_id)} added after the head, which is entry {head_id}"
        elif not self.fault and head_hash != self.last_hash:
            self.fault = f"the head does not have the hash of entry {head_id}: one of the two was changed"
        if not self.fault and self.expect and not self.found_expected:
            self.fault = (
                f"no entry has the remembered hash {self.expect[:64]}: the journal was rewritten or cut since, "
                "or the hash is of another one"
            )

    def result(self) -> AuditVerified:
        return AuditVerified(not self.fault, self.entries, self.last_id, self.last_hash, self.fault)

    def _follows(self, entry: AuditEntry) -> bool:
        try:
            return link(self.last_hash, {name: getattr(entry, name) for name in HASHED}) == entry.hash
        except (ValueError, TypeError, RecursionError):  # bytes, NaN, endless lists: JSON has none of them
            return False

    def _misplaced(self, number: int) -> str:
        """Return why an entry of this number cannot be next; an empty string if it can."""
        if number <= 0:
            return f"entry {number} was added: the first one has the number 1"
        if self.ends_at is not None and number > self.ends_at:
            return f"entry {number} was added: the head is entry {self.ends_at}"
        if number > self.last_id + 1:
            return f"{_entries_are(self.last_id + 1, number - 1)} missing before entry {number}"
        return ""


def _entries_are(first: int, last: int) -> str:
    return f"entry {first} is" if first == last else f"entries {first} to {last} are"


def _entry(row: audit.AuditRow) -> AuditEntry:
    return answer(AuditEntry, row)


def _shown(row: audit.AuditRow | audit.UnreadableEntry) -> tuple[AuditEntry, bytes]:
    """Return an entry and its JSON. A tampered database may hold values that no entry has and JSON cannot express."""
    if isinstance(row, audit.UnreadableEntry):
        return _unreadable(row.id, row.why)
    try:
        entry = msgspec.convert(msgspec.structs.asdict(_entry(row)), AuditEntry)
        if not math.isfinite(entry.at):
            return _unreadable(row.id, "its time is no number")
        return entry, msgspec.json.encode(entry)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        return _unreadable(row.id, f"it holds what no entry holds: {error}")


def _unreadable(number: int, reason: str) -> tuple[AuditEntry, bytes]:
    texts = dict.fromkeys(AuditEntry.__struct_fields__, "")
    defaults = {"id": number, "at": 0.0, "generation": 0, "before": None, "after": None}
    entry = AuditEntry(**{**texts, **defaults, "decision": "unreadable", "reason": reason})  # type: ignore[arg-type]
    return entry, msgspec.json.encode(entry)
