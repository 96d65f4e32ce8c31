"""Messages between engines and the data plane over the AF_UNIX SEQPACKET socket: one MessagePack datagram each.

Every request carries an `id` that its answer repeats. Runs of keys, slots, offsets and checksums travel as packed
little-endian bytes, so that both sides read them with numpy and build no object per key. File descriptors of memory are
attached with `SCM_RIGHTS`; the message describes them, in order.
"""

import msgspec

from dataplane.protocol.message_bases import ReplyToEngine, RequestOfEngine
from dataplane.protocol.spaces import Space

VERSION = 2
MAX_DATAGRAM_BYTES = 192 * 1024
"""Below the default send buffer of an AF_UNIX socket, so that no datagram fails because of its size."""
MAX_KEYS_PER_REQUEST = 4096
MAX_FDS_PER_DATAGRAM = 64
MAX_WAIT_S = 300.0
"""Longest `Prefetch.wait_s`."""
CHECKSUM_BYTES = 16
HANDLE_BYTES = 64
"""Size of a handle of device memory or of an event."""


class SpaceRequest(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """One space that an engine attaches, and whether it writes to it."""

    space: Space
    writes: bool = True


# ---- engine to data plane


class Attach(RequestOfEngine, tag="attach"):
    """First message of a connection. The socket's peer credentials identify the process; `group` identifies the
    engine."""

    version: int
    group: str
    """Engine group, shared by one scheduler and its workers. Quarantined bytes wait for every process of the group."""
    spaces: list[SpaceRequest]
    engine: str = ""
    """Free text for operators, e.g. `"vllm 0.33"`."""
    membarrier: bool = True
    """The process is registered for expedited barriers; if not, it takes leases by message."""
    resume: int = 0
    """Client number of this process's attachment to the previous data plane, whose memory it still maps; 0 for none. If
    the memory was adopted, the answer sets `resumed` and the area stays the same."""
    resume_memory: int = 0
    """`Attached.memory` of that attachment."""
    writing: list[int] = msgspec.field(default_factory=list)
    """Reservations of that attachment to which this process may still be writing."""


class Reserve(RequestOfEngine, tag="reserve"):
    """Ask for room for the missing blocks of a prefix chain, in order. The answer has one outcome for each key."""

    space: int
    """Number from `Attached.spaces`."""
    tenant: str
    keys: bytes
    """n keys of 32 bytes, ancestors first."""
    nbytes: int
    """Size of each block in bytes."""
    parent: bytes = b""
    """The key before the first one, 32 bytes and not among `keys`, if `keys` does not start the chain. The blocks up to
    it are spared and become as recent as those of `keys`."""


class HintedReserve(Reserve, tag="reserve_hinted"):
    """A reservation with hints of the request that stores the blocks. Sent only to a data plane whose
    `Attached.hint_max_s` is not 0; answered like `Reserve`."""

    ttl_s: float = 0.0
    """Drop the blocks that are stored now after this time without use; 0 for never."""
    pin_s: float = 0.0
    """Evict the blocks of `keys`, also those stored before, after other blocks of the tenant for this time; 0 for
    none."""


class SessionReserve(HintedReserve, tag="reserve_session"):
    """A reservation for a request that names its session. Sent only to a data plane whose `Attached.sessions` is set;
    answered like `Reserve`."""

    session: str = ""
    """Name of the session: 1 to MAX_SESSION_CHARACTERS of `dataplane.protocol.sessions`."""


class Commit(RequestOfEngine, tag="commit"):
    """Publish blocks of a reservation; slots that are not named are aborted."""

    reservation: int
    slots: bytes = b""
    """u32 positions in the request's keys; empty for every slot that was to be written."""
    checksums: bytes = b""
    """16 bytes for each committed slot, or empty."""


class Abort(RequestOfEngine, tag="abort"):
    """Give up a reservation. An owner that resumes after its deadline also uses it to release quarantined bytes."""

    reservation: int


class LeaseRequest(RequestOfEngine, tag="lease"):
    """Acquire leases by message, on machines without `membarrier`: the data plane raises the counters itself."""

    space: int
    keys: bytes


class Report(RequestOfEngine, tag="report"):
    """Report blocks whose bytes do not match their checksums. The data plane verifies them. Answered with
    `Reported`."""

    descriptors: bytes
    """u32 for each block."""
    controls: bytes
    """u64 control word that the reader saw, for each block."""


class Map(RequestOfEngine, tag="map"):
    """Ask for the memory of segments that appear in descriptors but are not mapped yet."""

    segments: list[int]


class Detach(RequestOfEngine, tag="detach"):
    """Detach: the engine no longer holds leases, writes blocks or maps memory."""


class Ping(RequestOfEngine, tag="ping"):
    """Ask whether the data plane serves, and speaks this version. Needs no attachment."""

    version: int


class MapGpuCopies(RequestOfEngine, tag="map_gpu_copies"):
    """Ask for the GPU copies on a device: copies of pinned blocks that the engine may read there instead of in the
    pool. Answered with `GpuCopiesMapped`; refused with UNSUPPORTED if the node keeps no GPU copies, and with
    DEVICE_REFUSED if the device cannot be used."""

    device: str
    """UUID of the device."""
    extents: list[int]
    """Extents that appear in the table and are not mapped yet; none at first."""
    closed: list[int]
    """Extents that the table no longer lists and that this process has unmapped."""
    table: bool
    """Send the fd of the table with the answer."""


class MapTiers(RequestOfEngine, tag="map_tiers"):
    """Ask for the tier directory. Sent only to a data plane whose `Attached.tiers` is set; answered with
    `TiersMapped`."""


class Prefetch(RequestOfEngine, tag="prefetch"):
    """Ask for the blocks of a chain that are in tiers and not in memory. Answered with `Prefetching` at once; the
    blocks become READY one after the other, or stay missing."""

    space: int
    """Number from `Attached.spaces`."""
    keys: bytes
    """n keys of 32 bytes, ancestors first."""
    wait_s: float
    """Seconds after which no further block is loaded for this request, at most 300. 0 cancels an earlier request of
    this engine for the same keys."""


class ReportRequest(RequestOfEngine, tag="report_request"):
    """Report what a request of the engine got from the cache. Sent only to a data plane whose `Attached.requests` is
    set; answered with `RequestReported`. A later report of the same request replaces an earlier one."""

    request: str
    """The engine's id of the request."""
    tenant: str
    prompt_tokens: int
    engine_tokens: int
    """Tokens that the engine's own prefix cache had."""
    loaded_tokens: dict[str, int]
    """Tokens that are loaded, by where they were: keys of `dataplane.protocol.misses.SOURCES`."""
    missed_tokens: int
    """Tokens that are computed although a cache could have had them."""
    reason: str = ""
    """Why the first of these is missing, a key of `ENGINE_REASONS`; empty if the data plane is to find it."""
    key: bytes = b""
    """Key of the first missing block, 32 bytes; empty if `reason` is given or nothing is missing."""
    bare_key: bytes = b""
    """Key that this block would have without the request's adapter; empty if it has none, or it is not the first block
    of the chain."""


TraceableRequest = Reserve | HintedReserve | SessionReserve | Commit | Abort | LeaseRequest | Report | Map | Prefetch
"""Requests that `Traced` may carry."""


class Traced(msgspec.Struct, tag="traced", array_like=True, forbid_unknown_fields=True):
    """A request with the trace that it belongs to. Sent only to a data plane whose `Attached.traces` is set; answered
    like the request alone."""

    id: int
    """The id of the request."""
    traceparent: str
    """W3C Trace Context."""
    request: TraceableRequest


EngineRequest = Attach | Detach | Ping | MapGpuCopies | MapTiers | ReportRequest | Traced | TraceableRequest

# ---- data plane to engine


class Attached(ReplyToEngine, tag="attached"):
    """Accepts the attachment and carries two fds: the index memory (read-only) and the engine's own area
    (read-write)."""

    client: int
    node: str
    epoch: int
    spaces: list[int]
    """Numbers of the requested spaces, in order."""
    membarrier: bool
    """False: the engine takes leases by message."""
    reservation_ttl_s: float
    memory: int = 0
    """Identity of the index memory; unchanged in a data plane that adopted it."""
    resumed: bool = False
    """The attachment named in the request continues, with its client number, area and counters; no fd is attached."""
    traces: bool = False
    """The data plane makes spans: it accepts `Traced`."""
    hint_max_s: float = 0.0
    """Longest duration of hints: it accepts `HintedReserve`, and shortens longer ones. 0: it does not accept them."""
    tiers: bool = False
    """The node has tiers behind memory: it accepts `MapTiers` and `Prefetch`."""
    requests: bool = False
    """The node keeps records of requests: it accepts `ReportRequest`."""
    sessions: bool = False
    """The node knows sessions: it accepts `SessionReserve`."""


class SegmentGrant(msgspec.Struct, array_like=True, frozen=True):
    """One memory segment whose fd is attached."""

    segment: int
    nbytes: int
    writable: bool


class Reserved(ReplyToEngine, tag="reserved"):
    """One outcome for each key: a `ReserveOutcome`, or the `Code` of a refusal. Fds of segments that are new to the
    engine are attached."""

    reservation: int
    """0 if there is nothing to write."""
    outcomes: bytes
    """u8 for each key."""
    segments: bytes
    """u32 for each key; meaningful only if the outcome is WRITE."""
    offsets: bytes
    """u64 for each key; bytes from the start of the segment."""
    grants: list[SegmentGrant]
    retired: list[int] = msgspec.field(default_factory=list)
    """Segments granted to this engine that were retired since the last answer of this kind; the engine unmaps them."""


class BlocksCommitted(ReplyToEngine, tag="committed"):
    """The blocks are visible to every reader of the space."""

    blocks: int


class Aborted(ReplyToEngine, tag="aborted"):
    pass


class Leased(ReplyToEngine, tag="leased"):
    """Descriptors of the leading hits; their counters in the engine's own area are already raised."""

    descriptors: bytes
    """u32 for each hit."""


class Reported(ReplyToEngine, tag="reported"):
    dropped: int
    """Blocks that the data plane found corrupt and dropped."""


class SegmentsMapped(ReplyToEngine, tag="mapped"):
    grants: list[SegmentGrant]
    retired: list[int] = msgspec.field(default_factory=list)
    """Segments that are retired, as in `Reserved`."""


class Serving(ReplyToEngine, tag="serving"):
    """Answer to `Ping`."""

    epoch: int


class Detached(ReplyToEngine, tag="detached"):
    pass


class ExtentGrant(msgspec.Struct, array_like=True, frozen=True):
    """One extent of device memory."""

    extent: int
    handle: bytes
    """Driver handle of the whole allocation, 64 bytes."""
    offset: int
    """Offset of the extent in the allocation, in bytes."""
    nbytes: int


class GpuCopiesMapped(ReplyToEngine, tag="gpu_copies_mapped"):
    """Extents of the engine's spaces that are still listed. The fd of the table is attached if the request asked for
    it; see `dataplane.protocol.gpu_copies`."""

    grants: list[ExtentGrant]


class TiersMapped(ReplyToEngine, tag="tiers_mapped"):
    """The fd of the tier directory is attached, read-only; see `dataplane.protocol.tier_directory`."""

    nbytes: int


class Prefetching(ReplyToEngine, tag="prefetching"):
    pass


class RequestReported(ReplyToEngine, tag="request_reported"):
    """The record of the request is kept."""

    reason: str
    """Why the first missing tokens are missing, a key of `MISS_REASONS`; empty if nothing is missing."""
    cause: str = ""
    """More about the reason: why the block was evicted, the code of the refusal, or the fields that differ."""
    at: float = 0.0
    """Unix seconds of the removal or refusal; 0 for other reasons."""


class Refused(ReplyToEngine, tag="refused"):
    """The whole request was refused; no part of it was done."""

    code: int
    message: str
    field: str = ""


EngineReply = (
    Attached
    | Reserved
    | BlocksCommitted
    | Aborted
    | Leased
    | Reported
    | SegmentsMapped
    | Detached
    | Serving
    | Refused
    | GpuCopiesMapped
    | TiersMapped
    | Prefetching
    | RequestReported
)
