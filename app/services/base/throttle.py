"""Throttles attempts of callers, such as failed authentication by address: a burst, then so many per second, in bounded
memory."""

import ipaddress

from cachetools import LRUCache

BURST = 10.0
PER_SECOND = 1.0
MAX_SOURCES = 4096


class Throttle:
    """Counts attempts by address, or by another key of the caller."""

    def __init__(self, burst: float = BURST, per_second: float = PER_SECOND, max_sources: int = MAX_SOURCES) -> None:
        self._burst = burst
        self._per_second = per_second
        self._tokens: LRUCache[str, tuple[float, float]] = LRUCache(max_sources)

    def count(self, source: str, now: float) -> float:
        """Count an attempt at monotonic time `now`. Return the seconds to wait before the next attempt; 0 if this
        attempt is still allowed."""
        key = address_block(source)
        tokens, at = self._tokens.get(key, (self._burst, now))
        tokens = min(self._burst, tokens + (now - at) * self._per_second)
        allowed = tokens >= 1
        tokens -= 1 if allowed else 0
        self._tokens[key] = (tokens, now)
        return 0.0 if allowed else (1 - tokens) / self._per_second


def address_block(source: str) -> str:
    """Return the key under which an address is counted. For IPv6, this is its /64 network, because a client can
    use every address of that network."""
    if ":" not in source:
        return source
    try:
        address = ipaddress.IPv6Address(source)
    except ValueError:
        return source
    mapped = address.ipv4_mapped
    return str(mapped or ipaddress.IPv6Network((address, 64), strict=False))
