"""What the management plane and a node say over the control socket (ZeroMQ DEALER to ROUTER, MessagePack).

State of the world, one type at a time: a `Snapshot` carries the whole desired state of its type with generation, nonce
and digest. The node validates all of it, applies all or nothing, and answers `Ack`, or `Nack` with every fault found
and keeps its last good state. Big bodies (a pin's keys) travel by digest: the node asks once for those it lacks.

Digests are SHA-256 of the exact bytes, in hex. Bodies are MessagePack of the lists below, sorted by name, so that the
same intent has the same digest.
"""

from hashlib import sha256
from typing import Literal

import msgspec

from dataplane.protocol.events import NodeStats
from dataplane.protocol.spaces import Space
from dataplane.protocol.usage import ReadUsage, UsageRead

VERSION = 3
SnapshotType = Literal["quotas", "pins", "policies"]
SNAPSHOT_TYPES: tuple[SnapshotType, ...] = ("quotas", "pins", "policies")
MAX_SNAPSHOT_BYTES = 64 * 1024 * 1024
MAX_RECORDS = 100_000
MAX_PINNED_KEYS = 262_144
"""Of all pins of a node together; pins of one model and tenant with the same keys count once."""
MAX_PREFIXES = 1000
MAX_LISTED_BLOCKS = 500
"""In one answer."""
MAX_TRACE_PART_BYTES = 256 * 1024
"""Whoever asks for a trace must not keep engines waiting."""

Algorithm = Literal["lru", "age_class", "s3fifo", "arc", "slru", "lfu", "fifo", "noop"]
ALGORITHMS: tuple[Algorithm, ...] = ("lru", "age_class", "s3fifo", "arc", "slru", "lfu", "fifo", "noop")
OnExceed = Literal["evict_self", "reject"]
Mode = Literal["enforce", "observe"]
Strength = Literal["soft", "guaranteed", "permanent"]
Tier = Literal["host", "gpu"]
TIERS: tuple[Tier, ...] = ("host", "gpu")
POLICY_IN_FORCE = "default"
"""The name of the one policy record that is in force on a node."""


# ---- bodies of snapshots


class QuotaSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """One tenant's share. `tenant` is the salt ('' for the default tenant). Omitted fields have their defaults, so that
    the same intent has the same digest in every release that knows it."""

    tenant: str
    limit_bytes: int | None = None
    """Hard cap in bytes; None for no cap."""
    floor_bytes: int = 0
    """Bytes that no other tenant can take; scaled down when the pool cannot hold the sum of all floors."""
    weight: float = 1.0
    """Share of what is borrowed, against other tenants; 0.01 to 1,000."""
    pin_budget_bytes: int | None = None
    """Bytes that guaranteed pins of this tenant may hold, inside the pool's own budget; None: only the pool's."""
    store_rate_bytes: int | None = None
    """Bytes a second that this tenant may store, with one second's worth at once; None for no bound."""
    on_exceed: OnExceed = "evict_self"
    """At the limit: make room among the tenant's own blocks, or refuse."""
    mode: Mode = "enforce"
    """`observe`: nothing binds, what would have been refused is counted."""


class PinSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """Keys of a tenant that must stay, in every space of a model."""

    name: str
    model: str
    tenant: str
    keys_digest: str
    """SHA-256, hex, of the packed keys (n keys of 32 bytes); the body travels by digest."""
    expires_at: float | None = None
    """Unix seconds; None for no end."""
    strength: Strength = "guaranteed"
    """`soft`: last to go; `guaranteed`: stays until the end, inside the budgets; `permanent`: as
    guaranteed, first in line for the budget and untouched by `invalidate`; it has no end."""
    refresh_s: float | None = None
    """Every hit moves the end to this many seconds later; None: the end is fixed."""
    tier: Tier = "host"
    """`gpu`: besides the pool, a replica of each block on every GPU whose engines read the space, as far as the GPU's
    pool has room."""


class PolicySpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """How victims are chosen. The record named `default` is in force; without one the defaults below are."""

    name: str
    algorithm: Algorithm = "lru"
    admission: bool = False
    """Under pressure, admit a block only when its key was seen before."""
    admission_idle_s: float = 240.0
    """Pressure: victims were idle for less than this, on average."""
    high_watermark: float = 1.0
    """Above this share of the pool, evict ahead of need, down to `low_watermark`; 1: only when room is needed."""
    low_watermark: float = 1.0


# ---- management plane to node


class Hello(msgspec.Struct, tag_field="op", tag="hello", forbid_unknown_fields=True):
    version: int
    manager: str


class Snapshot(msgspec.Struct, tag_field="op", tag="snapshot", forbid_unknown_fields=True):
    type: SnapshotType
    store: str
    """Identity of the database: generations of different databases cannot be compared."""
    generation: int
    nonce: str
    digest: str
    body: bytes
    traceparent: str = ""
    dry_run: bool = False
    """Only say what would be answered: nothing is applied, remembered or told to anybody."""


