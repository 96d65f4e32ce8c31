"""Who did what, or was refused it. Entries are never changed: each holds the hash of the one before it."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store import listing
from app.store.base import EMPTY, Base, Digest, LongName, Name, RowNumber, Seconds, Whole
from app.store.listing import Page, Wanted


class AuditRow(Base):
    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(RowNumber, primary_key=True, autoincrement=True)
    at: Mapped[Seconds]
    actor: Mapped[Name]
    """Name of the token, or `local`."""
    token_id: Mapped[Name] = mapped_column(server_default=EMPTY)
    source: Mapped[Name] = mapped_column(server_default=EMPTY)
    """Address that the request came from."""
    action: Mapped[Name]
    """`create`, `update` or `delete` of a record, or the name of what else was done."""
    kind: Mapped[Name]
    """`quota`, `pin`, `policy`, `blocks`, `node`, `token`, …"""
    name: Mapped[LongName]
    """The record's name as people see it."""
    type: Mapped[Name]
    generation: Mapped[Whole]
    """The generation of `type` that this change made; 0 (and no type) for what changes no record of a type."""
    before: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON(none_as_null=True))
    after: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON(none_as_null=True))
    request_id: Mapped[Name]
    trace_id: Mapped[Name] = mapped_column(server_default=EMPTY)
    decision: Mapped[Name] = mapped_column(server_default="allowed")
    """`allowed` or `denied`."""
    reason: Mapped[str] = mapped_column(sa.Text(), server_default=EMPTY)
    """Why it was denied."""
    hash: Mapped[Digest] = mapped_column(server_default=EMPTY)
    """Over the entry and the hash of the one before it."""


class AuditHeadRow(Base):
    """The newest entry; its only row is locked by whoever appends."""

    __tablename__ = "audit_head"

    id: Mapped[int] = mapped_column(sa.BigInteger(), primary_key=True, autoincrement=False)
    last_id: Mapped[Whole]
    hash: Mapped[Digest]


async def append(session: AsyncSession, rows: Sequence[AuditRow]) -> None:
    """Add entries at the end of the journal, in this order."""
    session.add_all(rows)


async def page(session: AsyncSession, wanted: Wanted) -> Page[AuditRow]:
    """Newest first. Raises Invalid."""
    newest_first = Wanted(wanted.limit, wanted.cursor, "-id")
    return await listing.page(session, AuditRow, AuditRow.id, {"id": AuditRow.id}, newest_first)
