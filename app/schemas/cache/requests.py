"""Records of engines' requests."""

import msgspec

from app.schemas.records.prefixes import NodeError


class RequestAnswer(msgspec.Struct, frozen=True):
    """What one request of an engine got from the cache of its node."""

    node: str
    request: str
    """The engine's id of the request."""
    tenant: str
    engine: str
    """Name that the engine gave itself."""
    model: str
    at: float
    """When the engine scheduled the request."""
    prompt_tokens: int
    engine_tokens: int
    """Tokens that the engine's own prefix cache had."""
    loaded_tokens: dict[str, int]
    """Tokens that were loaded, by where they were: `host` (memory of the node), `disk`, or `remote` (other tiers)."""
    missed_tokens: int
    """Tokens that were computed although a cache could have had them."""
    reason: str
    """Why the first of these was missing; empty if none was, or if it is not known."""
    cause: str
    """More about the reason: why the block was evicted, the code of the refusal, or the fields of engines that
    differ."""
    cause_at: float | None
    """When the block was removed or refused; null for other reasons."""
    meaning: str
    """The reason as a sentence; empty without a reason."""


class RequestList(msgspec.Struct, frozen=True):
    items: list[RequestAnswer]
    """Newest first. One request of a client may be several of the engine, one for each prompt."""
    total: int
    failed_nodes: list[NodeError]
    """Nodes that did not answer or are away; what they know is missing."""
