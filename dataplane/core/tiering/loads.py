"""Loads from tiers: one load for each key, however many engines ask for it.

A request names a chain. Its blocks are loaded in chain order, in batches, each from the first tier in service that
holds it. Shared tiers are asked first for blocks that are not known to be in a tier. A block that is in memory, or that
another request loads, is skipped. A request is cancelled if its deadline passes before its next batch begins, if its
engine is gone, or if the engine no longer needs it. A batch that no request needs any more is cancelled too, unless the
tier has begun to load it. The engines take turns, batch by batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from dataplane.core.packed_keys import check_keys
from dataplane.core.tiering.load_queue import LoadQueue, LoadRequest
from dataplane.protocol.codes import Code, ProtocolError, ReserveOutcome
from dataplane.protocol.engine import Commit, Reserve
from dataplane.protocol.keys import split_keys
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.stored_blocks import BlockName, StoredBlock

if TYPE_CHECKING:
    from dataplane.core.node import Node
    from dataplane.core.tiering.tier_state import TierState
    from dataplane.core.tiering.tiering import Tiering

BATCH_BYTES = 8 << 20
"""Bytes of one batch, which is published when its last block has arrived; at least one block."""
MAX_BATCHES = 128
MAX_ANCESTORS = 4096
_WRITE = int(ReserveOutcome.WRITE)


@dataclass(eq=False, slots=True)
class LoadBatch:
    """Blocks of one reservation."""

    reservation: int
    left: int
    """Number of blocks whose outcome is not known yet."""
    arrived: dict[int, bytes] = field(default_factory=dict)
    """Checksums of the blocks that arrived, by position in the reservation."""
    names: dict[int, BlockName] = field(default_factory=dict)
    """Blocks by position in the reservation."""
    requests: list[LoadRequest] = field(default_factory=list)
    """Requests that need blocks of the batch."""
    cancel: Callable[[], object] = lambda: None
    """Cancels the batch if the tier has not begun to load it."""


class Source(NamedTuple):
    """Where a block can be loaded from."""

    tier: TierState
    nbytes: int
    tenant: str


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """A block to load into reserved memory."""

    tier: TierState
    space: int
    name: BlockName
    segment: int
    offset: int
    """Bytes from the start of the segment."""
    nbytes: int
    position: int
    deadline: float
    batch: LoadBatch
    tenant: str
    before: Sequence[bytes] = ()
    """Keys that precede the block in its chain; only for shared tiers, while invalidations are in force there."""
    whole: bool = True
    """Whether `before` begins with the first key of the chain."""


class Loads:
    """Requests for loads, and the batches under way."""

    def __init__(self, node: Node, client: int, tiers: Sequence[TierState], tiering: Tiering) -> None:
        self._node = node
        self._pool = node.pool
        self._client = client
        self._tiers = tiers
        self._tiering = tiering
        self._queue = LoadQueue()
        self._loading: dict[tuple[int, bytes], LoadBatch] = {}
        """Batches of the blocks that are being loaded, by space and key."""
        self.given_up = 0
        """Number of requests that were cancelled before their last block was planned."""

    def __len__(self) -> int:
        return len(self._queue)

    def serves_only(self, client: int) -> bool:
        """Return whether no engine but this one waits for a load."""
        return self._queue.has_only(client)

    def request(
        self, client: int, space: int, keys: bytes, deadline: float, tenant: str | None = None
    ) -> LoadRequest | None:
        """Ask for the blocks of a chain that are not in memory; with `tenant`, for those of this tenant alone. Raise
        ProtocolError.

        Return None if nothing is to be loaded, or if too many requests wait.
        """
        words = check_keys(keys)
        if self._pool.spaces.by_number.get(space) is None:
            raise ProtocolError(Code.UNKNOWN_SPACE, f"space {space} is not attached", "space")
        each = split_keys(keys)
        ready = self._pool.table.memory.leading_ready(words, space)[0]
        request = LoadRequest(client, space, each, deadline, at=len(ready), tenant=tenant)
        if request.at >= len(each):
            return None
        identity = self._tiering.identity(space)
        if not self._queue.has_room(client):
            self._refuse(request, identity)
            return None
        if identity is not None and any(tier.shared and tier.serves for tier in self._tiers):
            names = [BlockName(identity, key) for key in each[request.at :]]
            self._tiering.existence.ask((name for name in names if self.chosen(name) is None), client)
        self._queue.add(request)
        self._tiering.on_work()
        return request

    def _refuse(self, request: LoadRequest, identity: bytes | None) -> None:
        """Count the blocks of a request that has no place as lost, for the tier that may hold the first of them."""
        self.given_up += 1
        name = BlockName(identity or b"", request.keys[request.at])
        chosen = self.chosen(name)
        tier = next((each for each in self._tiers if each.shared), None) if chosen is None else chosen.tier
        if tier is not None:
            tier.count_lost("waiting", len(request.keys) - request.at)

    def under_way(self, request: LoadRequest) -> bool:
        """Return whether blocks of a request may still arrive."""
        return request in self._queue or any((request.space, key) in self._loading for key in request.keys)

    def cancel(self, request: LoadRequest) -> None:
        """Cancel a request, except loads that have begun."""
        self.given_up += self._queue.remove(request)
        names = ((request.space, key) for key in request.keys)
        self._leave((self._loading[name] for name in names if name in self._loading), lambda each: each is request)

    def withdraw(self, client: int, space: int, keys: bytes) -> None:
        """Cancel a request of an engine for exactly these keys, if there is one. Raise ProtocolError."""
        check_keys(keys)
        each = split_keys(keys)
        batches = {self._loading[space, key] for key in each if (space, key) in self._loading}
        for request in chain(self._queue.of(client), *(batch.requests for batch in batches)):
            if (request.client, request.space, request.keys) == (client, space, each):
                self.cancel(request)
                return

    def engine_gone(self, client: int) -> None:
        """Cancel the requests of an engine, except loads that have begun."""
        self.given_up += self._queue.engine_gone(client)
        self._leave(self._loading.values(), lambda each: each.client == client)

    @staticmethod
    def _leave(batches: Iterable[LoadBatch], gone: Callable[[LoadRequest], bool]) -> None:
        """Remove requests from batches, and cancel the batches that no request needs any more."""
        for batch in set(batches):
            batch.requests = [request for request in batch.requests if not gone(request)]
            if not batch.requests:
                batch.cancel()

    def answered(self) -> None:
        """Continue the requests whose next block no longer waits for an answer."""
        for request in self._queue.take_asking():
            if self._is_queried(request):
                self._queue.ask_again(request)
            else:
                self._queue.answered(request)

    def _is_queried(self, request: LoadRequest) -> bool:
        space = self._tiering.identity(request.space)
        if space is None or request.at >= len(request.keys):
            return False
        return self._tiering.existence.is_queried(BlockName(space, request.keys[request.at]))

    def waiting_bytes(self) -> int:
        """Return about how many bytes wait to be planned."""
        total = 0
        for request in self._queue.ready():
            declared = self._pool.spaces.by_number.get(request.space)
            total += (len(request.keys) - request.at) * (declared.block_bytes if declared else 0)
        return total

    def next_batch(self, now: float) -> list[PlannedLoad]:
        """Return the next blocks to load, reserved; an empty list if nothing can begin now."""
        if len(self._node.engines[self._client].reservations) >= MAX_BATCHES:
            return []
        busy: set[TierState] = set()
        for request in list(self._queue.ready()):
            if request.deadline <= now:
                self._queue.remove(request)
                self.given_up += 1
                continue
            planned = self._plan(request, now, busy)
            while planned == [] and request.at < len(request.keys) and not self._is_queried(request):
                planned = self._plan(request, now, busy)
            if planned == [] and self._is_queried(request):
                self._queue.set_aside(request)
                continue
            if request.at >= len(request.keys):
                self._queue.remove(request)
            if planned:
                self._queue.end_turn(request.client)
                return planned
            if planned is None and len(busy) == len(self._tiers):
                return []
        return []

    def _plan(self, request: LoadRequest, now: float, busy: set[TierState]) -> list[PlannedLoad] | None:
        """Plan the next batch of a request and advance it. None: its tier is `busy`, because too many bytes are being
        loaded from it; try again later."""
        space = self._tiering.identity(request.space)
        if space is None:
            request.at = len(request.keys)
            return []
        first = self._next_missing(request)
        if first is None:
            return []
        chosen = self.chosen(BlockName(space, request.keys[first]))
        if chosen is None or request.tenant not in (None, chosen.tenant):
            if chosen is None and self._is_queried(request):
                return []
            # No tier has it for the tenant, so no later block of the chain is of use.
            request.at = len(request.keys)
            return []
        tier, nbytes, _ = chosen
        if tier in busy:
            return None
        last, total = first, 0
        while last < len(request.keys) and (not total or total + nbytes <= BATCH_BYTES):
            key = request.keys[last]
            if (request.space, key) in self._loading or self.chosen(BlockName(space, key)) != chosen:
                break
            total += nbytes
            last += 1
        if tier.loading_bytes and tier.loading_bytes + total > tier.spec.max_bytes_in_flight:
            busy.add(tier)
            return None
        request.at = last
        return self._reserve(request, first, last, chosen, now)

    def _next_missing(self, request: LoadRequest) -> int | None:
        """Advance a request over blocks that are in memory or being loaded; None at the end of its chain."""
        table = self._pool.table
        while request.at < len(request.keys):
            key = request.keys[request.at]
            batch = self._loading.get((request.space, key))
            if batch is not None:
                if request not in batch.requests:
                    batch.requests.append(request)
            elif table.find(pack_keys([key]), request.space)[0] is None:
                return request.at
            request.at += 1
        return None

    def chosen(self, name: BlockName) -> Source | None:
        """Return where to load a block from, or None."""
        for tier in self._tiers:
            entry = tier.entry_of(name) if tier.serves else None
            if entry is not None:
                return Source(tier, entry.stored.length, entry.stored.tenant)
        found = self._tiering.existence.found(name)
        return None if found is None else Source(found.tier, found.stored.length, found.stored.tenant)

    def _chain_before(self, request: LoadRequest) -> tuple[list[bytes], bool]:
        """Return the keys before a request's next one, as far as they are known, and whether these are all of them."""
        before = request.keys[: request.at]
        key = before[0] if before else request.keys[request.at]
        for _ in range(MAX_ANCESTORS):
            block = self._pool.table.find(pack_keys([key]), request.space)[0]
            parent = None if block is None else block.parent
            if parent is None:
                stored = self._stored(request.space, key)
                parent = None if stored is None else stored.parent
            if not parent:
                return before, parent is not None
            before = [parent, *before]
            key = parent
        return before, False

    def _stored(self, space: int, key: bytes) -> StoredBlock | None:
        name = BlockName(self._tiering.identity(space) or b"", key)
        found = self._tiering.existence.found(name)
        if found is not None:
            return found.stored
        entries = (tier.contents.entries.get(name) for tier in self._tiers)
        return next((entry.stored for entry in entries if entry is not None), None)

    def _reserve(self, request: LoadRequest, first: int, last: int, source: Source, now: float) -> list[PlannedLoad]:
        tier, nbytes, tenant = source
        engine = self._node.engines[self._client]
        space = self._tiering.identity(request.space)
        assert space is not None
        before, whole = list[bytes](), True
        if tier.shared and tier.tombstones():
            before, whole = self._chain_before(replace(request, at=first))
        message = Reserve(
            0,
            request.space,
            tenant,
            b"".join(request.keys[first:last]),
            nbytes,
            request.keys[first - 1] if first else b"",
        )
        engine.spaces[request.space] = True
        try:
            granted = self._node.storing.reserve(engine, message, now, from_tier=True)
        except ProtocolError:
            request.at = len(request.keys)
            tier.lose("memory", *(BlockName(space, key) for key in request.keys[first:last]))
            return []
        positions = [at for at, outcome in enumerate(granted.outcomes.tolist()) if outcome == _WRITE]
        refused = (granted.outcomes != _WRITE) & (granted.outcomes < ReserveOutcome.PRESENT)
        if refused.any():  # the rest of the chain would be refused, too
            request.at = len(request.keys)
            lost = (request.keys[first + at] for at in refused.nonzero()[0].tolist())
            tier.lose("memory", *(BlockName(space, key) for key in lost))
        if not positions:
            return []
        batch = LoadBatch(granted.reservation, len(positions), requests=[request])
        planned = []
        for at in positions:
            key = request.keys[first + at]
            self._loading[request.space, key] = batch
            name = batch.names[at] = BlockName(space, key)
            planned.append(
                PlannedLoad(
                    tier=tier,
                    space=request.space,
                    name=name,
                    segment=int(granted.segments[at]),
                    offset=int(granted.offsets[at]),
                    nbytes=nbytes,
                    position=at,
                    deadline=min(request.deadline, now + tier.spec.load_deadline_s),
                    batch=batch,
                    tenant=tenant,
                    before=before + request.keys[first : first + at],
                    whole=whole,
                )
            )
        tier.loading_bytes += nbytes * len(planned)
        return planned

    def ended(self, load: PlannedLoad, checksum: bytes, now: float) -> None:
        """Take the end of one block of a batch; an empty checksum means that the block did not arrive. The end of the
        last block publishes the blocks that arrived, and releases the memory of the others."""
        self._loading.pop((load.space, load.name.key), None)
        batch = load.batch
        batch.left -= 1
        if checksum:
            batch.arrived[load.position] = checksum
        if batch.left:
            return
        storing, engine = self._node.storing, self._node.engines[self._client]
        slots = sorted(batch.arrived)
        reservation = engine.reservations.get(batch.reservation)
        arrived = [] if reservation is None else [reservation.writing[at] for at in slots]
        try:
            if not slots:
                storing.abort(engine, batch.reservation, now)
                return
            storing.commit(
                engine,
                Commit(
                    0,
                    batch.reservation,
                    b"".join(at.to_bytes(4, "little") for at in slots),
                    b"".join(batch.arrived[at] for at in slots),
                ),
                now,
            )
            self._pool.arrivals.add(arrived, load.tier.spec.name)
        except ProtocolError:  # it expired or was invalidated meanwhile, and its memory is released
            load.tier.lose("late", *(batch.names[at] for at in slots))
