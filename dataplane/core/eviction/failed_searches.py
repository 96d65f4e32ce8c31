"""Failed searches for room are remembered: one of a large pool is not repeated while nothing has changed.

A request that was refused for lack of room may succeed after a slot or segment was given back, a block became
evictable, or the bytes that an account may lose changed; each of these changes the version. Leases end without
notification, so their counters are read instead: a refusal stands only if the blocks that were leased or spared then
still are.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dataplane.protocol.codes import Code

MAX_REFUSALS = 64

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FailedSearch:
    """A search that could not make the requested room."""

    code: Code
    pool_version: Hashable
    blocked: Flags
    """Mask of the descriptors that the search skipped because they were leased or had to be spared."""
    evicted: int = 0
    """Total number of blocks that the pool had evicted before the search."""


class FailedSearches:
    """The last failed search for each kind of request."""

    def __init__(self) -> None:
        self._by_request: dict[Hashable, FailedSearch] = {}

    def remember(self, request: Hashable, refusal: FailedSearch) -> None:
        self._by_request.pop(request, None)
        self._by_request[request] = refusal
        if len(self._by_request) > MAX_REFUSALS:
            del self._by_request[next(iter(self._by_request))]

    def of(self, request: Hashable, pool_version: Hashable) -> FailedSearch | None:
        """Return the refusal of such a request if only leases can have changed since; otherwise None."""
        refusal = self._by_request.get(request)
        if refusal is None or refusal.pool_version == pool_version:
            return refusal
        del self._by_request[request]
        return None

    def stands(self, refusal: FailedSearch, blocked: Flags) -> bool:
        """Return whether a refusal still holds for the descriptors that are blocked now.

        For POOL_FULL, every descriptor that was blocked must still be blocked. For other codes, which depend on the
        evictable bytes, exactly the same descriptors must be blocked.
        """
        if refusal.code is Code.POOL_FULL:
            return not (refusal.blocked & ~blocked).any()
        return bool((refusal.blocked == blocked).all())
