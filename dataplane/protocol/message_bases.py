"""Base classes of messages: a request carries an identity that its answer repeats."""

import msgspec


class RequestToNode(msgspec.Struct, tag_field="op", forbid_unknown_fields=True):
    """Request of the management plane on the control socket."""

    nonce: str


class ReplyOfNode(msgspec.Struct, tag_field="op"):
    """Answer to a `RequestToNode`."""

    nonce: str


class RequestOfEngine(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Request of an engine on the engine socket."""

    id: int


class ReplyToEngine(msgspec.Struct, array_like=True):
    """Answer to an `RequestOfEngine`."""

    id: int
