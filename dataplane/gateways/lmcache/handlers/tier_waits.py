"""Look-ups whose next chunks are in tiers behind memory.

Such a look-up requests the loads. It has no result until they have ended, or until the longest `load_deadline_s` of the
tiers in service has passed; its result is then the number of chunks in memory. The chunks that were in memory from the
start are held in the meantime. A look-up that ends before its result cancels the loads that have not begun.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from dataplane.core.inprocess import InProcess
from dataplane.core.tiering.jobs import LoadRequest
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.keys import KEY_BYTES

POLL_S = 0.005
MAX_ANSWERS = 1024
Later = Callable[[float, Callable[[], None]], object]


@dataclass(eq=False, slots=True)
class LookupTierWait:
    """The loads that a look-up waits for."""

    requests: list[LoadRequest]
    until: float
    spaces: list[int]
    """Spaces of every rank in every layout, as when the look-up began."""
    readers: int
    source: str
    """Where the first of the chunks is, of `dataplane.protocol.misses.SOURCES`."""
    cancel: Callable[[], None]
    """Cancels the loads that have not begun."""
    answered_later: bool = False
    """Whether the response to a request waits for the end of the loads."""


_Answer = tuple[LookupTierWait, float, Callable[[], None]]
"""A wait, the latest time of its answer, and what answers."""


class LookupTierWaits:
    """Asks for chunks that tiers hold, and reports when the loads have ended."""

    def __init__(self, cache: InProcess, clock: Callable[[], float], later: Later) -> None:
        """`later` calls a function after so many seconds."""
        self._cache = cache
        self._clock = clock
        self._later = later
        self._answers: list[_Answer] = []

    def request(self, client: int, spaces: list[int], keys: bytes, readers: int, now: float) -> LookupTierWait | None:
        """Ask for the chunks of a chain that are not in memory; None if the tiers do not hold the next one in every
        space."""
        tiering = self._cache.node.tiering
        if tiering is None:
            return None
        chain_reaches = [tiering.catalog.reach(space, keys) for space in spaces]
        reach = min(chain_reach.reach for chain_reach in chain_reaches)
        ready = min(chain_reach.ready for chain_reach in chain_reaches)
        if reach <= ready:
            return None
        until = now + max((tier.spec.load_deadline_s for tier in tiering.tiers if tier.serves), default=0.0)
        requests: list[LoadRequest] = []
        for space in spaces:
            try:
                request = tiering.loads.request(client, space, keys[: reach * KEY_BYTES], until)
            except ProtocolError:  # the core forgets empty spaces
                self._cancel(requests)
                return None
            if request is not None:
                requests.append(request)
        source = tiering.source_of(keys[ready * KEY_BYTES : (ready + 1) * KEY_BYTES], spaces[0])
        return LookupTierWait(requests, until, spaces, readers, source, partial(self._cancel, requests))

    def _cancel(self, requests: Sequence[LoadRequest]) -> None:
        tiering = self._cache.node.tiering
        if tiering is not None:
            for request in requests:
                tiering.loads.cancel(request)

    def ended(self, wait: LookupTierWait, now: float) -> bool:
        """Return whether no more blocks are to be loaded, or the wait has reached its limit."""
        tiering = self._cache.node.tiering
        return (
            tiering is None
            or now >= wait.until
            or not any(tiering.loads.under_way(request) for request in wait.requests)
        )

    def when_ended(self, wait: LookupTierWait, seconds: float, done: Callable[[], None]) -> bool:
        """Call `done` once `ended` holds, at the latest after `seconds`. Return False if it cannot wait:
        another answer waits for the same look-up, or MAX_ANSWERS wait."""
        if wait.answered_later or len(self._answers) >= MAX_ANSWERS:
            return False
        wait.answered_later = True
        if not self._answers:
            self._later(POLL_S, self._poll)
        self._answers.append((wait, self._clock() + seconds, done))
        return True

    def _poll(self) -> None:
        now = self._clock()
        due: list[_Answer] = []
        waiting: list[_Answer] = []
        for answer in self._answers:
            (due if now >= answer[1] or self.ended(answer[0], now) else waiting).append(answer)
        self._answers = waiting
        if waiting:
            self._later(POLL_S, self._poll)
        for wait, _, done in due:
            wait.answered_later = False
            done()
