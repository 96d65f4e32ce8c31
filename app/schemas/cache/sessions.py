"""Sessions: the conversations that requests name."""

from typing import Annotated

import msgspec
from msgspec import Meta

from app.schemas.base.fields import TenantName
from app.schemas.cache.actions import TargetedPost
from app.schemas.records.prefixes import NodeError

MAX_SECONDS = 31_536_000.0


class AgentSessionPost(TargetedPost, kw_only=True):
    """The tenant of the session, and how long the action holds."""

    tenant: TenantName | None = None
    """Tenant, as shown; defaults to the only one that the token is limited to, or else to `_default`."""
    seconds: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] | None = None
    """`retain`: how long, 300 by default; nodes shorten it to their `dataplane.hint_max_s`. `prefetch`: time after
    which no load begins, 60 by default, at most 300. Has no effect on `release`."""


class AgentSessionAnswer(msgspec.Struct, frozen=True):
    """One session on one node."""

    node: str
    tenant: str
    session: str
    model: str
    """Empty as long as no block of the session was stored."""
    started_at: float
    """When a request first named the session."""
    used_at: float
    """When a request last named it."""
    released: bool
    """Whether it was released, and no request has named it since."""
    retained_until: float | None
    """Null if it is not retained."""
    chunks: int
    """Length of its chain, back to the first block that neither memory nor a tier holds."""
    bytes: dict[str, int]
    """Bytes of its chain by place: `memory`, or the name of a tier. Includes shared blocks."""
    private_bytes: int
    """Bytes of the blocks in memory that no other session or request shares."""


class AgentSessionList(msgspec.Struct, frozen=True):
    items: list[AgentSessionAnswer]
    """Sessions, grouped by node: of each node, released ones first, then the least recently used."""
    next_cursor: str
    """`cursor` of the next page; empty on the last. A page with fewer items than `limit`, or none, may not be the
    last."""
    failed_nodes: list[NodeError]
    """Nodes that did not answer; their sessions are missing."""


class AgentSessionCopies(msgspec.Struct, frozen=True):
    """One session on all nodes that know it."""

    session: str
    items: list[AgentSessionAnswer]
    total: int
    failed_nodes: list[NodeError]


class NodeSessionAction(msgspec.Struct, frozen=True):
    """What one node did with a session, or an error."""

    node: str
    blocks: int
    """Blocks that are the first victims now, that are retained, or that are being loaded."""
    bytes: int
    refused_blocks: int
    """Blocks that are not retained because such blocks hold the tenant's share already, or not loaded because too many
    loads wait."""
    error: str | None


class SessionActionAnswer(msgspec.Struct, frozen=True):
    session: str
    tenant: str
    items: list[NodeSessionAction]
    """Nodes that know the session, and nodes that did not answer, by name."""
    total: int
    blocks: int
    """Sum over the nodes."""
    bytes: int
    refused_blocks: int
