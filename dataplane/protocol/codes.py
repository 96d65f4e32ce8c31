"""Error codes: every code that the data plane can answer, with its number on the wire.

Codes are stable: a number is never reused and a name never changes its meaning. `docs/reference/errors.md`
is generated from this table. A code is an answer, not an exception: no message from a peer may raise beyond the
socket on which it arrives.
"""

from enum import IntEnum


class Code(IntEnum):
    """Reason why a request, or one of its keys, was not served. The text is the operator's explanation."""

    def __new__(cls, value: int, doc: str) -> "Code":
        member = int.__new__(cls, value)
        member._value_ = value
        member.__doc__ = doc
        return member

    # The message could not be understood or served.
    MALFORMED = 1, "The datagram is not a message of this protocol; nothing was done."
    VERSION_MISMATCH = 2, "The peer speaks another protocol version."
    NOT_ATTACHED = 3, "The request needs an attached engine; attach first."
    ALREADY_ATTACHED = 4, "This connection is already attached; open another one."
    NOT_ALLOWED = 5, "The peer's uid is not on the allow-list of the engine socket, or lacks permission."
    TOO_MANY_CLIENTS = 6, "The data plane serves its maximum number of attached engines."
    UNSUPPORTED = 7, "This data plane does not support the request on this machine."
    EXPELLED = (
        8,
        "An operator expelled this process; it may not attach until the operator readmits it or it is started again.",
    )

    # A field has an invalid value.
    BAD_SALT = (20, "cache_salt must have at most 128 characters, no control character and none of '@', '/', '\\'.")
    BAD_KEYS = 21, "Keys must be a run of 1 to 4,096 different 32-byte keys, without their parent."
    BAD_SIZE = 22, "A block's size must be at least 1 byte and fit the space's block size."
    BAD_SPACE = (23, "A space must name a model and have valid numbers; a request must name a space of its engine.")
    BAD_SLOTS = 24, "The slots do not belong to this reservation."
    BAD_CHECKSUMS = 25, "Checksums must be 16 bytes for each committed slot, or absent."
    BAD_GROUP = 26, "The engine group must be 1 to 128 printable characters."

    # The request is well formed but contradicts the state.
    UNKNOWN_SPACE = 40, "The space is not attached on this connection."
    SPACE_CONFLICT = (
        41,
        "The same space is attached with another block size; one of the engines is configured wrongly.",
    )
    READ_ONLY_SPACE = 42, "The engine attached this space read-only."
    UNKNOWN_RESERVATION = 43, "The reservation is not (or no longer) open on this connection."
    RESERVATION_EXPIRED = (
        44,
        "The reservation's deadline passed; its blocks were quarantined and nothing was published.",
    )
    UNKNOWN_SEGMENT = 45, "The segment does not exist or belongs to a space that this engine did not attach."
    INVALIDATED = (46, "An operator invalidated these blocks while they were being written; nothing was published.")
    DEVICE_REFUSED = 48, "The device's memory could not be opened; the message says what to set."
    COPY_FAILED = 49, "The copy from or to the device failed; nothing was published."
    TOO_MANY_COPIES = 50, "The engine has its maximum number of copies under way."

    # A key of a valid request was refused.
    TOO_LARGE = 60, "The block can never fit in the pool."
    OVER_LIMIT = 61, "The tenant's byte limit leaves no room and none of its own blocks can be evicted."
    POOL_FULL = 62, "Every block that could make room is leased, pinned, being written or quarantined."
    FRAGMENTED = (63, "There are evictable bytes, but every slab that could serve this size holds a leased block.")
    INDEX_FULL = 64, "Both index buckets of the key are full of blocks that cannot be evicted."
    NO_DESCRIPTOR = 65, "Every block descriptor is in use by blocks that cannot be evicted."
    OUT_OF_MEMORY = 66, "The machine refused memory for a new segment."
    TOO_MANY_RESERVATIONS = 67, "The engine holds its maximum number of open reservations."

    RATE_LIMITED = 68, "The tenant stores faster than its quota allows; try again later."
    NOT_ADMITTED = (
        69,
        "The pool is under pressure and the admission filter saw the key for the first time; "
        "it is admitted when it is stored again.",
    )
    DRAINING = (70, "An operator drains this node: it takes no new engines and stores no new blocks; reads continue.")

    TOO_MANY_TENANTS = (71, "The id journal has no room for another tenant until one of its tenants has no blocks.")

    # Used only by the client library; never on the wire.
    UNAVAILABLE = 80, "No data plane is reachable; counted as a miss."
    TIMEOUT = 81, "The data plane did not answer in time; counted as a miss."

    # Requests and snapshots of the management plane.
    BAD_FIELD = 100, "A field of the snapshot has the wrong type or a value out of range."
    BAD_DIGEST = 101, "The body does not match its digest."
    STALE_GENERATION = 102, "A newer generation of this type was already applied."
    DUPLICATE = 103, "Two records of the snapshot have the same name."
    UNKNOWN_BODY = 104, "A requested body was not sent."
    TOO_MANY = (105, "The snapshot has more records than this data plane takes, or too many moves are under way.")
    UNKNOWN_PREFIX = 106, "No hot prefix has this label now; list the prefixes again."
    BAD_SCOPE = 107, "A scope must name a tenant, a model, a space or keys."
    CANNOT_RESIZE = 108, "The pool can only grow, and only into memory that the machine has."
    UNKNOWN_VERIFICATION = (109, "No verification has this number, or its result was discarded; start another one.")

    UNKNOWN_TIER = (
        113,
        "No tier with this name is open on the node. The message names the open tiers; `larder tiers set` adds one.",
    )
    UNKNOWN_MOVE = 114, "No move has this number, or its result was discarded; start another one."

    # Expelling an engine.
    UNKNOWN_ENGINE = 110, "No engine with this client number is known; list the engines of the node again."
    HOLDS_LEASES = (111, "The engine's process holds blocks at this moment; expel it with force, or kill it.")
    CANNOT_KILL = 112, "The data plane cannot signal the engine's process; end it on its machine."


_BY_NUMBER = {int(code): code for code in Code}


def code_of(number: int) -> Code:
    """Return the code of a wire number, or UNSUPPORTED if this version does not know the number."""
    return _BY_NUMBER.get(number, Code.UNSUPPORTED)


class ReserveOutcome(IntEnum):
    """Answer of `reserve` for one key, apart from a refusal (any `Code`)."""

    WRITE = 0
    """Write here, then commit."""
    PRESENT = 254
    """Already cached; nothing to do."""
    BUSY = 255
    """Being written by another engine; try a lookup later."""


NOT_REFUSED = frozenset(int(outcome) for outcome in ReserveOutcome)
"""Outcomes of `reserve` for a key that are no refusal."""


class ProtocolError(Exception):
    """A message that cannot be served: a stable `code`, a sentence that says what was expected, and the invalid
    `field`."""

    def __init__(self, code: Code, message: str, field: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
