"""All messages of the control socket, as the types that it decodes."""

import msgspec

from dataplane.protocol.control.lookups import Blocks, ListBlocks, Looked, LookupChain
from dataplane.protocol.control.moves import CancelMove, Move, Moved, ReadMove
from dataplane.protocol.control.nodes import (
    DescribeNode,
    Description,
    Drain,
    Expel,
    Expelled,
    Hello,
    NodeDrained,
    Resize,
    Resized,
    Welcome,
)
from dataplane.protocol.control.prefixes import ListPrefixes, PrefixesListed, PrefixKeys, Trace, TracePart
from dataplane.protocol.control.requests import FindRequests, RequestsFound
from dataplane.protocol.control.scopes import Clear, ClearGateway, CountBlocks, Counted, Demote, Invalidate, Swept
from dataplane.protocol.control.sessions import ActOnSession, ListSessions, SessionActed, SessionsListed
from dataplane.protocol.control.snapshots import Ack, Bodies, Nack, NeedBodies, Snapshot
from dataplane.protocol.control.verification import DigestEngine, EngineDigests, Verification, Verified, Verify
from dataplane.protocol.usage import ReadUsage, UsageRead

VERSION = 3
ControlRequest = (
    Hello
    | Drain
    | Expel
    | Snapshot
    | Bodies
    | DescribeNode
    | Invalidate
    | Demote
    | Clear
    | ClearGateway
    | DigestEngine
    | CountBlocks
    | LookupChain
    | ListBlocks
    | Verify
    | Verification
    | Move
    | ReadMove
    | CancelMove
    | ListPrefixes
    | PrefixKeys
    | Trace
    | Resize
    | ReadUsage
    | FindRequests
    | ListSessions
    | ActOnSession
)


class ControlRefused(msgspec.Struct, tag_field="op", tag="refused"):
    """The message was not understood; nothing was done."""

    code: str
    message: str
    field: str = ""
    nonce: str = ""


ControlReply = (
    Welcome
    | Ack
    | Nack
    | NeedBodies
    | Description
    | Swept
    | EngineDigests
    | Counted
    | Looked
    | Blocks
    | Verified
    | Moved
    | PrefixesListed
    | TracePart
    | Resized
    | NodeDrained
    | Expelled
    | UsageRead
    | RequestsFound
    | SessionsListed
    | SessionActed
    | ControlRefused
)
