"""Policy records: how eviction chooses victims, and on which nodes."""

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base import listing
from app.store.base.declarative import EMPTY, Base, Labels, Name, Seconds, Whole


class PolicyRow(Base):
    __tablename__ = "policies"

    name: Mapped[Name] = mapped_column(primary_key=True)
    algorithm: Mapped[Name]
    admission: Mapped[bool]
    admission_idle_s: Mapped[Seconds]
    high_watermark: Mapped[float] = mapped_column(sa.Double())
    low_watermark: Mapped[float] = mapped_column(sa.Double())
    note: Mapped[str] = mapped_column(sa.Text())
    managed_by: Mapped[Name] = mapped_column(server_default=EMPTY)
    """Owner of the document that manages the record (see `docs/operate/as-code.md`); empty: none."""
    selector: Mapped[Labels]
    priority: Mapped[Whole] = mapped_column(server_default="0")
    """Of several policies that match a node, the one with the highest priority applies."""
    generation: Mapped[Whole]
    """Generation that last changed this record."""
    created_at: Mapped[Seconds]
    updated_at: Mapped[Seconds]


SORTABLE = listing.sortable(PolicyRow, "name algorithm priority generation created_at updated_at")
