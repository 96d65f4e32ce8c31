"""Messages between the management plane and a node over the control socket (ZeroMQ DEALER to ROUTER, MessagePack).

Desired state travels whole, one type at a time: a `Snapshot` carries the entire desired state of its type with a
generation, a nonce and a digest. The node validates all of it and applies all or nothing. It answers `Ack`, or `Nack`
with every fault found; after a `Nack` it keeps its last good state. Large bodies (the keys of a pin) are named by
digest: the node asks once for those it lacks.

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
"""Limit for all pins of a node together; pins of one model and tenant with the same keys count once."""
MAX_PREFIXES = 1000
MAX_LISTED_BLOCKS = 500
"""Limit for one answer."""
MAX_TRACE_PART_BYTES = 256 * 1024
"""Small enough that a trace request does not delay engines."""

Algorithm = Literal["lru", "age_class", "s3fifo", "arc", "slru", "lfu", "fifo", "noop"]
ALGORITHMS: tuple[Algorithm, ...] = ("lru", "age_class", "s3fifo", "arc", "slru", "lfu", "fifo", "noop")
OnExceed = Literal["evict_self", "reject"]
Mode = Literal["enforce", "observe"]
Strength = Literal["soft", "guaranteed", "permanent"]
Tier = Literal["host", "gpu"]
TIERS: tuple[Tier, ...] = ("host", "gpu")
POLICY_IN_FORCE = "default"
"""Name of the policy record that is in force on a node."""


# ---- snapshot bodies


class QuotaSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """Quota of one tenant. `tenant` is the salt ('' for the default tenant). Fields at their default are omitted, so
    that the same intent has the same digest in every release that knows the fields."""

    tenant: str
    limit_bytes: int | None = None
    """Hard cap in bytes; None for no cap."""
    floor_bytes: int = 0
    """Bytes that no other tenant can take; scaled down when the pool cannot hold the sum of all floors."""
    weight: float = 1.0
    """Weight of this tenant when tenants share the bytes above their floors; 0.01 to 1,000."""
    pin_budget_bytes: int | None = None
    """Bytes that guaranteed pins of this tenant may hold, within the pool's own pin budget; None: only the pool's
    budget applies."""
    store_rate_bytes: int | None = None
    """Bytes per second that this tenant may store, with a burst of one second's worth; None for no limit."""
    on_exceed: OnExceed = "evict_self"
    """At the limit, evict the tenant's own blocks to make room, or refuse the store."""
    mode: Mode = "enforce"
    """`observe`: limits are not enforced, and stores that they would have refused are counted."""


class PinSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """Keys of a tenant that must stay cached, in every space of a model."""

    name: str
    model: str
    tenant: str
    keys_digest: str
    """SHA-256 in hex of the packed keys (n keys of 32 bytes); the keys are sent separately, in `Bodies`."""
    expires_at: float | None = None
    """Unix seconds; None if the pin does not expire."""
    strength: Strength = "guaranteed"
    """`soft`: evicted last; `guaranteed`: kept until the pin expires, within the budgets; `permanent`: like
    `guaranteed`, but first in line for the budget, not affected by `invalidate`, and without an expiry."""
    refresh_s: float | None = None
    """Every hit moves the expiry to this many seconds after the hit; None: the expiry is fixed."""
    tier: Tier = "host"
    """`gpu`: in addition to the block in the pool, keep a GPU copy on every GPU whose engines read the space, as far as
    the GPU's pool has room."""


class PolicySpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """Eviction policy. The record named `default` is in force; if there is none, the defaults below are."""

    name: str
    algorithm: Algorithm = "lru"
    admission: bool = False
    """Under pressure, admit a block only if its key was seen before."""
    admission_idle_s: float = 240.0
    """Pressure means that victims had been idle for less than this many seconds on average."""
    high_watermark: float = 1.0
    """Fraction of the pool above which blocks are evicted ahead of need, down to `low_watermark`; 1: evict only when
    room is needed."""
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
    """Validate and answer only: nothing is applied, remembered or published."""


