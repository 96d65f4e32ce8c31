"""Limits responses that stay open: streams and waiting requests. A token, a browser session and an address each have a
limit, so that none of them can exhaust the resources of all others."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from app.errors import TooManyRequests
from app.services.base.fair_limiter import Bounds, FairLimiter
from app.services.base.principals import LOCAL, Principal
from app.services.base.throttle import address_block

RETRY_AFTER_S = 5.0


class ConcurrencyLimiter:
    """Counts open responses; `taken` holds a place."""

    def __init__(self, *, token: int, session: int, address: int) -> None:
        """Takes the largest numbers of open responses, by kind of holder."""
        self._limits = {"token": token, "session": session, "address": address}
        self._limiters = {
            kind: FairLimiter(kind, Bounds(each_at_once=at_once)) for kind, at_once in self._limits.items()
        }

    @property
    def in_use(self) -> int:
        """Number of tokens, sessions and addresses that hold at least one place."""
        return sum(limiter.callers for limiter in self._limiters.values())

    @contextmanager
    def taken(self, by: Principal) -> Iterator[None]:
        """Hold a place for the duration of the block. Raises TooManyRequests."""
        with ExitStack() as in_use:
            for kind, holder, description in _holders(by):
                if not self._limiters[kind].begin(holder):
                    raise TooManyRequests(
                        f"{self._limits[kind]} streams and waiting requests {description} are open already "
                        f"(app.streams_per_{kind}); close some of them first",
                        retry_after_s=RETRY_AFTER_S,
                    )
                in_use.callback(self._limiters[kind].end, holder)
            yield


def _holders(by: Principal) -> Iterator[tuple[str, str, str]]:
    """Yield the kind, the name and the description of each holder that this caller counts for."""
    if by.session_hash:
        yield "session", by.session_hash, "of this session"
    if by.actor != LOCAL:
        yield "token", by.token_id or by.actor, f"of the token {by.actor!r}"
    if by.source:
        address = address_block(by.source)
        yield "address", address, f"from {address}"
