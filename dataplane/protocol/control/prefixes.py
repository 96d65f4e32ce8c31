"""Hot prefixes, and the trace of recorded accesses."""

from typing import Literal

import msgspec

MAX_PREFIXES = 1000
MAX_TRACE_PART_BYTES = 256 * 1024
"""Small enough that a trace request does not delay engines."""


class ListPrefixes(msgspec.Struct, tag_field="op", tag="list_prefixes", forbid_unknown_fields=True):
    """List the hot prefixes of the last hour. Answered with `PrefixesListed`."""

    nonce: str
    by: Literal["bytes", "hits"] = "bytes"
    tenant: str | None = None
    """Salt; None for every tenant."""
    limit: int = 50
    """At most MAX_PREFIXES."""


class PrefixKeys(msgspec.Struct, tag_field="op", tag="prefix_keys", forbid_unknown_fields=True):
    """Ask for the keys of a listed prefix. Answered with `PrefixesListed` of one entry with its keys, or refused."""

    nonce: str
    label: str


class Trace(msgspec.Struct, tag_field="op", tag="trace", forbid_unknown_fields=True):
    """Ask for recorded accesses, oldest first, part by part. Answered with `TracePart`."""

    nonce: str
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


class PrefixesListed(msgspec.Struct, tag_field="op", tag="prefixes"):
    nonce: str
    prefixes: list[Prefix]


class TracePart(msgspec.Struct, tag_field="op", tag="trace_part"):
    """JSON lines with `timestamp` (ms since the node started), `tenant`, `model`, `block_bytes`, `hit_blocks` and
    `hash_ids`, one request per line. A block has the same number in the whole answer."""

    nonce: str
    lines: bytes
    next: int
    """Value of `after` for the next part; 0 when there is no more."""
