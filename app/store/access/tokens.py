"""API tokens of callers, and the browser sessions opened with them. Secrets are stored only as hashes."""

from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.schemas.base.listing import PageRequest
from app.store.base import listing
from app.store.base.declarative import EMPTY, Base, Digest, Name, Seconds
from app.store.base.listing import ListPage


class TokenRow(Base):
    __tablename__ = "tokens"
    __table_args__ = (sa.UniqueConstraint("name"),)

    id: Mapped[Name] = mapped_column(primary_key=True)
    """Public identifier: part of the token; identifies it in the audit log."""
    name: Mapped[Name]
    role: Mapped[Name]
    tenants: Mapped[list[str] | None] = mapped_column(sa.JSON(none_as_null=True))
    """Salts of the tenants that the token is limited to; None: all."""
    hash: Mapped[Digest]
    """Hash of the secret part. Only the holder knows the secret itself."""
    created_by: Mapped[Name]
    created_at: Mapped[Seconds]
    expires_at: Mapped[float | None] = mapped_column(sa.Double())
    last_used_at: Mapped[float | None] = mapped_column(sa.Double())
    last_used_from: Mapped[Name] = mapped_column(server_default=EMPTY)


class ExpiredToken(NamedTuple):
    id: str
    name: str
    expires_at: float


class SessionRow(Base):
    """Login of a browser with a token."""

    __tablename__ = "sessions"

    hash: Mapped[Digest] = mapped_column(primary_key=True)
    """Hash of the cookie's value."""
    token_id: Mapped[str | None] = mapped_column(
        sa.String(128), sa.ForeignKey("tokens.id", ondelete="CASCADE"), index=True
    )
    """None for the token given in the settings."""
    configured: Mapped[Name] = mapped_column(server_default=EMPTY)
    """Hash of the token in the settings. If the settings change to another token, the session ends."""
    created_at: Mapped[Seconds]
    expires_at: Mapped[Seconds]
    source: Mapped[Name] = mapped_column(server_default=EMPTY)


SETUP_ROLE = "setup"
"""Role of the one-time token with which the first token is created. Lists and counts exclude it."""
_MADE = TokenRow.role != SETUP_ROLE


async def named(session: AsyncSession, name: str) -> TokenRow | None:
    return (await session.scalars(sa.select(TokenRow).where(TokenRow.name == name))).one_or_none()


async def exist(session: AsyncSession) -> bool:
    """Return whether there is any token, valid or not."""
    return bool(await session.scalar(sa.select(sa.exists().where(_MADE))))


async def other_admins(session: AsyncSession, excluded: str, now: float) -> int:
    """Return the number of valid admin tokens, excluding one."""
    valid = sa.or_(TokenRow.expires_at.is_(None), TokenRow.expires_at > now)
    query = sa.select(sa.func.count()).where(TokenRow.role == "admin", TokenRow.id != excluded, valid)
    return await session.scalar(query) or 0


async def ending(session: AsyncSession, after: float, max_rows: int) -> list[tuple[str, float]]:
    """Return the names of the tokens that expire after a time, with their times, soonest first."""
    query = sa.select(TokenRow.name, TokenRow.expires_at).where(_MADE, TokenRow.expires_at > after)
    rows = await session.execute(query.order_by(TokenRow.expires_at, TokenRow.name).limit(max_rows))
    return [(name, at) for name, at in rows if at is not None]


async def expired(session: AsyncSession, since: float, now: float) -> list[ExpiredToken]:
    """Return the tokens that expired in a period, oldest first."""
    query = (
        sa.select(TokenRow.id, TokenRow.name, TokenRow.expires_at)
        .where(_MADE, TokenRow.expires_at > since, TokenRow.expires_at <= now)
        .order_by(TokenRow.expires_at)
    )
    rows = await session.execute(query)
    return [ExpiredToken(token_id, name, at or 0.0) for token_id, name, at in rows]


async def drop_setup(session: AsyncSession) -> bool:
    """Delete the setup token and return whether it existed. Of concurrent callers, only one gets True."""
    query = sa.delete(TokenRow).where(TokenRow.role == SETUP_ROLE).returning(TokenRow.id)
    return (await session.scalars(query)).one_or_none() is not None


async def used(session: AsyncSession, token_id: str, at: float, source: str) -> None:
    newer = sa.or_(TokenRow.last_used_at.is_(None), TokenRow.last_used_at < at)
    await session.execute(
        sa.update(TokenRow).where(TokenRow.id == token_id, newer).values(last_used_at=at, last_used_from=source)
    )


SORTABLE = listing.sortable(
    TokenRow,
    "name role created_at expires_at last_used_at",
    expires_at=sa.func.coalesce(TokenRow.expires_at, 1e18),
    last_used_at=sa.func.coalesce(TokenRow.last_used_at, 0.0),
)


async def page(session: AsyncSession, page_request: PageRequest) -> ListPage[TokenRow]:
    """Return one page, sorted by id by default. Raise Invalid."""
    return await listing.page(session, TokenRow, SORTABLE, page_request, _MADE)


async def open_session(session: AsyncSession, row: SessionRow, now: float, max_sessions: int) -> list[str]:
    """Open a session and delete expired ones. Keep at most `max_sessions` sessions per token by ending its oldest ones.

    Returns the hashes of the sessions of this token that were ended.
    """
    await session.execute(sa.delete(SessionRow).where(SessionRow.expires_at <= now))
    of_token = SessionRow.token_id.is_(None) if row.token_id is None else SessionRow.token_id == row.token_id
    older = (
        sa.select(SessionRow.hash)
        .where(of_token)
        .order_by(SessionRow.created_at.desc(), SessionRow.hash)
        .offset(max_sessions - 1)
    )
    ended = list(await session.scalars(older))
    if ended:
        await session.execute(sa.delete(SessionRow).where(SessionRow.hash.in_(ended)))
    session.add(row)
    return ended


async def close_session(session: AsyncSession, digest: str) -> bool:
    """Close a session, and return whether it existed."""
    query = sa.delete(SessionRow).where(SessionRow.hash == digest).returning(SessionRow.hash)
    return (await session.scalars(query)).one_or_none() is not None
