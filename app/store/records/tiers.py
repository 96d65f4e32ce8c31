"""Tier records: stores behind the memory of nodes."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base import listing
from app.store.base.declarative import Base, Name, PushedRecord, Seconds, Whole


class TierRow(PushedRecord, Base):
    __tablename__ = "tiers"

    name: Mapped[Name] = mapped_column(primary_key=True)
    type: Mapped[Name]
    budget_bytes: Mapped[Whole]
    parameters: Mapped[dict[str, Any]] = mapped_column(sa.JSON())
    order: Mapped[Whole]
    spill: Mapped[Name]
    load_deadline_s: Mapped[Seconds]
    max_bytes_in_flight: Mapped[Whole]
    compress: Mapped[Name] = mapped_column(server_default="none")
    managed_by: Mapped[Name] = mapped_column()


SORTABLE = listing.sortable(TierRow, "name type order budget_bytes generation created_at updated_at")
