"""Management planes that share a database, as they are shown."""

import msgspec


class ReplicaAnswer(msgspec.Struct, frozen=True):
    id: str
    host: str
    pid: int
    url: str
    """Where it listens, as it knows it."""
    pushing: bool
    """It is the one that tells nodes what to hold."""
    alive: bool
    """It was seen within the last seconds."""
    answering: bool
    """It is the one that gave this answer."""
    started_at: float
    seen_at: float


class ReplicaList(msgspec.Struct, frozen=True):
    items: list[ReplicaAnswer]
    total: int
