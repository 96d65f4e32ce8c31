"""Limits responses that stay open: streams and waiting requests. A token, a browser session and an address each have a
limit, so that none of them can exhaust the resources of all others."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from app.errors import TooManyRequests
from app.services.base.principals import LOCAL, Principal
from app.services.base.throttle import neighbourhood

RETRY_AFTER_S = 5.0


@dataclass(frozen=True)
class ConcurrencyLimits:
    """Largest numbers of open responses, by kind of holder."""

    token: int
    session: int
    address: int


class ConcurrencyLimiter:
    """Counts open responses; `taken` holds a place."""

    def __init__(self, most: ConcurrencyLimits) -> None:
        self._most = most
        self._taken: Counter[tuple[str, str]] = Counter()

    @property
    def held(self) -> int:
        """Number of tokens, sessions and addresses that hold at least one place."""
        return len(self._taken)

    @contextmanager
    def taken(self, by: Principal) -> Iterator[None]:
        """Hold a place for the duration of the block. Raises TooManyRequests."""
        keys = [key for key, _, _ in self._bounds(by)]
        for key, most, whose in self._bounds(by):
            if self._taken[key] >= most:
                raise TooManyRequests(
                    f"{most} streams and waiting requests {whose} are open already "
                    f"(app.streams_per_{key[0]}); close some of them first",
                    retry_after_s=RETRY_AFTER_S,
                )
        self._taken.update(keys)
        try:
            yield
        finally:
            for key in keys:
                self._taken[key] -= 1
                if not self._taken[key]:
                    del self._taken[key]

    def _bounds(self, by: Principal) -> Iterator[tuple[tuple[str, str], int, str]]:
        """Yield the key of each holder that this caller counts for, its limit, and its description for messages."""
        if by.session_hash:
            yield ("session", by.session_hash), self._most.session, "of this session"
        if by.actor != LOCAL:
            yield ("token", by.token_id or by.actor), self._most.token, f"of the token {by.actor!r}"
        if by.source:
            address = neighbourhood(by.source)
            yield ("address", address), self._most.address, f"from {address}"
