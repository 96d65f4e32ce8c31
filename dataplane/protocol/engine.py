"""What engines and the data plane say over the AF_UNIX SEQPACKET socket: one MessagePack datagram each.

Every request carries an `id` that its answer repeats. Runs of keys, slots, offsets and checksums travel as packed
little-endian bytes, so that both sides read them with numpy and nothing is built per key. Memory file descriptors
ride along with `SCM_RIGHTS`; the message says what they are, in order.
"""

import msgspec

from dataplane.protocol.spaces import Space

VERSION = 2
MAX_DATAGRAM_BYTES = 192 * 1024
"""Below the default send buffer of an AF_UNIX socket, so that a datagram never fails for its size."""
MAX_KEYS_PER_REQUEST = 4096
MAX_FDS_PER_DATAGRAM = 64
CHECKSUM_BYTES = 16
HANDLE_BYTES = 64
"""Of a device's memory, and of an event."""
MAX_CACHE_TENSORS = 1024
MAX_CACHE_ALLOCATIONS = 1024
MAX_DIMENSIONS = 8


class SpaceRequest(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """One space that an engine wants, and whether it will write there."""

    space: Space
    writes: bool = True


# ---- engine to data plane


class Attach(msgspec.Struct, tag="attach", array_like=True, forbid_unknown_fields=True):
    """First message of a connection. The socket's peer credentials say who it is; `group` says which engine."""

    id: int
    version: int
    group: str
    """Engine group: one scheduler plus its workers share it. Quarantined bytes wait for every process of a group."""
    spaces: list[SpaceRequest]
    engine: str = ""
    """Free text for people, e.g. `"vllm 0.33"`."""
    membarrier: bool = True
    """The process registered for expedited barriers; without it leases go by message."""
    resume: int = 0
    """Client number of this process's attachment to the data plane before this one, whose memory it still maps; 0 for
    none. When the memory was adopted, the answer says `resumed` and the area stays the same."""
    resume_memory: int = 0
    """`Attached.memory` of that attachment."""
    writing: list[int] = []
    """Reservations of that attachment into which this process may still be writing."""


class Reserve(msgspec.Struct, tag="reserve", array_like=True, forbid_unknown_fields=True):
    """Ask for room for the missing blocks of a prefix chain, in order. The answer has one outcome a key."""

    id: int
    space: int
    """Number that `Attached.spaces` gave."""
    tenant: str
    keys: bytes
    """n keys of 32 bytes, ancestors first."""
    nbytes: int
    """Size of each block in bytes."""
    parent: bytes = b""
    """The key before the first one, when `keys` is not the start of its chain; 32 bytes."""


class Commit(msgspec.Struct, tag="commit", array_like=True, forbid_unknown_fields=True):
    """Publish blocks of a reservation; what is not named is aborted."""

    id: int
    reservation: int
    slots: bytes = b""
    """u32 positions in the request's keys; empty for all that were to be written."""
    checksums: bytes = b""
    """16 bytes for each committed slot, or empty."""


class Abort(msgspec.Struct, tag="abort", array_like=True, forbid_unknown_fields=True):
    """Give a reservation up. Also how an owner that woke up after its deadline releases quarantined bytes."""

    id: int
    reservation: int


class Lease(msgspec.Struct, tag="lease", array_like=True, forbid_unknown_fields=True):
    """Acquire by message, for machines without `membarrier`: the data plane raises the counters itself."""

    id: int
    space: int
    keys: bytes


class Report(msgspec.Struct, tag="report", array_like=True, forbid_unknown_fields=True):
    """Blocks whose bytes did not match their checksums. The data plane looks for itself. Answered with `Reported`."""

    id: int
    descriptors: bytes
    """u32 for each block."""
    controls: bytes
    """u64 control word that was seen, for each block."""


class Map(msgspec.Struct, tag="map", array_like=True, forbid_unknown_fields=True):
    """Ask for the memory of segments that were seen in descriptors but are not mapped yet."""

    id: int
    segments: list[int]


class Detach(msgspec.Struct, tag="detach", array_like=True, forbid_unknown_fields=True):
    """Say goodbye: no lease is held, nothing is being written, no memory is mapped any more."""

    id: int


class Hold(msgspec.Struct, tag="hold", array_like=True, forbid_unknown_fields=True):
    """A supervisor asks for duplicates of every memory fd, now and as they come, so that memory outlives a crash."""

    id: int
    version: int


class CacheTensor(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """One tensor of a paged KV cache in the memory of a device."""

    allocation: int
    """Which of `RegisterCache.allocations` it lies in."""
    offset: int
    """Bytes from the allocation's start to the tensor's first element."""
    nbytes: int
    """From there to the end of its last element, at least."""
    dtype: str
    """As torch names it, `"bfloat16"`."""
    shape: list[int]
    """One axis counts blocks: the first one, or the second of five where the first are keys and values."""
    stride: list[int]
    """In elements."""


class RegisterCache(msgspec.Struct, tag="register_cache", array_like=True, forbid_unknown_fields=True):
    """Let the data plane copy from and to the engine's paged KV cache. Answered with `CacheRegistered` when all memory
    is open. It ends with `UnregisterCache`, with the connection, or with the process."""

    id: int
    space: int
    """Number that `Attached.spaces` gave. Its `layout` names the form of the tensors, its `block_bytes` are those of a
    chunk."""
    device: str
    """UUID."""
    allocations: list[bytes]
    """Handles: 64 bytes of the driver, bare or as torch writes them."""
    tensors: list[CacheTensor]
    """They share block numbers."""
    tokens_per_block: int


class UnregisterCache(msgspec.Struct, tag="unregister_cache", array_like=True, forbid_unknown_fields=True):
    """Nothing is to be copied any more. Answered when its copies have ended and its memory is closed."""

    id: int
    cache: int


class StoreFrom(msgspec.Struct, tag="store_from", array_like=True, forbid_unknown_fields=True):
    """Reserve, copy out of a registered cache and commit. Answered with `StoreBegun` at once, and with `CopyEnded`
    when there was anything to copy. The engine leaves those blocks as they are until then."""

    id: int
    cache: int
    tenant: str
    keys: bytes
    """n keys of 32 bytes, ancestors first."""
    blocks: bytes
    """u32 numbers of the engine's blocks, as many for each key as a chunk has."""
    event: bytes = b""
    """Handle of an event that is waited for before anything is read, or empty."""
    parent: bytes = b""
    """As in `Reserve`."""
    checksums: bool = True
    """Reckon the blocks' checksums."""


class LoadInto(msgspec.Struct, tag="load_into", array_like=True, forbid_unknown_fields=True):
    """Copy the leading cached blocks of a chain into a registered cache. Answered with `LoadBegun` at once, and with
    `CopyEnded` when there was anything to copy. The engine reads and writes those blocks only after that."""

    id: int
    cache: int
    keys: bytes
    blocks: bytes
    """As in `StoreFrom`; those of the last chunk may end early."""
    event: bytes = b""
    """Handle of an event that is waited for before anything is written, or empty."""
    skip_blocks: int = 0
    """Leading blocks of the engine that are not written."""


class MapReplicas(msgspec.Struct, tag="map_replicas", array_like=True, forbid_unknown_fields=True):
    """Ask for the replicas on a device: copies of pinned blocks that the engine may read there instead of in the pool.
    Answered with `ReplicasMapped`, or refused: UNSUPPORTED where the node keeps none, DEVICE_REFUSED where the device
    cannot be used."""

    id: int
    device: str
    """UUID."""
    extents: list[int]
    """Those that were seen in the table and are not mapped yet; none at first."""
    closed: list[int]
    """Those that the table does not list any more, and whose mapping this process has ended."""
    table: bool
    """Send the table along."""


EngineRequest = (
    Attach
    | Reserve
    | Commit
    | Abort
    | Lease
    | Report
    | Map
    | Detach
    | Hold
    | RegisterCache
    | UnregisterCache
    | StoreFrom
    | LoadInto
    | MapReplicas
)

# ---- data plane to engine


class Attached(msgspec.Struct, tag="attached", array_like=True):
    """Accepted. Two fds ride along: the index memory (read-only) and the engine's own area (read-write)."""

    id: int
    client: int
    node: str
    epoch: int
    spaces: list[int]
    """Number of each requested space, in order."""
    membarrier: bool
    """False: take leases by message."""
    reservation_ttl_s: float
    memory: int = 0
    """Identity of the index memory; the same in a data plane that adopted it."""
    resumed: bool = False
    """The attachment named in the request goes on, with its client number, area and counters; no fd rides along."""


class SegmentGrant(msgspec.Struct, array_like=True, frozen=True):
    """One memory segment whose fd rides along."""

    segment: int
    nbytes: int
    writable: bool


class Reserved(msgspec.Struct, tag="reserved", array_like=True):
    """One outcome a key: an `Outcome`, or the `Code` of a refusal. Fds of segments new to the engine ride along."""

    id: int
    reservation: int
    """0 when there is nothing to write."""
    outcomes: bytes
    """u8 for each key."""
    segments: bytes
    """u32 for each key; meaningful where the outcome is WRITE."""
    offsets: bytes
    """u64 for each key; bytes from the start of the segment."""
    grants: list[SegmentGrant]
    retired: list[int] = []
    """Segments that this engine got and that are retired since the last answer of this kind: unmap them."""


class Committed(msgspec.Struct, tag="committed", array_like=True):
    """The blocks are visible to every reader of the space."""

    id: int
    blocks: int


class Aborted(msgspec.Struct, tag="aborted", array_like=True):
    id: int


class Leased(msgspec.Struct, tag="leased", array_like=True):
    """Descriptors of the leading hits; their counters were raised in the engine's own area."""

    id: int
    descriptors: bytes
    """u32 for each hit."""


class Reported(msgspec.Struct, tag="reported", array_like=True):
    id: int
    dropped: int
    """Blocks that were found corrupt and are gone."""


class Mapped(msgspec.Struct, tag="mapped", array_like=True):
    id: int
    grants: list[SegmentGrant]
    retired: list[int] = []
    """As in `Reserved`."""


class HeldMemory(msgspec.Struct, array_like=True, frozen=True):
    """One fd that rides along for a holder."""

    kind: str
    """`index`, `books`, `names`, `segment`, `area` or `named`; or a socket: `listener` or `connection`."""
    number: int
    """Segment number, client number, connection number, or 0."""
    nbytes: int
    """0 of a socket."""


class Held(msgspec.Struct, tag="held", array_like=True):
    """Fds for a holder, in the order of `memory`; sent again, with id 0, whenever memory is added."""

    id: int
    epoch: int
    memory: list[HeldMemory]
    dropped: list[HeldMemory] = []


class Detached(msgspec.Struct, tag="detached", array_like=True):
    id: int


class CacheRegistered(msgspec.Struct, tag="cache_registered", array_like=True):
    id: int
    cache: int
    """Its number on this connection."""
    blocks: int
    """The engine's block numbers are below."""
    blocks_per_chunk: int


class CacheUnregistered(msgspec.Struct, tag="cache_unregistered", array_like=True):
    id: int


class StoreBegun(msgspec.Struct, tag="store_begun", array_like=True):
    """One outcome a key, as in `Reserved`: what is to be written is copied by the data plane."""

    id: int
    copy: int
    """Number of the copy on this connection; 0 when there is nothing to copy, and no `CopyEnded` follows."""
    outcomes: bytes
    """u8 for each key."""


class LoadBegun(msgspec.Struct, tag="load_begun", array_like=True):
    id: int
    copy: int
    """As in `StoreBegun`."""
    hits: int
    """Leading keys whose blocks are copied; those of the others are left as they are."""


class CopyEnded(msgspec.Struct, tag="copy_ended", array_like=True):
    """Nothing touches the engine's blocks any more. Comes unasked; `id` is that of the request."""

    id: int
    copy: int
    blocks: int
    """Blocks that were published, or loaded."""
    code: int = 0
    """A `Code`, when it failed: then nothing was published, and what was to be loaded is undefined."""
    message: str = ""


class ReplicaGrant(msgspec.Struct, array_like=True, frozen=True):
    """One extent of device memory."""

    extent: int
    handle: bytes
    """64 bytes of the driver, of the whole allocation."""
    offset: int
    """Of the extent in the allocation."""
    nbytes: int


class ReplicasMapped(msgspec.Struct, tag="replicas_mapped", array_like=True):
    """Extents that are still there and are of the engine's spaces. The fd of the table rides along where it was asked
    for; see `dataplane.protocol.replicas`."""

    id: int
    grants: list[ReplicaGrant]


class Refused(msgspec.Struct, tag="refused", array_like=True):
    """The whole request was not served; nothing of it was done."""

    id: int
    code: int
    message: str
    field: str = ""


EngineReply = (
    Attached
    | Reserved
    | Committed
    | Aborted
    | Leased
    | Reported
    | Mapped
    | Detached
    | Held
    | Refused
    | CacheRegistered
    | CacheUnregistered
    | StoreBegun
    | LoadBegun
    | CopyEnded
    | ReplicasMapped
)
