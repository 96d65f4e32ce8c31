"""All tables in one place, for migrations: importing this module fills `metadata`."""

from app.store import audit, generations, identity, nodes, pins, policies, pushes, quotas
from app.store.base import Base

metadata = Base.metadata
__all__ = ["audit", "generations", "identity", "metadata", "nodes", "pins", "policies", "pushes", "quotas"]
