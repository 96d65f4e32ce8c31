"""Tokenizers that were registered for models, so that pins can be made from text."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base import Base, Digest, LongName, Name, Seconds, Whole


class TokenizerRow(Base):
    __tablename__ = "tokenizers"
    __table_args__ = (sa.UniqueConstraint("model"),)

    name: Mapped[Name] = mapped_column(primary_key=True)
    model: Mapped[LongName]
    digest: Mapped[Digest]
    """SHA-256 of `file`, in hex."""
    file: Mapped[bytes] = mapped_column(sa.LargeBinary())
    """The tokenizer.json."""
    chat_template: Mapped[str | None] = mapped_column(sa.Text())
    special_tokens: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON(none_as_null=True))
    """Such as bos_token and eos_token, for the template."""
    add_special_tokens: Mapped[bool]
    note: Mapped[str] = mapped_column(sa.Text())
    revision: Mapped[Whole]
    created_at: Mapped[Seconds]
    updated_at: Mapped[Seconds]
