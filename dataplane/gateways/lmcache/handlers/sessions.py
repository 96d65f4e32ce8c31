"""Look-ups of requests and their leases: one set for each request of a scheduler, however often it looks up.

A look-up immediately leases the blocks that it finds in every rank's space, so that they are still there when the
workers read them. The leases end when every reader of a block has committed, when the scheduler frees them or ends the
request, when the scheduler is gone, after LEASE_TTL_S, or when room is short: then those that have waited longest are
taken back, a result that was not fetched becomes a miss, and a retrieve finds what is still cached. The number of
look-ups is bounded; at the limit, the oldest look-up ends.

A look-up counts when it ends. Its hits are the chunks up to the last one that a worker read: the engine has those that
its scheduler freed before. A look-up in place of which the request makes another does not count. Found chunks that a
scheduler frees without a retrieve count neither as requested nor as hits: either the engine has all of them in its own
memory, or the request reads no cache, and LMCache does not say which.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from dataplane.core.blocks.lookup_leases import LookupLease
from dataplane.core.engines.requests import MissFinding
from dataplane.core.inprocess import InProcess
from dataplane.gateways.lmcache.handlers.counters import Counters
from dataplane.gateways.lmcache.handlers.tier_waits import LookupTierWait
from dataplane.gateways.lmcache.wire.tokens import CHUNK_TOKENS
from dataplane.protocol.control.requests import MAX_REQUEST_ID_CHARACTERS, RequestRecord
from dataplane.protocol.engine import MAX_KEYS_PER_REQUEST
from dataplane.protocol.keys import KEY_BYTES

RESULTS = "results"
"""File with the results that no scheduler has fetched yet at a planned restart. A scheduler requests a look-up, and
then its result: the data plane may be replaced between the two, and without its result the look-up would count as a
miss."""
SCHEDULER = "LMCache scheduler"
"""Name of the engines that hold look-ups."""
NOTHING_MISSING: MissFinding = ("", "", 0.0)
MAX_LOOKUPS = 32_768
MAX_LOOKUPS_PER_SCHEDULER = 4096

_Hits = Annotated[int, msgspec.Meta(ge=0, le=MAX_KEYS_PER_REQUEST)]
_decoder = msgspec.msgpack.Decoder(list[tuple[bytes, str, _Hits]])


@dataclass(eq=False, slots=True)
class LeasedLookup:
    """The look-up of one request of one scheduler, with the blocks that it holds."""

    scheduler: bytes
    request_id: str
    lease: LookupLease
    keys: bytes
    """Packed keys of the requested chunks."""
    hits: int
    deadline: float
    waiting: bool = True
    """Whether the scheduler has not fetched the result yet."""
    tiers: LookupTierWait | None = None
    """The loads that the result waits for."""
    tenant: str = ""
    space: int = 0
    """Space in which the look-up counts."""
    in_memory: int = 0
    """Number of `hits` for which the look-up did not wait for tiers."""
    tiers_source: str = "remote"
    """Where the first of the others was, of `dataplane.protocol.misses.SOURCES`."""
    covered: int = 0
    """Number of leading chunks that the engine has in its own memory. They are part of `hits`, and do not count."""
    used: int = 0
    """Number of leading chunks that the request used, by what workers have read."""
    first_read: int | None = None
    """First chunk that a worker has read: the engine had those before it."""
    tokens: int = 0
    """Tokens of the prompt up to the end of what was looked up."""
    miss: MissFinding = NOTHING_MISSING
    """Why the first chunk after the hits was missing."""
    declined: bool = False
    """Whether the scheduler freed what was found, and no worker has read any of it."""

    @property
    def requested(self) -> int:
        """Number of requested chunks that count."""
        declined = self.hits if self.declined and not self.used else self.covered
        return len(self.keys) // KEY_BYTES - declined

    @property
    def used_hits(self) -> int:
        """Number of chunks that count as hits."""
        return max(0, self.used - self.covered)

    def record(self, engine: str, now: float) -> RequestRecord | None:
        """Return the record of the request once the look-up has ended; None if it says nothing about the request: its
        result was not fetched, or its hits were taken back or not read."""
        if self.waiting or self.lease.taken_back or (self.hits > self.covered and not self.used):
            return None
        if not is_recorded(self.request_id):
            return None
        reason, cause, at = self.miss
        own = max(self.covered, min(self.first_read or 0, self.used))
        from_memory = max(0, min(self.used, self.in_memory) - own)
        loaded = {"host": from_memory, self.tiers_source: max(0, self.used - own) - from_memory}
        return RequestRecord(
            request=self.request_id,
            tenant=self.tenant,
            engine=engine,
            model="",
            at=now,
            prompt_tokens=self.tokens,
            engine_tokens=own * CHUNK_TOKENS,
            loaded_tokens={source: chunks * CHUNK_TOKENS for source, chunks in loaded.items() if chunks},
            missed_tokens=len(self.keys) // KEY_BYTES * CHUNK_TOKENS - self.hits * CHUNK_TOKENS,
            reason=reason,
            cause=cause,
            cause_at=at,
        )


class LookupSessions:
    """All look-ups that hold blocks or whose result has not been fetched, oldest first."""

    def __init__(
        self,
        cache: InProcess,
        counters: Counters,
        clock: Callable[[], float],
        handed_over: dict[tuple[bytes, str], int],
    ) -> None:
        """Create an empty set of sessions. `cache` may take back what they hold; look-ups that end are counted there
        and in `counters`.

        `handed_over` holds results of the previous data plane that were not fetched: hits by scheduler and request.
        """
        self._cache, self._counters, self._clock = cache, counters, clock
        self._leases = cache.lookups
        self._handed_over = handed_over
        self._all: OrderedDict[tuple[bytes, str], LeasedLookup] = OrderedDict()
        self._of_scheduler: dict[bytes, OrderedDict[str, LeasedLookup]] = {}
        self._of_request: dict[str, dict[bytes, LeasedLookup]] = {}
        self.ended: Counter[str] = Counter()
        """Number of look-ups that their scheduler did not end, by cause: `expired`, `crowded_out`, `disconnected`,
        or `taken_back` because room was short."""
        self._broken: Counter[tuple[int, str]] = Counter()

    def __len__(self) -> int:
        return len(self._all)

    def find(self, scheduler: bytes, request_id: str) -> LeasedLookup | None:
        return self._all.get((scheduler, request_id))

    def begin(self, lookup: LeasedLookup) -> None:
        """Add a look-up in place of an earlier one of the same request."""
        self.end(lookup.scheduler, lookup.request_id, counted=False)
        lookups = self._of_scheduler.setdefault(lookup.scheduler, OrderedDict())
        if len(lookups) >= MAX_LOOKUPS_PER_SCHEDULER:
            self.end(lookup.scheduler, next(iter(lookups)), "crowded_out")
            lookups = self._of_scheduler.setdefault(lookup.scheduler, OrderedDict())
        elif len(self._all) >= MAX_LOOKUPS:
            self.end(*next(iter(self._all)), "crowded_out")
            lookups = self._of_scheduler.setdefault(lookup.scheduler, OrderedDict())
        self._all[lookup.scheduler, lookup.request_id] = lookup
        lookups[lookup.request_id] = lookup
        self._of_request.setdefault(lookup.request_id, {})[lookup.scheduler] = lookup
        self._leases.add(lookup.lease)

    def renew(self, lookup: LeasedLookup, lease: LookupLease, hits: int) -> None:
        """Replace what a look-up holds after it waited for tiers."""
        self._leases.discard(lookup.lease)
        for lock in lookup.lease.locks.values():
            self._cache.release(lookup.lease.client, lock.held())
        lookup.lease, lookup.hits = lease, hits
        self._leases.add(lease)

    def take_result(self, scheduler: bytes, request_id: str) -> int:
        """Return the hits of a look-up once; 0 if there is no such look-up or its result was fetched before."""
        lookup = self._all.get((scheduler, request_id))
        if lookup is None:
            return self._handed_over.pop((scheduler, request_id), 0)
        if not lookup.waiting:
            return 0
        lookup.waiting = False
        hits = lookup.covered if lookup.lease.taken_back else lookup.hits
        if not lookup.lease.locks:
            self.end(scheduler, request_id)
        return hits

    def not_fetched(self) -> dict[tuple[bytes, str], int]:
        """Return the hits of look-ups whose results have not been fetched yet, by scheduler and request."""
        return {key: lookup.hits for key, lookup in self._all.items() if lookup.waiting and not lookup.lease.taken_back}

    def forget_handed_over(self) -> None:
        """Forget results of the previous data plane that were not fetched."""
        self._handed_over.clear()

    def end(self, scheduler: bytes, request_id: str, why: str = "", *, counted: bool = True) -> None:
        """End the look-up of a request: release its leases, and cancel the loads that it waits for.

        `why`: cause, if its scheduler did not end it. `counted`: False if the request makes another look-up; this one
        then counts only if it was used.
        """
        self._handed_over.pop((scheduler, request_id), None)
        lookup = self._all.pop((scheduler, request_id), None)
        if lookup is None:
            return
        lease = lookup.lease
        if lease.taken_back:
            why = "taken_back"
        if why:
            self.ended[why] += 1
        lookups = self._of_scheduler[scheduler]
        del lookups[request_id]
        if not lookups:
            del self._of_scheduler[scheduler]
        by_scheduler = self._of_request[request_id]
        del by_scheduler[scheduler]
        if not by_scheduler:
            del self._of_request[request_id]
        if lookup.tiers is not None:
            lookup.tiers.cancel()
        self._leases.discard(lease)
        for lock in lease.locks.values():
            descriptors = lock.held()
            if descriptors:
                self._cache.release(lease.client, descriptors)
                if why:
                    self._broken[lease.client, why] += len(descriptors)
        lease.locks.clear()
        if counted or lookup.used:
            self._count(lookup)

    def _count(self, lookup: LeasedLookup) -> None:
        now = self._clock()
        tier_hits = max(0, lookup.used - lookup.in_memory)
        self._counters.moved.looked_up(lookup.requested, lookup.used_hits, tier_hits)
        self._cache.looked_up(lookup.tenant, lookup.space, lookup.requested, lookup.used_hits, now)
        record = lookup.record(SCHEDULER, now)
        if record is not None:
            self._cache.keep_request(lookup.lease.client, lookup.space, record)

    def end_scheduler(self, scheduler: bytes) -> None:
        """End all look-ups of a scheduler that is gone."""
        for request_id in list(self._of_scheduler.get(scheduler, ())):
            self.end(scheduler, request_id, "disconnected")

    def take_broken(self) -> Counter[tuple[int, str]]:
        """Return the numbers of blocks that look-ups held when they ended without their scheduler, by client and cause,
        since the last call."""
        for client, blocks in self._leases.taken_back.items():
            self._broken[client, "taken_back"] += blocks
        self._leases.taken_back.clear()
        broken, self._broken = self._broken, Counter()
        return broken

    def free(self, lookup: LeasedLookup, start: int, end: int) -> list[list[int]]:
        """Release the chunks from token `start` to token `end` in all spaces. Return the descriptors by space."""
        freed = [
            self._release_chunks(lookup, space, start, end, all_readers=True) for space in list(lookup.lease.locks)
        ]
        lookup.declined |= any(freed) and not lookup.lease.locks
        self._end_if_done(lookup)
        return [descriptors for descriptors in freed if descriptors]

    def read(self, request_id: str, keys: bytes, space: int, start: int, end: int, *, copied: bool) -> None:
        """Record the end of a worker's read of chunks of a request in its space. `copied`: whether it succeeded.

        Each look-up that holds the chunks then waits for one reader fewer.
        """
        for lookup in list(self._of_request.get(request_id, {}).values()):
            if lookup.keys.startswith(keys) or keys.startswith(lookup.keys):
                if copied:
                    lookup.used = max(lookup.used, min(lookup.hits, -(-end // CHUNK_TOKENS)))
                    first = start // CHUNK_TOKENS
                    lookup.first_read = first if lookup.first_read is None else min(lookup.first_read, first)
                self._release_chunks(lookup, space, start, end, all_readers=False)
                self._end_if_done(lookup)

    def expire(self, now: float) -> None:
        """End look-ups whose deadline has passed."""
        for key in list(self._expired(now)):
            self.end(*key, "expired")

    def _expired(self, now: float) -> Iterator[tuple[bytes, str]]:
        for key, lookup in self._all.items():
            if lookup.deadline > now:
                return
            yield key

    def _release_chunks(
        self, lookup: LeasedLookup, space: int, start: int, end: int, *, all_readers: bool
    ) -> list[int]:
        lock = lookup.lease.locks.get(space)
        if lock is None:
            return []
        released = []
        for at in range(max(start, 0) // CHUNK_TOKENS, min(-(-end // CHUNK_TOKENS), len(lock.readers))):
            if lock.readers[at]:
                lock.readers[at] = 0 if all_readers else lock.readers[at] - 1
                if not lock.readers[at]:
                    released.append(lock.descriptors[at])
        if released:
            self._cache.release(lookup.lease.client, released)
            if not any(lock.readers):
                del lookup.lease.locks[space]
        return released

    def _end_if_done(self, lookup: LeasedLookup) -> None:
        if not lookup.lease.locks and not lookup.waiting:
            self.end(lookup.scheduler, lookup.request_id)


def is_recorded(request_id: str) -> bool:
    """Return whether a request with this id can have a record."""
    return 1 <= len(request_id) <= MAX_REQUEST_ID_CHARACTERS


def save_results(folder: Path, results: dict[tuple[bytes, str], int]) -> None:
    """Write the hits of look-ups, by connection and request. Results that cannot be written become misses."""
    if not results:
        return
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / RESULTS).write_bytes(msgspec.msgpack.encode([(*key, hits) for key, hits in results.items()]))


def load_results(folder: Path) -> dict[tuple[bytes, str], int]:
    """Return the results that the previous data plane saved; empty if none can be read."""
    try:
        saved = _decoder.decode((folder / RESULTS).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return {(connection, request): hits for connection, request, hits in saved[:MAX_LOOKUPS]}


def delete_results(folder: Path) -> None:
    """Delete the saved results. Call once the gateway listens, because another start has to find them until then."""
    with suppress(OSError):
        (folder / RESULTS).unlink(missing_ok=True)
