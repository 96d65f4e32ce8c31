"""The usage ledger: what each tenant used of each node and model, hour by hour."""

from sqlalchemy.orm import Mapped, mapped_column

from app.store.base import Base, LongName, Name, Whole


class UsageRow(Base):
    __tablename__ = "usage"

    hour: Mapped[Whole] = mapped_column(primary_key=True)
    """Unix seconds of its start."""
    node: Mapped[Name] = mapped_column(primary_key=True)
    tenant: Mapped[Name] = mapped_column(primary_key=True)
    """The salt; empty for the default tenant."""
    model: Mapped[LongName] = mapped_column(primary_key=True)
    byte_seconds: Mapped[Whole] = mapped_column(server_default="0")
    requested_tokens: Mapped[Whole] = mapped_column(server_default="0")
    served_tokens: Mapped[Whole] = mapped_column(server_default="0")
    """Requested tokens that the cache had."""
    stored_bytes: Mapped[Whole] = mapped_column(server_default="0")
    evicted_blocks: Mapped[Whole] = mapped_column(server_default="0")
    evicted_bytes: Mapped[Whole] = mapped_column(server_default="0")
    refused_blocks: Mapped[Whole] = mapped_column(server_default="0")
