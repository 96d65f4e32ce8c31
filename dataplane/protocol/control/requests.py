"""Records of requests: what they got from the cache of a node, and why not more."""

import msgspec

from dataplane.protocol.message_bases import ReplyOfNode, RequestToNode

MAX_REQUEST_ID_CHARACTERS = 256
MAX_FOUND_REQUESTS = 64
"""Limit for one answer."""


class FindRequests(RequestToNode, tag="find_requests"):
    """Report the records of an engine's request. Answered with `RequestsFound`."""

    request: str
    """The engine's id of the request, or its beginning up to a `-`: engines append to the id that clients get."""


class RequestRecord(msgspec.Struct):
    """What one request got from the cache."""

    request: str
    """The engine's id of the request."""
    tenant: str
    """Salt of the tenant."""
    engine: str
    """Name that the engine gave itself."""
    model: str
    at: float
    """When the engine scheduled the request, as far as the node knows: when the report arrived."""
    prompt_tokens: int
    engine_tokens: int
    """Tokens that the engine's own prefix cache had."""
    loaded_tokens: dict[str, int]
    """Tokens that were loaded, by where they were: `host`, `disk` or `remote`."""
    missed_tokens: int
    """Tokens that were computed although a cache could have had them."""
    reason: str
    """Why the first of these was missing, a key of `dataplane.protocol.misses.MISS_REASONS`; empty if none was."""
    cause: str
    """As in `dataplane.protocol.engine.RequestReported`."""
    cause_at: float
    """Unix seconds of the removal or refusal; 0 for other reasons."""


class RequestsFound(ReplyOfNode, tag="requests_found"):
    requests: list[RequestRecord]
    """Newest first."""
