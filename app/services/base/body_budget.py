"""Bounds the memory of request bodies that are under way, for all callers together and for each caller."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from app.errors import ServerBusy, TooManyRequests

RETRY_AFTER_S = 1.0
FREE_BYTES = 16 * 1024
"""Bytes of each body that do not count: small requests are served also while large ones use the budget up."""
SHARE = 4
"""A caller that sends several bodies at once may use one part in SHARE of the budget. A single body may use all of
it."""
TOGETHER = 0.75
"""Bodies of several callers may use this part of the budget."""


class BodyBudget:
    """Counts the bytes of bodies from their arrival until the end of their requests."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._share = budget_bytes // SHARE
        self._used = 0
        self._bytes_by_caller: Counter[str] = Counter()

    @property
    def used_bytes(self) -> int:
        return self._used

    @contextmanager
    def body(self, caller: str) -> Iterator["CountedBody"]:
        """Count one body of a caller, for the duration of the block."""
        counted = CountedBody(self, caller)
        try:
            yield counted
        finally:
            self._take(caller, -counted.counted_bytes)

    def add(self, body: "CountedBody", nbytes: int) -> None:
        """Count more bytes of a body. Raises TooManyRequests, ServerBusy."""
        alone = self._used == body.counted_bytes
        limit = self._budget if alone else int(self._budget * TOGETHER)
        if self._used + nbytes > limit:
            raise ServerBusy(
                f"request bodies of {self._used:,} bytes are under way, and the server holds at most "
                f"{limit:,} of them (app.body_budget_bytes); try again in a moment",
                retry_after_s=RETRY_AFTER_S,
            )
        other_bytes = self._bytes_by_caller[body.caller] - body.counted_bytes
        if other_bytes and self._bytes_by_caller[body.caller] + nbytes > self._share:
            raise TooManyRequests(
                f"{other_bytes:,} bytes of other request bodies of yours are under way; several may have "
                f"{self._share:,} bytes together: send one after the other",
                retry_after_s=RETRY_AFTER_S,
            )
        self._take(body.caller, nbytes)
        body.counted_bytes += nbytes

    def _take(self, caller: str, nbytes: int) -> None:
        self._used += nbytes
        self._bytes_by_caller[caller] += nbytes
        if not self._bytes_by_caller[caller]:
            del self._bytes_by_caller[caller]


class CountedBody:
    """The bytes of one body. The first FREE_BYTES are not counted."""

    def __init__(self, budget: BodyBudget, caller: str) -> None:
        self._budget = budget
        self.caller = caller
        self._received = 0
        self.counted_bytes = 0

    def received(self, nbytes: int) -> None:
        """Count bytes that have arrived. Raises TooManyRequests, ServerBusy."""
        self._received += nbytes
        if extra_bytes := max(0, self._received - FREE_BYTES) - self.counted_bytes:
            self._budget.add(self, extra_bytes)
