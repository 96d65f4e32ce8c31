"""Layout of the shared memory of engines and the data plane, and why reading it needs no message.

Theory
======

Three kinds of memory are described here, each a sealed memfd passed over the engine socket, except segments that are
ranges of the named segment:

* **index memory**, written by the data plane and mapped read-only by engines: a header, the bucketed index, one *hot*
  row per descriptor (control word, key, space and segment, offset, size) and one *cold* row (checksum, tenant, time);
* **areas**, one for each attached process and written by it: lease counters (one u32 per descriptor), counts of its
  operations by duration, and an access ring;
* **segments**, the pool's bytes, each belonging to one space at a time.

Only x86-64 is supported: the arguments below rest on its total store order (stores become visible in program order,
loads are done in program order; a store may be delayed past a later load) and on the atomicity of aligned 8-byte
accesses. In Python each numpy call is a compiler barrier, so program order is the order of the calls.

*Publication.* A block's key, space, extent and checksum are written while its state is not READY; then one aligned
8-byte store of the control word makes it READY. The incarnation in the control word changes exactly when the block's
bytes are given up. A reader loads the control word, the row, and the control word again: if both control words are
equal and READY, the row belongs to that incarnation. Any other state is a miss; readers never spin.

*Index.* A key hashes to two buckets of eight entries; an entry is a 32-bit tag and a descriptor number. Entries never
move. A racing insert or removal can hide an entry from a reader (a false miss). It cannot produce a false hit, because
the reader compares the descriptor's whole row.

*Leases are counters.* To acquire a lease, a process raises its own counter of the descriptor and *then* reads the row
again as above; if that fails, it lowers the counter and has a miss. To evict, the data plane leaves out the blocks
whose counters are raised, stores EVICTING in the control words of the others, issues one
`membarrier(GLOBAL_EXPEDITED)`, and *then* sums their counters over all areas. A block whose lease shows by then stays
readable; one that is leased meanwhile is hidden until it is put back. This is Dekker's mutual exclusion with the
expensive fence on the rare side: the barrier makes every registered, running process drain its store buffer. So one of
two cases holds for each reader. Either its counter store came before the barrier: then the sum is not zero, and the
block goes back to READY with its incarnation unchanged. Or the store came after the barrier: then its second read of
the control word comes after the EVICTING store and sees a state other than READY. There is no third case, and no reader
ever waits. The kernel silently skips a process that is not registered, so a client registers before it attaches, and
its area is in the scan before the attach is answered. Without `membarrier` the data plane raises the counters itself,
on request, between its own steps.

*Trust.* Engines write counters and rings, and wrong values harm only the engine that writes them: a counter that is too
high keeps a block from eviction (and is reported), and one that is too low lets a block be evicted under that engine
only. Ring entries carry the control word that the engine saw; the data plane clamps indices and drops entries that do
not match. Counts of operations are read as increases, and increases that no process can reach are dropped.

*Which counters count.* A process attaches spaces and gets no mapping of the segments of other spaces. Its counters
therefore count only for blocks of the spaces that it attached, whatever values it writes. An operator may *expel* a
process that holds the blocks of its own spaces: the data plane stores A_EXPELLED in its area, issues the barrier, and
sums the area's counters once more. By the argument above, a reader either raised its counters before the barrier, so
that they are in that sum, or sees A_EXPELLED and has no lease. From then on the area is not in the scan.

*Dead owners.* The counters of a dead process stay raised. Its area leaves the scan when every process of its engine
group is proven gone (pidfd), not when its socket closes: workers may still be copying under the scheduler's lease.
Bytes that a dead or hung owner was writing are QUARANTINED under the same rule.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.states import MAX_BLOCKS, STATE_MASK, State

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

LAYOUT_VERSION = 2
PAGE = 4096

INDEX_MAGIC = int.from_bytes(b"LARDERIX", "little")
AREA_MAGIC = int.from_bytes(b"LARDERAR", "little")

BUCKET_ENTRIES = 8
HOT_WORDS = 8
COLD_WORDS = 4

# Words of the index header.
H_MAGIC, H_VERSION, H_EPOCH, H_MAX_BLOCKS, H_BUCKETS, H_BYTES, H_PID, H_CLOSED = range(8)
# H_CLOSED becomes 1 when the memory is released, by the data plane or the holder: engines then unmap it. While memory
# is held after a stop or a kill it stays 0, and READY blocks can be read, because no process is left that could evict
# them.
H_MEMORY, H_ADOPTED_NS = 8, 9
# H_MEMORY is chosen at random when the memory is made and stays the same when a restarted data plane adopts it. Blocks
# stored before H_ADOPTED_NS are from an earlier process: their first reader verifies their checksums. 0: never adopted.
H_INVALID_COUNT, H_INVALID = 63, 64
# Invalidations whose sweep is in progress: a count, then INVALID_WORDS words for each. The count is almost always 0, so
# readers usually pay for one load. Readers skip blocks that match. The data plane adds an entry before it raises the
# count, and removes entries only when no block in the index matches them.
MAX_INVALIDATIONS = 64
INVALID_WORDS = 4
INVALID_SPACE, INVALID_TENANT, INVALID_BEFORE_NS = 0, 1, 2
# Space and tenant numbers, 0 for any; an entry matches blocks whose COLD_STORED_AT is below INVALID_BEFORE_NS.

# Words of a hot row: one cache line.
HOT_CONTROL, HOT_KEY, HOT_SPACE_SEGMENT, HOT_OFFSET, HOT_NBYTES = 0, 1, 5, 6, 7

# Words of a cold row.
COLD_CHECKSUM, COLD_TENANT, COLD_STORED_AT = 0, 2, 3

# Words of an area's header; head, dropped and tail are on separate cache lines.
A_MAGIC, A_VERSION, A_MAX_BLOCKS, A_RING_ENTRIES, A_RING_HEAD, A_RING_DROPPED, A_RING_TAIL = (0, 1, 2, 3, 8, 9, 16)
A_EXPELLED = 24
# Only the data plane stores A_EXPELLED: 1 if the counters of the area no longer count, or may soon stop counting. A
# client reads it after it has raised counters, and has no lease while it is set.
A_OPERATIONS = 64
# Counts of operations that the client completed, OPERATION_WORDS for each of OPERATIONS: one count for each of
# OPERATION_BOUNDS_NS (durations up to it and above the one before), one for longer operations, and the sum of all
# durations in nanoseconds. Releases that do not know these words leave them 0.
OPERATIONS = ("lookup", "acquire", "reserve", "commit")
LOOKUP, ACQUIRE, RESERVE, COMMIT = range(len(OPERATIONS))
OPERATION_BOUNDS_NS = (
    *(1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000),
    *(1_000_000, 2_500_000, 5_000_000, 10_000_000, 25_000_000, 50_000_000, 100_000_000, 250_000_000, 500_000_000),
    *(1_000_000_000, 2_500_000_000, 5_000_000_000, 10_000_000_000),
)
OPERATION_WORDS = len(OPERATION_BOUNDS_NS) + 2

RING_WORDS = 2
DEFAULT_RING_ENTRIES = 16_384

# Kinds of ring entries, in the top byte of the first word.
RING_TOUCH = 1
"""Second word: the control word that the reader saw. First word: the descriptor (32 bits at 0) and its position in the
acquired chain (24 bits at 32). One acquire writes its run from the tail, so a run ends at position 0."""
RING_LOOKUP = 2
"""Second word: the tenant's fingerprint. First word: requested blocks (28 bits at 28), hit blocks (28 bits at 0)."""
RING_KIND_SHIFT = 56
RING_POSITION_SHIFT = 32
RING_POSITION_MASK = (1 << 24) - 1
RING_COUNT_BITS = 28
RING_COUNT_MASK = (1 << RING_COUNT_BITS) - 1