class Bodies(msgspec.Struct, tag_field="op", tag="bodies", forbid_unknown_fields=True):
    """Answer to `NeedBodies`, possibly in parts; `last` marks the final part."""

    nonce: str
    bodies: dict[str, bytes]
    last: bool = True


class DescribeNode(msgspec.Struct, tag_field="op", tag="describe", forbid_unknown_fields=True):
    """Ask for the node's full current state; used after a gap in the events."""

    nonce: str
    audit: bool = False
    """Also cross-check the node's internal tables; takes milliseconds per 10,000 blocks."""


class Scope(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Selects the blocks that match every given field; at least one field is required."""

    tenant: str | None = None
    """Salt; '' is the default tenant."""
    model: str | None = None
    """Selects all spaces of a model."""
    space: str | None = None
    """One space, by its identity (32 hex digits)."""
    keys: bytes = b""
    """Packed keys of a prefix: selects its blocks and every block that was stored after its last key."""


class Invalidate(msgspec.Struct, tag_field="op", tag="invalidate", forbid_unknown_fields=True):
    """Make blocks unreadable at once and sweep them in the background; leased blocks are freed when their lease ends.
    Blocks under permanent pins stay. Answered with `Swept`."""

    nonce: str
    scope: Scope


class Demote(msgspec.Struct, tag_field="op", tag="demote", forbid_unknown_fields=True):
    """Make blocks the first victims, without dropping them, until they are used again. Answered with `Swept`."""

    nonce: str
    scope: Scope


class Clear(msgspec.Struct, tag_field="op", tag="clear", forbid_unknown_fields=True):
    """Invalidate every block. Answered with `Swept`."""

    nonce: str
    permanent: bool = False
    """Also invalidate blocks under permanent pins. The pins stay and hold blocks that are stored later."""


class ClearGateway(msgspec.Struct, tag_field="op", tag="clear_gateway", forbid_unknown_fields=True):
    """Invalidate every block in the spaces of one gateway, except blocks under permanent pins. Answered with
    `Swept`."""

    nonce: str
    gateway: str
    force: bool = False
    """Also invalidate blocks that are leased or being written now."""


class DigestEngine(msgspec.Struct, tag_field="op", tag="digest_engine", forbid_unknown_fields=True):
    """Request the MD5 of blocks in an engine's own memory, to check that a load restored the right bytes. Only engines
    for which this node copies can be read. Answered with `EngineDigests` when the blocks have been read."""

    nonce: str
    gateway: str
    instance: int
    """Instance number that the engine uses for itself."""
    blocks: list[int]
    """Block numbers of the engine."""
    chunk_blocks: int
    """Number of blocks that make one digest."""
    layerwise: bool = False
    """True: one list of digests for each layer; False: one list for all layers together."""


class CountBlocks(msgspec.Struct, tag_field="op", tag="count", forbid_unknown_fields=True):
    """Count the blocks that an invalidation, a demotion or a clear would affect now. Changes nothing. Answered with
    `Counted`."""

    nonce: str
    kind: Literal["invalidate", "demote", "clear"]
    scope: Scope
    """Must have no field set if `kind` is `clear`, and only then."""
    permanent: bool = False
    """As in `Clear`."""


class LookupChain(msgspec.Struct, tag_field="op", tag="lookup", forbid_unknown_fields=True):
    """Report what an engine of a model would find of a chain, space by space. Changes nothing. Answered with
    `Looked`."""

    nonce: str
    model: str
    keys: bytes
    """Packed keys of a chain, first block first."""
    tenant: str | None = None
    """Salt: blocks of other tenants count as misses. None: blocks of every tenant count."""
    after: int = 0
    """`Looked.next` of the previous answer; 0 for the first."""


class ListBlocks(
    msgspec.Struct, tag_field="op", tag="list_blocks", forbid_unknown_fields=True, omit_defaults=True
):
    """List cached blocks, part by part; a block that stays cached throughout is in exactly one part. Answered with
    `Blocks`. Fields at their default are not sent, so that nodes that do not know a field understand requests that do
    not use it."""

    nonce: str
    tenant: str | None = None
    """Salt; '' is the default tenant."""
    model: str | None = None
    space: str | None = None
    """One space, by its identity (32 hex digits)."""
    keys: bytes = b""
    """Packed keys; list only their blocks. Empty: list all blocks."""
    after: int = 0
    """`Blocks.next` of the previous answer; 0 for the first."""
    limit: int = 100
    """At most MAX_LISTED_BLOCKS."""
    gateway: str | None = None
    """List only blocks in spaces of this gateway; '' for spaces without a gateway."""


class Verify(msgspec.Struct, tag_field="op", tag="verify", forbid_unknown_fields=True):
    """Verify blocks against their checksums in the background; corrupt blocks are dropped. Answered with `Verified`."""

    nonce: str
    scope: Scope = Scope()
    """Without any field: all blocks. `keys` selects only the blocks of those keys, not blocks stored after them."""


class Verification(msgspec.Struct, tag_field="op", tag="verification", forbid_unknown_fields=True):
    """Ask for the progress of a verification. Answered with `Verified`."""

    nonce: str
    number: int


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


class Resize(msgspec.Struct, tag_field="op", tag="resize", forbid_unknown_fields=True):
    """Grow the pool. Answered with `Resized`; refused if the pool would shrink or the machine has too little memory."""

    nonce: str
    capacity_bytes: int


class Drain(msgspec.Struct, tag_field="op", tag="drain", forbid_unknown_fields=True):
    """Start or stop draining: a draining node accepts no new engines and stores no new blocks, also after a restart.
    Answered with `NodeDrained`."""

    nonce: str
    on: bool


class Expel(msgspec.Struct, tag_field="op", tag="expel", forbid_unknown_fields=True):
    """Drop the leases of an engine's process, in all its attachments, and bar the process from attaching until a
    request with `on` false. Refused while the process holds blocks, unless `force` or `kill` is set. Answered with
    `Expelled`."""

    nonce: str
    client: int
    """`EngineStats.client` of one of the process's attachments."""
    on: bool = True
    """False: let the process attach again. Its old attachments stay expelled."""
    force: bool = False
    """Expel it even while it, or a process of its engine group, may be reading under its leases."""
    kill: bool = False
    """End the process with SIGKILL. Without `force`, its leases count until its engine group is proven gone."""


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
    | ListPrefixes
    | PrefixKeys
    | Trace
    | Resize
    | ReadUsage
)

