"""What one worker is storing and reading: prepared, and not yet committed.

A transfer is named by what it is about, not by a number: the same question asked twice has one answer and one
reservation. A store that is never committed is never published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dataplane.core.inprocess import Held
from dataplane.protocol.codes import Code, Outcome, ProtocolError
from dataplane.protocol.engine import Abort, Commit, Reserve
from dataplane.protocol.keys import KEY_BYTES
from dataplane.transport.lmcache.cache import Cache
from dataplane.transport.lmcache.failures import Failed, Reason
from dataplane.transport.lmcache.forms import Form
from dataplane.transport.lmcache.sessions import LEASE_TTL_S

MAX_READS = 1024
"""Of one worker; the oldest one is let go for a new one."""
_WRITE = int(Outcome.WRITE)
_FINE = (_WRITE, int(Outcome.PRESENT), int(Outcome.BUSY))


class Transfer(NamedTuple):
    """Which chunks in which space. The last key stands for all tokens before it, and for the tenant."""

    space: int
    start: int
    end: int
    last_key: bytes


class Place(NamedTuple):
    """Where a chunk is."""

    chunk: int
    """Its position in the transfer."""
    segment: int
    offset: int
    """Bytes from the start of the segment."""


def places_of(held: Held) -> list[Place]:
    """Where held chunks are."""
    return [
        Place(at, segment, offset)
        for at, (segment, offset) in enumerate(zip(held.segments, held.offsets, strict=True))
    ]


@dataclass(frozen=True, slots=True)
class Store:
    """Chunks that are being written."""

    reservation: int
    places: list[Place]
    refused: int
    """Chunks of it that found no room."""


@dataclass(frozen=True, slots=True)
class Read:
    """Chunks that are held for reading."""

    held: Held
    deadline: float


@dataclass(eq=False, slots=True)
class Transfers:
    """Those of one worker."""

    cache: Cache
    form: Form
    client: int = 0
    _stores: dict[Transfer, Store] = field(default_factory=dict)
    _reads: dict[Transfer, Read] = field(default_factory=dict)
    _inherited: list[int] = field(default_factory=list)
    """Descriptors that the data plane before this one held for the worker, whatever for."""
    _inherited_until: float = 0.0

    @property
    def open(self) -> bool:
        """The worker may be writing or reading now."""
        return bool(self._stores or self._reads or self._inherited)

    def inherit(self, descriptors: list[int], deadline: float) -> None:
        self._inherited, self._inherited_until = descriptors, deadline

    # ---- without a name: for copies of this process, each of which has its own

    def grant(self, space: int, tenant: str, keys: bytes, parent: bytes, now: float) -> Store:
        """Room for what is not there yet. Raises ProtocolError."""
        message = Reserve(0, space, tenant, keys, self.form.chunk_bytes, parent)
        granted = self.cache.reserve(self.client, message, now)
        outcomes: list[int] = granted.outcomes.tolist()
        places = [
            Place(at, int(granted.segments[at]), int(granted.offsets[at]))
            for at, outcome in enumerate(outcomes)
            if outcome == _WRITE
        ]
        return Store(granted.reservation, places, sum(outcome not in _FINE for outcome in outcomes))

    def publish(self, store: Store, now: float) -> None:
        """What was granted is written. Raises ProtocolError."""
        self.cache.commit(self.client, Commit(0, store.reservation), now)

    def give_up(self, store: Store, now: float) -> None:
        """Nobody writes there any more."""
        self._abort(store.reservation, now)

    def hold_all(self, space: int, tenant: str, keys: bytes, now: float) -> Held:
        """Hold all chunks, or none. Raises Failed, ProtocolError."""
        held = self.cache.hold(self.client, space, keys, tenant, now, asked=False)
        if len(held) * KEY_BYTES < len(keys):
            self.let_go(held)
            raise Failed(Reason.NOT_CACHED, f"{len(held)} of {len(keys) // KEY_BYTES} chunks are cached")
        return held

    def let_go(self, held: Held) -> None:
        self.cache.let_go(self.client, held.descriptors)

    # ---- storing

    def prepare_store(self, transfer: Transfer, tenant: str, keys: bytes, parent: bytes, now: float) -> Store:
        """Room for what is not there yet; the same again while it is open. Raises ProtocolError."""
        engine = self.cache.engines.get(self.client)
        before = self._stores.get(transfer)
        if before is not None:
            if engine is not None and before.reservation in engine.reservations:
                return before
            self._forget(transfer, now)  # it took too long, and begins again now
        store = self.grant(transfer.space, tenant, keys, parent, now)
        if store.reservation:
            self._stores[transfer] = store
        return store

    def commit_store(self, transfer: Transfer, keys: bytes, now: float) -> Store:
        """Publish what was prepared. Raises Failed, ProtocolError."""
        store = self._stores.pop(transfer, None)
        if store is None:
            self._release_old(keys, now)
            raise Failed(Reason.UNKNOWN_TRANSFER, "no store of these chunks is open")
        self.publish(store, now)
        return store

    def abort_store(self, transfer: Transfer, now: float) -> None:
        """Give up what was prepared: nobody writes there any more."""
        if transfer in self._stores:
            self._forget(transfer, now)

    def _forget(self, transfer: Transfer, now: float) -> None:
        self._abort(self._stores.pop(transfer).reservation, now)

    def _abort(self, reservation: int, now: float) -> None:
        try:
            self.cache.abort(self.client, Abort(0, reservation), now)
        except ProtocolError as error:
            if error.code not in (Code.UNKNOWN_RESERVATION, Code.NOT_ATTACHED):
                raise

    def _release_old(self, keys: bytes, now: float) -> None:
        """A worker commits what a data plane before this one granted: it is done with those bytes, at least."""
        engine = self.cache.engines.get(self.client)
        if engine is None or not engine.expired:
            return
        own = {keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)}
        for number, reservation in list(engine.expired.items()):
            if all(block.key in own for block in reservation.writing.values()):
                self._abort(number, now)

    # ---- reading

    def prepare_read(self, transfer: Transfer, tenant: str, keys: bytes, now: float) -> Held:
        """Hold all chunks; the same again while they are held. Raises Failed, ProtocolError."""
        before = self._reads.pop(transfer, None)
        if before is not None:
            self._reads[transfer] = Read(before.held, now + LEASE_TTL_S)
            return before.held
        held = self.hold_all(transfer.space, tenant, keys, now)
        if len(self._reads) >= MAX_READS:
            self.end_read(next(iter(self._reads)))
        self._reads[transfer] = Read(held, now + LEASE_TTL_S)
        return held

    def end_read(self, transfer: Transfer) -> bool:
        """Let the chunks go; whether they were held."""
        read = self._reads.pop(transfer, None)
        if read is None:
            return False
        self.let_go(read.held)
        return True

    def end_inherited(self, transfer: Transfer, tenant: str, keys: bytes, now: float) -> bool:
        """A read that the data plane before this one prepared: whether all of it was held until now."""
        if not self._inherited:
            return False
        held = self.cache.hold(self.client, transfer.space, keys, tenant, now, asked=False, used=False)
        self.let_go(held)
        left = Counter(self._inherited)
        left.subtract(held.descriptors)
        if len(held) * KEY_BYTES < len(keys) or min(left.values()) < 0:
            return False
        self.let_go(held)
        self._inherited = list(left.elements())
        return True

    # ---- time passes

    def expire(self, now: float) -> None:
        """Let go what was held for too long; forget stores that the core knows no more."""
        if self._inherited and self._inherited_until <= now:
            self.cache.let_go(self.client, self._inherited)
            self._inherited = []
        for transfer in [each for each, read in self._reads.items() if read.deadline <= now]:
            self.end_read(transfer)
        if self._stores:
            engine = self.cache.engines.get(self.client)
            known: Sequence[int] = () if engine is None else [*engine.reservations, *engine.expired]
            for transfer in [each for each, store in self._stores.items() if store.reservation not in known]:
                del self._stores[transfer]