_READY = np.uint64(State.READY)
_RESERVED = np.uint64(State.RESERVED)
_STATE = np.uint64(STATE_MASK)
_LOW32 = np.uint64(0xFFFFFFFF)
_TAG_BIT = np.uint64(0x80000000)
_SHIFT32 = np.uint64(32)
_ONE = np.uint64(1)
_U64_MASK = (1 << 64) - 1


@lru_cache(maxsize=4096)
def key_masks(space: int) -> tuple[np.uint64, np.uint64]:
    """Return the words that are XORed with the words of a space's keys."""
    mixed = (space * 0x9E3779B97F4A7C15) & _U64_MASK
    return np.uint64(mixed), np.uint64(mixed >> 32)


class LayoutError(Exception):
    """The memory does not have the layout of this version of Larder."""


def _page_aligned(nbytes: int) -> int:
    """Round up to whole pages."""
    return -(-nbytes // PAGE) * PAGE


def bucket_count(max_blocks: int) -> int:
    """Return a power of two so large that `max_blocks` fill at most half of the entries."""
    return 1 << max(1, (2 * max_blocks - 1) // BUCKET_ENTRIES).bit_length()


def index_bytes(max_blocks: int) -> int:
    """Return the size of the index memory in bytes."""
    buckets = bucket_count(max_blocks)
    return _page_aligned(PAGE + 8 * (buckets * BUCKET_ENTRIES + max_blocks * (HOT_WORDS + COLD_WORDS)))


def area_bytes(max_blocks: int, ring_entries: int = DEFAULT_RING_ENTRIES) -> int:
    """Return the size of one process's area in bytes."""
    return _page_aligned(PAGE + _page_aligned(4 * max_blocks) + 8 * RING_WORDS * ring_entries)


class IndexMemory:
    """Typed views of index memory: `header[512]`, `entries[buckets, 8]`, `hot[n, 8]`, `cold[n, 4]`, all u64."""

    def __init__(self, buffer: memoryview | bytearray, max_blocks: int) -> None:
        if len(buffer) % 8:
            raise LayoutError(f"index memory of {len(buffer)} bytes, expected a multiple of 8")
        words = np.frombuffer(buffer, np.uint64)
        if len(words) * 8 < index_bytes(max_blocks):
            raise LayoutError(f"index memory of {max_blocks} blocks needs {index_bytes(max_blocks)} bytes")
        buckets = bucket_count(max_blocks)
        first = PAGE // 8
        hot = first + buckets * BUCKET_ENTRIES
        cold = hot + max_blocks * HOT_WORDS
        self.max_blocks = max_blocks
        self.buckets = buckets
        self.header: U64 = words[:first]
        self.entries: U64 = words[first:hot].reshape(buckets, BUCKET_ENTRIES)
        self.hot: U64 = words[hot:cold].reshape(max_blocks, HOT_WORDS)
        self.cold: U64 = words[cold : cold + max_blocks * COLD_WORDS].reshape(max_blocks, COLD_WORDS)
        self.control: U64 = self.hot[:, HOT_CONTROL]
        self.cells = memoryview(buffer).cast("B").cast("Q")
        """The same memory as single words: one aligned 8-byte load or store each, several times cheaper than through
        numpy."""
        self.first_entry = first
        self.first_hot = hot
        self._hot_words: U64 = words[hot:cold]
        self._mask = np.uint64(buckets - 1)

    @classmethod
    def attach(cls, buffer: memoryview | bytearray) -> "IndexMemory":
        """Return views of memory that the data plane laid out. Raises LayoutError if its layout is of another
        version."""
        header = np.frombuffer(buffer, np.uint64, min(PAGE // 8, len(buffer) // 8))
        if len(header) < PAGE // 8 or int(header[H_MAGIC]) != INDEX_MAGIC:
            raise LayoutError("not index memory of a Larder data plane")
        if int(header[H_VERSION]) != LAYOUT_VERSION:
            raise LayoutError(f"index memory has layout {int(header[H_VERSION])}, expected {LAYOUT_VERSION}")
        max_blocks = int(header[H_MAX_BLOCKS])
        if not 1 <= max_blocks <= MAX_BLOCKS or int(header[H_BUCKETS]) != bucket_count(max_blocks):
            raise LayoutError("index memory has a corrupted header")
        return cls(buffer, max_blocks)

    def format(self, epoch: int, pid: int) -> None:
        """Write the header of fresh (zeroed) memory, the magic last."""
        self.header[H_VERSION] = LAYOUT_VERSION
        self.header[H_EPOCH] = epoch
        self.header[H_MAX_BLOCKS] = self.max_blocks
        self.header[H_BUCKETS] = self.buckets
        self.header[H_BYTES] = index_bytes(self.max_blocks)
        self.header[H_PID] = pid
        self.header[H_MAGIC] = INDEX_MAGIC

    def buckets_and_tags(self, words: U64, space: int) -> tuple[U64, U64]:
        """Return the candidate buckets [n, 2] and tags [n] of packed keys [n, 4] in a space."""
        low, high = key_masks(space)
        buckets = (words[:, :2] ^ low) & self._mask
        # The top bit is always set, so an empty entry (0) never equals a tag.
        tags = ((words[:, 2] ^ high) & _LOW32) | _TAG_BIT
        return buckets, tags

    def find(self, words: U64, space: int) -> tuple[I64, U64]:
        """Find packed keys [n, 4] of a space: return descriptors [n] (-1: not found) and their control words [n].

        Finds blocks in any state but FREE; the caller checks the state. Safe against a concurrent writer.
        """
        numbers, control, _ = self.find_rows(words, space)
        return numbers, control

    def buckets_of(self, words: U64, space: int) -> tuple[U64, U64, U64]:
        """Return the candidate buckets [n, 2], the tags [n], and the entries [n, 16] now in those buckets."""
        buckets, tags = self.buckets_and_tags(words, space)
        entries = self.entries.take(buckets, axis=0, mode="clip").reshape(len(words), 2 * BUCKET_ENTRIES)
        return buckets, tags, entries

    def find_rows(self, words: U64, space: int) -> tuple[I64, U64, U64]:
        """Like `find`, and also return the hot rows [n, 8] that were compared."""
        _, tags, entries = self.buckets_of(words, space)
        return self.match(words, space, tags, entries)

    def tagged(self, tags: U64, entries: U64) -> Mask:
        """Return which entries [n, 16] have the tag of their key."""
        has_tag: Mask = (entries >> _SHIFT32) == tags[:, None]
        return has_tag

    def match(self, words: U64, space: int, tags: U64, entries: U64) -> tuple[I64, U64, U64]:
        """Like `find_rows`, within the entries [n, 16] of the keys' buckets."""
        has_tag = self.tagged(tags, entries)
        if not has_tag.any():  # true for every chain that is stored for the first time
            count = len(words)
            return (np.full(count, -1, np.int64), np.zeros(count, np.uint64), np.zeros((count, HOT_WORDS), np.uint64))
        first = has_tag.argmax(axis=1)
        chosen = np.take_along_axis(entries, first[:, None], axis=1)[:, 0]
        descriptors = ((chosen & _LOW32) - _ONE).astype(np.int64)
        control, rows, is_confirmed = self.confirm(descriptors, words, space)
        matched = has_tag.any(axis=1)
        is_confirmed &= matched
        if np.count_nonzero(has_tag) > np.count_nonzero(matched):  # rare: a tag occurs twice in a key's buckets
            self._find_again(has_tag, entries, words, space, descriptors, control, rows, is_confirmed)
        descriptors[~is_confirmed] = -1
        return descriptors, control, rows

    def confirm(self, descriptors: I64, words: U64, space: int) -> tuple[U64, U64, Mask]:
        """Return the control words and hot rows of descriptors, and which of them hold exactly the given keys and are
        not FREE."""
        # `take` copies the whole of a strided source, so control words are taken from the flat rows.
        at = descriptors * HOT_WORDS
        before = self._hot_words.take(at, mode="clip")
        rows = self.hot.take(descriptors, axis=0, mode="clip")
        after = self._hot_words.take(at, mode="clip")
        is_confirmed = (before == after) & (rows[:, HOT_KEY : HOT_KEY + 4] == words).all(axis=1)
        is_confirmed &= (rows[:, HOT_SPACE_SEGMENT] & _LOW32) == np.uint64(space)
        is_confirmed &= (after & _STATE) != 0
        return after, rows, is_confirmed

    def valid(self, descriptors: I64, rows: U64) -> Mask | None:
        """Return which blocks, given their hot rows, are not covered by a pending invalidation; None, almost always, if
        none is covered."""
        count = min(self.cells[H_INVALID_COUNT], MAX_INVALIDATIONS)
        if not count or not len(descriptors):
            return None
        words = self.header[H_INVALID : H_INVALID + INVALID_WORDS * count].reshape(count, INVALID_WORDS)
        cold = self.cold.take(descriptors, axis=0, mode="clip")
        spaces = rows[:, HOT_SPACE_SEGMENT] & _LOW32
        is_valid = np.ones(len(descriptors), np.bool_)
        for space, tenant, before, _ in words.tolist():
            covered = cold[:, COLD_STORED_AT] < np.uint64(before)
            if space:
                covered &= spaces == np.uint64(space)
            if tenant:
                covered &= cold[:, COLD_TENANT] == np.uint64(tenant)
            is_valid &= ~covered
        return is_valid

    def ready(self, descriptors: I64, control: U64, rows: U64, is_found: Mask) -> Mask:
        """Return which blocks, of those that `is_found` selects, may be read: READY and not covered by a pending
        invalidation."""
        is_ready_block = is_found & is_ready(control)
        valid = self.valid(descriptors, rows)
        return is_ready_block if valid is None else is_ready_block & valid

    def find_ready(self, words: U64, space: int) -> tuple[I64, U64, Mask]:
        """Return the descriptors and hot rows of keys, as `find_rows` does, and which of them may be read."""
        descriptors, control, rows = self.find_rows(words, space)
        return descriptors, rows, self.ready(descriptors, control, rows, descriptors >= 0)

    def leading_ready(self, words: U64, space: int) -> tuple[I64, U64]:
        """Return the descriptors and hot rows of the leading blocks of a chain that may be read."""
        descriptors, rows, is_readable = self.find_ready(words, space)
        hits = leading(is_readable)
        return descriptors[:hits], rows[:hits]

    def _find_again(
        self,
        has_tag: Mask,
        entries: U64,
        words: U64,
        space: int,
        descriptors: I64,
        control: U64,
        rows: U64,
        is_confirmed: Mask,
    ) -> None:
        for i in np.nonzero((has_tag.sum(axis=1) > 1) & ~is_confirmed)[0]:
            for entry in entries[i][has_tag[i]]:
                candidate = np.array([(int(entry) & 0xFFFFFFFF) - 1], np.int64)
                word, row, is_match = self.confirm(candidate, words[i : i + 1], space)
                if is_match[0]:
                    descriptors[i], control[i], rows[i], is_confirmed[i] = candidate[0], word[0], row[0], True
                    break


def is_ready(control: U64) -> Mask:
    """Return which control words are READY."""
    ready: Mask = (control & _STATE) == _READY
    return ready


def is_reserved(control: U64) -> Mask:
    """Return which control words are RESERVED: the block is being written."""
    reserved: Mask = (control & _STATE) == _RESERVED
    return reserved


def leading(flags: Mask) -> int:
    """Return the length of the leading run of True."""
    return len(flags) if flags.all() else int(flags.argmin())


def longest_prefix(present: Sequence[Mask], tails: Sequence[int]) -> int:
    """Return the number of blocks in the longest prefix of a chain that every space can serve.

    `present` has for each space which blocks [n] of the chain it has. `tails` has for each space how many blocks at the
    end of a prefix it needs, 0 for all (`Space.tail_blocks`).
    """
    end = min(leading(flags) if not tail else len(flags) for flags, tail in zip(present, tails, strict=True))
    if not any(tails):
        return end
    usable = np.ones(end, np.bool_)
    for flags, tail in zip(present, tails, strict=True):
        if tail:
            misses = np.cumsum(~flags[:end])
            usable &= misses == np.concatenate((np.zeros(tail, misses.dtype), misses))[:end]
    ends = np.flatnonzero(usable)
    return int(ends[-1]) + 1 if len(ends) else 0


class AreaMemory:
    """Typed views of one process's area: `header[512]` u64 with `operations[4, 24]`, `counters[n]` u32,
    `ring[entries, 2]` u64."""

    def __init__(self, buffer: memoryview | bytearray, max_blocks: int, ring_entries: int) -> None:
        if len(buffer) < area_bytes(max_blocks, ring_entries):
            raise LayoutError(f"an area of {max_blocks} blocks needs {area_bytes(max_blocks, ring_entries)} bytes")
        ring_at = PAGE + _page_aligned(4 * max_blocks)
        self.max_blocks = max_blocks
        self.ring_entries = ring_entries
        self.header: U64 = np.frombuffer(buffer, np.uint64, PAGE // 8)
        self.operations: U64 = self.header[A_OPERATIONS : A_OPERATIONS + OPERATION_WORDS * len(OPERATIONS)].reshape(
            len(OPERATIONS), OPERATION_WORDS
        )
        self.counters: U32 = np.frombuffer(buffer, np.uint32, max_blocks, PAGE)
        self.ring: U64 = np.frombuffer(buffer, np.uint64, RING_WORDS * ring_entries, ring_at).reshape(
            ring_entries, RING_WORDS
        )

    @classmethod
    def attach(cls, buffer: memoryview | bytearray) -> "AreaMemory":
        """Return views of an area that the data plane laid out. Raises LayoutError if its layout is of another
        version."""
        header = np.frombuffer(buffer, np.uint64, min(PAGE // 8, len(buffer) // 8))
        if len(header) < PAGE // 8 or int(header[A_MAGIC]) != AREA_MAGIC:
            raise LayoutError("not an area of a Larder data plane")
        if int(header[A_VERSION]) != LAYOUT_VERSION:
            raise LayoutError(f"area has layout {int(header[A_VERSION])}, expected {LAYOUT_VERSION}")
        return cls(buffer, int(header[A_MAX_BLOCKS]), int(header[A_RING_ENTRIES]))

    def format(self) -> None:
        """Write the header of fresh (zeroed) memory, the magic last."""
        self.header[A_VERSION] = LAYOUT_VERSION
        self.header[A_MAX_BLOCKS] = self.max_blocks
        self.header[A_RING_ENTRIES] = self.ring_entries
        self.header[A_MAGIC] = AREA_MAGIC


def pack_keys(keys: Sequence[bytes] | bytes | U64) -> U64:
    """Return keys as u64 words [n, 4]. Accepts a list of 32-byte keys, their concatenation, or packed words.

    Raises ValueError if a key is not 32 bytes.
    """
    if isinstance(keys, np.ndarray):
        if keys.dtype != np.uint64 or keys.ndim != 2 or keys.shape[1] != KEY_BYTES // 8:
            raise ValueError(f"expected packed keys of shape [n, 4] and dtype uint64, got {keys.shape} {keys.dtype}")
        return keys
    if not isinstance(keys, (bytes, bytearray, memoryview)):
        for key in keys:
            if len(key) != KEY_BYTES:
                raise ValueError(f"expected keys of {KEY_BYTES} bytes, got one of {len(key)}")
        keys = b"".join(keys)
    if len(keys) % KEY_BYTES:
        raise ValueError(f"expected a multiple of {KEY_BYTES} bytes, got {len(keys)}")
    return np.frombuffer(keys, np.uint64).reshape(-1, KEY_BYTES // 8)
