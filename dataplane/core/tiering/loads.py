"""Loads from tiers: one load for each key, however many engines ask for it.

A request names a chain. Its blocks are loaded in chain order, in jobs, each from the first tier in service that
holds it.

Shared tiers are asked first for blocks that are not known to be in a tier; a request waits until all have answered for
its next block. A block that is in memory, or that
another request loads, is skipped. A request is cancelled if its deadline passes before its next job begins, if its
engine is gone, or if the engine no longer needs it. A job that no request needs any more is cancelled too, unless the
tier has begun to load it. The engines take turns, job by job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from itertools import chain

from dataplane.core.engines.engines import Engine, attach_space
from dataplane.core.engines.storing import StoreService
from dataplane.core.eviction.ancestors import with_ancestors
from dataplane.core.packed_keys import check_keys
from dataplane.core.tiering.catalog import Catalog, Source
from dataplane.core.tiering.invalidations import NOWHERE, ChainPositions
from dataplane.core.tiering.jobs import JobBlock, JobReason, JobTable, LoadRequest, TierJob
from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.codes import Code, ProtocolError, ReserveOutcome
from dataplane.protocol.engine import Reserve
from dataplane.protocol.keys import split_keys
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.stored_blocks import BlockName

BATCH_BYTES = 8 << 20
"""Bytes of one job, whose blocks are published together; at least one block."""
MAX_JOBS = 128
MAX_ANCESTORS = 4096
_WRITE = int(ReserveOutcome.WRITE)


class Loads:
    """Requests for loads, and the jobs that are made of them."""

    def __init__(self, catalog: Catalog, table: JobTable, storing: StoreService, engine: Engine) -> None:
        """`engine` is the mover's, which owns the memory that is loaded into."""
        self._catalog, self._table, self._storing, self._engine = catalog, table, storing, engine
        self._pool, self._queue, self._tiers = catalog.pool, table.loads, catalog.tiers
        self.client = engine.client
        """Number of the mover's engine, for requests of the data plane itself."""

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def idle(self) -> bool:
        """Whether no engine waits for a load."""
        return self._queue.has_only(self.client)

    def attach(self, space: bytes) -> int | None:
        """Attach the mover to a space, whether or not engines have attached it now, so that its blocks can be loaded
        into memory. Return its number; None if the space is not known, or contradicts one that is attached."""
        declared = self._catalog.declared(space)
        if declared is None:
            return None
        try:
            return attach_space(self._pool, self._engine, declared)
        except ProtocolError:
            return None

    def detach(self) -> None:
        """Detach the mover from the spaces for which it has no request, and into whose memory it loads nothing: a space
        that is not used must not be kept."""
        spaces = self._engine.spaces
        if spaces:
            used = {request.space for request in self._queue.of(self.client)}
            used.update(reservation.space for reservation in self._engine.reservations.values())
            used.update(reservation.space for reservation in self._engine.expired.values())
            for space in spaces.keys() - used:
                del spaces[space]

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
        key_list = split_keys(keys)
        ready = self._pool.table.memory.leading_ready(words, space)[0]
        request = LoadRequest(client, space, key_list, deadline, at=len(ready), missing_at=len(ready), tenant=tenant)
        if request.at >= len(key_list):
            return None
        identity = self._catalog.identity(space)
        if not self._queue.has_room(client):
            self._refuse(request, identity)
            return None
        if identity is not None and any(tier.shared and tier.serves for tier in self._tiers):
            names = [BlockName(identity, key) for key in key_list[request.at :]]
            self._catalog.existence.query((name for name in names if self._catalog.source(name) is None), client)
        self._queue.add(request)
        self._catalog.wake()
        return request

    def _refuse(self, request: LoadRequest, identity: bytes | None) -> None:
        """Count the blocks of a request that has no place as lost, for the tier that may hold the first of them."""
        name = BlockName(identity or b"", request.keys[request.at])
        chosen = self._catalog.source(name)
        tier = next((tier for tier in self._tiers if tier.shared), None) if chosen is None else chosen.tier
        if tier is not None:
            tier.count_lost("waiting", len(request.keys) - request.at)

    def under_way(self, request: LoadRequest) -> bool:
        """Return whether blocks of a request may still arrive."""
        reservations = request.reservations
        while reservations and reservations[-1] not in self._engine.reservations:
            reservations.pop()
        return bool(reservations) or request in self._queue.of(request.client)

    def _job_of(self, space: int, key: bytes) -> TierJob | None:
        """Return the job that loads a block; None if there is none, or its reservation has expired: it hangs, and will
        not publish the block, which another job may load."""
        job = self._table.loading.get((space, key))
        return job if job is not None and job.reservation in self._engine.reservations else None

    def cancel(self, request: LoadRequest) -> None:
        """Cancel a request, except loads that have begun."""
        self._queue.remove(request)
        names = ((request.space, key) for key in request.keys)
        self._table.leave((self._table.loading[name] for name in names if name in self._table.loading), request=request)
        self._catalog.wake()

    def withdraw(self, client: int, space: int, keys: bytes) -> None:
        """Cancel a request of an engine for exactly these keys, if there is one. Raise ProtocolError."""
        check_keys(keys)
        key_list = split_keys(keys)
        jobs = {self._table.loading[space, key] for key in key_list if (space, key) in self._table.loading}
        for request in chain(self._queue.of(client), *(job.waiters for job in jobs)):
            if (request.client, request.space, request.keys) == (client, space, key_list):
                self.cancel(request)
                return

    def engine_gone(self, client: int) -> None:
        """Cancel the requests of an engine, except loads that have begun."""
        self._queue.engine_gone(client)
        self._table.leave(iter(self._table.loading.values()), client=client)
        self._catalog.wake()

    def _waits(self, request: LoadRequest) -> bool:
        """Return whether no source is known for the next block of a request and a shared tier has not answered yet."""
        space = self._catalog.identity(request.space)
        if space is None or request.at >= len(request.keys):
            return False
        name = BlockName(space, request.keys[request.at])
        return self._catalog.existence.is_queried(name) and self._catalog.source(name) is None

    def waiting_bytes(self) -> int:
        """Return about how many bytes wait to be planned."""
        total = 0
        for request in self._queue:
            if self._waits(request):
                continue
            declared = self._pool.spaces.by_number.get(request.space)
            total += (len(request.keys) - request.at) * (declared.block_bytes if declared else 0)
        return total

    def next_jobs(self, now: float) -> Iterator[TierJob]:
        """Iterate over the jobs that load blocks into reserved memory and can begin now. No request may be cancelled
        meanwhile. A request for which none can begin is looked at once: a tier that is busy stays so."""
        busy: set[TierState] = set()
        turns = deque(self._queue.by_engine())
        while turns and len(self._engine.reservations) < MAX_JOBS and not (busy and len(busy) == len(self._tiers)):
            requests = turns[0]
            job = self._next_of(requests[0], now, busy)
            if job is not None:
                self._queue.end_turn(requests[0].client)
                turns.rotate(-1)
                yield job
                continue
            requests.popleft()
            if not requests:
                turns.popleft()

    def _next_of(self, request: LoadRequest, now: float, busy: set[TierState]) -> TierJob | None:
        """Return the next job of a request; None if none can begin now. Remove the request once all of it is planned,
        or its deadline has passed."""
        job: TierJob | None = None
        before = -1
        while job is None and before < request.at < len(request.keys) and now < request.deadline:
            before = request.at
            job = self._plan(request, now, busy)
        if request.at >= len(request.keys) or now >= request.deadline:
            self._queue.remove(request)
        return job

    def _plan(self, request: LoadRequest, now: float, busy: set[TierState]) -> TierJob | None:
        """Advance a request, and plan its next job if it needs one. A request whose next block is in a `busy` tier,
        from which too many bytes are being loaded, does not advance past it."""
        space = self._catalog.identity(request.space)
        if space is None:
            request.at = len(request.keys)
            return None
        first = self._next_missing(request, space, busy)
        if first is None:
            return None
        chosen = self._catalog.source(BlockName(space, request.keys[first]), request.tenant)
        if chosen is None:
            if not self._waits(request):
                declared = self._pool.spaces.by_number.get(request.space)
                request.at = first + 1 if declared is not None and declared.allows_gaps else len(request.keys)
            return None
        tier, nbytes = chosen.tier, chosen.nbytes
        last, total = first, 0
        while last < len(request.keys) and (not total or total + nbytes <= BATCH_BYTES):
            key = request.keys[last]
            job = self._job_of(request.space, key)
            if job is not None or self._catalog.source(BlockName(space, key)) != chosen:
                break
            total += nbytes
            last += 1
        if tier.loading_bytes and tier.loading_bytes + total > tier.spec.max_bytes_in_flight:
            busy.add(tier)
            return None
        request.at = last
        return self._reserve(request, first, last, chosen, now)

    def _next_missing(self, request: LoadRequest, space: bytes, busy: Collection[TierState]) -> int | None:
        """Advance a request over blocks that are in memory or being loaded. Return the position of the next block; None
        at the end of its chain, or if a `busy` tier holds the block, for which memory is searched once."""
        table = self._pool.table
        while request.at < len(request.keys):
            key = request.keys[request.at]
            job = self._job_of(request.space, key)
            if job is not None:
                if request not in job.waiters:
                    job.waiters.append(request)
                    request.reservations.append(job.reservation)
                    # A later walk of this request ends at its own blocks, and would not come by those of another one.
                    writing = [*self._engine.reservations[job.reservation].writing.values()]
                    request.protected.update(with_ancestors(table, writing, set(), request.protected))
            else:
                source = self._catalog.source(BlockName(space, key)) if busy else None
                waits = source is not None and source.tier in busy
                if waits and request.missing_at == request.at:
                    return None
                if table.find(pack_keys([key]), request.space)[0] is None:
                    request.missing_at = request.at
                    return None if waits else request.at
            request.at += 1
        return None

    def _positions(self, request: LoadRequest, identity: bytes) -> ChainPositions:
        """Return the keys of a request, and those before them as far as they are known."""
        positions = {key: at for at, key in enumerate(request.keys)}
        key = request.keys[0]
        for _ in range(MAX_ANCESTORS):
            block = self._pool.table.find(pack_keys([key]), request.space)[0]
            parent = None if block is None else block.parent
            if parent is None:
                stored = self._catalog.stored(BlockName(identity, key))
                parent = None if stored is None else stored.parent
            if not parent:
                return ChainPositions(positions, is_whole=parent is not None)
            positions.setdefault(parent, -1)
            key = parent
        return ChainPositions(positions, is_whole=False)

    def _reserve(self, request: LoadRequest, first: int, last: int, source: Source, now: float) -> TierJob | None:
        """Reserve memory for blocks of a request."""
        tier, nbytes, tenant = source
        space = self._catalog.identity(request.space)
        assert space is not None
        keys = request.keys[first:last]
        stored = None if first else self._catalog.stored(BlockName(space, keys[0]))
        parent = request.keys[first - 1] if first else b"" if stored is None else stored.parent
        positions = NOWHERE
        if tier.shared and tier.tombstones():
            # Before the reservation: a block that is being loaded does not name the parent of the first key.
            positions = request.positions = request.positions or self._positions(request, space)
        elif tier.shared:
            positions = ChainPositions({key: first + at for at, key in enumerate(keys)})
        self._engine.spaces[request.space] = True
        message = Reserve(0, request.space, tenant, b"".join(keys), nbytes, parent)
        # The last job of the request lines up the chain, and so do acquires.
        lines_up = last == len(request.keys)
        try:
            granted = self._storing.reserve(
                self._engine, message, now, from_tier=True, lines_up=lines_up, protected=request.protected
            )
        except ProtocolError:
            request.at = len(request.keys)
            tier.lose("memory", *(BlockName(space, key) for key in keys))
            return None
        refused = (granted.outcomes != _WRITE) & (granted.outcomes < ReserveOutcome.PRESENT)
        if refused.any():  # the rest of the chain would be refused, too
            request.at = len(request.keys)
            tier.lose("memory", *(BlockName(space, keys[at]) for at in refused.nonzero()[0].tolist()))
        blocks = [
            JobBlock(
                BlockName(space, keys[at]),
                nbytes,
                segment=int(granted.segments[at]),
                offset=int(granted.offsets[at]),
                position=at,
            )
            for at, outcome in enumerate(granted.outcomes.tolist())
            if outcome == _WRITE
        ]
        if not blocks:
            return None
        job = TierJob(
            JobReason.LOAD,
            tier,
            None,
            blocks,
            deadline=min(request.deadline, now + tier.spec.load_deadline_s),
            space=request.space,
            tenant=tenant,
            reservation=granted.reservation,
            positions=positions,
            waiters=[request],
        )
        request.reservations.append(job.reservation)
        self._table.loading.update({(request.space, block.name.key): job for block in blocks})
        tier.loading_bytes += job.nbytes
        return job
