"""Policy records: how eviction chooses victims, and on which nodes."""

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base import listing
from app.store.base.declarative import Base, Name, PushedRecord, Seconds, Whole


class PolicyRow(PushedRecord, Base):
    __tablename__ = "policies"

    name: Mapped[Name] = mapped_column(primary_key=True)
    algorithm: Mapped[Name]
    admission: Mapped[bool]
    admission_idle_s: Mapped[Seconds]
    high_watermark: Mapped[float] = mapped_column(sa.Double())
    low_watermark: Mapped[float] = mapped_column(sa.Double())
    priority: Mapped[Whole] = mapped_column(server_default="0")
    """Of several policies that match a node, the one with the highest priority applies."""


SORTABLE = listing.sortable(PolicyRow, "name algorithm priority generation created_at updated_at")