class Bodies(msgspec.Struct, tag_field="op", tag="bodies", forbid_unknown_fields=True):
    """Answer to `NeedBodies`, possibly in parts; `last` closes it."""

    nonce: str
    bodies: dict[str, bytes]
    last: bool = True


class Describe(msgspec.Struct, tag_field="op", tag="describe", forbid_unknown_fields=True):
    """Ask for the node's full state now; used after a gap in the events."""

    nonce: str
    audit: bool = False
    """Also hold the node's books against each other; takes milliseconds for each 10,000 blocks."""


class Scope(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Which blocks: those that match every field that is given; at least one must be."""

    tenant: str | None = None
    """Salt; '' is the default tenant."""
    model: str | None = None
    """All spaces of a model."""
    space: str | None = None
    """One space, by its identity (32 hex digits)."""
    keys: bytes = b""
    """Packed keys of a prefix: its blocks and everything that was stored behind its last key."""


class Invalidate(msgspec.Struct, tag_field="op", tag="invalidate", forbid_unknown_fields=True):
    """Make blocks unreadable at once, swept in the background; leased ones go when their lease ends. Blocks under
    permanent pins stay. Answered with `Swept`."""

    nonce: str
    scope: Scope


class Demote(msgspec.Struct, tag_field="op", tag="demote", forbid_unknown_fields=True):
    """Make blocks the first victims without dropping them, until they are used again. Answered with `Swept`."""

    nonce: str
    scope: Scope


class Clear(msgspec.Struct, tag_field="op", tag="clear", forbid_unknown_fields=True):
    """Invalidate everything. Answered with `Swept`."""

    nonce: str
    permanent: bool = False
    """Also what permanent pins hold; the pins stay, and hold what is stored anew."""


class ClearGateway(msgspec.Struct, tag_field="op", tag="clear_gateway", forbid_unknown_fields=True):
    """Invalidate everything in the spaces of one gateway; what permanent pins hold stays. Answered with `Swept`."""

    nonce: str
    gateway: str
    force: bool = False
    """Also what is leased or being written at this moment."""


class DigestEngine(msgspec.Struct, tag_field="op", tag="digest_engine", forbid_unknown_fields=True):
    """MD5 of what an engine holds in its own memory, for who wants to know whether the right bytes came back into it.
    Only engines for which this node copies can be read. Answered with `EngineDigests`, as soon as it is read."""

    nonce: str
    gateway: str
    instance: int
    """As the engine calls itself."""
    blocks: list[int]
    """Its block numbers."""
    chunk_blocks: int
    """So many blocks make one digest."""
    layerwise: bool = False
    """A list of digests for each layer; else one list, of all layers together."""


class Count(msgspec.Struct, tag_field="op", tag="count", forbid_unknown_fields=True):
    """How many blocks an invalidation, a demotion or a clearing would be about now. Touches nothing. Answered with
    `Counted`."""

    nonce: str
    kind: Literal["invalidate", "demote", "clear"]
    scope: Scope
    """Without a field for `clear` alone."""
    permanent: bool = False
    """As in `Clear`."""


class Lookup(msgspec.Struct, tag_field="op", tag="lookup", forbid_unknown_fields=True):
    """What an engine of a model would find of a chain, space by space. Touches nothing. Answered with `Looked`."""

    nonce: str
    model: str
    keys: bytes
    """Packed keys of a chain, first block first."""
    tenant: str | None = None
    """Salt: blocks of other tenants are misses. None: whoever stored them."""
    after: int = 0
    """`Looked.next` of the part before; 0 for the first."""


class ListBlocks(
    msgspec.Struct, tag_field="op", tag="list_blocks", forbid_unknown_fields=True, omit_defaults=True
):
    """What is cached, part by part; what is there all the time is in exactly one part. Answered with `Blocks`. What has
    its default is not sent, so that nodes that do not know a field understand who does not use it."""

    nonce: str
    tenant: str | None = None
    """Salt; '' is the default tenant."""
    model: str | None = None
    space: str | None = None
    """One space, by its identity (32 hex digits)."""
    keys: bytes = b""
    """Packed keys: only blocks of these; none for all."""
    after: int = 0
    """`Blocks.next` of the part before; 0 for the first."""
    limit: int = 100
    """At most MAX_LISTED_BLOCKS."""
    gateway: str | None = None
    """Only of spaces of this gateway; '' for those of none."""


class Verify(msgspec.Struct, tag_field="op", tag="verify", forbid_unknown_fields=True):
    """Hold blocks against their checksums in the background; corrupt ones are dropped. Answered with `Verified`."""

    nonce: str
    scope: Scope = Scope()
    """Without any field: all blocks. Its keys mean their own blocks, not what was stored behind them."""


class Verification(msgspec.Struct, tag_field="op", tag="verification", forbid_unknown_fields=True):
    """How far a verification is. Answered with `Verified`."""

    nonce: str
    number: int


class ListPrefixes(msgspec.Struct, tag_field="op", tag="list_prefixes", forbid_unknown_fields=True):
    """Hot prefixes of the last hour. Answered with `Prefixes`."""

    nonce: str
    by: Literal["bytes", "hits"] = "bytes"
    tenant: str | None = None
    """Salt; None for every tenant."""
    limit: int = 50
    """At most MAX_PREFIXES."""


class PrefixKeys(msgspec.Struct, tag_field="op", tag="prefix_keys", forbid_unknown_fields=True):
    """The keys of a prefix that was listed. Answered with `Prefixes` of one entry and its keys, or refused."""

    nonce: str
    label: str


class Trace(msgspec.Struct, tag_field="op", tag="trace", forbid_unknown_fields=True):
    """Recorded accesses, oldest first, part by part. Answered with `TracePart`."""

    nonce: str
    since: float = 0.0
    """Unix seconds."""
    after: int = 0
    """`TracePart.next` of the part before; 0 for the first."""


class Resize(msgspec.Struct, tag_field="op", tag="resize", forbid_unknown_fields=True):
    """Let the pool grow. Answered with `Resized`, or refused when it would shrink or the machine has too little."""

    nonce: str
    capacity_bytes: int


class Drain(msgspec.Struct, tag_field="op", tag="drain", forbid_unknown_fields=True):
    """Take no new engines and store nothing more, also after a restart, or take them again. Answered with `Drained`."""

    nonce: str
    on: bool


ControlRequest = (
    Hello
    | Drain
    | Snapshot
    | Bodies
    | Describe
    | Invalidate
    | Demote
    | Clear
    | ClearGateway
    | DigestEngine
    | Count
    | Lookup
    | ListBlocks
    | Verify
    | Verification
    | ListPrefixes
    | PrefixKeys
    | Trace
    | Resize
    | ReadUsage
)

# ---- node to management plane


class Observed(msgspec.Struct, frozen=True):
    """What a node has applied of one type."""

    generation: int
    digest: str
    store: str


class Welcome(msgspec.Struct, tag_field="op", tag="welcome"):
    version: int
    node: str
    """Stable name of the node, kept in its state directory."""
    epoch: str
    """New at every start of the process, 16 hex digits."""
    pid: int
    release: str
    engine_socket: str
    events_url: str
    capacity_bytes: int
    observed: dict[str, Observed]
    labels: dict[str, str] = {}
    """What the node says of its machine."""


class Fault(msgspec.Struct, frozen=True):
    """One fault of a snapshot."""

    path: str
    """e.g. `quotas[3].limit_bytes`."""
    code: str
    """Name of a `Code`, in lower case."""
    message: str


class Ack(msgspec.Struct, tag_field="op", tag="ack"):
    type: SnapshotType
    generation: int
    nonce: str
    digest: str
    applied_s: float
    """Seconds the node spent on validating and applying."""


class Nack(msgspec.Struct, tag_field="op", tag="nack"):
    type: SnapshotType
    generation: int
    nonce: str
    errors: list[Fault]
    observed: Observed | None
    """The last good state, which stays in force."""


class NeedBodies(msgspec.Struct, tag_field="op", tag="need_bodies"):
    nonce: str
    digests: list[str]


class Description(msgspec.Struct, tag_field="op", tag="description"):
    nonce: str
    seq: int
    """Sequence number of the last event that this state includes."""
    stats: NodeStats
    observed: dict[str, Observed]
    faults: list[str] = []
    """Contradictions that an audit found; empty when all is well."""


class Swept(msgspec.Struct, tag_field="op", tag="swept"):
    """Blocks of the scope are invalid (or demoted) from now on, also for readers."""

    nonce: str
    sweep: int
    """Number of the sweep, as events and `NodeStats.sweeps` name it."""
    blocks: int | None = None
    """That it was begun for; null from nodes that do not tell."""
    bytes: int | None = None
    """Stored in them."""


class Counted(msgspec.Struct, tag_field="op", tag="counted"):
    """What a scope is about now."""

    nonce: str
    blocks: int
    bytes: int


class EngineDigests(msgspec.Struct, tag_field="op", tag="engine_digests"):
    nonce: str
    digests: list[list[str]]
    """Hex."""


class SpaceHits(msgspec.Struct):
    """What one space has of a chain."""

    identity: str
    """32 hex digits."""
    space: Space
    hits: dict[str, int]
    """Blocks that a reader gets, from the first one without a gap, by the tier they are in."""
    resident: dict[str, int]
    """Readable blocks of the chain, behind gaps too, by tier."""


class Looked(msgspec.Struct, tag_field="op", tag="looked"):
    nonce: str
    spaces: list[SpaceHits]
    """Spaces of the model that engines of this node have or had, also those that hold nothing of the chain."""
    next: int
    """Ask for the other spaces with this number; 0 when there are no more."""


class CachedBlock(msgspec.Struct):
    """One block that is not free."""

    key: str
    """64 hex digits."""
    tenant: str
    """Salt."""
    model: str
    space: str
    """Identity, 32 hex digits."""
    tier: str
    state: str
    """`ready`, `reserved` (being written), `quarantined`, or `invalidated`: a miss that is still there."""
    bytes: int
    charged_bytes: int
    """With padding."""
    leases: int
    """Held at this moment, by engines' own counters."""
    pins: list[str]
    """Names of pins that want it; at most 8."""
    strength: str
    """Of the strongest of them; empty without any."""
    guaranteed: bool
    """Inside the pin budgets: it may not go."""
    stored_at: float
    used_at: float
    hits: int
    """Times it was used since it was stored."""
    checksum: str
    """32 hex digits; empty: it has none."""
    parent: str
    """Key of the block before it, 64 hex digits; empty: the first of its chain, or its engine did not say."""
    descriptor: int
    segment: int
    offset: int
    kv_group: int = 0
    world_size: int = 1
    rank: int = 0


class Blocks(msgspec.Struct, tag_field="op", tag="blocks"):
    nonce: str
    blocks: list[CachedBlock]
    """May be empty although more are to come: one message looks at a bounded number of blocks."""
    next: int
    """Ask for what comes after with this number; 0 when there is no more."""


class VerificationState(msgspec.Struct):
    """How far a verification is."""

    number: int
    """As the event `verify.done` names it."""
    blocks: int
    """That it was begun for."""
    checked: int
    """Read and held against their checksums, corrupt ones included."""
    corrupt: int
    without_checksum: int
    gone: int
    """Evicted or invalidated meanwhile."""
    unread: int
    """Too large to be read without keeping engines waiting, or the machine refused."""
    started_at: float
    ended_at: float | None


class Verified(msgspec.Struct, tag_field="op", tag="verified"):
    nonce: str
    state: VerificationState


class Prefix(msgspec.Struct):
    """One hot prefix, as far as the node still knows it."""

    label: str
    """Short name that pins can be made from: stable as long as the prefix is listed."""
    tenant: str
    """Salt."""
    model: str
    depth: int
    """Chunks."""
    hits: int
    """Times it was served in the last hour, alone or as the start of something longer; may be over by `error`."""
    bytes_served: int
    """In the last hour."""
    error: int
    """The most that `hits` is over."""
    resident: int
    """Blocks of it that are in the pool now, in one space; reckoned from some of its blocks in long lists."""
    last_used: float
    keys: bytes = b""
    """Packed keys; only in answer to `PrefixKeys`."""


class Prefixes(msgspec.Struct, tag_field="op", tag="prefixes"):
    nonce: str
    prefixes: list[Prefix]


class TracePart(msgspec.Struct, tag_field="op", tag="trace_part"):
    """JSON lines: `timestamp` (ms since the node started), `tenant`, `model`, `block_bytes`, `hit_blocks` and
    `hash_ids` of one request each, a block known by the same number in the whole answer."""

    nonce: str
    lines: bytes
    next: int
    """Ask for what comes after with this number; 0 when there is no more."""


class Resized(msgspec.Struct, tag_field="op", tag="resized"):
    nonce: str
    capacity_bytes: int


class Drained(msgspec.Struct, tag_field="op", tag="drained"):
    nonce: str
    on: bool


class ControlRefused(msgspec.Struct, tag_field="op", tag="refused"):
    """A message that was not understood; nothing was done."""

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
    | Prefixes
    | TracePart
    | Resized
    | Drained
    | UsageRead
    | ControlRefused
)


def digest_of(body: bytes) -> str:
    """SHA-256 in hex, as snapshots and pin bodies are named."""
    return sha256(body).hexdigest()


def encode_quotas(specs: list[QuotaSpec]) -> bytes:
    """The body of a `quotas` snapshot."""
    return msgspec.msgpack.encode(sorted(specs, key=lambda spec: spec.tenant))


def encode_pins(specs: list[PinSpec]) -> bytes:
    """The body of a `pins` snapshot."""
    return msgspec.msgpack.encode(sorted(specs, key=lambda spec: spec.name))


def encode_policies(specs: list[PolicySpec]) -> bytes:
    """The body of a `policies` snapshot."""
    return msgspec.msgpack.encode(sorted(specs, key=lambda spec: spec.name))
