"""Tokens of callers, and the browser sessions that were opened with them. Secrets are kept as hashes only."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base import EMPTY, Base, Digest, Name, Seconds


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
    revoked_at: Mapped[float | None] = mapped_column(sa.Double())
    last_used_at: Mapped[float | None] = mapped_column(sa.Double())
    last_used_from: Mapped[Name] = mapped_column(server_default=EMPTY)


class SessionRow(Base):
    """A browser that logged in with a token."""

    __tablename__ = "sessions"

    hash: Mapped[Digest] = mapped_column(primary_key=True)
    """Of the cookie's value."""
    token_id: Mapped[Name] = mapped_column(sa.ForeignKey("tokens.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[Seconds]
    expires_at: Mapped[Seconds]
    source: Mapped[Name] = mapped_column(server_default=EMPTY)


async def all_tokens(session: AsyncSession) -> Sequence[TokenRow]:
    return (await session.scalars(sa.select(TokenRow).order_by(TokenRow.name))).all()