# ---- node to management plane


class Observed(msgspec.Struct, frozen=True):
    """Snapshot of one type that a node has applied."""

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
    """Labels that the node reports for its machine."""


class Fault(msgspec.Struct, frozen=True):
    """One fault in a snapshot."""

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
    """Contradictions that an audit found; empty if there are none."""


class Swept(msgspec.Struct, tag_field="op", tag="swept"):
    """The blocks of the scope are invalid (or demoted) from now on, also for readers."""

    nonce: str
    sweep: int
    """Number of the sweep, as in events and `NodeStats.sweeps`."""
    blocks: int | None = None
    """Blocks in the sweep's scope; null from nodes that do not report it."""
    bytes: int | None = None
    """Bytes stored in those blocks."""


class Counted(msgspec.Struct, tag_field="op", tag="counted"):
    """Number of blocks and bytes that a scope matches now."""

    nonce: str
    blocks: int
    bytes: int


class EngineDigests(msgspec.Struct, tag_field="op", tag="engine_digests"):
    nonce: str
    digests: list[list[str]]
    """MD5 digests in hex."""


class SpaceHits(msgspec.Struct):
    """Blocks of a chain in one space."""

    identity: str
    """32 hex digits."""
    space: Space
    hits: dict[str, int]
    """Leading blocks, without a gap, that a reader would get, by tier."""
    resident: dict[str, int]
    """All readable blocks of the chain, including those behind gaps, by tier."""


class Looked(msgspec.Struct, tag_field="op", tag="looked"):
    nonce: str
    spaces: list[SpaceHits]
    """Spaces of the model that engines of this node have or had, including those that hold no block of the chain."""
    next: int
    """Value of `LookupChain.after` for the remaining spaces; 0 when there are no more."""


