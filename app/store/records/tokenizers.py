"""Tokenizers registered for models, so that pins can be created from text."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column, undefer

from app.store.base import listing
from app.store.base.declarative import Base, Digest, LongName, Name, RevisedRecord


class TokenizerRow(RevisedRecord, Base):
    __tablename__ = "tokenizers"
    __table_args__ = (sa.UniqueConstraint("model"),)

    name: Mapped[Name] = mapped_column(primary_key=True)
    model: Mapped[LongName]
    digest: Mapped[Digest]
    """SHA-256 of `file`, in hex."""
    file: Mapped[bytes] = mapped_column(sa.LargeBinary(), deferred=True)
    """The tokenizer.json. Loaded only where it is used, because it is large."""
    chat_template: Mapped[str | None] = mapped_column(sa.Text())
    special_tokens: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON(none_as_null=True))
    """Special tokens for the template, such as bos_token and eos_token."""
    add_special_tokens: Mapped[bool]


SORTABLE = listing.sortable(TokenizerRow, "name model created_at updated_at")


async def with_file(session: AsyncSession, name: str) -> TokenizerRow | None:
    """Return a tokenizer with its file."""
    query = sa.select(TokenizerRow).where(TokenizerRow.name == name).options(undefer(TokenizerRow.file))
    return await session.scalar(query)


async def of_model(session: AsyncSession, model: str) -> TokenizerRow | None:
    """Return the tokenizer of a model, with its file."""
    query = sa.select(TokenizerRow).where(TokenizerRow.model == model).options(undefer(TokenizerRow.file))
    return await session.scalar(query)


async def models(session: AsyncSession, max_models: int) -> list[str]:
    """Return the models that have a tokenizer, by name."""
    query = sa.select(TokenizerRow.model).order_by(TokenizerRow.model).limit(max_models)
    return list(await session.scalars(query))
