"""Managers: management processes that share the database."""

import msgspec


class ManagerAnswer(msgspec.Struct, frozen=True):
    id: str
    host: str
    pid: int
    url: str
    """URL on which the manager listens, as it reports itself."""
    pushing: bool
    """Whether this manager pushes records to nodes."""
    alive: bool
    """Whether it reported within the last seconds."""
    answering: bool
    """Whether this manager sent the answer."""
    started_at: float
    seen_at: float


class ManagerList(msgspec.Struct, frozen=True):
    items: list[ManagerAnswer]
    total: int
