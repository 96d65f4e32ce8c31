"""Audit log: actions, and refused attempts. Entries never change: each has the previous entry's hash."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, load_only, mapped_column

from app.errors import LarderError
from app.schemas.access.audit import AuditFilters
from app.schemas.base.listing import PageRequest
from app.store.access.audit_chain import HASHED, link, plain
from app.store.base import listing
from app.store.base.declarative import EMPTY, Base, Digest, LongName, Name, RowNumber, Seconds, Whole
from app.store.base.listing import ListPage


class AuditRow(Base):
    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(RowNumber, primary_key=True, autoincrement=True)
    at: Mapped[Seconds] = mapped_column(index=True)
    actor: Mapped[Name]
    """Name of the token, or `local`."""
    token_id: Mapped[Name] = mapped_column(server_default=EMPTY)
    source: Mapped[Name] = mapped_column(server_default=EMPTY)
    """Address that the request came from."""
    action: Mapped[Name]
    """`create`, `update` or `delete` for a record, or the name of another action."""
    kind: Mapped[Name]
    """`quota`, `pin`, `policy`, `tier`, `blocks`, `node`, `token`, …"""
    name: Mapped[LongName]
    """Displayed name of the record."""
    type: Mapped[Name]
    generation: Mapped[Whole]
    """Generation of `type` that this change created; 0 (with an empty type) if no record of a type was changed."""
    before: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON(none_as_null=True))
    after: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON(none_as_null=True))
    request_id: Mapped[Name]
    trace_id: Mapped[Name] = mapped_column(server_default=EMPTY)
    decision: Mapped[Name] = mapped_column(server_default="allowed")
    """`allowed` or `denied`."""
    reason: Mapped[str] = mapped_column(sa.Text(), server_default=EMPTY)
    """Reason for the denial."""
    hash: Mapped[Digest] = mapped_column(server_default=EMPTY)
    """Hash of the entry and of the previous entry's hash."""


_DEFAULTS = {"token_id": "", "source": "", "trace_id": "", "decision": "allowed", "reason": ""}


class AuditHeadRow(Base):
    """The newest entry. Appending locks this table's only row."""

    __tablename__ = "audit_head"

    id: Mapped[int] = mapped_column(sa.BigInteger(), primary_key=True, autoincrement=False)
    last_id: Mapped[Whole]
    hash: Mapped[Digest]


async def lock(session: AsyncSession) -> AuditHeadRow:
    """Return the newest entry, locked until the transaction ends, so that appends are serialised."""
    query = sa.select(AuditHeadRow).with_for_update().execution_options(populate_existing=True)
    return _only((await session.scalars(query.limit(2))).all())


async def head(session: AsyncSession) -> AuditHeadRow:
    """Return the number and the hash of the newest entry; 0 and empty if there is none. Raise LarderError."""
    return _only((await session.scalars(sa.select(AuditHeadRow).limit(2))).all())


def _only(rows: Sequence[AuditHeadRow]) -> AuditHeadRow:
    if len(rows) != 1:
        raise LarderError(
            f"the table audit_head must have one row, and has {'several' if rows else 'none'}: the database was "
            "changed by another program; run 'larder audit verify' for details"
        )
    return rows[0]


async def last_id(session: AsyncSession) -> int | None:
    """Return the highest number of an entry, regardless of the head."""
    return await session.scalar(sa.select(sa.func.max(AuditRow.id)))


MANY = 50
"""Number of entries from which on `append` bypasses the session's bookkeeping."""


async def append(session: AsyncSession, rows: Sequence[AuditRow]) -> None:
    """Append entries in this order. Call it after taking all other locks, so that others wait briefly."""
    newest = await lock(session)
    for row in rows:
        row.id = newest.last_id = newest.last_id + 1
        # As they will be read back: JSON has lists, not tuples, and text keys.
        row.before, row.after = plain(row.before), plain(row.after)
        row.hash = newest.hash = link(newest.hash, written(row))
    if len(rows) < MANY:
        session.add_all(rows)
    else:  # as plain values: a session takes several times as long
        await session.execute(sa.insert(AuditRow), [{**written(row), "hash": row.hash} for row in rows])


def written(row: AuditRow) -> dict[str, Any]:
    """Return the hashed part of an entry, with the defaults of unset columns."""
    values = {name: getattr(row, name) for name in HASHED}
    return {name: _DEFAULTS.get(name) if value is None else value for name, value in values.items()}


