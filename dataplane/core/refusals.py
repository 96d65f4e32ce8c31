"""Refusals that still stand: a search of a large pool that found nothing need not be repeated while nothing changed.

What was refused for want of room can be served once a slot or segment was given back, a block became evictable, or what
an account may lose changed: all of that moves a stamp. Leases end without a word, so their counters are read: whatever
was held or spared then must be so now.
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
class Refusal:
    """One search that ended with nothing."""

    code: Code
    stamp: Hashable
    blocked: Flags
    """Descriptors that the search left alone: somebody held them, or it was told to spare them."""
    evicted: int = 0
    """Blocks that were evicted before it."""


class Refusals:
    """The last refusal of each kind of request."""

    def __init__(self) -> None:
        self._by_request: dict[Hashable, Refusal] = {}

    def remember(self, request: Hashable, refusal: Refusal) -> None:
        self._by_request.pop(request, None)
        self._by_request[request] = refusal
        if len(self._by_request) > MAX_REFUSALS:
            del self._by_request[next(iter(self._by_request))]

    def of(self, request: Hashable, stamp: Hashable) -> Refusal | None:
        """The refusal of such a request, if nothing but leases can have changed since."""
        refusal = self._by_request.get(request)
        if refusal is None or refusal.stamp == stamp:
            return refusal
        del self._by_request[request]
        return None

    def stands(self, refusal: Refusal, blocked: Flags) -> bool:
        """Whether everything that was blocked is blocked now; when some bytes were not, nothing more may be either."""
        if refusal.code is Code.POOL_FULL:
            return not (refusal.blocked & ~blocked).any()
        return bool((refusal.blocked == blocked).all())
