"""Ceilings: limits on the quota and the pins of a tenant for callers that are restricted to it. Set by admins."""

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base import listing
from app.store.base.declarative import Base, Name, RevisedRecord


class CeilingRow(RevisedRecord, Base):
    __tablename__ = "ceilings"

    tenant: Mapped[Name] = mapped_column(primary_key=True)
    """The salt; empty for the default tenant."""
    max_limit_bytes: Mapped[int | None] = mapped_column(sa.BigInteger())
    max_floor_bytes: Mapped[int | None] = mapped_column(sa.BigInteger())
    max_weight: Mapped[float | None] = mapped_column(sa.Double())
    max_pin_budget_bytes: Mapped[int | None] = mapped_column(sa.BigInteger())
    max_store_rate_bytes: Mapped[int | None] = mapped_column(sa.BigInteger())
    max_ttl_s: Mapped[float | None] = mapped_column(sa.Double())
    no_bound: Mapped[list[str] | None] = mapped_column(sa.JSON(none_as_null=True))
    """Names of quota fields without an upper bound. Fields without a value that are not listed may not be raised."""
    strengths: Mapped[list[str] | None] = mapped_column(sa.JSON(none_as_null=True))
    """Strengths of pins that may be used; None: all but `permanent`."""


SORTABLE = listing.sortable(CeilingRow, "tenant")