class CachedBlock(msgspec.Struct):
    """One block that is not free."""

    key: str
    """64 hex digits."""
    tenant: str
    """Salt of the tenant."""
    model: str
    space: str
    """Identity, 32 hex digits."""
    tier: str
    state: str
    """`ready`, `reserved` (being written), `quarantined`, or `invalidated` (not yet freed, but a miss for readers)."""
    bytes: int
    charged_bytes: int
    """Size with padding."""
    leases: int
    """Leases held now, by the engines' own counters."""
    pins: list[str]
    """Names of pins that include the block; at most 8."""
    strength: str
    """Strength of the strongest of these pins; empty if there are none."""
    guaranteed: bool
    """The block is within the pin budgets and is not evicted."""
    stored_at: float
    used_at: float
    hits: int
    """Number of uses since the block was stored."""
    checksum: str
    """32 hex digits; empty if the block has no checksum."""
    parent: str
    """Key of the preceding block, 64 hex digits; empty if the block is the first of its chain or its engine did not
    report it."""
    descriptor: int
    segment: int
    offset: int
    kv_group: int = 0
    world_size: int = 1
    rank: int = 0


class Blocks(msgspec.Struct, tag_field="op", tag="blocks"):
    nonce: str
    blocks: list[CachedBlock]
    """May be empty although more blocks follow: one request scans a bounded number of blocks."""
    next: int
    """Value of `after` for the next part; 0 when there is no more."""


class VerificationState(msgspec.Struct):
    """Progress of a verification."""

    number: int
    """Number of the verification, as in the event `verify.done`."""
    blocks: int
    """Blocks that the verification started with."""
    checked: int
    """Blocks compared with their checksums, including corrupt ones."""
    corrupt: int
    without_checksum: int
    gone: int
    """Blocks that were evicted or invalidated during the verification."""
    unread: int
    """Blocks not read, because they are too large to read without delaying engines or the machine refused memory."""
    started_at: float
    ended_at: float | None


class Verified(msgspec.Struct, tag_field="op", tag="verified"):
    nonce: str
    state: VerificationState


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


class Resized(msgspec.Struct, tag_field="op", tag="resized"):
    nonce: str
    capacity_bytes: int


class NodeDrained(msgspec.Struct, tag_field="op", tag="drained"):
    nonce: str
    on: bool


class Expelled(msgspec.Struct, tag_field="op", tag="expelled"):
    """The result of `Expel`."""

    nonce: str
    pid: int
    """0 if the process is in another pid namespace."""
    clients: list[int]
    """Client numbers of the process's attachments."""
    leased_blocks: int
    """Blocks that the attachments held at that moment. If `dropped`, these leases no longer protect the blocks."""
    dropped: bool
    """The leases of these attachments no longer count."""
    killed: bool
    """SIGKILL was sent."""
    quarantined_bytes: int
    """Bytes of blocks that the attachments were writing, held back until the processes in `waits_for_pids` are gone."""
    waits_for_pids: list[int]
    """Live processes of their engine groups, at most 8."""


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
    | PrefixesListed
    | TracePart
    | Resized
    | NodeDrained
    | Expelled
    | UsageRead
    | ControlRefused
)


def digest_of(body: bytes) -> str:
    """Return the SHA-256 in hex, by which snapshots and pin bodies are named."""
    return sha256(body).hexdigest()


def encode_quotas(specs: list[QuotaSpec]) -> bytes:
    """Return the body of a `quotas` snapshot."""
    return msgspec.msgpack.encode(sorted(specs, key=lambda spec: spec.tenant))


def encode_pins(specs: list[PinSpec]) -> bytes:
    """Return the body of a `pins` snapshot."""
    return msgspec.msgpack.encode(sorted(specs, key=lambda spec: spec.name))


def encode_policies(specs: list[PolicySpec]) -> bytes:
    """Return the body of a `policies` snapshot."""
    return msgspec.msgpack.encode(sorted(specs, key=lambda spec: spec.name))
