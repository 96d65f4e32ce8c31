"""Hot prefixes, and the trace of recorded accesses."""

from typing import Literal

import msgspec

from dataplane.protocol.message_bases import ReplyOfNode, RequestToNode

MAX_PREFIXES = 1000
MAX_TRACE_PART_BYTES = 256 * 1024
"""Small enough that a trace request does not delay engines."""


class ListPrefixes(RequestToNode, tag="list_prefixes"):
    """List the hot prefixes of the last hour. Answered with `PrefixesListed`."""

    by: Literal["bytes", "hits"] = "bytes"
    tenant: str | None = None
    """Salt; None for every tenant."""
    limit: int = 50
    """At most MAX_PREFIXES."""


class PrefixKeys(RequestToNode, tag="prefix_keys"):
    """Ask for the keys of a listed prefix. Answered with `PrefixesListed` of one entry with its keys, or refused."""

    label: str


class Trace(RequestToNode, tag="trace"):
    """Ask for recorded accesses, oldest first, part by part. Answered with `TracePart`."""

    since: float = 0.0
    """Unix seconds of the oldest access to return."""
    after: int = 0
    """`TracePart.next` of the previous answer; 0 for the first."""


class Prefix(msgspec.Struct):
    """One hot prefix, as far as the node still knows it."""

    label: str
    """Short name from which pins can be made; stable as long as the prefix is listed."""
    tenant: str
    """Salt of the tenant."""
    model: str
    depth: int
    """Length of the prefix in chunks."""
    hits: int
    """Times the prefix was served in the last hour, alone or as the start of a longer one; overestimated by up to
    `error`."""
    bytes_served: int
    """Bytes served in the last hour."""
    error: int
    """Maximum overestimate of `hits`."""
    resident: int
    """Blocks of the prefix that are in the pool now, in one space; estimated from a sample of blocks for long lists."""
    last_used: float
    keys: bytes = b""
    """Packed keys; only in answer to `PrefixKeys`."""


class PrefixesListed(ReplyOfNode, tag="prefixes"):
    prefixes: list[Prefix]


class TracePart(ReplyOfNode, tag="trace_part"):
    """JSON lines with `timestamp` (ms since the node started), `tenant`, `model`, `block_bytes`, `hit_blocks` and
    `hash_ids`, one request per line. A block has the same number in the whole answer."""

    lines: bytes
    next: int
    """Value of `after` for the next part; 0 when there is no more."""
