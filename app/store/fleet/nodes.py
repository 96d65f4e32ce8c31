"""Nodes that have identified themselves, and what each has applied of every type."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base.declarative import EMPTY, Base, Digest, Labels, Name, Seconds, Whole
from app.store.fleet import held_pins


class NodeRow(Base):
    __tablename__ = "nodes"

    name: Mapped[Name] = mapped_column(primary_key=True)
    control_url: Mapped[str] = mapped_column(sa.Text())
    events_url: Mapped[str] = mapped_column(sa.Text())
    epoch: Mapped[Name]
    pid: Mapped[Whole]
    release: Mapped[Name]
    engine_socket: Mapped[str] = mapped_column(sa.Text())
    capacity_bytes: Mapped[Whole]
    wanted_capacity_bytes: Mapped[int | None] = mapped_column(sa.BigInteger())
    """Capacity in bytes that was last requested. Requested again if the node comes back with less."""
    reported_labels: Mapped[Labels]
    """Labels that the node reports."""
    labels: Mapped[Labels]
    """Labels that operators set; they override the reported ones."""
    draining: Mapped[bool] = mapped_column(server_default=sa.false())
    public_key: Mapped[Name] = mapped_column(server_default=EMPTY)
    """CURVE public key in Z85; empty for a node on this machine's own sockets."""
    joined_by: Mapped[Name] = mapped_column(server_default=EMPTY)
    """Join token with which the node was admitted."""
    first_seen_at: Mapped[Seconds]
    seen_at: Mapped[Seconds]
    """Unix seconds of the last answer to a hello or a push. Heartbeats are not recorded here."""


class ObservationRow(Base):
    """Last answer of a node about one type."""

    __tablename__ = "observations"

    node: Mapped[Name] = mapped_column(sa.ForeignKey("nodes.name", ondelete="CASCADE"), primary_key=True)
    type: Mapped[Name] = mapped_column(primary_key=True)
    store: Mapped[Name]
    generation: Mapped[Whole]
    digest: Mapped[Digest]
    nacked_generation: Mapped[int | None] = mapped_column(sa.BigInteger())
    nacked_at: Mapped[float | None] = mapped_column(sa.Double())
    faults: Mapped[list[dict[str, Any]] | None] = mapped_column(sa.JSON(none_as_null=True))
    updated_at: Mapped[Seconds]


async def all_nodes(session: AsyncSession) -> Sequence[NodeRow]:
    return (await session.scalars(sa.select(NodeRow).order_by(NodeRow.name))).all()


async def all_observations(session: AsyncSession) -> Sequence[ObservationRow]:
    return (await session.scalars(sa.select(ObservationRow))).all()


async def observations(session: AsyncSession, node: str) -> Sequence[ObservationRow]:
    """Return the observations of one node."""
    return (await session.scalars(sa.select(ObservationRow).where(ObservationRow.node == node))).all()


async def save_node(session: AsyncSession, row: NodeRow) -> None:
    """Insert or update a node. Delete the nodes that it replaces at its control URL."""
    replaced = sa.select(NodeRow).where(
        NodeRow.control_url == row.control_url, NodeRow.public_key == row.public_key, NodeRow.name != row.name
    )
    for old in (await session.scalars(replaced)).all():
        await session.delete(old)
    stored = await session.get(NodeRow, row.name)
    if stored is not None:
        row.first_seen_at = stored.first_seen_at
        row.wanted_capacity_bytes = stored.wanted_capacity_bytes
        row.labels, row.draining = stored.labels, stored.draining
        if stored.public_key:  # enrolment has recorded these values
            row.control_url, row.events_url = stored.control_url, stored.events_url
            row.joined_by = stored.joined_by
    await session.merge(row)


async def by_key(session: AsyncSession, public_key: str) -> NodeRow | None:
    """Return the node that joined with this key, if any."""
    return (await session.scalars(sa.select(NodeRow).where(NodeRow.public_key == public_key).limit(1))).one_or_none()


async def forget(session: AsyncSession, row: NodeRow) -> None:
    """Delete a node, with its observations and the record of the pins that it held."""
    await held_pins.forget(session, row.name)
    await session.execute(sa.delete(ObservationRow).where(ObservationRow.node == row.name))
    await session.delete(row)


async def desired_capacity(session: AsyncSession, name: str) -> int | None:
    return await session.scalar(sa.select(NodeRow.wanted_capacity_bytes).where(NodeRow.name == name))


async def want_capacity(session: AsyncSession, name: str, capacity_bytes: int | None) -> None:
    await session.execute(sa.update(NodeRow).where(NodeRow.name == name).values(wanted_capacity_bytes=capacity_bytes))


async def save_observation(session: AsyncSession, row: ObservationRow) -> None:
    await session.merge(row)
