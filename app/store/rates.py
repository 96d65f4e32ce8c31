"""Rates: how fast a model's prefill is without the cache, for the estimate of what was saved."""

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base import EMPTY, Base, LongName, Name, Seconds, Whole


class RateRow(Base):
    __tablename__ = "rates"

    name: Mapped[Name] = mapped_column(primary_key=True)
    model: Mapped[LongName]
    space: Mapped[Name] = mapped_column(server_default=EMPTY)
    """One space of the model, 32 hex digits; empty: all of them."""
    prefill_tokens_per_s: Mapped[float] = mapped_column(sa.Double())
    note: Mapped[str] = mapped_column(sa.Text())
    revision: Mapped[Whole]
    created_at: Mapped[Seconds]
    updated_at: Mapped[Seconds]
