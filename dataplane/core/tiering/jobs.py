"""Jobs: batches of blocks that the mover copies to a tier, loads from one, or both; what sources ask for; and the one
table of both.

The life of a copy or a load:

1. A source proposes. It adds blocks to a `CopyRequest`, or asks for a chain (`LoadRequest`). Sources are spills,
   pins, cascades, drains, moves and engines. They know neither each other nor the mover.
2. The planner (`copies`, `loads`) makes a job of the next blocks that may begin: it reserves room in the target, leases
   blocks of memory, or reserves memory. Only now do bytes count, so a tier that hangs blocks a bounded number of them.
3. The mover takes the job, and does its I/O on threads. A job with a source tier loads first, one with a target tier
   then stores: memory → tier stores, tier → memory loads, tier → tier does both, and so does a tier that encodes
   its own blocks again, whose source is its target.
4. `outcomes` applies what happened to the catalog and the pool, and ends the job. The source finds the outcomes of
   its blocks with `take_ended` the next time it looks.

A block is copied to a tier by one job at a time (`TierState.arriving`), and loaded by one at a time
(`JobTable.loading`), however many sources want it. A load whose reservation has expired counts no more.

A job that hangs is not waited for any more, but its room stays reserved until its thread
returns, because the thread may still store.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from itertools import chain
from math import inf
from types import MappingProxyType

from dataplane.core.blocks.blocks import Block
from dataplane.core.tiering.invalidations import NOWHERE, ChainPositions
from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.stored_blocks import BlockForm, BlockName, StoredBlock

MAX_WAITING_REQUESTS = 1024
"""Number of places for requests for loads."""
OWN_ENTRIES = 4
"""Number of requests of each engine that always have a place."""


class JobReason(Enum):
    """Why blocks are copied or loaded."""

    SPILL = "spill"
    """The record of the target says so."""
    PIN = "pin"
    """A guaranteed or a permanent pin holds them; they go before all others."""
    MOVE = "move"
    CASCADE = "cascade"
    """The source evicts them soon."""
    DRAIN = "drain"
    ENCODE = "encode"
    """A move encodes the blocks of a tier again."""
    LOAD = "load"
    """An engine, a pin or a move asked for them."""


URGENT = frozenset({JobReason.CASCADE, JobReason.ENCODE})
"""Copies from a tier that begin even while engines wait for loads."""


class JobState(IntEnum):
    """What a job does now."""

    PLANNED = 0
    LOADING = 1
    STORING = 2
    HUNG = 3
    """Its call did not return in time. It is not waited for any more, and does nothing if its thread has not begun."""
    ENDED = 4


NEXT = MappingProxyType(
    {
        JobState.PLANNED: frozenset({JobState.LOADING, JobState.STORING}),
        JobState.LOADING: frozenset({JobState.STORING, JobState.HUNG, JobState.ENDED}),
        JobState.STORING: frozenset({JobState.HUNG, JobState.ENDED}),
        JobState.HUNG: frozenset({JobState.ENDED}),
        JobState.ENDED: frozenset[JobState](),
    }
)
"""The states that may follow each state."""


class IllegalTransition(Exception):
    """A job went to a state that cannot follow its state: a defect."""


_NO_FORM = BlockForm()
NO_MEMORY = memoryview(b"")
MemoryBlock = tuple[Block, int]
"""A block of memory, and its control word when it was chosen."""


@dataclass(eq=False, slots=True)
class JobBlock:
    """One block of a job."""

    name: BlockName
    nbytes: int
    """Size in memory."""
    stored: StoredBlock | None = None
    """The block as the target stores it, with an empty checksum if that is not known; None without a target."""
    charge: int = 0
    """Bytes that were reserved for it in the target: its size without compression."""
    block: Block | None = None
    """The block in memory, leased, if it is copied from there."""
    segment: int = -1
    """Segment of the memory that is read or loaded into; -1 for a buffer of the mover."""
    offset: int = 0
    """Bytes from the start of the segment."""
    memory: memoryview = NO_MEMORY
    """That memory, from the mover's first call for the job on."""
    form: BlockForm = _NO_FORM
    position: int = 0
    """Position in the reservation, for loads into memory."""


@dataclass(eq=False, slots=True)
class LoadRequest:
    """The rest of a chain that an engine waits for."""

    client: int
    space: int
    keys: list[bytes]
    deadline: float
    at: int = 0
    """Position of the first key that has not been planned."""
    missing_at: int = -1
    """Position of the last key that memory lacked; -1 for none."""
    tenant: str | None = None
    """Only blocks of this tenant are loaded; None for all."""
    protected: set[Block] = field(default_factory=set)
    """Blocks of the chain in memory, as far as jobs have found them: its other blocks do not take their room."""
    positions: ChainPositions | None = None
    """Its keys and those before them, if one of its jobs needed them."""
    reservations: list[int] = field(default_factory=list)
    """Reservations of the jobs that load its blocks, and of such as have ended since `Loads.under_way` looked."""


