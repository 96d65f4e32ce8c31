"""All tables in one place, for migrations: importing this module fills `metadata`."""

from app.store import (
    audit,
    ceilings,
    events,
    generations,
    identity,
    joins,
    nodes,
    pins,
    policies,
    pushes,
    quotas,
    rates,
    replicas,
    tokenizers,
    tokens,
    usage,
)
from app.store.base import Base

metadata = Base.metadata
__all__ = [
    "audit",
    "ceilings",
    "events",
    "generations",
    "identity",
    "joins",
    "metadata",
    "nodes",
    "pins",
    "policies",
    "pushes",
    "quotas",
    "rates",
    "replicas",
    "tokenizers",
    "tokens",
    "usage",
]
