"""Look-ups of requests and the leases that they took: one set for each request of a scheduler, however often it asks.

A look-up leases what it found at once, in every rank's space, so that it is there when the workers come for it. The
leases end when every reader of a block committed, when the scheduler frees them or ends the request, when it is gone,
or after a time. How many look-ups are kept is bounded; the oldest one ends for a new one.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from dataplane.transport.lmcache.chains import CHUNK_TOKENS

LEASE_TTL_S = 300.0
"""Leases of a look-up that nobody comes for."""
MAX_LOOKUPS = 32_768
MAX_LOOKUPS_PER_SCHEDULER = 4096

LetGo = Callable[[int, Sequence[int]], None]


@dataclass(slots=True)
class Lock:
    """Leased blocks of one space, by chunk number from the start of the request."""

    descriptors: list[int]
    readers: list[int]
    """Workers that have yet to read each block; 0 once it is let go."""


@dataclass(eq=False, slots=True)
class Lookup:
    """What one request of one scheduler found and holds."""

    scheduler: bytes
    request_id: str
    client: int
    """The core's engine in whose area it holds."""
    keys: bytes
    """Packed keys of what it asked for."""
    hits: int
    deadline: float
    waiting: bool = True
    """Its result was not asked for yet."""
    locks: dict[int, Lock] = field(default_factory=dict)
    """By space number."""


class Sessions:
    """All look-ups that hold something or whose result is waited for, the oldest first."""

    def __init__(
        self,
        let_go: LetGo,
        max_lookups: int = MAX_LOOKUPS,
        max_per_scheduler: int = MAX_LOOKUPS_PER_SCHEDULER,
    ) -> None:
        self._let_go = let_go
        self._max_lookups = max_lookups
        self._max_per_scheduler = max_per_scheduler
        self._all: OrderedDict[tuple[bytes, str], Lookup] = OrderedDict()
        self._of_scheduler: dict[bytes, OrderedDict[str, Lookup]] = {}
        self._of_request: dict[str, dict[bytes, Lookup]] = {}
        self.ended: Counter[str] = Counter()
        """Look-ups that ended without their scheduler: `expired`, `crowded_out`, `disconnected`."""

    def __len__(self) -> int:
        return len(self._all)

    def find(self, scheduler: bytes, request_id: str) -> Lookup | None:
        return self._all.get((scheduler, request_id))

    def begin(self, lookup: Lookup) -> None:
        """Keep a look-up in place of the one before of the same request."""
        self.end(lookup.scheduler, lookup.request_id)
        own = self._of_scheduler.setdefault(lookup.scheduler, OrderedDict())
        if len(own) >= self._max_per_scheduler:
            self.ended["crowded_out"] += 1
            self.end(lookup.scheduler, next(iter(own)))
            own = self._of_scheduler.setdefault(lookup.scheduler, OrderedDict())
        elif len(self._all) >= self._max_lookups:
            self.ended["crowded_out"] += 1
            self.end(*next(iter(self._all)))
            own = self._of_scheduler.setdefault(lookup.scheduler, OrderedDict())
        self._all[lookup.scheduler, lookup.request_id] = lookup
        own[lookup.request_id] = lookup
        self._of_request.setdefault(lookup.request_id, {})[lookup.scheduler] = lookup

    def take_result(self, scheduler: bytes, request_id: str) -> int:
        """The hits of a look-up, once; 0 when nobody asked, or it was told before."""
        lookup = self._all.get((scheduler, request_id))
        if lookup is None or not lookup.waiting:
            return 0
        lookup.waiting = False
        if not lookup.locks:
            self.end(scheduler, request_id)
        return lookup.hits

    def end(self, scheduler: bytes, request_id: str) -> None:
        """A request is over: let go what its look-up holds."""
        lookup = self._all.pop((scheduler, request_id), None)
        if lookup is None:
            return
        own = self._of_scheduler[scheduler]
        del own[request_id]
        if not own:
            del self._of_scheduler[scheduler]
        same = self._of_request[request_id]
        del same[scheduler]
        if not same:
            del self._of_request[request_id]
        for lock in lookup.locks.values():
            left = [each for each, readers in zip(lock.descriptors, lock.readers, strict=True) if readers]
            if left:
                self._let_go(lookup.client, left)
        lookup.locks.clear()

    def end_scheduler(self, scheduler: bytes) -> None:
        """A scheduler is gone."""
        for request_id in list(self._of_scheduler.get(scheduler, ())):
            self.ended["disconnected"] += 1
            self.end(scheduler, request_id)

    def free(self, lookup: Lookup, start: int, end: int) -> list[list[int]]:
        """Let go chunks from token `start` to token `end` in all spaces; what was let go, space by space."""
        freed = [self._release(lookup, space, start, end, all_readers=True) for space in list(lookup.locks)]
        self._end_if_done(lookup)
        return [each for each in freed if each]

    def read(self, request_id: str, keys: bytes, space: int, start: int, end: int) -> None:
        """A worker read chunks of a request in its space: one reader less of each look-up that holds them for it."""
        for lookup in list(self._of_request.get(request_id, {}).values()):
            if lookup.keys.startswith(keys) or keys.startswith(lookup.keys):
                self._release(lookup, space, start, end, all_readers=False)
                self._end_if_done(lookup)

    def expire(self, now: float) -> None:
        """End look-ups whose time is up."""
        for key in list(self._expired(now)):
            self.ended["expired"] += 1
            self.end(*key)

    def _expired(self, now: float) -> Iterator[tuple[bytes, str]]:
        for key, lookup in self._all.items():
            if lookup.deadline > now:
                return
            yield key

    def _release(self, lookup: Lookup, space: int, start: int, end: int, *, all_readers: bool) -> list[int]:
        lock = lookup.locks.get(space)
        if lock is None:
            return []
        going = []
        for at in range(max(start, 0) // CHUNK_TOKENS, min(-(-end // CHUNK_TOKENS), len(lock.readers))):
            if lock.readers[at]:
                lock.readers[at] = 0 if all_readers else lock.readers[at] - 1
                if not lock.readers[at]:
                    going.append(lock.descriptors[at])
        if going:
            self._let_go(lookup.client, going)
            if not any(lock.readers):
                del lookup.locks[space]
        return going

    def _end_if_done(self, lookup: Lookup) -> None:
        if not lookup.locks and not lookup.waiting:
            self.end(lookup.scheduler, lookup.request_id)