@dataclass(eq=False, slots=True)
class TierJob:
    """Blocks that the mover moves together."""

    reason: JobReason
    source: TierState | None
    """None for memory."""
    target: TierState | None
    """None for memory."""
    blocks: list[JobBlock]
    """The blocks that are left: those that could not be loaded are not stored."""
    since: float = inf
    """Blocks of the target that were stored or used at or after this time are not evicted for the job."""
    deadline: float = inf
    """When a load into memory is a miss."""
    give_up_at: float = inf
    """When a call between tiers is not waited for any more (seconds of `time.monotonic`)."""
    space: int = 0
    tenant: str = ""
    reservation: int = 0
    """Reservation of the memory that is loaded into."""
    positions: ChainPositions = NOWHERE
    """Of a load from a shared tier: its keys; while invalidations are in force there, all keys up to them, too."""
    waiters: list[LoadRequest] = field(default_factory=list)
    """Requests that need blocks of a load."""
    state: JobState = JobState.PLANNED

    def to(self, state: JobState) -> None:
        """Go to the next state. Raise IllegalTransition if it cannot follow."""
        if state not in NEXT[self.state]:
            raise IllegalTransition(f"{self.reason.value}: {self.state.name} to {state.name}")
        self.state = state

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks that are left."""
        return sum(block.nbytes for block in self.blocks)


@dataclass(eq=False, slots=True)
class CopyRequest:
    """Blocks that one source wants to be copied to a tier. Requests take turns."""

    reason: JobReason
    source: TierState | None
    """None for memory."""
    target: TierState
    began: float = inf
    """Its copies evict no block of the target that was stored or used at or after this time."""
    waiting: OrderedDict[BlockName, MemoryBlock | None] = field(default_factory=OrderedDict)
    """Blocks that wait, in order; None for those of a tier. The first key of a dict whose first keys were removed is
    slow to find."""
    waiting_bytes: int = 0
    """Bytes of those that are in memory."""
    copying: dict[BlockName, MemoryBlock | None] = field(default_factory=dict)
    """Blocks whose outcome the source has not taken, if it takes outcomes."""

    def wait(self, name: BlockName, block: MemoryBlock | None = None) -> None:
        """Let a block wait: at the end, or in the place of an older one of its name."""
        older = self.waiting.get(name)
        self.waiting_bytes -= 0 if older is None else older[0].nbytes
        self.waiting_bytes += 0 if block is None else block[0].nbytes
        self.waiting[name] = block

    def take(self, name: BlockName) -> None:
        """Remove a block that waits."""
        block = self.waiting.pop(name)
        self.waiting_bytes -= 0 if block is None else block[0].nbytes


class LoadQueue:
    """The requests for loads of all engines. The engines take turns, and no engine can take all places.

    An engine may add a request while it has fewer than there are free places. It therefore takes at most half of the
    places that the others leave free. A few requests of each engine always have a place.
    """

    def __init__(self) -> None:
        self._requests: OrderedDict[int, dict[LoadRequest, None]] = OrderedDict()
        """By engine; the first engine is next."""

    def __len__(self) -> int:
        return sum(map(len, self._requests.values()))

    def __iter__(self) -> Iterator[LoadRequest]:
        """Iterate over the requests, the next one first. The queue must not change meanwhile."""
        return chain.from_iterable(self._requests.values())

    def by_engine(self) -> Iterator[deque[LoadRequest]]:
        """Iterate over the requests of each engine, those of the next engine first, as copies."""
        return map(deque, self._requests.values())

    def of(self, client: int) -> Collection[LoadRequest]:
        """Return the requests of an engine."""
        return self._requests.get(client, ())

    def has_room(self, client: int) -> bool:
        """Return whether an engine may add a request."""
        return len(self.of(client)) < max(OWN_ENTRIES, MAX_WAITING_REQUESTS - len(self))

    def has_only(self, client: int) -> bool:
        """Return whether no other engine has a request."""
        return len(self.of(client)) == len(self)

    def add(self, request: LoadRequest) -> None:
        """Add a request behind the others of its engine."""
        self._requests.setdefault(request.client, {})[request] = None

    def remove(self, request: LoadRequest) -> None:
        """Remove a request, if it is in the queue."""
        requests = self._requests.get(request.client, {})
        requests.pop(request, None)
        if not requests:
            self._requests.pop(request.client, None)

    def end_turn(self, client: int) -> None:
        """Let the other engines plan their requests before the next one of this engine."""
        if client in self._requests:
            self._requests.move_to_end(client)

    def engine_gone(self, client: int) -> None:
        """Remove the requests of an engine."""
        self._requests.pop(client, None)


class JobTable:
    """What sources want, and the jobs under way."""

    def __init__(self) -> None:
        self.copies: dict[CopyRequest, None] = {}
        """Requests with blocks that wait; the first one has the next turn."""
        self.loads = LoadQueue()
        self.loading: dict[tuple[int, bytes], TierJob] = {}
        """Jobs that load blocks into memory, by space and key."""
        self.crossing: dict[TierState, TierJob] = {}
        """Jobs that load from one tier and store in one, by the tier that they store in. There is one for each at a
        time: each needs a buffer, and a tier that hangs must not delay copies to others."""
        self.unwanted: list[TierJob] = []
        """Loads that no request needs any more. The mover cancels those that have not begun."""

    # ---- copies

    def add(self, request: CopyRequest, name: BlockName, block: MemoryBlock | None = None) -> None:
        """Copy a block, which is in memory if it is given. `take_ended` returns the outcome."""
        request.copying[name] = block
        request.target.watched.setdefault(name, "")
        self.wait(request, name, block)

    def wait(self, request: CopyRequest, name: BlockName, block: MemoryBlock | None = None) -> None:
        """Copy a block whose outcome the source does not take."""
        request.wait(name, block)
        self.copies.setdefault(request)

    def turn_ended(self, request: CopyRequest) -> None:
        """Put a request behind the others, or remove it if no block waits."""
        self.copies.pop(request, None)
        if request.waiting:
            self.copies[request] = None

    def cancel(self, request: CopyRequest) -> int:
        """Cancel the copies of a request that wait, and return their number."""
        names = list(request.waiting)
        request.waiting.clear()
        request.waiting_bytes = 0
        self.copies.pop(request, None)
        for name in names:
            if name in request.copying:
                del request.copying[name]
                request.target.watched.pop(name, None)
        return len(names)

    def end(self, request: CopyRequest) -> None:
        """Cancel the copies of a request that wait, and take no outcomes of the others."""
        self.cancel(request)
        for name in request.copying:
            request.target.watched.pop(name, None)
        request.copying.clear()

    def is_pending(self, request: CopyRequest, name: BlockName) -> bool:
        """Return whether a block of a request waits, or is being copied by a call that may still end in time. A block
        of memory that was invalidated in the tier while it was being copied waits once more, for the tier's record."""
        target = request.target
        arrival = target.arriving.get(name)
        if name in request.waiting or (arrival is not None and not arrival.hung):
            return True
        if request.source is not None:
            return False
        return name in target.again or any(name in other.waiting for other in self.of_target(target))

    def take_ended(self, request: CopyRequest) -> list[tuple[BlockName, MemoryBlock | None, str]]:
        """Return the blocks of a request whose copies have ended, as they were added, each with the reason if it
        failed."""
        ended = [name for name in request.copying if not self.is_pending(request, name)]
        return [(name, request.copying.pop(name), request.target.watched.pop(name, "")) for name in ended]

    def of_target(self, tier: TierState) -> Iterator[CopyRequest]:
        """Iterate over the requests for copies from memory to a tier."""
        return (request for request in self.copies if request.source is None and request.target is tier)

    def waiting(self, tier: TierState) -> tuple[int, int]:
        """Return how many blocks of memory wait to be copied to a tier, and their bytes. A block that several requests
        want counts once."""
        blocks = nbytes = 0
        counted: list[CopyRequest] = []
        for request in sorted(self.of_target(tier), key=lambda request: -len(request.waiting)):
            blocks += len(request.waiting)
            nbytes += request.waiting_bytes
            for name, waiting_block in request.waiting.items() if counted else ():
                if waiting_block is not None and any(name in other.waiting for other in counted):
                    blocks -= 1
                    nbytes -= waiting_block[0].nbytes
            counted.append(request)
        return blocks, nbytes

    # ---- loads

    def leave(self, jobs: Iterator[TierJob], client: int | None = None, request: LoadRequest | None = None) -> None:
        """Remove the request, or those of the client, from jobs. Jobs that no request needs any more are unwanted."""
        for job in set(jobs):
            job.waiters = [waiter for waiter in job.waiters if waiter is not request and waiter.client != client]
            if not job.waiters:
                self.unwanted.append(job)