_NO_VALUE = (ValueError, TypeError, RecursionError)
"""Exceptions raised on reading a column with a value of the wrong type."""


@dataclass(frozen=True)
class UnreadableEntry:
    """An entry that was changed in the database and can no longer be read."""

    id: int
    why: str


async def _row(session: AsyncSession, number: int) -> AuditRow | UnreadableEntry:
    query = sa.select(AuditRow).where(AuditRow.id == number).execution_options(populate_existing=True)
    try:
        return (await session.scalars(query)).one()
    except (*_NO_VALUE, OperationalError) as error:
        return UnreadableEntry(number, _cause(error))


async def _rows(session: AsyncSession, query: sa.Select[AuditRow]) -> Sequence[AuditRow | UnreadableEntry]:
    """Return the entries of a query, with an UnreadableEntry for each one that cannot be read."""
    try:
        return (await session.scalars(query.execution_options(populate_existing=True))).all()
    except (*_NO_VALUE, OperationalError) as error:
        _cause(error)
    numbers = [row.id for row in (await session.scalars(query.options(load_only(AuditRow.id)))).all()]
    return [await _row(session, number) for number in numbers]


async def after(session: AsyncSession, last_id: int, max_rows: int) -> Sequence[AuditRow | UnreadableEntry]:
    """Return the next entries after a number, oldest first."""
    return await _rows(session, sa.select(AuditRow).where(AuditRow.id > last_id).order_by(AuditRow.id).limit(max_rows))


async def read_head(session: AsyncSession) -> tuple[AuditHeadRow | None, str]:
    """Return the head and an empty string, or None and what is wrong with it."""
    try:
        newest = await head(session)
    except LarderError as error:
        return None, error.message
    except (*_NO_VALUE, OperationalError) as error:
        return None, f"the head cannot be read: {_cause(error)}"
    if [type(newest.last_id), type(newest.hash)] != [int, str]:  # SQLite stores values of any type
        return None, f"the head was changed: its entry is {newest.last_id!r}, its hash {newest.hash!r}"
    return newest, ""


def _cause(error: Exception) -> str:
    """Describe a fault in the stored data. Raise the error itself if it concerns the database instead."""
    if isinstance(error, OperationalError):
        if "decode to UTF-8" not in str(error.orig):  # SQLite stores any bytes
            raise error
        return "its text is not UTF-8"
    if isinstance(error, RecursionError):
        return "its JSON is nested too deep"
    return f"its JSON cannot be decoded: {error}" if isinstance(error, ValueError) else str(error)


async def applied(
    session: AsyncSession, since: float, until: float, max_rows: int, *where: sa.ColumnElement[bool]
) -> list[AuditRow]:
    """Return allowed entries between two times, both included, newest first, without unreadable ones."""
    query = sa.select(AuditRow).where(
        AuditRow.at >= since, AuditRow.at <= until, AuditRow.decision == "allowed", *where
    )
    rows = await _rows(session, query.order_by(AuditRow.id.desc()).limit(max_rows))
    return [row for row in rows if isinstance(row, AuditRow)]


def _conditions(filters: AuditFilters) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = [
        getattr(AuditRow, name) == value
        for name in ("actor", "action", "kind", "name", "decision")
        if (value := getattr(filters, name)) is not None
    ]
    if filters.since is not None:
        conditions.append(AuditRow.at >= filters.since)
    if filters.until is not None:
        conditions.append(AuditRow.at <= filters.until)
    return conditions


async def page(
    session: AsyncSession, page_request: PageRequest, filters: AuditFilters
) -> ListPage[AuditRow | UnreadableEntry]:
    """Return one page, newest first. Raise Invalid."""
    newest_first = PageRequest(page_request.limit, page_request.cursor, "-id")
    where = _conditions(filters)
    by_number = {"id": AuditRow.id}
    try:
        listed = await listing.page(session, AuditRow, by_number, newest_first, *where)
        return ListPage(list(listed.rows), listed.total, listed.next_cursor)
    except (*_NO_VALUE, OperationalError) as error:
        _cause(error)
    listed = await listing.page(session, AuditRow, by_number, newest_first, *where, options=(load_only(AuditRow.id),))
    numbers = [row.id for row in listed.rows]
    return ListPage([await _row(session, number) for number in numbers], listed.total, listed.next_cursor)
