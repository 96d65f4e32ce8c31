"""Places for answers that stay open: streams, and requests that wait. So many for a token, for a browser's session and
for an address, so that none of them can take what all the others need."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from app.errors import TooManyRequests
from app.services.callers import LOCAL, Caller
from app.services.throttle import neighbourhood

RETRY_AFTER_S = 5.0


@dataclass(frozen=True)
class Most:
    """How many there are."""

    token: int
    session: int
    address: int


class Places:
    """`taken` for as long as one is held."""

    def __init__(self, most: Most) -> None:
        self._most = most
        self._taken: Counter[tuple[str, str]] = Counter()

    @property
    def held(self) -> int:
        """Keys of tokens, sessions and addresses that hold any."""
        return len(self._taken)

    @contextmanager
    def taken(self, by: Caller) -> Iterator[None]:
        """Raises TooManyRequests."""
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

    def _bounds(self, by: Caller) -> Iterator[tuple[tuple[str, str], int, str]]:
        """Who holds a place that this caller takes, how many they may, and their name in a sentence."""
        if by.session_hash:
            yield ("session", by.session_hash), self._most.session, "of this session"
        if by.actor != LOCAL:
            yield ("token", by.token_id or by.actor), self._most.token, f"of the token {by.actor!r}"
        if by.source:
            address = neighbourhood(by.source)
            yield ("address", address), self._most.address, f"from {address}"
