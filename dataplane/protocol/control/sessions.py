"""Sessions: the conversations that requests name, and what operators do with their blocks."""

from typing import Literal

import msgspec

from dataplane.protocol.message_bases import ReplyOfNode, RequestToNode

MAX_LISTED_SESSIONS = 500
"""Limit for one answer."""
MAX_PREFETCH_S = 300.0
"""Longest time for which a prefetch waits for tiers."""
SessionAction = Literal["release", "retain", "prefetch"]


class ListSessions(RequestToNode, tag="list_sessions"):
    """List sessions: released ones first, then the least recently used. Answered with `SessionsListed`. A session that
    is not used meanwhile is in exactly one part."""

    tenant: str | None = None
    """Salt; None for every tenant."""
    session: str = ""
    """List only sessions of this name; empty: all."""
    after: int = 0
    """`SessionsListed.next` of the previous answer; 0 for the first."""
    limit: int = 100
    """At most MAX_LISTED_SESSIONS."""


class ActOnSession(RequestToNode, tag="act_on_session"):
    """Release, retain or prefetch the blocks of a session. Answered with `SessionActed`."""

    action: SessionAction
    """`release`: make its private blocks the first victims. `retain`: evict its blocks after the other blocks of the
    tenant. `prefetch`: load its blocks that only tiers hold."""
    tenant: str
    """Salt."""
    session: str
    seconds: float = 0.0
    """`retain`: for how long; the node shortens it to `hint_max_s`. `prefetch`: no load begins after this time, at most
    MAX_PREFETCH_S."""


class SessionState(msgspec.Struct):
    """One session of a node."""

    tenant: str
    """Salt."""
    session: str
    model: str
    """Empty if no block of the session was stored, or the node has forgotten its space."""
    started_at: int
    """Unix seconds when a request first named it."""
    used_at: int
    """Unix seconds when a request last named it."""
    released: bool
    """It was released, and no request has named it since."""
    retained_until: int
    """Unix seconds; 0 if it is not retained."""
    chunks: int
    """Length of its chain, back to the first block that neither memory nor a tier holds."""
    bytes: dict[str, int]
    """Bytes of its chain by place: `memory`, or the name of a tier. Blocks shared with others count, too."""
    private_bytes: int
    """Bytes of the blocks in memory that no other session or request shares: what `release` evicts first."""


class SessionsListed(ReplyOfNode, tag="sessions"):
    sessions: list[SessionState]
    """May be fewer than the limit although more follow: one request looks at a bounded number of blocks."""
    next: int
    """Value of `after` for the next part; 0 when there is no more."""


class SessionActed(ReplyOfNode, tag="session_acted"):
    found: bool
    """Whether the node knows the session. If not, nothing was done."""
    blocks: int = 0
    """Blocks that were demoted, that are retained, or that are being loaded."""
    bytes: int = 0
    refused_blocks: int = 0
    """Blocks that are not retained because such blocks hold the tenant's share already, or are not loaded because too
    many loads wait."""
