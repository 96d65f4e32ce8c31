"""Tokens of callers, and the browser sessions that were opened with them. Secrets are kept as hashes only."""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store import listing
from app.store.base import EMPTY, Base, Digest, Name, Seconds
from app.store.listing import Page, Wanted


class TokenRow(Base):
    __tablename__ = "tokens"
    __table_args__ = (sa.UniqueConstraint("name"),)

    id: Mapped[Name] = mapped_column(primary_key=True)
    """Public: it is part of the token, and names it in the audit."""
    name: Mapped[Name]
    role: Mapped[Name]
    tenants: Mapped[list[str] | None] = mapped_column(sa.JSON(none_as_null=True))
    """Salts that it is limited to; None: all."""
    hash: Mapped[Digest]
    """Of the secret part; the secret itself is known to its holder alone."""
    created_by: Mapped[Name]
    created_at: Mapped[Seconds]
    expires_at: Mapped[float | None] = mapped_column(sa.Double())
    last_used_at: Mapped[float | None] = mapped_column(sa.Double())
    last_used_from: Mapped[Name] = mapped_column(server_default=EMPTY)


class SessionRow(Base):
    """A browser that logged in with a token."""

    __tablename__ = "sessions"

    hash: Mapped[Digest] = mapped_column(primary_key=True)
    """Of the cookie's value."""
    token_id: Mapped[str | None] = mapped_column(
        sa.String(128), sa.ForeignKey("tokens.id", ondelete="CASCADE"), index=True
    )
    """None: of the token that the settings give."""
    configured: Mapped[Name] = mapped_column(server_default=EMPTY)
    """Hash of that token: with another one in the settings the session is over."""
    created_at: Mapped[Seconds]
    expires_at: Mapped[Seconds]
    source: Mapped[Name] = mapped_column(server_default=EMPTY)


SETUP_ROLE = "setup"
"""Of the one-time token that makes the first; it is in no list and counts as none."""
_MADE = TokenRow.role != SETUP_ROLE


async def get(session: AsyncSession, token_id: str) -> TokenRow | None:
    return await session.get(TokenRow, token_id)


async def named(session: AsyncSession, name: str) -> TokenRow | None:
    return (await session.scalars(sa.select(TokenRow).where(TokenRow.name == name))).one_or_none()


async def exist(session: AsyncSession) -> bool:
    """Whether there is any, valid or not."""
    return bool(await session.scalar(sa.select(sa.exists().where(_MADE))))


async def other_admins(session: AsyncSession, besides: str, now: float) -> int:
    """Valid tokens of admins, besides one."""
    valid = sa.or_(TokenRow.expires_at.is_(None), TokenRow.expires_at > now)
    query = sa.select(sa.func.count()).where(TokenRow.role == "admin", TokenRow.id != besides, valid)
    return await session.scalar(query) or 0


async def drop_setup(session: AsyncSession) -> bool:
    """Whether there was one: of two who use it at once, only the first is told so."""
    query = sa.delete(TokenRow).where(TokenRow.role == SETUP_ROLE).returning(TokenRow.id)
    return (await session.scalars(query)).one_or_none() is not None


async def used(session: AsyncSession, token_id: str, at: float, source: str) -> None:
    newer = sa.or_(TokenRow.last_used_at.is_(None), TokenRow.last_used_at < at)
    await session.execute(
        sa.update(TokenRow)
        .where(TokenRow.id == token_id, newer)
        .values(last_used_at=at, last_used_from=source)
    )


_SORTABLE: dict[str, listing.Expression] = {
    "name": TokenRow.name,
    "role": TokenRow.role,
    "created_at": TokenRow.created_at,
    "expires_at": sa.func.coalesce(TokenRow.expires_at, 1e18),
    "last_used_at": sa.func.coalesce(TokenRow.last_used_at, 0.0),
}


async def page(session: AsyncSession, wanted: Wanted) -> Page[TokenRow]:
    """One page, by id unless sorted otherwise. Raises Invalid."""
    return await listing.page(session, TokenRow, TokenRow.id, _SORTABLE, wanted, _MADE)


async def open_session(session: AsyncSession, row: SessionRow, now: float, most: int) -> list[str]:
    """Those that are over go at the same time, and the oldest of the same token: with this one there are at most so
    many. Hashes of those that were ended by it."""
    await session.execute(sa.delete(SessionRow).where(SessionRow.expires_at <= now))
    same = SessionRow.token_id.is_(None) if row.token_id is None else SessionRow.token_id == row.token_id
    older = (
        sa.select(SessionRow.hash)
        .where(same)
        .order_by(SessionRow.created_at.desc(), SessionRow.hash)
        .offset(most - 1)
    )
    ended = list(await session.scalars(older))
    if ended:
        await session.execute(sa.delete(SessionRow).where(SessionRow.hash.in_(ended)))
    session.add(row)
    return ended


async def close_session(session: AsyncSession, digest: str) -> bool:
    """Whether there was one."""
    query = sa.delete(SessionRow).where(SessionRow.hash == digest).returning(SessionRow.hash)
    return (await session.scalars(query)).one_or_none() is not None
