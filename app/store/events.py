"""Events that are worth keeping beyond the process: nodes that come, go, refuse or drift."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base import Base, Name, RowNumber, Seconds


class EventRow(Base):
    __tablename__ = "events"

    id: Mapped[int] = mapped_column(RowNumber, primary_key=True, autoincrement=True)
    at: Mapped[Seconds] = mapped_column(index=True)
    name: Mapped[Name]
    node: Mapped[Name]
    fields: Mapped[dict[str, Any]] = mapped_column(sa.JSON())
