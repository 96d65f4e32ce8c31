"""Management planes that share this database, as each told of itself."""

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base import Base, Name, Seconds, Whole


class ReplicaRow(Base):
    __tablename__ = "replicas"

    id: Mapped[Name] = mapped_column(primary_key=True)
    host: Mapped[Name]
    pid: Mapped[Whole]
    url: Mapped[str] = mapped_column(sa.Text())
    pushing: Mapped[bool]
    started_at: Mapped[Seconds]
    seen_at: Mapped[Seconds]
