"""Open stores and reads of one worker: prepared, and not yet committed.

A transfer is identified by its chunks, not by a number, so a repeated request gets the same answer and the same
reservation. A store that is never committed is never published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dataplane.core.inprocess import InProcess, LeasedChain
from dataplane.gateways.lmcache.failures import OperationFailed, Reason
from dataplane.gateways.lmcache.workers.chunk_layouts import ChunkLayout
from dataplane.protocol.codes import NOT_REFUSED, Code, ProtocolError, ReserveOutcome
from dataplane.protocol.engine import Abort, Commit, Reserve, SessionReserve
from dataplane.protocol.keys import KEY_BYTES

LEASE_TTL_S = 300.0
"""Time after which the leases of a look-up or of an open read end."""
MAX_READS = 1024
"""Maximum number of open reads of one worker; at the limit, the oldest one ends."""
_WRITE = int(ReserveOutcome.WRITE)


class Transfer(NamedTuple):
    """Identity of a transfer: a space and chunks. The last key stands for the tenant and all tokens up to it."""

    space: int
    start: int
    end: int
    last_key: bytes


class ChunkLocation(NamedTuple):
    """Location of a chunk."""

    chunk: int
    """Position in the transfer."""
    segment: int
    offset: int
    """Bytes from the start of the segment."""


def locations_of(leased: LeasedChain) -> list[ChunkLocation]:
    """Return the locations of held chunks."""
    return [
        ChunkLocation(at, segment, offset)
        for at, (segment, offset) in enumerate(zip(leased.segments, leased.offsets, strict=True))
    ]


@dataclass(frozen=True, slots=True)
class OpenStore:
    """Chunks that are being written."""

    reservation: int
    locations: list[ChunkLocation]
    refused: int
    """Number of chunks for which there was no room."""


@dataclass(frozen=True, slots=True)
class OpenRead:
    """Chunks that are held for reading."""

    leased: LeasedChain
    deadline: float


@dataclass(eq=False, slots=True)
class Transfers:
    """The open transfers of one worker."""

    cache: InProcess
    chunk_layout: ChunkLayout
    client: int = 0
    _stores: dict[Transfer, OpenStore] = field(default_factory=dict)
    _reads: dict[Transfer, OpenRead] = field(default_factory=dict)
    _inherited: list[int] = field(default_factory=list)
    """Descriptors that the previous data plane held for the worker, for whatever purpose."""
    _inherited_until: float = 0.0

    @property
    def open(self) -> bool:
        """Return whether the worker may be writing or reading now."""
        return bool(self._stores or self._reads or self._inherited)

    def inherit(self, descriptors: list[int], deadline: float) -> None:
        self._inherited, self._inherited_until = descriptors, deadline

    # ---- unnamed transfers, for copies by this process

    def grant(self, space: int, tenant: str, keys: bytes, parent: bytes, now: float, session: str = "") -> OpenStore:
        """Reserve room for the chunks that are not cached yet. Raise ProtocolError on failure."""
        message = Reserve(0, space, tenant, keys, self.chunk_layout.chunk_bytes, parent)
        if session:
            message = SessionReserve(0, space, tenant, keys, message.nbytes, parent, session=session)
        granted = self.cache.node.reserve(self.client, message, now)
        outcomes: list[int] = granted.outcomes.tolist()
        locations = [
            ChunkLocation(at, int(granted.segments[at]), int(granted.offsets[at]))
            for at, outcome in enumerate(outcomes)
            if outcome == _WRITE
        ]
        return OpenStore(granted.reservation, locations, sum(outcome not in NOT_REFUSED for outcome in outcomes))

    def publish(self, store: OpenStore, now: float) -> None:
        """Publish the chunks of a store after they are written. Raise ProtocolError on failure."""
        self.cache.node.commit(self.client, Commit(0, store.reservation), now)

    def abort(self, reservation: int, now: float) -> None:
        """Abort a reservation that is no longer being written, unless it has ended."""
        try:
            self.cache.node.abort(self.client, Abort(0, reservation), now)
        except ProtocolError as error:
            if error.code not in (Code.UNKNOWN_RESERVATION, Code.NOT_ATTACHED):
                raise

    def hold_all(self, space: int, keys: bytes) -> LeasedChain:
        """Hold all chunks, or none; they count as used once `end_use` is called. Raise OperationFailed or ProtocolError
        on failure."""
        leased = self.cache.hold(self.client, space, keys)
        if len(leased) * KEY_BYTES < len(keys):
            self.release(leased)
            raise OperationFailed(Reason.NOT_CACHED, f"{len(leased)} of {len(keys) // KEY_BYTES} chunks are cached")
        return leased

    def release(self, leased: LeasedChain) -> None:
        self.cache.release(self.client, leased.descriptors)

    def end_use(self, leased: LeasedChain, now: float) -> None:
        """Release chunks that a worker has read, and count the read. Raise ProtocolError if the engine is gone."""
        self.cache.use(self.client, leased.descriptors, now)
        self.release(leased)

    # ---- stores

    def prepare_store(
        self, transfer: Transfer, tenant: str, keys: bytes, parent: bytes, now: float, session: str = ""
    ) -> OpenStore:
        """Reserve room for the chunks that are not cached yet, or return the open store.

        Raise ProtocolError on failure.
        """
        engine = self.cache.node.engines.get(self.client)
        before = self._stores.get(transfer)
        if before is not None:
            if engine is not None and before.reservation in engine.reservations:
                return before
            self._forget(transfer, now)  # it took too long and starts again
        store = self.grant(transfer.space, tenant, keys, parent, now, session)
        if store.reservation:
            self._stores[transfer] = store
        return store

    def commit_store(self, transfer: Transfer, keys: bytes, now: float) -> OpenStore:
        """Publish a prepared store. Raise OperationFailed or ProtocolError on failure."""
        store = self._stores.pop(transfer, None)
        if store is None:
            self._release_old(keys, now)
            raise OperationFailed(Reason.UNKNOWN_TRANSFER, "no store of these chunks is open")
        self.publish(store, now)
        return store

    def abort_store(self, transfer: Transfer, now: float) -> None:
        """Abort a prepared store that is no longer being written."""
        if transfer in self._stores:
            self._forget(transfer, now)

    def _forget(self, transfer: Transfer, now: float) -> None:
        self.abort(self._stores.pop(transfer).reservation, now)

    def _release_old(self, keys: bytes, now: float) -> None:
        """Release expired reservations of the previous data plane that a worker commits.

        The commit shows that the worker no longer writes their bytes.
        """
        engine = self.cache.node.engines.get(self.client)
        if engine is None or not engine.expired:
            return
        own_keys = {keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)}
        for number, reservation in list(engine.expired.items()):
            if all(block.key in own_keys for block in reservation.writing.values()):
                self.abort(number, now)

    # ---- reads

    def prepare_read(self, transfer: Transfer, keys: bytes, now: float) -> LeasedChain:
        """Hold all chunks, or return the open read and extend it. Raise OperationFailed or ProtocolError on failure."""
        before = self._reads.pop(transfer, None)
        if before is not None:
            self._reads[transfer] = OpenRead(before.leased, now + LEASE_TTL_S)
            return before.leased
        leased = self.hold_all(transfer.space, keys)
        if len(self._reads) >= MAX_READS:
            self.release(self._reads.pop(next(iter(self._reads))).leased)
        self._reads[transfer] = OpenRead(leased, now + LEASE_TTL_S)
        return leased

    def end_read(self, transfer: Transfer, now: float) -> bool:
        """End a read that is complete, and return whether its chunks were held. Raise ProtocolError on failure."""
        read = self._reads.pop(transfer, None)
        if read is None:
            return False
        self.end_use(read.leased, now)
        return True

    def end_inherited(self, transfer: Transfer, keys: bytes, now: float) -> bool:
        """End a read that the previous data plane prepared. Return whether all of it was held until now."""
        if not self._inherited:
            return False
        leased = self.cache.hold(self.client, transfer.space, keys)
        self.release(leased)
        remaining = Counter(self._inherited)
        remaining.subtract(leased.descriptors)
        if len(leased) * KEY_BYTES < len(keys) or min(remaining.values()) < 0:
            return False
        self.end_use(leased, now)
        self._inherited = list(remaining.elements())
        return True

    # ---- expiry

    def expire(self, now: float) -> None:
        """Release reads that were held for too long, and forget stores that the core no longer knows."""
        if self._inherited and self._inherited_until <= now:
            self.cache.release(self.client, self._inherited)
            self._inherited = []
        for transfer in [transfer for transfer, read in self._reads.items() if read.deadline <= now]:
            self.release(self._reads.pop(transfer).leased)
        if self._stores:
            engine = self.cache.node.engines.get(self.client)
            reservations: Sequence[int] = () if engine is None else [*engine.reservations, *engine.expired]
            for transfer in [
                transfer for transfer, store in self._stores.items() if store.reservation not in reservations
            ]:
                del self._stores[transfer]
