"""The queue of requests for loads. The engines take turns, and no engine can take all places.

An engine may add a request while it has fewer than there are free places. It therefore takes at most half of the places
that the others leave free. A few requests of each engine always have a place.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

MAX_WAITING_REQUESTS = 1024
OWN_ENTRIES = 4
"""Number of requests of each engine that always have a place."""


@dataclass(eq=False, slots=True)
class LoadRequest:
    """The rest of a chain that an engine waits for."""

    client: int
    space: int
    keys: list[bytes]
    deadline: float
    at: int = 0
    """Position of the first key that has not been planned."""
    tenant: str | None = None
    """Only blocks of this tenant are loaded; None for all."""


class LoadQueue:
    """The requests of all engines: those that can be planned, in this order, and those that wait for answers of
    tiers."""

    def __init__(self) -> None:
        self._ready: OrderedDict[int, deque[LoadRequest]] = OrderedDict()
        """Requests that can be planned, by engine; the first engine is next."""
        self._asking: list[LoadRequest] = []
        self._counts: dict[int, int] = {}
        """Number of requests of each engine."""
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def __contains__(self, request: LoadRequest) -> bool:
        return request in self._ready.get(request.client, ()) or request in self._asking

    def has_room(self, client: int) -> bool:
        """Return whether an engine may add a request."""
        return self._counts.get(client, 0) < max(OWN_ENTRIES, MAX_WAITING_REQUESTS - self._total)

    def has_only(self, client: int) -> bool:
        """Return whether no other engine has a request."""
        return self._counts.get(client, 0) == self._total

    def add(self, request: LoadRequest) -> None:
        """Add a request behind the others of its engine."""
        self._total += 1
        self._counts[request.client] = self._counts.get(request.client, 0) + 1
        self._ready.setdefault(request.client, deque()).append(request)

    def remove(self, request: LoadRequest) -> bool:
        """Remove a request. Return False if it is not in the queue."""
        if request in self._asking:
            self._asking.remove(request)
        elif not self._take(request):
            return False
        self._total -= 1
        self._counts[request.client] -= 1
        if not self._counts[request.client]:
            del self._counts[request.client]
        return True

    def end_turn(self, client: int) -> None:
        """Let the other engines plan their requests before the next one of this engine."""
        if client in self._ready:
            self._ready.move_to_end(client)

    def set_aside(self, request: LoadRequest) -> None:
        """Set aside a request that can be planned, until a tier has answered."""
        self._take(request)
        self._asking.append(request)

    def _take(self, request: LoadRequest) -> bool:
        """Remove a request from those that can be planned. Return False if it is not one of them."""
        requests = self._ready.get(request.client, deque())
        if request not in requests:
            return False
        requests.remove(request)
        if not requests:
            del self._ready[request.client]
        return True

    def take_asking(self) -> list[LoadRequest]:
        """Remove and return the requests that were set aside. Give each back with `ask_again` or `answered`."""
        asking, self._asking = self._asking, []
        return asking

    def ask_again(self, request: LoadRequest) -> None:
        """Set a request aside again."""
        self._asking.append(request)

    def answered(self, request: LoadRequest) -> None:
        """Return a request that was set aside to those that can be planned."""
        self._ready.setdefault(request.client, deque()).append(request)

    def engine_gone(self, client: int) -> int:
        """Remove the requests of an engine, and return their number."""
        self._ready.pop(client, None)
        self._asking = [request for request in self._asking if request.client != client]
        count = self._counts.pop(client, 0)
        self._total -= count
        return count

    def of(self, client: int) -> Iterator[LoadRequest]:
        """Iterate over the requests of an engine. The queue must not change meanwhile."""
        yield from self._ready.get(client, ())
        yield from (request for request in self._asking if request.client == client)

    def ready(self) -> Iterator[LoadRequest]:
        """Iterate over the requests that can be planned, the next one first. The queue must not change meanwhile."""
        return chain.from_iterable(self._ready.values())
